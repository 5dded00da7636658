"""The clock of a run: its speed and remaining time. Decides nothing about the run itself."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from clearhead.training.view import Progress

SHOW_SECONDS = 1.0  # reading the losses waits for the device, so at most this often


class Clock:
    """Times a run and turns counts into rates."""

    def __init__(self, peak: float | None, nats: bool = True) -> None:
        self.peak = peak  # FLOP/s of the device, if known
        self.nats = nats  # is the loss a −log p, with a perplexity?
        self.loss = math.nan
        self.norm = math.nan
        self._start = self._saved = self._shown = time.monotonic()
        self._before = 0.0
        self._first = 0
        self._step = self._steps = 0
        self._marks: list[tuple[float, int, float]] = []  # (time, labels, flops), the last minute or so

    def start(self, step: int, seconds: float) -> None:
        """Start, or resume at `step` after `seconds` of earlier work."""
        self._start = self._saved = self._shown = time.monotonic()
        self._before, self._first = seconds, step
        self._marks = []

    def elapsed(self) -> float:
        """Seconds of training, earlier ones included."""
        return self._before + time.monotonic() - self._start

    def since_checkpoint(self) -> float:
        """Seconds since the last checkpoint."""
        return time.monotonic() - self._saved

    def checkpointed(self) -> None:
        """Note that a checkpoint has just been written."""
        self._saved = time.monotonic()

    def wants_to_show(self) -> bool:
        """Has it been long enough since the last update of the view?"""
        return time.monotonic() - self._shown >= SHOW_SECONDS

    def look(self, step: int, steps: int, labels: int, flops: float) -> None:
        """Record how far the run has come."""
        self._shown = time.monotonic()
        self._step, self._steps = step, steps
        self._marks.append((self._shown, labels, flops))
        while len(self._marks) > 2 and self._shown - self._marks[0][0] > 60:
            self._marks.pop(0)

    def figures(self) -> dict[str, float | None]:
        """Labels per second, share of the device's peak, seconds so far and left."""
        rate = mfu = None
        if len(self._marks) > 1:
            (t0, labels0, flops0), (t1, labels1, flops1) = self._marks[0], self._marks[-1]
            if t1 > t0:
                rate = (labels1 - labels0) / (t1 - t0)
                mfu = (flops1 - flops0) / (t1 - t0) / self.peak if self.peak else None
        done = self._step - self._first
        spent = time.monotonic() - self._start
        left = spent / done * (self._steps - self._step) if done else None
        return {"tokens_per_second": rate, "mfu": mfu, "seconds": self.elapsed(), "seconds_left": left}

    def progress(
        self, epoch: int, rate: float, skipped: int, extras: Mapping[str, float] | None = None
    ) -> Progress:
        """What a view shows."""
        figures = self.figures()
        return Progress(
            step=self._step,
            steps=self._steps,
            epoch=epoch,
            loss=self.loss,
            perplexity=self._perplexity(),
            rate=rate,
            tokens_per_second=figures["tokens_per_second"] or 0.0,
            mfu=figures["mfu"],
            seconds_left=figures["seconds_left"],
            skipped=skipped,
            gradient_norm=self.norm,
            extras=extras or {},
        )

    def _perplexity(self) -> float:
        known = self.nats and math.isfinite(self.loss)
        return math.exp(min(self.loss, 700.0)) if known else math.nan
