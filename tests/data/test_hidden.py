"""What is hidden of a text, and where: each objective beside an oracle that knows nothing of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.config import CorruptionConfig
from clearhead.data.encoding import Encoder, Specials, Tokenizers
from clearhead.data.encodings import Denoised, Masked
from clearhead.data.encodings.denoised import filled_in
from clearhead.data.load import Loader
from clearhead.data.plan import BatchConfig, Draw
from clearhead.data.ragged import Ragged
from clearhead.tasks import TASKS
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.marks import Marks, around_gaps
from clearhead.text.tokenizer import Tokenizer

from .storing import a_store

SENTINELS = tuple(range(4, 104))
MARKS = Marks(mask=104, sentinels=SENTINELS, special=frozenset(range(105)), vocabulary=400)
SPECIALS = Specials(0, 1, 2, 0, MARKS)
TEXT = [105 + (7 * n) % 295 for n in range(2000)]


def loader(folder: Path, task: str, seed: int = 1, rate: float = 0.15, **batch: Any) -> Loader:
    store = a_store(folder / f"{task}-{seed}-{rate}-{len(batch)}", task, [TEXT[:700], TEXT[700:]])
    encoding = TASKS[task].encoding(corruption=CorruptionConfig(rate=rate))
    config = BatchConfig(**{"tokens": 256, "context": 32, "workers": 0, **batch})
    return Loader([store], encoding, config, SPECIALS, seed)


def by_example(loader: Loader, epoch: int = 0, start: int = 0) -> dict[int, dict[str, list[int]]]:
    """Every field of each example, padding left away."""
    found: dict[int, dict[str, list[int]]] = {}
    for batch in loader.batches(epoch, start):
        for row, example in enumerate(batch.indices.tolist() if batch.indices is not None else []):
            sizes = {"inputs": int(batch.lengths[row])}
            if batch.source_lengths is not None:
                sizes["source"] = int(batch.source_lengths[row])
            found[example] = {
                name: tensor[row, : sizes.get(name, tensor.shape[1])].tolist()
                for name, tensor in batch.fields.items()
            }
    return found


def masks_oracle(ids: list[int], example: int, seed: int, epoch: int, rate: float) -> dict[int, int]:
    """Place → what stands there, of the tokens that are hidden, counted behind the start symbol."""
    draw, count = Draw(seed, epoch, np.array([example])), np.array([len(ids)])
    first, second = (draw.uniform(count, purpose).rows()[0] for purpose in ("hide", "replace"))
    order = sorted((chance, place) for place, chance in enumerate(first) if ids[place] >= 105)
    found = {}
    for _, place in order[: max(1, round(rate * len(order)))]:
        if second[place] < 0.8:
            found[place + 1] = 104
        elif second[place] < 0.9:
            found[place + 1] = 105 + int((second[place] - 0.8) / 0.1 * 295)
        else:
            found[place + 1] = ids[place]
    return found


def text_of(example: dict[str, list[int]]) -> list[int]:
    """The chunk as it was before anything was hidden."""
    ids = list(example["inputs"])
    for place, label in zip(example["places"], example["labels"], strict=True):
        if label != IGNORED:
            ids[place] = label
    return ids


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_masks_are_those_of_the_oracle(rate: float, tmp_path: Path) -> None:
    found = by_example(loader(tmp_path, "mask", rate=rate), epoch=3)
    joined = [id for example in sorted(found) for id in text_of(found[example])[1:]]
    assert joined == TEXT
    for number, example in found.items():
        assert example["inputs"][0] == SPECIALS.start
        ids = text_of(example)
        wanted = masks_oracle(ids[1:], number, 1, 3, rate)
        assert {
            p for p, label in zip(example["places"], example["labels"], strict=True) if label >= 0
        } == set(wanted)
        assert example["inputs"] == [wanted.get(place, id) for place, id in enumerate(ids)]


def test_the_shares_of_masks(tmp_path: Path) -> None:
    hidden = kept = masks = 0
    for epoch in range(10):
        for example in by_example(loader(tmp_path / str(epoch), "mask"), epoch).values():
            for place, label in zip(example["places"], example["labels"], strict=True):
                hidden += label != IGNORED
                kept += example["inputs"][place] == label
                masks += label != IGNORED and example["inputs"][place] == MARKS.mask
    assert 0.14 < hidden / 20_000 < 0.17
    assert 0.77 < masks / hidden < 0.83
    assert 0.08 < kept / hidden < 0.13


@pytest.mark.parametrize("task", ["mask", "denoise"])
def test_what_is_hidden_depends_on_seed_epoch_and_example_alone(task: str, tmp_path: Path) -> None:
    def fields(found: dict[int, dict[str, list[int]]]) -> dict[int, tuple[list[int], list[int]]]:
        """Without what fills a row up."""
        return {n: (one["inputs"], [id for id in one["labels"] if id >= 0]) for n, one in found.items()}

    once = fields(by_example(loader(tmp_path, task)))
    larger = fields(by_example(loader(tmp_path, task, tokens=1024)))
    fixed = fields(by_example(loader(tmp_path, task, tokens=600, shapes="fixed", workers=2)))
    assert larger == once == fixed
    resumed = fields(by_example(loader(tmp_path, task), start=3))
    assert resumed == {number: once[number] for number in resumed}
    assert 0 < len(resumed) < len(once)
    assert fields(by_example(loader(tmp_path, task), epoch=1)) != once
    assert fields(by_example(loader(tmp_path, task, seed=2))) != once


def test_special_tokens_are_never_hidden_and_words_go_together() -> None:
    lines = ["unbelievable stories were retold, untiringly"] * 30 + ["one two three four"] * 9
    tokenizer = learn_tokenizer(lines, TokenizerConfig(vocabulary=290, extra="mask"))
    both, encoding = Tokenizers.of(tokenizer), Masked(corruption=CorruptionConfig(rate=0.3, whole_words=True))
    by = Encoder(encoding, both, documents=True)
    columns = encoding.encode([Row("", line, 1) for line in lines], by)
    plain = Masked().encode([Row("", line, 1) for line in lines], Encoder(Masked(), both, documents=True))
    assert columns["target"].rows() == plain["target"].rows()
    assert (columns["words"].lengths == columns["target"].lengths).all()
    width = int(columns["target"].lengths.max()) + 1
    batch = encoding.collate(
        columns, Widths(len(lines), 0, width), both.specials(), Draw(1, 0, np.arange(len(lines)))
    )
    several = 0
    for row, (ids, begins) in enumerate(zip(columns["target"].rows(), columns["words"].rows(), strict=True)):
        word = np.cumsum(begins)
        hidden = {
            int(p) - 1
            for p, label in zip(batch.fields["places"][row], batch.labels[row], strict=True)
            if label >= 0
        }
        assert hidden
        assert all(ids[place] != tokenizer.stop for place in hidden)
        assert len(hidden) <= max(1, round(0.3 * (len(ids) - 1))) or len({word[p] for p in hidden}) == 1
        for place in hidden:
            assert {at for at in range(len(ids)) if word[at] == word[place]} <= hidden
        several += any(list(word).count(word[place]) > 1 for place in hidden)
    assert several > 5


def spans_oracle(ids: list[int], example: int, seed: int, epoch: int, rate: float, span: float) -> Any:
    """Source and target, by walking along the text and stopping where a span stands."""
    noise = min(max(round(rate * len(ids)), 1), len(ids) - 1)
    spans = min(max(round(noise / span), 1), noise, len(ids) - noise + 1, 100)
    draw = Draw(seed, epoch, np.array([example]))
    where = draw.uniform(np.array([len(ids) - noise + 1]), "places of spans").rows()[0]
    cuts = draw.uniform(np.array([noise - 1]), "lengths of spans").rows()[0]
    stops = {place for _, place in sorted(zip(where, range(len(where)), strict=True))[:spans]}
    ends = sorted(place + 1 for _, place in sorted(zip(cuts, range(noise - 1), strict=True))[: spans - 1])
    lengths, left = np.diff([0, *ends, noise]).tolist(), list(ids)
    source: list[int] = []
    target: list[int] = []
    for kept in range(len(ids) - noise + 1):
        if kept in stops:
            number = sum(id in SENTINELS for id in source)
            source.append(SENTINELS[number])
            target += [SENTINELS[number], *(left.pop(0) for _ in range(lengths[number]))]
        source += [left.pop(0)] if left and kept < len(ids) - noise else []
    assert left == []
    return source, target


def test_spans_are_those_of_the_oracle_and_can_be_filled_in(tmp_path: Path) -> None:
    found = by_example(loader(tmp_path, "denoise"), epoch=2)
    joined: list[int] = []
    for number in sorted(found):
        example = found[number]
        source, target = example["source"], [id for id in example["labels"] if id >= 0]
        assert source[-1] == target[-1] == SPECIALS.stop
        assert example["inputs"] == [SPECIALS.start, *target[:-1]]
        whole = filled_in(source[:-1], target[:-1], SENTINELS)
        assert (source[:-1], target[:-1]) == spans_oracle(whole, number, 1, 2, 0.15, 3.0)
        joined += whole
    assert joined == TEXT


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.floats(0.01, 0.9), st.floats(1, 20), st.integers(0, 5), st.booleans())
def test_any_rate_and_span_can_be_undone(
    length: int, rate: float, span: float, seed: int, whole: bool
) -> None:
    encoding = Denoised(corruption=CorruptionConfig(rate=rate, span=span, whole_text=whole))
    chunk = Ragged.of([TEXT[:length]])
    sizes = encoding.sizes({"target": chunk.lengths})
    assert sizes.source is not None
    widths = Widths(1, int(sizes.source[0]), int(sizes.target[0]))
    batch: Batch = encoding.collate({"target": chunk}, widths, SPECIALS, Draw(seed, 0, np.array([3])))
    assert batch.source is not None
    assert batch.source.shape[1] == int(batch.source_lengths[0])  # type: ignore[index]
    assert batch.inputs.shape[1] == int(batch.lengths[0])
    source, target = batch.source[0, :-1].tolist(), batch.labels[0, :-1].tolist()
    if whole:  # the source is the same, and the target the text as it was
        assert target == TEXT[:length]
        target = spans_oracle(TEXT[:length], 3, seed, 0, rate, span)[1] if length > 1 else [SENTINELS[0]]
    assert filled_in(source, target, SENTINELS) == TEXT[:length]
    if length > 1:
        assert (source, target) == spans_oracle(TEXT[:length], 3, seed, 0, rate, span)


def test_filling_in_takes_whatever_was_written() -> None:
    one, two, three = SENTINELS[:3]
    written = [207, two, 205, 206, one, 204, two, 203, three, 202]
    assert filled_in([209, one, 208, two], written, SENTINELS) == [209, 204, 208, 205, 206]
    assert filled_in([209, one], [], SENTINELS) == [209]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "words", "characters"])
@pytest.mark.parametrize("extra", ["mask", "sentinels"])
def test_tokenizers_with_more_special_tokens(kind: Any, extra: Any, tmp_path: Path) -> None:
    lines = ["the cat sat on the mat", "<mask> and <extra_id_0> are words here", "<extra_id_0> <mask>"] * 4
    for split in ("words", "spaces"):
        config = TokenizerConfig(kind=kind, vocabulary=700, extra=extra, split=split)
        learn_tokenizer(lines, config).save(tmp_path)
        tokenizer = Tokenizer.load(tmp_path)
        marks = Marks.of(tokenizer)
        assert marks is not None
        assert marks.mask == (4 if extra == "mask" else None)
        assert marks.sentinels == (() if extra == "mask" else tuple(range(4, 104)))
        assert marks.special == frozenset(range(5 if extra == "mask" else 104))
        for line in lines[:3]:  # a name inside a text is text
            assert not marks.special - {3} & set(tokenizer.encode(line))
            if kind in ("bpe", "unigram", "wordpiece"):
                assert tokenizer.decode(tokenizer.encode(line)) == line
        assert tokenizer.decode([4]) == ""


@pytest.mark.parametrize("split", ["words", "spaces"])
def test_a_gap_takes_the_place_of_a_word(split: Any) -> None:
    """With a word in it, what stands around the gaps has the ids of the whole text."""
    lines = ["the cat sat on the mat"] * 9
    tokenizer = learn_tokenizer(lines, TokenizerConfig(vocabulary=300, extra="mask", split=split))
    [before, between, after] = around_gaps(tokenizer, "the [MASK] sat <mask> the mat")
    words = {word: tokenizer.encode(f" {word}" if split == "words" else f"{word} ") for word in ("cat", "on")}
    assert [*before, *words["cat"], *between, *words["on"], *after] == tokenizer.encode(lines[0])
    assert around_gaps(tokenizer, "no gap") == [tokenizer.encode("no gap")]


def test_a_tokenizer_without_marks_is_refused() -> None:
    plain = Tokenizers.of(Tokenizer.words("a b"))
    for encoding in (Masked(), Denoised()):
        with pytest.raises(UserError, match=r"This tokenizer has no .* token, which the task needs"):
            encoding.framings(plain)
