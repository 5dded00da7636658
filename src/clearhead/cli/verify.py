"""`clearhead verify`: every promise of decoding, tested on the user's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.base.errors import UserError
from clearhead.cli.table import show_table


def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a trained model.")],
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="One text a line; without it, texts are made up from the vocabulary."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Test less of everything.")] = False,
    draft: Annotated[
        Path | None,
        typer.Option(metavar="BUNDLE", help="A smaller model, to test speculative decoding with."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of a table.")] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …")] = "auto",
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
    lines = None if texts is None else _lines(texts)

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.verify import verify as run

    place = pick_device(device)
    model = load(bundle, device=place)
    small = None if draft is None else load(draft, device=place)
    report = run(model, lines, quick, draft=small, show=True)
    typer.echo(json.dumps(report.to_dict(), indent=2, ensure_ascii=False)) if as_json else _show(report)
    if not report.passed:
        raise typer.Exit(1)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")  # nothing else ends a line
    except OSError as error:
        raise UserError(f"The file '{path}' cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"The file '{path}' is not UTF-8 text: convert it first, with iconv say.") from error


def _show(report: Any) -> None:
    rows = [
        [
            check.name,
            check.result,
            "" if check.skipped else _number(check.worst),
            "" if check.skipped else _number(check.bound),
            check.sentence,
        ]
        for check in report.checks
    ]
    show_table(["check", "result", "worst", "bound", "what was found"], rows, numbers=[2, 3])
    for remark in report.remarks:
        typer.echo(f"Remark: {remark}")
    failed = [check.name for check in report.checks if not check.passed]
    count = sum(not check.skipped for check in report.checks)
    if failed:
        typer.echo(f"{len(failed)} of {count} checks failed: {', '.join(failed)}.")
    else:
        typer.echo(f"All {count} checks passed.")


def _number(value: float) -> str:
    return f"{value:.2g}"
