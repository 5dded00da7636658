"""The measurements as Markdown for docs/performance.md: rates, ratios, memory, and which outputs agree.

Knows nothing about how they were taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from decode_peers.wire import Contender, Measured

NOTHING = "–"


def heading(case: str) -> str:
    """
    >>> heading("greedy-b1"), heading("beam4-b32")
    ('greedy, batch 1', 'beam 4, batch 32')
    """
    search, _, batch = case.partition("-b")
    return f"{search.replace('beam', 'beam ')}, batch {batch}"


def number(value: float) -> str:
    """
    >>> number(53812.3), number(98.76), number(9.876)
    ('53,812', '99', '9.9')
    """
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def rates(measured: Measured, contenders: Sequence[Contender], reference: str, memory: str) -> str:
    """Tokens a second, the median and the best run, with peak memory in the order of the columns."""
    cases = list(measured.cells)
    rows = [["tokens/s: median (best)", *map(heading, cases), f"peak {memory}, MB", "as ours in float32"]]
    for one in contenders:
        cells = [measured.cells[case].get(one.name) for case in cases]
        if not any(cells):
            continue
        told = [NOTHING if cell is None else f"{number(cell.rate)} ({number(cell.best)})" for cell in cells]
        extents = [NOTHING if cell is None else f"{cell.memory:.0f}" for cell in cells]
        rows.append([one.name, *told, " / ".join(extents), agreement(measured, one.name, reference)])
    return table(rows)


def agreement(measured: Measured, name: str, reference: str) -> str:
    """The share of tokens that are those of the reference, in all cases together.

    A text that differs once goes on differently, so one near tie early on counts for a whole text.
    """
    same = total = 0
    for cells in measured.cells.values():
        if name not in cells or reference not in cells:
            continue
        found, expected = cells[name].wrote, cells[reference].wrote
        if found is None or expected is None:
            continue
        pairs = [(a, b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True)]
        same += sum(a == b for a, b in pairs)
        total += len(pairs)
    return f"{100 * same / total:.0f} %" if total else NOTHING


def ratios(measured: Measured, contenders: Sequence[Contender]) -> str:
    """Ours over the best peer: float32 over the best in float32, the others over the best of any kind."""
    cases = list(measured.cells)
    peers = [one for one in contenders if not one.ours]
    rows = [["× the best peer", *map(heading, cases)]]
    for one in contenders:
        if not one.ours or not any(one.name in cells for cells in measured.cells.values()):
            continue
        like = [peer.name for peer in peers if one.kind != "float32" or peer.kind == "float32"]
        rows.append([one.name, *(over_best(measured, case, one.name, like) for case in cases)])
    return table(rows)


def over_best(measured: Measured, case: str, name: str, peers: Sequence[str]) -> str:
    cells = measured.cells[case]
    found = [peer for peer in peers if peer in cells]
    if name not in cells or not found:
        return NOTHING
    best = max(found, key=lambda peer: cells[peer].rate)
    return f"{cells[name].rate / cells[best].rate:.2f} ({best})"


def starts(times: Mapping[str, Sequence[float]], base: str, over: str) -> str:
    """Seconds from the start of a process to its end, beside those of `base`."""
    rows = [["process", "seconds", "fastest", over]]
    for name, seconds in times.items():
        share = statistics.median(seconds) / statistics.median(times[base]) if times.get(base) else 0.0
        rows.append([name, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f}", f"{share:.2f}"])
    return table(rows)


def files(
    measured: Measured,
    contenders: Sequence[Contender],
    whole: Mapping[str, Sequence[float]],
    bleu: Mapping[str, float],
    reference: str,
) -> str:
    """A file of lines: loaded and warm, and from the start of a process."""
    cells = measured.cells.get("file", {})
    expected = cells[reference].runs[-1]["texts"] if reference in cells else []
    rows = [["contender", "seconds", "best", "lines/s", "× best peer", "from start, s", "× best peer",
             "peak RSS, MB", "lines as ours in float32", *(["BLEU"] if bleu else []), "batches"]]  # fmt: skip
    peers = [one.name for one in contenders if not one.ours]
    quickest = min((statistics.median(whole[one]) for one in peers if whole.get(one)), default=None)
    for one in contenders:
        cell = cells.get(one.name)
        if cell is None:
            continue
        texts = cell.runs[-1]["texts"]
        same = sum(a == b for a, b in zip(texts, expected, strict=False))
        start = statistics.median(whole[one.name]) if whole.get(one.name) else None
        rows.append(
            [
                one.name,
                f"{statistics.median(cell.seconds):.2f}",
                f"{min(cell.seconds):.2f}",
                number(cell.rate),
                over_best(measured, "file", one.name, peers) if one.ours else NOTHING,
                NOTHING if start is None else f"{start:.2f}",
                f"{quickest / start:.2f}" if one.ours and start and quickest else NOTHING,
                f"{cell.memory:.0f}",
                f"{100 * same / len(expected):.0f} %" if expected else NOTHING,
                *([f"{bleu[one.name]:.2f}"] if bleu else []),
                str(measured.info.get(one.name, {}).get("setting", "")),
            ]
        )
    return table(rows)


def failures(measured: Measured) -> str:
    """What the table lacks, and why."""
    return "\n".join(f"- not measured: {name}: {why}" for name, why in measured.failures.items())


def versions(measured: Measured) -> str:
    """Each contender's own words about itself."""
    told = {name: info for name, info in measured.info.items() if info}
    return "\n".join(
        f"- {name}: " + ", ".join(f"{key} {value}" for key, value in info.items())
        for name, info in told.items()
    )
