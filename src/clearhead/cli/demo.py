"""`clearhead demo`: train a translator on the built-in phrasebook, and watch it work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.options import option
from clearhead.cli.table import show_table

LANGUAGES = {"en-fr": "English to French", "en-de": "English to German"}


def demo(
    pair: Annotated[str, option("PAIR", "en-fr or en-de.", "--pair")] = "en-fr",
    out: Annotated[Path | None, option("FOLDER", "Where the run goes; runs/demo-PAIR without it.")] = None,
    again: Annotated[bool, option(None, "Train anew even if the bundle is there.", "--again")] = False,
    view: Annotated[str, option("KIND", "auto, live, plain or quiet.")] = "auto",
) -> None:
    """Train a small translator from scratch on the built-in phrasebook, then translate with it.

    Needs no files and no network. Two CPU cores take about two minutes.

    \b
    Examples:
      clearhead demo
      clearhead demo --pair en-de
    """
    # here, so that --help does not wait for torch
    from clearhead.jobs.demo import demonstrate, home_of, picture, show
    from clearhead.training.loop import Interrupted

    folder = out or home_of(pair)
    try:
        bundle = demonstrate(folder, pair, again=again, view=view)
    except Interrupted as stop:
        print(f"clearhead: {stop}; all is saved. Run the same command to go on.", file=sys.stderr)
        raise typer.Exit(130) from None
    test = bundle.metadata["test"]
    if test:
        typer.echo(
            f"\n{LANGUAGES[pair]}: {test['exact match']:.1f} % of {test['examples']:,} test sentences come "
            f"out exactly right. Their combinations of words never occurred in training."
        )
    else:  # interrupted, or failed
        typer.echo(f"\nThe test set has not been scored: `clearhead train --resume {folder}` does it.")
    typer.echo()
    rows = [
        [one.source, one.output, "✓" if one.output == one.right else f"✗ {one.right}"]
        for one in show(bundle, pair)
    ]
    show_table(["English", LANGUAGES[pair].split()[-1], ""], rows)
    typer.echo("\nWhere the decoder looked while it wrote (rows: what it wrote; columns: what it read):\n")
    typer.echo(picture(bundle, "I love deep learning."))
    chart = folder / "training" / "curves.png"
    typer.echo(
        f"\nWhat to try next:\n"
        f'  clearhead translate {folder} "The old man is reading a red book."\n'
        f"  clearhead explore {folder} --open      see it think, in the browser\n"
        f"  clearhead demo --pair {'en-de' if pair == 'en-fr' else 'en-fr'}\n"
        f"  clearhead train --source yours.en --target yours.fr --out runs/mine"
        + (f"\n  the curves of this run: {chart}" if chart.exists() else "")
    )
