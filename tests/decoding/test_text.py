"""Texts through a bundle: translated, continued, classified, tagged, aligned."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding import (
    Alignment,
    Options,
    Writer,
    alignment,
    classify,
    draw_alignment,
    generate,
    stream,
    tag,
    translate,
)
from clearhead.decoding.alignment import END, _groups
from clearhead.decoding.backend import Symbols
from clearhead.decoding.batches import by_length
from clearhead.decoding.labels import class_probabilities, regress, unread_sentence
from clearhead.decoding.options import LengthPenalty
from clearhead.decoding.run import beam_search
from clearhead.decoding.score import score
from clearhead.nn.look import Look
from clearhead.text.tokenizer import Tokenizer

from .bundles import ENGLISH, build, labeller, shaken, translator, writer


def many(count: int = 23) -> list[str]:
    chance = random.Random(3)
    words = " ".join(ENGLISH).split()
    return [" ".join(chance.choices(words, k=chance.randint(1, 9))) for _ in range(count)]


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent", "decoder"])
def test_order_is_kept_and_batches_do_not_matter(beam: int, family: str) -> None:
    bundle, texts = translator(family=family), many()
    texts[4] = texts[9] = ""
    asked = Options(beam=beam)
    alone = [translate(bundle, [text], asked)[0] for text in texts]
    assert len({one.text for one in alone}) > 10, "the texts are all translated alike"
    for room in (10_000, 7, 1):
        found = [one for [one] in Writer(bundle, room=room).in_order(texts, asked)]
        assert [one.text for one in found] == [one.text for one in alone]
        for one, wanted in zip(found, alone, strict=True):
            assert one.score == pytest.approx(wanted.score, abs=1e-5)
            assert (one.tokens, one.stopped) == (wanted.tokens, wanted.stopped)
    assert found[4].text == ""
    assert found[4].tokens == ()


@pytest.mark.parametrize("separate", [False, True])
def test_a_translation_is_what_the_search_finds(separate: bool) -> None:
    bundle = translator(separate)
    reader = bundle.source_tokenizer if separate else bundle.tokenizer
    text = "the old cat sees one fish"
    source = torch.tensor([[*reader.encode(text), reader.stop]])
    symbols, penalty = Symbols.of(bundle.tokenizer), LengthPenalty(0.7)
    [[best, *_]] = beam_search(bundle.model, source, symbols=symbols, beams=4, penalty=penalty, max_length=6)
    [found] = translate(bundle, [text], Options(beam=4, length_penalty=0.7, max_length=6))
    assert found.text == bundle.tokenizer.decode(best.ids)
    assert found.tokens == tuple(bundle.tokenizer.token(id) for id in best.ids)
    assert found.score == pytest.approx(best.score, abs=1e-4)
    assert found.logp == pytest.approx(best.logp, abs=1e-4)


def test_a_decoder_translates_where_its_framing_has_a_source() -> None:
    bundle, texts = translator(family="decoder"), many(9)
    tokenizer = bundle.tokenizer
    for text, found in zip(texts, translate(bundle, texts), strict=True):
        prompt = [*tokenizer.encode(text), tokenizer.start]
        ids, logps = list(prompt), []
        with torch.no_grad():
            while ids[-1] != tokenizer.stop and len(logps) < 2 * len(prompt) + 20:
                scores = bundle.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
                scores[[tokenizer.pad, tokenizer.start]] = -torch.inf
                ids.append(int(scores.argmax()))
                logps.append(float(scores.max()))
        written = ids[len(prompt) :]
        assert found.text == tokenizer.decode([id for id in written if id != tokenizer.stop])
        if found.stopped:
            assert found.logp == pytest.approx(sum(logps), abs=1e-4)
            [again] = score(bundle, [(text, found.text)])
            assert again.logp == pytest.approx(found.logp, abs=1e-4)
        assert "".join(stream(bundle, text)) == found.text
    for options in (Options(beam=3), Options(sample=True, seed=4), Options(no_repeat=1)):
        found, general = (translate(bundle, texts, options, way=way) for way in ("auto", "torch"))
        assert [one.text for one in found] == [one.text for one in general]
    # No word stands twice; those of the source do not count.
    assert any(set(text.split()) & set(one.text.split()) for text, one in zip(texts, found, strict=True))
    with pytest.raises(UserError, match="cannot continue text"):
        generate(bundle, "the")
    del bundle.metadata["framing"]
    assert not Writer(bundle).has_source


def test_a_decoder_that_translates_keeps_positions_for_the_target() -> None:
    bundle = translator(family="decoder", position__name="learned", position__max_length=32)
    longest = Writer(bundle).longest
    assert longest + 2 * longest + 20 < 32
    bundle.metadata["reach"] = [[4, 6], [16, 12]]
    longest = Writer(bundle).longest
    assert 16 < longest < 32 - 12
    words = ["the", "cat", "sleeps"] * 10
    one, rest = (" ".join(part) for part in (words[: longest - 1], words[longest - 1 :]))
    [whole], [first] = translate(bundle, [" ".join(words)]), translate(bundle, [one])
    assert (whole.parts, first.parts) == (2, 1)
    assert whole.text == f"{first.text} {translate(bundle, [rest])[0].text}"


def test_a_model_in_training_goes_on_training() -> None:
    bundle = translator(dropout=0.5)
    wanted = translate(bundle, ENGLISH)
    bundle.model.train()
    assert translate(bundle, ENGLISH) == wanted
    assert bundle.model.training
    assert all(parameter.requires_grad for parameter in bundle.model.parameters())


def test_nothing_to_translate() -> None:
    assert translate(translator(), []) == []


def test_a_text_longer_than_the_positions() -> None:
    bundle = translator(position__name="learned", position__max_length=8)
    assert translate(bundle, ["the " * 7])[0].parts == 1  # and the stop symbol makes eight
    cat, seven, one, both = translate(bundle, ["cat", "the " * 7, "the", "the " * 8])
    assert (cat.parts, both.parts) == (1, 2)
    assert both.text == f"{seven.text} {one.text}"
    assert both.logp == pytest.approx(seven.logp + one.logp, abs=1e-3)
    [lines] = translate(bundle, ["the " * 7 + "\n\tthe"])  # what stood between parts stands between texts
    assert lines.text == f"{seven.text} \n\t{one.text}"
    assert "".join(stream(bundle, "the " * 7 + "\n\tthe")) == lines.text
    for stop in ("\n\t", lines.text[-3:], lines.text[1:3], " \n"):  # the first one of the whole text counts
        asked = Options(stop_texts=(stop, "zz"))
        assert "".join(stream(bundle, "the " * 7 + "\n\tthe", asked)) == lines.text.split(stop)[0]
        assert translate(bundle, ["the " * 7 + "\n\tthe"], asked)[0].text == lines.text.split(stop)[0]


@pytest.mark.parametrize("beam", [1, 2])
def test_a_text_of_which_only_the_head_is_read_is_marked(beam: int) -> None:
    bundle = translator()
    bundle.metadata["source_limit"] = 4  # the stop symbol included
    whole, cut, head = translate(
        bundle, ["the old cat", "the old cat sees", "a dog eats the"], Options(beam=beam)
    )
    assert (whole.source_read, whole.source_tokens) == (None, None)
    assert (cut.source_read, cut.source_tokens) == (3, 4)
    assert (head.source_read, head.source_tokens) == (3, 4)
    assert cut.text == whole.text
    labels = labeller("classify", ["a", "b"])
    assert unread_sentence(labels, ["the old cat sees"]) is None
    labels.metadata["source_limit"] = 4  # with the start symbol
    assert unread_sentence(labels, ["the old cat"], before=7) is None
    assert "line 9 has 4 tokens, and this model only reads the first 3" in str(
        unread_sentence(labels, ["the old cat", "the old cat sees"], before=7)
    )


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: translate(writer(), ["a"]), "cannot translate"),
        (lambda: translate(labeller("tag", ["a"]), ["a"]), "cannot translate"),
        (lambda: generate(translator(), "the"), "cannot continue"),
        (lambda: classify(translator(), ["the"]), "does not classify"),
        (lambda: regress(labeller("classify", ["a", "b"]), ["the"]), "does not give numbers"),
        (lambda: classify(labeller("number", []), ["the"]), "does not classify"),
        (lambda: translate(labeller("classify", ["a"], "encoder-decoder"), ["the"]), "cannot translate"),
        (
            lambda: generate(labeller("classify", ["a"], "decoder"), "the"),
            "labels texts and does not write any",
        ),
        (lambda: tag(labeller("classify", ["a", "b"]), ["the"]), "does not tag"),
        (lambda: alignment(writer(), "a"), "no source"),
        (lambda: alignment(translator(), " "), "empty text"),
        (lambda: alignment(translator(), "the", layer=2), "layers 0 to 1"),
        (lambda: generate(writer(), "a" * 24), "24 tokens.* 24"),
        (lambda: translate(translator(), ["the"], device="gpu"), "Unknown device"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call()


def test_a_bundle_without_tokenizer_or_labels() -> None:
    bundle = translator()
    bundle.tokenizer = None
    with pytest.raises(UserError, match="no tokenizer"):
        translate(bundle, ["the"])
    nameless = labeller("classify", ["a", "b"])
    nameless.metadata["labels"] = ["a"]
    with pytest.raises(UserError, match="does not name the 2 labels"):
        classify(nameless, ["the"])


@pytest.mark.parametrize("options", [Options(), Options(beam=3), Options(nbest=2, sample=True, seed=1)])
@pytest.mark.parametrize("prompt", ["the cat", "the ", "", "who sees"])
def test_words_stand_apart_from_the_prompt_however_they_are_found(options: Options, prompt: str) -> None:
    """Words have a space between them: the last of the prompt and the first new one, too."""
    tokenizer = Tokenizer.words(ENGLISH)
    model = shaken(build("tiny", family="decoder", vocabulary=tokenizer.vocabulary_size))
    bundle = Bundle(model, tokenizer, {"task": "generate"})
    text = generate(
        bundle, prompt, dataclasses.replace(options, max_length=6, min_length=1 if options.beam == 1 else 0)
    )
    known = {word for line in ENGLISH for word in line.split()}
    assert len(text.split()) > len(prompt.split())
    assert set(text.split()) <= known


def test_generation() -> None:
    bundle = writer()
    text = generate(bundle, "abc", Options(max_length=6))
    assert text.startswith("abc")
    assert text == generate(bundle, "abc", Options(max_length=6))
    ids = bundle.tokenizer.encode("abc")
    with torch.no_grad():
        while len(ids) < 9 and ids[-1] != 2:
            logits = bundle.model(torch.tensor([ids])).logits[0, -1]
            logits[[0, 1]] = -torch.inf
            ids.append(int(logits.argmax()))
    assert text == bundle.tokenizer.decode(ids)
    drawn = [Options(sample=True, temperature=2.0, max_length=12, seed=seed) for seed in range(4)]
    warm = {generate(bundle, "abc", asked) for asked in drawn}
    assert len(warm) > 1
    assert generate(bundle, "abc", drawn[1]) in warm
    assert len(generate(bundle, "abc", Options(max_length=999))) <= 24  # it ends where its positions do
    first = bundle.model(torch.tensor([bundle.tokenizer.encode("\n")])).logits[0, -1]
    first[[0, 1, 2]] = -torch.inf
    begun = generate(bundle, "", Options(max_length=1, min_length=1))
    assert begun == bundle.tokenizer.decode([int(first.argmax())])  # a model of one text begins on a new line
    bundle.metadata["documents"] = True
    first = bundle.model(torch.tensor([[bundle.tokenizer.start]])).logits[0, -1]
    first[[0, 1, 2]] = -torch.inf
    assert generate(bundle, "", Options(max_length=1, min_length=1)) == bundle.tokenizer.decode(
        [int(first.argmax())]
    )


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_classes(pooling: str) -> None:
    bundle = labeller("classify", ["good", "bad", "neither"], head__pooling=pooling)
    texts = [*many(), ""]
    found = classify(bundle, texts, batch_tokens=30)
    assert {name for name, _ in found} <= {"good", "bad", "neither"}
    for text, (name, share) in zip(texts, found, strict=True):
        with torch.no_grad():
            ids = torch.tensor([[1, *bundle.tokenizer.encode(text)]])
            wanted = bundle.model(ids).logits[0].softmax(-1)
        assert share == pytest.approx(float(wanted.max()), abs=1e-5)
        assert name == ["good", "bad", "neither"][int(wanted.argmax())]
    for shares in class_probabilities(bundle, texts):
        assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("kind", ["classify", "number"])
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
def test_one_text_or_two_get_a_class_or_a_number_in_every_family(family: str, kind: str, two: bool) -> None:
    bundle = labeller(kind, ["good", "bad"], family, two)
    words = bundle.tokenizer.encode
    some = many()
    texts = list(zip(some, reversed(some), strict=True)) if two else some
    found = (regress if kind == "number" else class_probabilities)(bundle, texts, batch_tokens=40)
    wanted = []
    for text in texts:
        ids, segments = [1, *words(text[0] if two else text)], None
        ids += [] if family == "encoder" and not two else [2]
        if two:
            segments = [0] * len(ids) + [1] * (len(words(text[1])) + 1)
            ids += [*words(text[1]), 2]
        row = torch.tensor([ids])
        types = torch.tensor([segments]) if two and family == "encoder" else None
        with torch.no_grad():
            if family == "encoder":
                logits = bundle.model(row, token_types=types).logits[0]
            else:
                logits = bundle.model(*[row] * (1 if family == "decoder" else 2)).logits[0]
        wanted.append(10 + 2 * float(logits) if kind == "number" else logits.softmax(-1).tolist())
    flat = found if kind == "number" else [list(one.values()) for one in found]
    assert torch.allclose(torch.tensor(flat), torch.tensor(wanted), atol=1e-4)
    assert len({str(one) for one in flat}) > 10, "the texts are all judged alike"
    with pytest.raises(UserError, match="labels pairs of texts" if two else "one text at a time"):
        class_probabilities(labeller("classify", ["a", "b"], family, two), ["the"] if two else [("the", "a")])


def test_the_head_of_either_text_is_read_where_training_cut_them() -> None:
    bundle = labeller("number", [], two=True)
    bundle.metadata["source_limit"] = 5  # with the ids around one text
    assert unread_sentence(bundle, [("the old cat", "a dog")], before=2) is None
    pairs = [("the old cat", "a dog"), ("a dog", "the old cat sees a dog")]
    said = str(unread_sentence(bundle, pairs, before=2))
    assert "line 4 has 6 tokens, and this model only reads the first 3" in said
    assert regress(bundle, pairs[1:]) == regress(bundle, [("a dog", "the old cat")])


def test_tags() -> None:
    bundle = labeller("tag", ["noun", "verb", "other"])
    texts = [*many(), "", "  the   cat "]
    found = tag(bundle, texts, batch_tokens=30)
    for text, tags in zip(texts, found, strict=True):
        words = text.split()
        assert len(tags) == len(words)
        if words:
            with torch.no_grad():
                wanted = bundle.model(torch.tensor([bundle.tokenizer.encode(text)])).logits[0].argmax(-1)
            assert tags == [["noun", "verb", "other"][i] for i in wanted.tolist()]
    assert len({name for tags in found for name in tags}) > 1


def test_batches_hold_every_text_once_and_keep_their_bound() -> None:
    sizes = [random.Random(1).randint(1, 40) for _ in range(200)]
    groups = list(by_length(sizes, 100, rows=7))
    assert sorted(number for group in groups for number in group) == list(range(200))
    for group in groups:
        assert len(group) <= 7
        assert len(group) * max(sizes[number] for number in group) <= 100
    assert list(by_length([500], 100)) == [[0]]


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent"])
def test_alignment_holds_the_cross_attention(family: str) -> None:
    bundle = translator(family=family)
    found = alignment(bundle, "the cat sleeps", "le chat dort", layer=0)
    assert found.source == ("the", "cat", "sleeps", END)
    assert found.target == ("le", "chat", "dort", END)
    assert [sum(row) for row in found.weights] == pytest.approx([1.0] * 4)
    by_hand = Look("decoder.0.cross.weights")
    tokenizer = bundle.tokenizer
    source = torch.tensor([[*tokenizer.encode("the cat sleeps"), 2]])
    with torch.no_grad():
        bundle.model(source, torch.tensor([[1, *tokenizer.encode("le chat dort")]]), look=by_hand)
    wanted = by_hand["decoder.0.cross.weights"][0].mean(0)
    assert torch.allclose(torch.tensor(found.weights), wanted.float(), atol=1e-6)


def test_the_models_own_translation_is_aligned_when_none_is_given() -> None:
    bundle = translator()
    found = alignment(bundle, "the cat sleeps")
    assert " ".join(found.target[:-1]) == translate(bundle, ["the cat sleeps"])[0].text
    assert found.layer == 0  # the last but one of two


def test_pieces_join_to_words() -> None:
    tokenizer = Tokenizer.characters("le chat")
    ids = [*tokenizer.encode("le chat"), tokenizer.stop]
    assert _groups(tokenizer, ids, words=True) == [[0, 1], [2, 3, 4, 5, 6], [7]]
    assert _groups(tokenizer, ids, words=False) == [[i] for i in range(8)]


def test_the_picture() -> None:
    found = Alignment(("I", "see", "犬", END), ("je", "vois"), ((0.8, 0.2, 0, 0), (0.05, 0.6, 0.3, 0.05)), 0)
    assert draw_alignment(found).splitlines() == [
        "     I  see 犬 ⏹",
        "je   ██ ░░░",
        "vois    ▓▓▓ ▒▒",
    ]
    assert "0.80" in draw_alignment(found, numbers=True)


def test_texts_get_as_long_as_those_of_training() -> None:
    """A bundle that knows how long its texts get stops there; one that does not, at 2·source + 20."""
    bundle = translator()
    with torch.no_grad():
        bundle.model.output.bias[bundle.tokenizer.stop] = -1e4
    sizes = []
    for known in (None, [[3, 5], [9, 7]], [[2, 6]]):
        if known is not None:
            bundle.metadata["reach"] = known
        for options in (Options(), Options(beam=3)):
            writer = Writer(bundle, way="torch")
            sizes.append([len(one[0].ids) for one in writer.in_order(["the cat", "a dog eats"], options)])
    assert sizes == [[26, 28]] * 2 + [[5, 7]] * 2 + [[9, 12]] * 2
    bundle.metadata["reach"] = "far"
    with pytest.raises(UserError, match="'reach'"):
        Writer(bundle)
