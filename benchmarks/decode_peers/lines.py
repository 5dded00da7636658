"""Translate a file of lines with any translator, as a careful user would: tokenise, batch, restore the order.

Provides what the peers lack, and finds before they are measured the way of batching that suits them best on
this machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from decode_peers.wire import Answer, Cases, Job, serve

Translate = Callable[[Sequence[str], str], list[str]]  # lines and a setting → lines
SAMPLE = 4  # settings are compared on every fourth line


class Vocabulary:
    """The bundle's tokenizers, as the library reads them."""

    def __init__(self, bundle: str) -> None:
        target, source = Path(bundle) / "tokenizer.json", Path(bundle) / "source_tokenizer.json"
        self.target = tokenizers.Tokenizer.from_file(str(target))
        self.source = tokenizers.Tokenizer.from_file(str(source)) if source.exists() else self.target

    def ids(self, lines: Sequence[str]) -> list[list[int]]:
        """Without the stop symbol."""
        return [one.ids for one in self.source.encode_batch_fast(list(lines), add_special_tokens=False)]

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        found: list[str] = self.target.decode_batch([list(row) for row in rows], skip_special_tokens=True)
        return found


def full(lines: Sequence[str]) -> list[int]:
    """The numbers of lines with something in them; the others stay as they are."""
    return [number for number, line in enumerate(lines) if line.strip()]


def put_back(numbers: Sequence[int], texts: Sequence[str], count: int) -> list[str]:
    """As many lines as there were, these texts at these numbers.

    >>> put_back([2, 0], ["c", "a"], 3)
    ['a', '', 'c']
    """
    found = [""] * count
    for number, text in zip(numbers, texts, strict=True):
        found[number] = text
    return found


def by_length(rows: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Numbers of rows in groups of `size`, of like length, the longest first.

    >>> list(by_length([[1], [1, 2, 3], [1, 2]], 2))
    [[1, 2], [0]]
    """
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
    for begin in range(0, len(order), size):
        yield order[begin : begin + size]


def fastest(translate: Translate, lines: Sequence[str], settings: Sequence[str]) -> str:
    """The setting that takes the least time on a sample; the first is tried once before, unmeasured."""
    if len(settings) == 1:
        return settings[0]
    sample = lines[::SAMPLE]
    translate(sample[:50], settings[0])
    times = {}
    for setting in settings:
        began = time.perf_counter()
        translate(sample, setting)
        times[setting] = time.perf_counter() - began
    return min(times, key=lambda setting: times[setting])


def serve_text(
    job: Job, load: Callable[[], Translate], settings: Sequence[str], info: dict[str, Any]
) -> None:
    """A worker's main for a file: answer the driver, or translate once and end."""
    if job.once:
        sys.stdout.write("\n".join(load()(job.lines(), job.setting or settings[0])) + "\n")
        return

    def build() -> tuple[Cases, dict[str, Any]]:
        lines, translate = job.lines(), load()
        setting = job.setting or fastest(translate, lines, settings)

        def file() -> Answer:
            texts = translate(lines, setting)
            return {"units": len(texts), "texts": texts}

        return {"file": file}, {**info, "setting": setting}

    serve(build)
