"""Batches for `training.py`: made-up words in sentences of chosen lengths, laid out as our trainer does."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from _training_peers import Size
from clearhead.data.batch import Batch
from clearhead.data.columns import Columns
from clearhead.data.encoding import Specials
from clearhead.data.encodings import Pairs
from clearhead.data.load import Loader
from clearhead.data.plan import BatchConfig
from clearhead.data.ragged import Ragged
from clearhead.data.store import Store
from clearhead.data.store_writer import StoreWriter

Sizes = NDArray[np.int64]


def sentence_lengths(kind: str, rows: int, longest: int, data: Path | None) -> tuple[Sizes, Sizes]:
    """Tokens of so many sources and targets."""
    chance = np.random.default_rng(1)
    if kind == "uniform":
        return chance.integers(31, 64, rows), np.full(rows, 63)  # plus a special token each
    if kind == "made-up":
        both = np.exp(chance.normal(np.log(13), 0.45, rows))
        sides = [both * np.exp(chance.normal(0, 0.15, rows)) for _ in range(2)]
    else:
        pairs = pair_lengths(kind, data)
        sides = list(pairs[chance.integers(len(pairs), size=rows)].T)
    return tuple(np.clip(side, 2, longest - 2).astype(np.int64) for side in sides)


def pair_lengths(kind: str, data: Path | None) -> Sizes:
    """(pairs, 2): words of either side of a corpus's pairs, or what a file says of them."""
    if kind.endswith(".npy"):
        saved: Sizes = np.load(kind).astype(np.int64)
        return saved
    if data is None:
        raise SystemExit(f"--lengths {kind} needs the folder of the corpus: --data DATA")
    return np.array(list(word_counts(kind, data)))


def word_counts(kind: str, data: Path) -> Iterator[tuple[int, int]]:
    """Words of either side of a corpus's pairs."""
    if kind == "multi30k":
        names = [data / "multi30k" / "tok" / f"train.lc.norm.tok.{side}.gz" for side in ("en", "de")]
        with (
            gzip.open(names[0], "rt", encoding="utf-8") as one,
            gzip.open(names[1], "rt", encoding="utf-8") as two,
        ):
            yield from ((len(a.split()), len(b.split())) for a, b in zip(one, two, strict=True))
    else:
        with gzip.open(data / "tatoeba-en-fr" / "eng-fra.tsv.gz", "rt", encoding="utf-8") as file:
            yield from ((len(a.split()), len(b.split())) for a, b, *_ in (line.split("\t") for line in file))


def batches(
    size: Size,
    count: int,
    device: torch.device,
    kind: str = "made-up",
    data: Path | None = None,
    packed: bool = False,
) -> list[Batch]:
    """Batches of made-up words, as a run of ours would see them: padded, or packed in one budget."""
    gpu = device.type == "cuda"
    if size.family == "decoder":
        return rows_of_text(size, count, gpu)
    rows = max(3 * count * size.tokens // (60 if kind == "uniform" else 14), 20_000)  # for similar lengths
    sides = sentence_lengths(kind, rows, size.longest, data)
    chance = np.random.default_rng(2)
    columns = {
        name: Ragged(chance.integers(4, size.vocabulary, int(sizes.sum())), sizes)
        for name, sizes in zip(("source", "target"), sides, strict=True)
    }
    with tempfile.TemporaryDirectory() as folder:
        with StoreWriter(f"{folder}/store", "translate", dict.fromkeys(columns, size.vocabulary)) as writer:
            writer.add(**columns)
        config = BatchConfig(
            tokens=size.tokens,
            shapes="fixed" if gpu or packed else "free",
            layout="packed" if packed else "padded",
            buckets=1 if kind == "uniform" else 8,
            workers=0,
        )
        loader = Loader(
            [Store(Path(folder) / "store")],
            Pairs(Columns(task="translate", sources=("source",))),
            config,
            Specials(0, 1, 2),
            1,
            pin=gpu,
        )
        return [numbered.batch for numbered in islice(loader.stream(), count)]


def rows_of_text(size: Size, count: int, gpu: bool) -> list[Batch]:
    """Batches of full rows, as a decoder reads a long text."""
    chance = np.random.default_rng(2)
    found = []
    rows = max(1, size.tokens // size.longest)
    for _ in range(count):
        ids = torch.from_numpy(chance.integers(4, size.vocabulary, (rows, size.longest + 1)))
        batch = Batch.of(
            inputs=ids[:, :-1].contiguous(),
            labels=ids[:, 1:].contiguous(),
            lengths=torch.full((rows,), size.longest),
            rows=rows,
        )
        found.append(batch.pin() if gpu else batch)
    return found
