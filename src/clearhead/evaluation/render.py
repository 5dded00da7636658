"""A page of sections as Markdown and as one HTML file: tables, notes, and cases that fold away.

All text is escaped: what a model writes is data, never mark-up. Knows nothing
about metrics.
"""

from __future__ import annotations

import base64
import difflib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

OPEN = 10  # cases that are unfolded at first
COMPARED = 400  # words of a text beyond which differences are not marked, because that would be slow


@dataclass(frozen=True)
class Table:
    """A header and rows of the same width; the first column is text, the others are numbers."""

    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Case:
    """One example: a heading, and lines of (name, text); in outputs, differences from `right` are marked."""

    heading: str
    right: str
    lines: tuple[tuple[str, str], ...]
    picture: bytes | None = None  # the PNG file of a source that is a picture; only in HTML


@dataclass(frozen=True)
class Section:
    """A part of a page."""

    title: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    pictures: tuple[str, ...] = ()  # our own SVG elements; only in HTML

    @property
    def worth_showing(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.cases or self.notes or self.pictures or any(table.rows for table in self.tables))


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    sections: tuple[Section, ...]


# -- Markdown -------------------------------------------------------------------------------------


def to_markdown(page: Page) -> str:
    """The page as Markdown.

    >>> page = Page("A|B", (Section("S", (Table(("metric", "x"), [["BLEU", "41.0"]]),)),))
    >>> print(to_markdown(page))
    # A\\|B
    <BLANKLINE>
    ## S
    <BLANKLINE>
    | metric | x |
    | :-- | --: |
    | BLEU | 41.0 |
    <BLANKLINE>
    """
    parts = [f"# {_plain(page.title)}"]
    for section in page.sections:
        parts.append(f"## {_plain(section.title)}")
        parts += [_markdown_table(table) for table in section.tables if table.rows]
        if section.notes:
            parts.append("\n".join(f"- {_plain(note)}" for note in section.notes))
        for case in section.cases:
            lines = [f"### {_plain(case.heading)}", ""]
            lines += [f"- **{_plain(name)}**: {_plain(text) or '*(empty)*'}" for name, text in case.lines]
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    rules = [":--", *["--:"] * (len(table.header) - 1)]
    rows = [[_plain(cell) for cell in row] for row in (table.header, *table.rows)]
    rows.insert(1, rules)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    one_line = " ⏎ ".join(part.strip() for part in text.strip().splitlines())
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", one_line)


# -- HTML -----------------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --quiet: #5a6472; --line: #d5dae1;
  --shade: #f4f6f9; --mark: #ffe2a8; --link: #1f4e79; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #14171c; --quiet: #9aa5b4;
  --line: #343b46; --shade: #1d2229; --mark: #6b4a00; --link: #8fc1f0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
th { background: var(--shade); font-weight: 600; }
ul.notes { color: var(--quiet); font-size: .85rem; padding-left: 1.2rem; overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; color: var(--quiet); font-size: .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
dd img { display: block; min-width: 7rem; max-width: 100%; image-rendering: pixelated; }
mark { background: var(--mark); color: inherit; border-radius: 3px; padding: 0 .1em; }
""".strip()


def to_html(page: Page) -> str:
    """The page as one self-contained HTML file, for light and dark screens."""
    title = html.escape(page.title)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n<h1>{title}</h1>",
    ]
    for section in page.sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts += [f'<div class="wide">{picture}</div>' for picture in section.pictures]
        parts += [_html_table(table) for table in section.tables if table.rows]
        if section.notes:
            notes = "".join(f"<li>{html.escape(note)}</li>" for note in section.notes)
            parts.append(f'<ul class="notes">{notes}</ul>')
        parts += [_html_case(case, number < OPEN) for number, case in enumerate(section.cases)]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _html_table(table: Table) -> str:
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in table.rows
    )
    return (
        f'<div class="wide"><table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>'
    )


def _html_case(case: Case, open_: bool) -> str:
    lines = []
    if case.picture is not None:
        data = base64.b64encode(case.picture).decode("ascii")
        lines.append(f'<dt>picture</dt><dd><img alt="" src="data:image/png;base64,{data}"></dd>')
    for name, text in case.lines:
        compared = name not in ("source", "reference")
        shown = marked(text, case.right) if compared else html.escape(text)
        lines.append(f"<dt>{html.escape(name)}</dt><dd>{shown or '<em>(empty)</em>'}</dd>")
    flag = " open" if open_ else ""
    return f"<details{flag}><summary>{html.escape(case.heading)}</summary><dl>{''.join(lines)}</dl></details>"


def marked(text: str, right: str) -> str:
    """Escaped text that marks the words which do not occur in `right` in this order.

    >>> marked("the <dog> sleeps", "the cat sleeps")
    'the <mark>&lt;dog&gt;</mark> sleeps'
    """
    ours, theirs = re.findall(r"\s+|\S+", text), right.split()
    words = [piece for piece in ours if not piece.isspace()]
    if max(len(words), len(theirs)) > COMPARED:
        return html.escape(text)
    same: set[int] = set()
    for block in difflib.SequenceMatcher(a=words, b=theirs, autojunk=False).get_matching_blocks():
        same.update(range(block.a, block.a + block.size))
    shown, number = [], 0
    for piece in ours:
        if piece.isspace():
            shown.append(piece)
            continue
        shown.append(html.escape(piece) if number in same else f"<mark>{html.escape(piece)}</mark>")
        number += 1
    return "".join(shown)
