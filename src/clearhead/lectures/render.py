"""Worked examples as text: tables for a terminal, a page of Markdown, and the list of names.

Nothing is computed here. The Markdown is the same on every machine, so
the page in the documentation can be compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from clearhead.lectures.examples import Example, names, summary
from clearhead.lectures.step import SLIPS, SOURCES, Mark, Number, Slip, Step, Table, decimals_of

WIDTH = 100  # of a page that is not a terminal
DECIMALS = 4  # of our own numbers, at most

# after a printed number in a terminal, with its colour
SIGNS = {
    Mark.RIGHT: (" ", ""),  # aligns the digits
    Mark.TRUNCATED: ("↓", "yellow"),
    Mark.LAST_DIGIT: ("≈", "yellow"),
    Mark.WRONG: ("✗", "bold red"),
}
# a wrong number is struck out, the others follow ours with a note
MARKDOWN = {Mark.TRUNCATED: "{} (cut: {})", Mark.LAST_DIGIT: "{} (last digit: {})", Mark.WRONG: "{} ~~{}~~"}

TOLERANCE = (
    f"Our numbers are computed in float64 and shown to {DECIMALS} decimals at most, so within "
    f"{0.5 * 10**-DECIMALS:.5f} of the exact ones. "
    "A printed number counts as right within half a unit of the last decimal its table is printed with, as "
    "off in the last digit within two units of it, and as wrong beyond that."
)

MARKDOWN_HEAD = f"""\
# Worked examples from five lectures

The numbers on the lecture slides, recomputed through the library itself. Each table shows our numbers. If a
slide prints something else, that follows ours: ~~struck out~~ if it is wrong, in brackets if only its last
digit is off or was truncated instead of rounded. Each erratum is at the step that shows it. `make docs`
writes this page; `clearhead examples` prints the same numbers, and `clearhead quiz` asks the questions first
and answers the why questions with an experiment.

Decks: T9 attention tutorial, L13 Transformer architecture, L9 Transformers continued, L7 models: Transformer,
L3 Transformers for business analytics.

{TOLERANCE}
"""


SLIPS_HEAD = "What the slides have wrong besides the numbers above: formulas, words, names and statements."


def slips_to_terminal(console: Console | None = None) -> None:
    """Print the slips one below the other."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(Text(f"{len(SLIPS)} slips. {SLIPS_HEAD}"))
    for one in SLIPS:
        console.print()
        console.print(Text.assemble((f"{one.deck}, {one.slide}", "bold"), f" ({one.kind})"))
        console.print(Padding(Text.assemble(("printed: ", "dim"), one.printed), (0, 0, 0, 2)))
        console.print(Padding(Text.assemble(("right:   ", "dim"), one.right), (0, 0, 0, 2)))
        if one.example:
            console.print(Padding(Text(f"see clearhead examples {one.example}", style="dim"), (0, 0, 0, 2)))


def listing() -> str:
    """One line for each example: name, deck, title."""
    wide = max(map(len, names()))
    return "\n".join(f"{name:{wide}}  {SOURCES[name].deck:6}  {SOURCES[name].title}" for name in names())


# --- numbers ------------------------------------------------------------------------------------


def needed_decimals(table: Table, most: int = DECIMALS) -> int:
    """The fewest decimals that show every number of a table exactly, or the most we show.

    >>> needed_decimals(((1.25, 0.5),)), needed_decimals(((2.0, 1.0),)), needed_decimals(((1 / 3,),))
    (2, 0, 4)
    """
    finite = [x for row in table for x in row if math.isfinite(x)]
    return next((d for d in range(most) if all(abs(x - round(x, d)) < 1e-9 for x in finite)), most)


def written(number: Number, decimals: int) -> str:
    """A number with a real minus sign; zero after rounding has no sign."""
    if not math.isfinite(number):
        return "∞" if number > 0 else "−∞"
    shown = f"{number:.{decimals}f}"
    if float(shown) == 0:
        shown = shown.lstrip("-")
    return shown.replace("-", "−")


def printed_cells(step: Step) -> list[list[tuple[str, Mark]]]:
    """The printed table as text, each number with its mark."""
    assert step.printed is not None
    decimals = decimals_of(step.printed)
    return [
        [(written(float(number), decimals), mark) for number, mark in zip(row, marks, strict=True)]
        for row, marks in zip(step.printed, step.marks(), strict=True)
    ]


def our_cells(step: Step) -> list[list[str]]:
    """Our table as text."""
    decimals = needed_decimals(step.table)
    return [[written(x, decimals) for x in row] for row in step.table]


# --- terminal -----------------------------------------------------------------------------------


def to_terminal(found: Sequence[Example], console: Console | None = None) -> None:
    """Print examples with their tables and the summary; plain text unless it is a terminal."""
    console = console or Console(highlight=False)
    if console.is_terminal:
        _print(found, console)
        return
    console.width = WIDTH
    with console.capture() as captured:
        _print(found, console)
    console.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _print(found: Sequence[Example], console: Console) -> None:
    for one in found:
        console.rule(f"[bold]{one.name}[/bold] · {one.source.deck}", align="left")
        console.print(Text(one.source.title, style="bold"))
        console.print(Text(one.source.about))
        if one.source.question:
            console.print(Text.assemble(("Question: ", "bold"), one.source.question))
        given = [_given(one, console)] if one.given() else []
        for number, part in enumerate([*given, *(_step(step, console) for step in one.steps)], -len(given)):
            console.print()
            console.print(Padding(part, (0, 0, 0, 2), expand=False))
            if number == one.erratum_at:
                console.print()
                console.print(Text.assemble(("Erratum: ", "bold"), one.source.erratum or ""))
        if one.source.answer:
            console.print()
            console.print(Text.assemble(("Answer: ", "bold"), one.source.answer))
        console.print()
    if any(True for one in found for step in one.steps for _ in step.faults()):
        signs = [(f"{sign} {mark.value}", style) for mark, (sign, style) in SIGNS.items() if sign.strip()]
        console.print(Text("printed numbers:  ").append_text(Text("   ").join(Text(*sign) for sign in signs)))
        console.print(Text(TOLERANCE, style="dim"))
    console.print(Text(summary(found), style="bold"))


def _given(one: Example, console: Console) -> RenderableType:
    """The example's inputs, side by side."""
    tables = [_grid(step.name, our_cells(step), step) for step in one.given()]
    return Group(Text("given", style="bold cyan"), _beside(tables, console))


def _step(step: Step, console: Console) -> RenderableType:
    """The formula, our table, the printed one next to it if it differs, and the note."""
    tables = [_grid("recomputed", our_cells(step), step)]
    verdict = ""
    if step.printed is not None and not any(step.faults()):
        verdict = "  (as printed)"
    elif step.printed is not None:
        marked = [
            [Text(text + SIGNS[mark][0], SIGNS[mark][1]) for text, mark in row] for row in printed_cells(step)
        ]
        tables.append(_grid("printed", marked, step))
    if len(tables) == 1:
        tables[0].title = None
    formula = Text.assemble((step.name, "bold cyan"), f" = {step.formula}", (verdict, "green"))
    note = [Text(step.note, style="italic")] if step.note else []
    return Group(formula, _beside(tables, console), *note)


def _beside(tables: Sequence[RichTable], console: Console) -> RenderableType:
    """Tables side by side, or stacked if the terminal is too narrow."""
    gap, indent = 4, 2
    needed = sum(console.measure(table).maximum + gap for table in tables) - gap + indent
    if needed > console.width:
        return Group(*tables)
    row = RichTable.grid(padding=(0, gap))
    row.add_row(*tables)
    return row


def _grid(title: str, cells: Sequence[Sequence[str | Text]], step: Step) -> RichTable:
    """Numbers right-aligned under their labels, without lines."""
    columns = max(len(row) for row in cells)
    table = RichTable(
        title=title,
        title_style="dim",
        box=box.SIMPLE_HEAD if step.columns else None,
        show_header=bool(step.columns),
        show_edge=False,
        pad_edge=False,
        padding=(0, 1),
    )
    if step.rows:
        table.add_column("", style="dim")
    for index in range(columns):
        table.add_column(
            step.columns[index] if step.columns else "", justify="right", header_style="dim", no_wrap=True
        )
    for index, row in enumerate(cells):
        label = [Text(step.rows[index])] if step.rows else []
        table.add_row(*label, *row)
    return table


# --- Markdown -----------------------------------------------------------------------------------


def to_markdown(found: Sequence[Example]) -> str:
    """The examples as one page of Markdown."""
    parts = [MARKDOWN_HEAD]
    for one in found:
        parts.append(f"## {one.name}\n")
        parts.append(f"**{one.source.title}** ({one.source.deck}). {one.source.about}\n")
        if one.source.question:
            parts.append(f"*{one.source.question}*\n")
        parts += [f"`{step.name}` = `{_markdown_given(step)}`\n" for step in one.given()]
        for number, step in enumerate(one.steps):
            parts.append(_markdown_step(step))
            if number == one.erratum_at:
                parts.append(f"> **Erratum.** {one.source.erratum}\n")
        if one.source.answer:
            parts.append(f"**Answer.** {one.source.answer}\n")
    parts.append(_markdown_slips())
    parts.append("## In all\n")
    parts.append(summary(found) + "\n")
    return "\n".join(parts)


def _markdown_slips() -> str:
    rows = [
        f"| {one.deck} | {one.slide} | {one.printed} | {one.right}{_worked_out(one)} | {one.kind} |"
        for one in SLIPS
    ]
    head = "| deck | slide | printed | right | kind |\n|---|---|---|---|---|"
    return "\n".join(["## Slips of the slides\n", SLIPS_HEAD, "", head, *rows, ""])


def _worked_out(slip: Slip) -> str:
    return f" ([{slip.example}](#{slip.example}))" if slip.example else ""


def _markdown_given(step: Step) -> str:
    """A matrix in one line."""
    return "[" + ", ".join("[" + ", ".join(row) + "]" for row in our_cells(step)) + "]"


def _markdown_step(step: Step) -> str:
    ours = our_cells(step)
    if step.printed is not None:
        pairs = zip(ours, printed_cells(step), strict=True)
        ours = [
            [MARKDOWN.get(mark, "{}").format(x, text) for x, (text, mark) in zip(*p, strict=True)]
            for p in pairs
        ]
    columns = max(len(row) for row in ours)
    labels = list(step.columns) if step.columns else [""] * columns
    head = ([""] if step.rows else []) + labels
    body = [
        ([step.rows[i]] if step.rows else []) + row + [""] * (columns - len(row))
        for i, row in enumerate(ours)
    ]
    align = (["---"] if step.rows else []) + ["---:"] * columns
    lines = ["| " + " | ".join(row) + " |" for row in (head, align, *body)]
    agrees = " (as printed)" if step.printed is not None and not any(step.faults()) else ""
    note = f"\n{step.note}\n" if step.note else ""
    return f"`{step.name}` = {step.formula}{agrees}\n\n" + "\n".join(lines) + "\n" + note
