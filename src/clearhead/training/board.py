"""What TensorBoard shows of a run: the curves of the log, throughput figures, and samples as texts.

The event file is created when there is something to write, and nothing in the run
depends on it. Knows nothing about the file format (`events`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clearhead.training.events import EventWriter
from clearhead.training.view import Sample


class Board:
    """Writes event files into a run's folder, or nothing if they are turned off."""

    def __init__(self, folder: Path, wanted: bool = True) -> None:
        self.folder = folder
        self.wanted = wanted
        self.resumed_after: int | None = None  # set when a run resumes
        self._writer: EventWriter | None = None

    def curves(self, group: str, step: int, values: Mapping[str, float | None]) -> None:
        """Add one point to each curve of a group; values that are None are skipped."""
        known = {f"{group}/{name}": float(value) for name, value in values.items() if value is not None}
        if self.wanted and known:
            self._file().scalars(step, known)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Write the model's outputs next to the references."""
        if self.wanted and samples:
            self._file().text(step, "samples", "\n\n---\n\n".join(map(_in_words, samples)))

    def close(self) -> None:
        """Close the file; the next point starts a new one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _file(self) -> EventWriter:
        if self._writer is None:
            self._writer = EventWriter(self.folder, self.resumed_after)
        return self._writer


def _in_words(sample: Sample) -> str:
    """A sample as lines of literal text, which Markdown does not format."""
    lines = [f"    {name}: {line}" for name, text in sample.parts() for line in text.splitlines() or [""]]
    return "\n".join(lines)
