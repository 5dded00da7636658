"""What TensorBoard shows of a run: the curves of the log, the clock's figures, and samples as texts.

The file is made when there is something to put into it, and nothing of the run
depends on it. Knows nothing about the file's form (`events`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clearhead.training.events import EventWriter
from clearhead.training.view import Sample


class Board:
    """Writes event files into a run's folder, or nothing at all where they are not wanted."""

    def __init__(self, folder: Path, wanted: bool = True) -> None:
        self.folder = folder
        self.wanted = wanted
        self.resumed_after: int | None = None  # set by a run that goes on
        self._writer: EventWriter | None = None

    def curves(self, group: str, step: int, values: Mapping[str, float | None]) -> None:
        """One point on each curve of a group; what has no value yet has no point."""
        known = {f"{group}/{name}": float(value) for name, value in values.items() if value is not None}
        if self.wanted and known:
            self._file().scalars(step, known)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """What the model wrote, beside what would have been right."""
        if self.wanted and samples:
            self._file().text(step, "samples", "\n\n---\n\n".join(map(_in_words, samples)))

    def close(self) -> None:
        """Close the file; the next point begins another one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _file(self) -> EventWriter:
        if self._writer is None:
            self._writer = EventWriter(self.folder, self.resumed_after)
        return self._writer


def _in_words(sample: Sample) -> str:
    """A sample as lines of literal text, which Markdown leaves alone."""
    lines = [f"    {name}: {line}" for name, text in sample.parts() for line in text.splitlines() or [""]]
    return "\n".join(lines)
