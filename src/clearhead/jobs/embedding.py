"""Many texts to vectors: in chunks of lines, as lines of numbers or as a file, and searched by cosine.

Files are written atomically. Knows nothing about how a vector is computed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.base.atomic import atomic_write_bytes
from clearhead.base.errors import UserError
from clearhead.decoding.embed import nearest

CHUNK = 4096  # lines embedded together, so batches hold texts of similar length
FORMS = (".npy", ".jsonl", ".tsv")

Embed = Callable[[Sequence[str], int], Tensor]  # texts, and how many came before them, to vectors (B, E)


class Vectors(NamedTuple):
    """Some texts in their order, and a vector for each."""

    texts: list[str]
    values: Tensor  # (B, E)


class Found(NamedTuple):
    """A text that is near a query."""

    cosine: float
    line: int  # from 1
    text: str


def embedded(lines: Iterable[str], embed: Embed) -> Iterator[Vectors]:
    """The vectors of lines, a chunk at a time, so memory stays bounded."""
    stream, before = iter(lines), 0
    while chunk := list(islice(stream, CHUNK)):
        yield Vectors(chunk, embed(chunk, before))
        before += len(chunk)


def search(chunks: Iterable[Vectors], query: Tensor, count: int) -> list[Found]:
    """The texts nearest to a query (E,), best first; ties in input order."""
    best: list[Found] = []
    before = 0
    for texts, values in chunks:
        near = [
            Found(cosine, before + number + 1, texts[number])
            for number, cosine in nearest(query, values, count)
        ]
        best = sorted([*best, *near], key=lambda one: (-one.cosine, one.line))[:count]
        before += len(texts)
    if not best:
        raise UserError("There is no text to search: the input is empty.")
    return best


def check_output(path: Path) -> None:
    """Raise an error for a file that cannot be written, before anything is computed."""
    if path.suffix not in FORMS:
        raise UserError(
            f"The ending of '{path}' must be one of {', '.join(FORMS)}: it selects the file format."
        )
    if path.is_dir():
        raise UserError(f"'{path}' is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise UserError(f"There is no folder '{path.parent}' to write '{path.name}' into: create it first.")


def write(chunks: Iterable[Vectors], path: Path) -> int:
    """Write all vectors into one file, in the format of its extension; returns how many there are."""
    every = list(chunks)
    if path.suffix == ".npy":
        file = io.BytesIO()
        whole = torch.cat([chunk.values for chunk in every]) if every else torch.empty(0, 0)
        np.save(file, whole.numpy())
        atomic_write_bytes(path, file.getvalue())
    else:
        lines = [line for chunk in every for line in rendered(chunk, as_json=path.suffix == ".jsonl")]
        atomic_write_bytes(path, "".join(f"{line}\n" for line in lines).encode("utf-8"))
    return sum(len(chunk.texts) for chunk in every)


def rendered(chunk: Vectors, as_json: bool) -> Iterator[str]:
    """A line for each vector: the shortest decimals that read back as its float32 numbers, tab-separated.

    >>> list(rendered(Vectors(["a"], torch.tensor([[0.1, -2.0]])), as_json=False))
    ['0.1\\t-2.0']
    """
    for text, row in zip(chunk.texts, chunk.values.numpy(), strict=True):
        numbers = [np.format_float_positional(x, trim="0", unique=True) for x in row]
        if as_json:
            yield f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{", ".join(numbers)}]}}'
        else:
            yield "\t".join(numbers)
