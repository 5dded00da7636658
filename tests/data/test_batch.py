"""Batches: what stands where, for every task, against a plain definition with lists."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.encoding import Specials
from clearhead.data.encodings import SKIP
from clearhead.data.layouts import halves, pack_batch
from clearhead.data.ragged import Ragged
from clearhead.models.build import build
from clearhead.tasks import TASKS
from clearhead.text.tokenizer import Tokenizer


def collate(
    task: str, columns: dict[str, Ragged], widths: Widths, specials: Specials, which: Any = None
) -> Batch:
    return replace(TASKS[task].encoding().collate(columns, widths, specials), indices=which)


SPECIALS = Specials(pad=90, start=91, stop=92, source_pad=93)
row = st.lists(st.integers(4, 80), max_size=6)
Lists = list[list[int]]


def padded(rows: Lists, width: int, fill: int, count: int) -> Lists:
    rows = rows + [[]] * (count - len(rows))
    return [one + [fill] * (width - len(one)) for one in rows]


@given(rows=st.lists(st.tuples(row, row), min_size=1, max_size=5), spare=st.integers(0, 2))
def test_pairs(rows: list[tuple[list[int], list[int]]], spare: int) -> None:
    source, target = [s for s, _ in rows], [t for _, t in rows]
    count = len(rows) + spare
    width, depth = max(map(len, source)) + spare, max(map(len, target)) + 1 + spare
    columns = {"source": Ragged.of(source), "target": Ragged.of(target)}
    batch = collate("translate", columns, Widths(count, width, depth), SPECIALS)
    assert batch.source is not None
    assert batch.source.tolist() == padded(source, width, 93, count)
    assert plain(batch.source_lengths) == [*map(len, source), *[0] * spare]
    assert batch.inputs.tolist() == padded([[91, *t] for t in target], depth, 90, count)
    assert batch.labels.tolist() == padded([[*t, 92] for t in target], depth, IGNORED, count)
    assert plain(batch.lengths) == [*(len(t) + 1 for t in target), *[0] * spare]
    assert (batch.rows, batch.tokens) == (len(rows), sum(len(t) + 1 for t in target))
    for tensor in (batch.source, batch.inputs, batch.labels):
        assert tensor.dtype == torch.int64


@given(
    chunks=st.lists(st.lists(st.sampled_from([5, 6, 91]), min_size=2, max_size=6), min_size=1, max_size=4),
    spare=st.integers(0, 2),
)
def test_chunks_of_text(chunks: Lists, spare: int) -> None:
    width = max(map(len, chunks)) - 1 + spare
    count = len(chunks) + spare
    batch = collate("generate", {"target": Ragged.of(chunks)}, Widths(count, 0, width), SPECIALS)
    assert batch.source is None
    assert batch.inputs.tolist() == padded([chunk[:-1] for chunk in chunks], width, 90, count)
    expected = [[IGNORED if one == 91 else one for one in chunk[1:]] for chunk in chunks]
    assert batch.labels.tolist() == padded(expected, width, IGNORED, count)
    assert plain(batch.lengths) == [*(len(chunk) - 1 for chunk in chunks), *[0] * spare]
    assert batch.tokens == sum(one != IGNORED for chunk in expected for one in chunk)


@given(rows=st.lists(st.tuples(row, st.integers(0, 3)), min_size=1, max_size=5), spare=st.integers(0, 2))
def test_classes(rows: list[tuple[list[int], int]], spare: int) -> None:
    texts = [text for text, _ in rows]
    width, count = max(map(len, texts)) + 1 + spare, len(rows) + spare
    columns = {"source": Ragged.of(texts), "target": Ragged.of([[number] for _, number in rows])}
    batch = collate("classify", columns, Widths(count, 0, width), SPECIALS)
    assert batch.inputs.tolist() == padded([[91, *text] for text in texts], width, 90, count)
    assert batch.labels.tolist() == [number for _, number in rows] + [IGNORED] * spare
    assert plain(batch.lengths) == [*(len(text) + 1 for text in texts), *[0] * spare]
    assert batch.tokens == batch.rows == len(rows)


def test_tags() -> None:
    columns = {"source": Ragged.of([[5, 6, 7], [8]]), "target": Ragged.of([[1, SKIP, 0], [2]])}
    batch = collate("tag", columns, Widths(3, 0, 4), SPECIALS, np.array([4, 9]))
    assert batch.inputs.tolist() == [[5, 6, 7, 90], [8, 90, 90, 90], [90] * 4]
    assert batch.labels.tolist() == [[1, IGNORED, 0, IGNORED], [2] + [IGNORED] * 3, [IGNORED] * 4]
    assert (batch.rows, batch.tokens) == (2, 3)
    assert batch.indices is not None
    assert batch.indices.tolist() == [4, 9]


def a_batch(task: str = "translate") -> Batch:
    columns = {
        "source": Ragged.of([[5, 6, 2], [7, 2], [8, 2], [9, 10, 11, 2], [12]]),
        "target": Ragged.of([[5], [6, 7, 8], [], [9], [10]]),
    }
    if task == "generate":
        columns = {"target": columns["source"]}
    if task == "classify":
        columns["target"] = Ragged.of([[0], [1], [0], [1], [0]])
    if task == "tag":
        columns["target"] = Ragged.of([[0, 1, SKIP], [1, 0], [1, 1], [0, 0, 0, SKIP], [1]])
    columns = {name: Ragged(rows.items[:11], rows.lengths[:4]) for name, rows in columns.items()}
    columns = {name: Ragged(rows.items[: rows.lengths.sum()], rows.lengths) for name, rows in columns.items()}
    return collate(task, columns, Widths(6, 4 if task == "translate" else 0, 5), SPECIALS, np.arange(4))


@pytest.mark.parametrize("task", ["translate", "generate", "classify", "tag"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_halves_hold_the_same_rows(task: str, layout: str) -> None:
    whole = pack_batch(a_batch(task)) if layout == "packed" else a_batch(task)
    parts: list[Batch] = [whole]
    while any(part.rows > 1 for part in parts):
        parts = [half for part in parts for half in (halves(part) if part.rows > 1 else (part,))]
    assert len(parts) == whole.rows == 4
    assert sum(part.tokens for part in parts) == whole.tokens
    assert all(part.is_packed == whole.is_packed for part in parts)
    assert [int(part.indices[0]) for part in parts if part.indices is not None] == [0, 1, 2, 3]
    pieces = [pack_batch(part) for part in parts]
    packed = pack_batch(whole)
    assert torch.cat([piece.inputs for piece in pieces]).tolist() == packed.inputs.tolist()
    assert torch.cat([piece.labels for piece in pieces]).tolist() == packed.labels.tolist()
    assert [n for piece in pieces for n in plain(piece.lengths)] == plain(packed.lengths)
    with pytest.raises(UserError, match="Not even one example fits"):
        halves(parts[0])


def test_packed_holds_the_real_tokens_only() -> None:
    packed = pack_batch(a_batch())
    assert packed.source is not None
    assert packed.source.tolist() == [5, 6, 2, 7, 2, 8, 2, 9, 10, 11, 2]
    assert packed.source_lengths == (3, 2, 2, 4)
    assert packed.inputs.tolist() == [91, 5, 91, 6, 7, 8, 91, 91, 9]
    assert packed.labels.tolist() == [5, 92, 6, 7, 8, 92, 92, 9, 92]
    assert packed.lengths == (2, 4, 1, 2)
    assert packed.is_packed
    assert pack_batch(packed) is packed
    assert (packed.rows, packed.tokens) == (4, 9)
    assert packed.positions == 20
    assert a_batch().positions == 6 * 9


def test_models_read_both_layouts_alike() -> None:
    """The padded batch, with its empty rows, and the packed one are the same batch to a model."""
    torch.manual_seed(3)
    model = build("tiny").double().eval()
    batch = a_batch()
    packed = pack_batch(batch)
    padded, flat = (
        model(one.source, one.inputs, source_lengths=one.source_lengths, target_lengths=one.lengths).logits
        for one in (batch, packed)
    )
    assert bool(padded.isfinite().all())
    inside = torch.arange(5) < batch.lengths.unsqueeze(1) if isinstance(batch.lengths, Tensor) else None
    assert torch.allclose(padded[inside], flat.reshape(-1, flat.shape[-1]), atol=1e-10)
    assert batch.labels[inside].tolist() == packed.labels.tolist()


def test_moving_keeps_everything() -> None:
    batch = a_batch()
    moved = batch.to("cpu", non_blocking=True)
    assert moved.tokens == batch.tokens
    assert torch.equal(moved.labels, batch.labels)
    assert a_batch().to("meta").inputs.device.type == "meta"
    assert pack_batch(a_batch()).to("meta").lengths == (2, 4, 1, 2)


def test_special_ids_come_from_the_tokenizer() -> None:
    tokenizer = Tokenizer.words("a b")
    assert Specials.of(tokenizer) == Specials(0, 1, 2, 0)
    bare = Tokenizer(tokenizer.backend, {"pad": 0, "stop": 2})
    assert Specials.of(tokenizer, bare) == Specials(0, 1, 2, 0)
    with pytest.raises(UserError, match="no 'start' token"):
        Specials.of(bare)


def test_making_a_batch_is_fast() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 30, 256)
    rows = Ragged(generator.integers(4, 8000, lengths.sum()).astype(np.uint16), lengths)
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        collate("translate", {"source": rows, "target": rows}, Widths(256, 30, 30), SPECIALS)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.002  # 0.13 ms where it was written; a loop over tokens takes several ms


def plain(lengths: object) -> list[int]:
    return lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)  # type: ignore[call-overload]
