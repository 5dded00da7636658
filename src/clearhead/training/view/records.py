"""What a view receives about a run, and a view that shows nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True)
class Progress:
    """The progress of a run. Numbers that are not known yet are NaN, or None if the type allows it."""

    step: int
    """Updates done."""
    steps: int
    """Updates in all."""
    epoch: int
    """Passes over the corpus that are complete; the one under way is shown as the next number."""
    loss: float
    """Mean −log p of a label, in nats."""
    perplexity: float
    rate: float
    """The learning rate."""
    tokens_per_second: float
    mfu: float | None
    """Share of the device's peak arithmetic, 0 to 1."""
    seconds_left: float | None
    skipped: int
    """Steps left out because their loss or gradient was not finite."""
    gradient_norm: float
    extras: Mapping[str, float] = field(default_factory=dict)
    """Auxiliary losses and statistics of a model that returns such."""

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1."""
        return min(max(self.step / self.steps, 0.0), 1.0) if self.steps > 0 else 0.0


@dataclass(frozen=True)
class Sample:
    """One validation example and the model's output; a text that does not apply is empty."""

    source: str
    reference: str
    output: str

    def parts(self) -> list[tuple[str, str]]:
        """Names and texts of what applies; the output always does."""
        return [(name, text) for name, text in vars(self).items() if text or name == "output"]


class View:
    """A view of a run; this one shows nothing, others override what they show."""

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        """The run starts: its name, and a few lines about it."""

    def step(self, progress: Progress) -> None:
        """The current progress. Cheap enough for every step."""

    def validation(
        self, step: int, values: Mapping[str, float], best: bool, samples: Sequence[Sample] = ()
    ) -> None:
        """The values of a validation, and whether it is the best so far."""

    def say(self, sentence: str) -> None:
        """A message that stays on the screen or in the log."""

    def stop(self) -> None:
        """The run has ended, for whatever reason; calling it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
