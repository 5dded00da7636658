"""The live view: a panel at the bottom of the terminal that is redrawn twice a second.

The run only stores what happened; a thread of the display draws it, so no step
waits. The panel has no frame at the sides: text in scripts whose width a terminal
may count differently then misaligns nothing. All texts are shown literally, never
as markup.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from clearhead.training.view.plain import measured
from clearhead.training.view.records import Progress, Sample, View
from clearhead.training.view.words import (
    BARS,
    PLAIN_BARS,
    counted,
    duration,
    figure,
    metric_name,
    metric_value,
    percent,
    short,
    sparkline,
    visible,
)

FRAMES_PER_SECOND = 2
LONGEST_HISTORY = 512
WIDE = 96  # columns from which the facts are shown four to a row
MOST_SAMPLES = 3
OTHER_LINES = 17  # lines of the panel without samples, which get the rest of the screen
SAMPLE_LINES = 4


class History:
    """A curve of bounded length: when full, neighbours are merged and later values averaged in groups."""

    def __init__(self, longest: int = LONGEST_HISTORY) -> None:
        self.values: list[float] = []
        self._longest = longest
        self._group = 1  # this many values make one
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> None:
        """Add a value; non-finite numbers are left out."""
        if not math.isfinite(value):
            return
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._group:
            return
        self.values.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.values) >= self._longest:
            pairs = zip(self.values[::2], self.values[1::2], strict=False)
            self.values = [(a + b) / 2 for a, b in pairs]
            self._group *= 2


class LiveView(View):
    """A panel that updates in place: progress, the numbers of the run, curves, validations and samples."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False, emoji=False)
        self._live: Live | None = None
        self._title = ""
        self._progress: Progress | None = None
        self._training, self._validation = History(), History()
        self._last: tuple[int, Mapping[str, float]] | None = None
        self._best: tuple[int, Mapping[str, float]] | None = None
        self._samples: Sequence[Sample] = ()
        self._changes = 0  # the number of changes so far
        self._drawn: list[Segment] = []
        self._drawn_state: tuple[int, int, int] | None = None

    def start(self, title: str, lines: Sequence[str] = ()) -> None:
        """Print the lines, which stay, and show the panel below them."""
        self._title = title
        self._changes += 1
        for line in lines:
            self.say(line)
        if self._live is None:
            self._live = Live(
                get_renderable=lambda: self,
                console=self.console,
                refresh_per_second=FRAMES_PER_SECOND,
                # stdout may be a file or a pipe: leave what is printed there to its reader
                redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            )
            with suppress(OSError):
                self._live.start()

    def step(self, progress: Progress) -> None:
        """Remember the progress."""
        self._progress = progress
        self._training.add(progress.loss)
        self._changes += 1

    def validation(
        self, step: int, values: Mapping[str, float], best: bool, samples: Sequence[Sample] = ()
    ) -> None:
        """Remember the values and the samples."""
        found = (step, dict(values))
        self._last, self._samples = found, tuple(samples)
        if best:
            self._best = found
        self._validation.add(values.get("loss", math.nan))
        self._changes += 1

    def say(self, sentence: str) -> None:
        """Print a message above the panel."""
        with suppress(OSError):
            for line in sentence.splitlines() or [""]:
                self.console.print(Text(visible(line, 10_000)))

    def stop(self) -> None:
        """Draw the panel for the last time and leave it on the screen."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):
                live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # redrawn only when something has changed: an idle panel costs the run nothing
        state = (self._changes, options.max_width, console.height)
        if state != self._drawn_state:
            panel = self.panel(options.max_width, console.height, options.ascii_only)
            self._drawn, self._drawn_state = list(console.render(panel, options)), state
        yield from self._drawn

    def panel(self, width: int, height: int, ascii_only: bool = False) -> RenderableType:
        """The current panel, for a screen of this size."""
        inner = max(width - 2, 10)
        parts: list[RenderableType] = []
        progress = self._progress
        if progress is None:
            parts.append(_line("preparing …", "dim"))
        else:
            parts += [_bar(progress, inner), _facts(progress, inner)]
        curves = (self._training.values, self._validation.values)
        if any(curves):
            parts.append(_curves(*curves, inner, PLAIN_BARS if ascii_only else BARS))
        if self._last is not None:
            parts.append(_validations(self._last, self._best))
        fitting = min(MOST_SAMPLES, max(0, (height - OTHER_LINES) // SAMPLE_LINES))
        for sample in self._samples[:fitting]:
            parts += [Text(""), _sample(sample)]
        title = Text(visible(self._title, 200), style="bold", no_wrap=True, overflow="ellipsis")
        return Panel(Group(*parts), title=title, title_align="left", box=box.HORIZONTALS, border_style="dim")


def _line(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style, no_wrap=True, overflow="ellipsis")


def _bar(progress: Progress, width: int) -> RenderableType:
    words = [
        f"step {counted(progress.step)} of {counted(progress.steps)}",
        f"epoch {counted(progress.epoch + 1)}",
    ]
    if progress.step < progress.steps:
        words.append(f"{duration(progress.seconds_left)} left")
    bar = ProgressBar(total=1.0, completed=progress.share, width=max(width - 8, 4), complete_style="blue")
    row = Table.grid(padding=(0, 1))
    row.add_row(bar, Text(f"{percent(progress.share):>5}", style="bold"))
    return Group(row, _line(" · ".join(words)))


def _facts(progress: Progress, width: int) -> RenderableType:
    """Names and numbers, four or two pairs to a row."""
    mfu = "–" if progress.mfu is None else percent(progress.mfu)
    speed = f"{short(progress.tokens_per_second)} tokens/s" if progress.tokens_per_second > 0 else "–"
    facts = {**measured(progress), "speed": speed, "MFU": mfu, "skipped steps": counted(progress.skipped)}
    pairs = 4 if width >= WIDE else 2 if width >= 50 else 1
    table = Table.grid(padding=(0, 3, 0, 0))
    for start in range(0, len(facts), pairs):
        cells: list[RenderableType] = []
        for name, value in list(facts.items())[start : start + pairs]:
            bad = name == "skipped steps" and progress.skipped > 0
            cells += [_line(name, "dim"), _line(value, "bold red" if bad else "bold")]
        table.add_row(*cells)
    return Group(Text(""), table)


def _curves(training: Sequence[float], validation: Sequence[float], width: int, bars: str) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, values, style in (
        ("training loss", training, "blue"),
        ("validation loss", validation, "yellow"),
    ):
        if values:
            curve = sparkline(values, min(max(width - 28, 8), 64), bars)
            table.add_row(
                _line(name, "dim"), Text(curve, style=style, no_wrap=True), _line(figure(values[-1]))
            )
    return Group(Text(""), table)


def _validations(
    last: tuple[int, Mapping[str, float]], best: tuple[int, Mapping[str, float]] | None
) -> RenderableType:
    """The last validation and the best one, one row each; one row if they are the same."""
    names = list(last[1])
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("validation", no_wrap=True)
    for name in names:
        table.add_column(Text(metric_name(name)), justify="right", no_wrap=True)
    rows = [(last, best is not None and last[0] == best[0])]
    if best is not None and best[0] != last[0]:
        rows.append((best, True))
    for (step, values), is_best in rows:
        cells = [Text(metric_value(name, values.get(name, math.nan))) for name in names]
        label = f"step {counted(step)}" + (" ★ best" if is_best else "")
        table.add_row(Text(label), *cells, style="bold green" if is_best else "")
    return Group(Text(""), table)


def _sample(sample: Sample) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in sample.parts():
        table.add_row(_line(name, "dim"), _line(text, "bold" if name == "output" else ""))
    return table
