"""`clearhead demo`: train a translator on the built-in phrasebook, and watch it work."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli.options import AsJson, option
from clearhead.cli.table import show_json, show_table

if TYPE_CHECKING:
    from clearhead.bundle import Bundle

LANGUAGES = {"en-fr": "English to French", "en-de": "English to German"}


def demo(
    pair: Annotated[str, option("PAIR", "en-fr or en-de.", "--pair")] = "en-fr",
    out: Annotated[Path | None, option("FOLDER", "Folder for the run.  [default: runs/demo-PAIR]")] = None,
    again: Annotated[bool, option(None, "Train again even if the bundle already exists.", "--again")] = False,
    view: Annotated[str, option("KIND", "auto, live, plain or quiet.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a small translator from scratch on the built-in phrasebook, then translate with it.

    Needs no files and no network. Two CPU cores take about two minutes.

    \b
    Examples:
      clearhead demo
      clearhead demo --pair en-de
    """
    from clearhead.jobs.demo import home_of, picture, show  # here, so that --help does not wait for torch

    folder = out or home_of(pair)
    bundle = trained(folder, pair, again=again, view=view)
    test = bundle.metadata["test"]
    shown = show(bundle, pair)
    if as_json:
        columns = ("source", "output", "reference")
        texts = [dict(zip(columns, one, strict=True)) for one in shown]
        show_json({"bundle": str(folder), "test": test or None, "examples": texts})
        return
    if test:
        typer.echo(
            f"\n{LANGUAGES[pair]}: {test['exact match']:.1f} % of {test['examples']:,} test sentences are "
            f"translated exactly right. Their word combinations do not occur in the training set."
        )
    else:  # interrupted, or failed
        typer.echo(f"\nThe test set has not been scored: run `clearhead train --resume {folder}`.")
    typer.echo()
    rows = [[source, output, "✓" if output == right else f"✗ {right}"] for source, output, right in shown]
    show_table(["English", LANGUAGES[pair].split()[-1], ""], rows)
    typer.echo("\nCross-attention of the decoder (rows: words written; columns: words read):\n")
    typer.echo(picture(bundle, "I love deep learning."))
    chart, command = folder / "training" / "curves.png", own_name()
    typer.echo(
        f"\nWhat to try next:\n"
        f'  {command} translate {folder} "The old man is reading a red book."\n'
        f"  {command} explore {folder} --open      see it think, in the browser\n"
        f"  {command} demo --pair {'en-de' if pair == 'en-fr' else 'en-fr'}\n"
        f"  {command} train --source yours.en --target yours.fr --out runs/mine"
        + (f"\n  curves of this run: {chart}" if chart.exists() else "")
    )


def own_name() -> str:
    """What to type for this command: its name if the shell finds it, otherwise its path.

    `make demo` runs it from an environment that is not activated.
    """
    started = Path(sys.argv[0])
    if shutil.which("clearhead") or started.name != "clearhead":
        return "clearhead"
    return os.path.relpath(started)


def trained(folder: Path, pair: str, **how: Any) -> Bundle:
    """The demonstration's bundle; an interrupted training is saved, and ends the command."""
    from clearhead.jobs.demo import demonstrate  # here, so that --help does not wait for torch
    from clearhead.training.interrupt import Interrupted

    try:
        return demonstrate(folder, pair, **how)
    except Interrupted as stop:
        typer.echo(f"clearhead: {stop}; everything is saved. Run the same command to resume.", err=True)
        raise typer.Exit(130) from None
