"""The view without a terminal: plain lines for logs and pipes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TextIO

from clearhead.training.load import summed_up
from clearhead.training.view.records import Progress, Sample, View
from clearhead.training.view.words import (
    counted,
    duration,
    figure,
    metric_name,
    metric_value,
    percent,
    power,
    short,
    visible,
)

FEWEST_SECONDS, FEWEST_SHARE = 10.0, 0.1  # a line when both have passed since the last
MOST_SECONDS = 600.0  # but never silent for longer: the run would seem to hang
LONGEST_TEXT = 160


class PlainView(View):
    """Occasional lines: the first step, the last, and every 10 s or 10 % in between, whichever is rarer."""

    def __init__(self, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._last: Progress | None = None  # the last one written
        self._newest: Progress | None = None
        self._when = 0.0

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        """Write the title and the lines as they are."""
        for line in [title, *lines]:
            self.say(line)

    def step(self, progress: Progress) -> None:
        """Write a line if it is time for one."""
        self._newest = progress
        if self._last is None or progress.step >= progress.steps or self._due(progress):
            self._write_progress(progress)

    def validation(
        self, step: int, values: Mapping[str, float], best: bool, samples: Sequence[Sample] = ()
    ) -> None:
        """Write the values, and the first sample below them."""
        parts = [f"{metric_name(name)} {metric_value(name, value)}" for name, value in values.items()]
        self._write(f"validation at step {counted(step)}: " + " · ".join(parts) + (" · best" if best else ""))
        for sample in samples[:1]:
            for name, text in sample.parts():
                self._write(f"  {name + ':':<11}{visible(text, LONGEST_TEXT)}")

    def say(self, sentence: str) -> None:
        """Write the message, line by line."""
        for line in sentence.splitlines() or [""]:
            self._write(visible(line, 10_000))

    def stop(self) -> None:
        """Write how far the run came, unless the last line already shows it."""
        if self._newest is not None and self._newest is not self._last:
            self._write_progress(self._newest)
        self._newest = self._last = None

    def _due(self, progress: Progress) -> bool:
        assert self._last is not None
        seconds = self._clock() - self._when
        # a tolerance of a billionth, as 0.3 − 0.2 is a little less than 0.1
        enough = progress.share - self._last.share >= FEWEST_SHARE - 1e-9
        return (seconds >= FEWEST_SECONDS and enough) or seconds >= MOST_SECONDS

    def _write_progress(self, progress: Progress) -> None:
        if progress is self._last or (self._last is not None and progress.step == self._last.step):
            return
        self._last, self._when = progress, self._clock()
        self._write(progress_line(progress))

    def _write(self, line: str) -> None:
        write_line(line, self._file)


def progress_line(progress: Progress) -> str:
    """A run's state on one line."""
    parts = [
        f"step {counted(progress.step)} of {counted(progress.steps)} ({percent(progress.share)})",
        f"epoch {counted(progress.epoch + 1)}",
        *(f"{name} {value}" for name, value in measured(progress).items()),
    ]
    if progress.tokens_per_second > 0:
        parts.append(f"{short(progress.tokens_per_second)} tokens/s")
    if progress.mfu is not None:
        parts.append(f"MFU {percent(progress.mfu)}")
    if progress.skipped:
        parts.append(f"{counted(progress.skipped)} skipped")
    if progress.seconds_left is not None and progress.step < progress.steps:
        parts.append(f"{duration(progress.seconds_left)} left")
    return " · ".join(parts)


def measured(progress: Progress) -> dict[str, str]:
    """The figures of the last steps by name; no perplexity unless the loss is a −log p."""
    found = {
        "loss": figure(progress.loss),
        "perplexity": figure(progress.perplexity),
        "learning rate": power(progress.rate),
        "gradient norm": figure(progress.gradient_norm),
    }
    if math.isfinite(progress.loss) and math.isnan(progress.perplexity):
        del found["perplexity"]
    return {**found, **{name: figure(value) for name, value in summed_up(progress.extras).items()}}


def write_line(line: str, file: TextIO | None = None) -> None:
    """Write a line to stderr or `file`, whatever characters its encoding lacks.

    A log that cannot be written (a full disk, a closed pipe) must not end a run of
    hours, so errors are ignored.
    """
    stream = sys.stderr if file is None else file
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    safe = line.encode(encoding, "backslashreplace").decode(encoding)
    with suppress(OSError, ValueError):  # ValueError: the file is closed
        stream.write(safe + "\n")
        stream.flush()
