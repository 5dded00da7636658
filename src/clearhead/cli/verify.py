"""`clearhead verify`: every promise of decoding, tested on the user's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.base.reading import read_text
from clearhead.cli.options import Bundle, Device, option
from clearhead.cli.table import show_json, show_table

LARGEST = 1 << 30  # bytes of a file of texts


def verify(
    bundle: Bundle,
    texts: Annotated[
        Path | None, option("FILE", "One text per line.  [default: random texts from the vocabulary]")
    ] = None,
    quick: Annotated[bool, option(None, "Run fewer cases of each check.", "--quick")] = False,
    draft: Annotated[
        Path | None, option("BUNDLE", "A smaller model for the checks of speculative decoding.")
    ] = None,
    as_json: Annotated[bool, option(None, "Write JSON instead of a table.", "--json")] = False,
    device: Device = "auto",
) -> None:
    """Test that decoding is right on this very model, and say how far off anything is.

    Cached or not, alone or in a batch, greedy or beam, drawn, penalised, compressed, by every kernel: each
    is compared with its definition. Ends with 0 if all pass, and with 1 if one fails.

    \b
    Examples:
      clearhead verify runs/en-fr
      clearhead verify runs/en-fr --texts test.en --quick
      clearhead verify runs/en-fr --draft runs/en-fr-small --json
    """
    # nothing but "\n" ends a line
    lines = None if texts is None else read_text(texts, LARGEST).split("\n")

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.verify import verify as run

    place = pick_device(device)
    model = load(bundle, device=place)
    small = None if draft is None else load(draft, device=place)
    report = run(model, lines, quick, draft=small, show=True)
    show_json(report.to_dict()) if as_json else _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _show(report: Any) -> None:
    rows = []
    for check in report.checks:
        numbers = ["" if check.skipped else f"{value:.2g}" for value in (check.worst, check.bound)]
        rows.append([check.name, check.result, *numbers, check.sentence])
    show_table(["check", "result", "worst", "bound", "what was found"], rows, numbers=[2, 3])
    for remark in report.remarks:
        typer.echo(f"Remark: {remark}")
    failed = [check.name for check in report.checks if not check.passed]
    count = sum(not check.skipped for check in report.checks)
    if failed:
        typer.echo(f"{len(failed)} of {count} checks failed: {', '.join(failed)}.")
    else:
        typer.echo(f"All {count} checks passed.")
