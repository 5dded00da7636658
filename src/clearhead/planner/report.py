"""A finished plan: its numbers, and how it is shown, as plain text or drawn with rich on a terminal.

Counts nothing itself: `estimate.py` fills it in.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from clearhead.models.config import ModelConfig
from clearhead.planner.batch import PAIR_LENGTH, Batch
from clearhead.planner.devices import USABLE, Device
from clearhead.planner.families import LOSS
from clearhead.planner.ranks import BETWEEN, HOST, INSIDE, Spread
from clearhead.planner.totals import BATCH_TOKENS, GPUS, Comparison, Flops, Memory, Part

LINE = 100  # notes are wrapped at this width


@dataclass(frozen=True)
class Timing:
    """A plan on one device."""

    device: Device
    peak: float  # FLOP/s in the plan's number format
    utilisation: float  # assumed share of it
    step_seconds: float
    run_seconds: float
    fits: bool
    largest_batch: int  # tokens per step that would fit; 0 if not even the weights do
    decode_seconds: float | None  # lower bound per token of one sequence: reading the weights once


@dataclass(frozen=True)
class Plan:
    """Everything `plan` finds, as numbers; `str(plan)` and `render(plan)` print it."""

    name: str
    config: ModelConfig
    dtype: str
    batch: Batch
    parts: tuple[Part, ...]
    active: int  # how many of the parameters one token uses: without experts that it does not choose
    flops: Flops
    memory: Memory
    timings: tuple[Timing, ...]
    comparison: Comparison | None
    assumptions: tuple[str, ...]
    spreads: tuple[Spread, ...] = ()  # on many ranks, by layout; the requested one comes first

    @property
    def parameters(self) -> int:
        """How many parameters the model has, shared ones counted once."""
        return sum(part.count for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, sums included, for JSON."""
        return {
            "name": self.name,
            "config": self.config.to_dict(),
            "dtype": self.dtype,
            "batch": _plain(self.batch),
            "parameters": {"total": self.parameters, "active": self.active, "parts": _plain(self.parts)},
            "flops": _plain(self.flops),
            "memory": _plain(self.memory),
            "timings": [_plain(timing) for timing in self.timings],
            "comparison": None if self.comparison is None else _plain(self.comparison),
            "assumptions": list(self.assumptions),
            **({"ranks": [_plain(one) for one in self.spreads]} if self.spreads else {}),
        }

    def __str__(self) -> str:
        return plain_text(_tables(self))


def render(plan: Plan) -> str:
    """The plan as text: drawn tables if the output is a terminal, plain columns otherwise."""
    if sys.stdout is not None and sys.stdout.isatty():
        return drawn(_tables(plan))
    return str(plan)


def _tables(plan: Plan) -> Iterator[Table]:
    active = f" ({plan.active:,} active for a token)" if plan.active < plan.parameters else ""
    steps = f"{plan.flops.steps:,} steps, {plan.dtype}"
    title = f"Plan for '{plan.name}': {plan.parameters:,} parameters{active}, {steps}"
    yield Table(title, (), (), plan.assumptions)
    yield _parts(plan)
    yield _flops(plan)
    yield _memory(plan)
    if plan.memory.state:
        yield _decoding(plan)
    yield _time(plan)
    if plan.spreads:
        yield _ranks(plan)
    if plan.comparison is not None:
        yield _comparison(plan.comparison)


def _parts(plan: Plan) -> Table:
    counts = {part.name: part.count for part in plan.parts}
    shared = {
        part.name: f" (also {' and '.join(part.shared_with)})" for part in plan.parts if part.shared_with
    }
    names = [*counts, *(name for name in plan.flops.by_part if name not in counts)]
    rows = [(name, counts.get(name, 0), plan.flops.by_part.get(name, 0)) for name in names]
    rows.append(("all", plan.parameters, plan.flops.step))
    shown = tuple(
        (
            name + shared.get(name, ""),
            f"{count:,}",
            share_in_words(count, plan.parameters),
            f"{flops:.3e}" if flops else "0",
            share_in_words(flops, plan.flops.step),
        )
        for name, count, flops in rows
    )
    columns = ("part", "parameters", "share", "FLOPs of a step", "share")
    return Table("Parts", columns, shown, summed=True)


def _flops(plan: Plan) -> Table:
    flops = plan.flops
    rest = flops.step - flops.scores - flops.vocabulary
    rows = [
        ("weights of the layers, forward and backward", rest),
        ("attention scores and mixing, forward and backward", flops.scores),
        ("vocabulary, forward and backward", flops.vocabulary),
        ("forward", flops.forward),
        ("backward", flops.backward),
        ("training step", flops.step),
        (f"whole run, {flops.steps:,} steps", flops.run),
    ]
    shown = tuple((name, f"{value:.3e}", share_in_words(value, flops.step)) for name, value in rows[:-1])
    last = (rows[-1][0], f"{rows[-1][1]:.3e}", "")
    notes = [f"{flops.per_token:.3e} FLOPs of training for each of {flops.tokens:,} tokens in a step."]
    if flops.fused_step != flops.step:
        notes.append(
            "Attention is counted over all queries × keys. A fused kernel recomputes the scores in the "
            f"backward pass ({flops.fused_step:.3e} a step); where it skips what the causal mask hides, "
            f"it computes {flops.flash_step:.3e} a step."
        )
    return Table("FLOPs", ("of one step", "FLOPs", "share"), (*shown, last), tuple(notes), summed=True)


def _memory(plan: Plan) -> Table:
    memory = plan.memory
    layers = memory.kept - memory.activations.get(LOSS, 0)
    rows = (
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        ("optimiser", memory.optimiser),
        ("activations of the layers", layers),
        ("log-probabilities", memory.activations.get(LOSS, 0)),
        ("scores and their gradients, as the backward pass begins", memory.loss),
        ("training, in total", memory.training),
    )
    shown = tuple(
        (name, bytes_in_words(value), share_in_words(value, memory.training)) for name, value in rows
    )
    return Table("Memory", ("of training", "bytes", "share"), shown, summed=True)


def _decoding(plan: Plan) -> Table:
    memory = plan.memory
    rows = [
        ("keys and values, one token", memory.state_per_token),
        (f"keys and values, {memory.context:,} tokens", memory.state),
    ]
    if memory.state_fixed:
        rows[1] = (f"decoding state of the layers for {memory.context:,} tokens", memory.state)
        within = memory.state_fixed <= memory.state
        most = "of that, whatever the length" if within else "once windows are full, whatever the length"
        rows.append((most, memory.state_fixed))
    if plan.config.family == "recurrent":
        rows = [("hidden states, one token", memory.state_per_token)]
    if plan.config.family == "convolutional":
        rows = [("the last tokens that convolutions read, whatever the length", memory.state_fixed)]
    if memory.cross_per_token:
        rows.append(("cross-attention's keys and values, one source token", memory.cross_per_token))
    if memory.memory_per_token:
        rows.append(("encoder's output, one source token", memory.memory_per_token))
    return Table(
        "Decoding state of one sequence",
        ("what", "bytes"),
        tuple((name, bytes_in_words(value)) for name, value in rows),
    )


def _time(plan: Plan) -> Table:
    rows, notes = [], []
    for timing in plan.timings:
        decode = "" if timing.decode_seconds is None else seconds_in_words(timing.decode_seconds)
        rows.append(
            (
                timing.device.name,
                f"{timing.peak:.3g}",
                seconds_in_words(timing.step_seconds),
                seconds_in_words(timing.run_seconds),
                bytes_in_words(timing.device.memory),
                "yes" if timing.fits else "no",
                f"{timing.largest_batch:,}",
                decode,
            )
        )
    columns = ("device", "peak FLOP/s", "step", "run", "memory", "fits", "largest batch", "decode a token ≥")
    if not rows:
        return Table("Time and memory", (), (), ("No known device computes in this number format.",))
    share = plan.timings[0].utilisation
    notes.append(
        f"At {share:.0%} of the peak. It fits if all of training takes at most {USABLE:.0%} of the "
        "memory; the largest batch is in tokens, and gradient accumulation reaches larger ones."
    )
    if plan.memory.state:
        notes.append(
            "Decoding one sequence reads the decoder's weights once for each token, which bounds its speed."
        )
    return Table("Time and memory", columns, tuple(rows), tuple(notes))


def _ranks(plan: Plan) -> Table:
    rows = []
    for one in plan.spreads:
        held = [bytes_in_words(count) for count in (one.shards, one.gathered, one.activations, one.memory)]
        sent = [bytes_in_words(count) for count in (one.traffic, one.traffic_between)]
        fits = "yes" if one.fits else "no"
        rows.append(
            (one.layout, f"{one.accumulate:,}", *held, fits, *sent, seconds_in_words(one.step_seconds))
        )
    fitting = [one for one in plan.spreads if one.fits]
    best = min(fitting, key=lambda one: one.step_seconds).layout if fitting else None
    notes = (
        f"Of the layouts that fit, {best} is the fastest." if best else "None of them fits: use more ranks.",
        f"A step's batches (batch.accumulate) are as few as fit. {HOST} ranks to a machine; {INSIDE:.1e} "
        f"bytes/s between neighbours, {BETWEEN:.1e} between machines. Communication of shards overlaps "
        "with computation; all other communication does not.",
    )
    columns = ("layout, of one rank", "batches", "shards", "gathered", "activations", "memory", "fits")
    return Table("Ranks", (*columns, "sent in a step", "to other machines", "step"), tuple(rows), notes)


def _comparison(found: Comparison) -> Table:
    rows = (
        ("the lectures' table", f"{found.table:.1e}", ""),
        (
            f"{found.hours:g} h × {GPUS} P100 × 9.5e12 FLOP/s, as the paper estimates it",
            f"{found.hardware:.2e}",
            share_in_words(found.hardware, found.table),
        ),
        (
            f"counted: the paper's run, {found.steps:,} steps of {BATCH_TOKENS:,} + {BATCH_TOKENS:,} tokens",
            f"{found.counted:.2e}",
            share_in_words(found.counted, found.table),
        ),
        ("counted: this plan", f"{found.planned:.2e}", share_in_words(found.planned, found.table)),
    )
    note = (
        "The paper multiplies the hours its GPUs ran by the rate they can sustain: that is what the "
        "hardware could have done in the time, not the arithmetic the model needs. The count is that "
        f"arithmetic, {found.counted / found.hardware:.0%} of it; the rest of the time went into memory "
        f"traffic, softmax, norms, communication and waiting. (Pairs of {PAIR_LENGTH} tokens are assumed: "
        "longer ones change the small share of the attention scores only.)"
    )
    columns = ("training FLOPs", "FLOPs", "of the table")
    return Table(f"Compared with the original Transformer ({found.name})", columns, rows, (note,))


def _plain(value: Any) -> Any:
    """A dataclass as plain data, including its computed sums."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        sums = [name for name, member in vars(type(value)).items() if isinstance(member, property)]
        return {**plain, **{name: getattr(value, name) for name in sums}}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


# --- tables for people ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A title, rows of cells, and sentences below; the first column is words, the others are numbers.

    The last row is a sum if `summed`.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    summed: bool = False


def plain_text(tables: Iterable[Table]) -> str:
    """Columns aligned with spaces.

    >>> print(plain_text([Table("Sums", ("what", "how many"), (("apples", "2"), ("all", "12")))]))
    Sums
      what    how many
      apples         2
      all           12
    """
    return "\n\n".join(_as_text(table) for table in tables)


def _as_text(table: Table) -> str:
    lines = [table.title]
    grid = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(table.columns))]
    for row in grid if table.rows else ():
        first, *others = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join([first, *others]).rstrip())
    for note in table.notes:
        lines.extend(textwrap.wrap(note, LINE, initial_indent="  ", subsequent_indent="  "))
    return "\n".join(lines)


def drawn(tables: Iterable[Table], width: int | None = None) -> str:
    """The same with rules and emphasis, for a terminal."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    for table in tables:
        if not table.rows:
            console.print(table.title, style="bold", markup=False)
        else:
            console.print(_grid(table))
        for note in table.notes:
            console.print(note, style="dim", markup=False)
        console.print()
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().rstrip("\n")


def _grid(table: Table) -> RichTable:
    grid = RichTable(title=table.title, title_justify="left", title_style="bold", header_style="dim")
    for i, column in enumerate(table.columns):
        grid.add_column(column, justify="right" if i else "left")
    for i, row in enumerate(table.rows):
        last = i == len(table.rows) - 1
        grid.add_row(
            *row,
            style="bold" if last and table.summed else None,
            end_section=i == len(table.rows) - 2 and table.summed,
        )
    return grid


def bytes_in_words(count: float) -> str:
    """Decimal units, as memory is sold.

    >>> bytes_in_words(141e9), bytes_in_words(24_576)
    ('141 GB', '24.6 kB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return _three_digits(count / size, unit)
    return f"{count:.0f} B"


def seconds_in_words(seconds: float) -> str:
    """The largest unit of which there is at least one.

    >>> seconds_in_words(0.0213), seconds_in_words(5400), seconds_in_words(1e6)
    ('21.3 ms', '1.5 hours', '11.6 days')
    """
    units = {"years": 365.25 * 86_400, "days": 86_400, "hours": 3600, "minutes": 60, "s": 1, "ms": 1e-3}
    for unit, size in units.items():
        if seconds >= size:
            return _three_digits(seconds / size, unit)
    return _three_digits(seconds / 1e-6, "µs")


def share_in_words(part: float, whole: float) -> str:
    """Per cent.

    >>> share_in_words(1, 3)
    '33.3 %'
    """
    return f"{100 * part / whole:.1f} %"


def _three_digits(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
