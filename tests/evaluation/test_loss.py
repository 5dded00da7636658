"""Losses: sums over single texts computed by hand, whatever the batches, for every task."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.data.batch import IGNORED, Batch
from clearhead.data.layouts import halves, pack_batch
from clearhead.evaluation.loss import Loss, batches_loss, corpus_loss

from ..decoding.bundles import ENGLISH, FRENCH, labeller, translator, writer

PAIRS = [*zip(ENGLISH, FRENCH, strict=True), ("the cat", ""), ("", "un chat")]


def log_p(bundle: Bundle, *inputs: list[int]) -> torch.Tensor:
    """(…, V) for one text alone, in the model's own precision."""
    with torch.no_grad():
        return bundle.model(*(torch.tensor([ids]) for ids in inputs)).logits[0].double().log_softmax(-1)


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent"])
@pytest.mark.parametrize("separate", [False, True])
def test_translation(family: str, separate: bool) -> None:
    bundle = translator(separate, family=family)
    reader, target_side = bundle.source_tokenizer or bundle.tokenizer, bundle.tokenizer
    nats, correct, tokens = 0.0, 0, 0
    for source, target in PAIRS:
        ids = target_side.encode(target)
        scores = log_p(bundle, [*reader.encode(source), 2], [1, *ids])
        for row, label in zip(scores, [*ids, 2], strict=True):
            nats -= float(row[label])
            correct += int(row.argmax()) == label
            tokens += 1
    for room in (10_000, 9):
        found = corpus_loss(bundle, PAIRS, batch_tokens=room)
        assert found.nats == pytest.approx(nats, rel=1e-5)
        assert (found.tokens, found.correct) == (tokens, correct)
    text = "".join(target for _, target in PAIRS)
    assert (found.characters, found.bytes) == (len(text), len(text.encode()))
    assert found.per_token == pytest.approx(nats / tokens, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / found.bytes, rel=1e-5)


def test_an_untrained_guess_costs_the_logarithm_of_the_vocabulary() -> None:
    bundle = translator()
    with torch.no_grad():
        bundle.model.output.weight.zero_()
        bundle.model.output.bias.zero_()
    found = corpus_loss(bundle, PAIRS)
    assert found.perplexity == pytest.approx(bundle.tokenizer.vocabulary_size)


def test_a_long_text_in_chunks() -> None:
    bundle, chance = writer(), random.Random(0)
    lines = ["".join(chance.choices("abcdefgh ", k=chance.randint(1, 30))) + "\n" for _ in range(9)]
    rows = [("", line) for line in lines]
    stream = [1, *bundle.tokenizer.encode("".join(lines))]
    nats = 0.0
    for begin in range(0, len(stream) - 1, 7):
        piece = stream[begin : begin + 8]
        scores = log_p(bundle, piece[:-1])
        nats -= sum(float(row[label]) for row, label in zip(scores, piece[1:], strict=True))
    for room in (1000, 8):
        found = corpus_loss(bundle, rows, context=7, batch_tokens=room)
        assert found.nats == pytest.approx(nats, rel=1e-5)
        assert found.tokens == len("".join(lines)) == found.characters
        assert found.per_character == found.per_token
    for stride in (1, 3, 6, 7):  # each token once, in the first window that holds it
        nats, done = 0.0, 0
        for begin in range(0, len(stream), stride):
            piece = stream[begin : begin + 8]
            if begin + len(piece) - 1 > done:
                scores = log_p(bundle, piece[:-1])
                labels = list(enumerate(piece[1:]))[done - begin :]
                nats -= sum(float(scores[place][label]) for place, label in labels)
                done = begin + len(piece) - 1
        found = corpus_loss(bundle, rows, context=7, stride=stride, batch_tokens=20)
        assert (found.tokens, done) == (len(stream) - 1,) * 2
        assert found.nats == pytest.approx(nats, rel=1e-5)
    with pytest.raises(UserError, match="Windows of 7 tokens need a stride of 1 to 7; it is 8"):
        corpus_loss(bundle, rows, context=7, stride=8)
    with pytest.raises(UserError, match="A stride is for models that continue a text"):
        corpus_loss(translator(), PAIRS, stride=3)
    longer = corpus_loss(bundle, rows)  # as many tokens at a time as there are positions
    assert longer.tokens == found.tokens
    assert longer.nats != pytest.approx(found.nats, rel=1e-5)


def test_documents_begin_and_end() -> None:
    bundle = writer(position__name="rotary")
    rows = [("", "abc"), ("", "de")]
    found = corpus_loss(bundle, rows, documents=True)
    stream = [1, *bundle.tokenizer.encode("abc"), 2, 1, *bundle.tokenizer.encode("de"), 2]
    scores = log_p(bundle, stream[:-1])
    pairs = [(i, label) for i, (_, label) in enumerate(pairwise(stream)) if label != 1]
    assert found.nats == pytest.approx(-sum(float(scores[i][label]) for i, label in pairs), rel=1e-5)
    assert found.tokens == 7


def test_classes_and_tags() -> None:
    bundle = labeller("classify", ["x", "y", "z"])
    rows = [(text, "xyz"[i % 3]) for i, text in enumerate(ENGLISH)]
    wanted = sum(-float(log_p(bundle, [1, *bundle.tokenizer.encode(t)])["xyz".index(c)]) for t, c in rows)
    found = corpus_loss(bundle, rows, batch_tokens=10)
    assert found.nats == pytest.approx(wanted, rel=1e-5)
    assert found.tokens == len(rows)
    with pytest.raises(UserError, match="'w' is not one of the model's labels"):
        corpus_loss(bundle, [("the cat", "w")])

    bundle = labeller("tag", ["x", "y"])
    rows = [(text, " ".join("xy"[len(word) % 2] for word in text.split())) for text in ENGLISH]
    wanted = 0.0
    for text, tags in rows:
        scores = log_p(bundle, bundle.tokenizer.encode(text))
        wanted -= sum(float(row["xy".index(t)]) for row, t in zip(scores, tags.split(), strict=True))
    found = corpus_loss(bundle, rows, batch_tokens=10)
    assert found.nats == pytest.approx(wanted, rel=1e-5)
    assert found.tokens == sum(len(text.split()) for text in ENGLISH)
    with pytest.raises(UserError, match="2 words but 1 tags"):
        corpus_loss(bundle, [("the cat", "x")])


def test_padding_rows_and_packing_change_nothing() -> None:
    bundle = translator()
    source, inputs = torch.tensor([[4, 5, 2], [6, 2, 0], [0, 0, 0]]), torch.tensor([[1, 7], [1, 0], [0, 0]])
    labels = torch.tensor([[7, 2], [2, IGNORED], [IGNORED, IGNORED]])
    lengths = torch.tensor([3, 2, 0]), torch.tensor([2, 1, 0])
    batch = Batch.of(
        source=source, source_lengths=lengths[0], inputs=inputs, lengths=lengths[1], labels=labels, rows=2
    )
    assert batch.tokens == 3
    wanted = -float(log_p(bundle, [4, 5, 2], [1, 7])[[0, 1], [7, 2]].sum() + log_p(bundle, [6, 2], [1])[0, 2])
    for each in ([batch], [pack_batch(batch)], list(halves(batch))):
        found = batches_loss(bundle.model, each)
        assert found.nats == pytest.approx(wanted, rel=1e-5)
        assert found.tokens == 3
    bundle.model.train()
    batches_loss(bundle.model, [batch])
    assert bundle.model.training


def test_what_is_not_known_is_not_a_number() -> None:
    empty = Loss(0.0, 0)
    assert all(math.isnan(x) for x in (empty.per_token, empty.per_character, empty.bits_per_byte))
    assert Loss(1e6, 1).perplexity == math.inf
    with pytest.raises(UserError, match="at least one"):
        corpus_loss(translator(), [])
