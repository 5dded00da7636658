"""`clearhead quiz`: the lectures' questions, asked first and then answered; experiments answer the whys."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated

import typer

from clearhead.base.errors import UserError, nearest
from clearhead.cli.options import AsJson, option
from clearhead.cli.table import show_json, show_table


def quiz(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One question; without it, all of them in order.")
    ] = None,
    show_list: Annotated[bool, option(None, "List the questions and stop.", "--list")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask the lectures' questions, wait, and answer: those that ask why by training small models on the spot.

    An experiment takes seconds. Without a terminal it does not wait.

    \b
    Examples:
      clearhead quiz
      clearhead quiz cross-attention-questions
      clearhead quiz --list
      clearhead quiz cross-attention-questions --json
    """
    if as_json and show_list:
        raise UserError("Choose one of --json and --list.")

    from clearhead import lectures  # here, so that --help does not wait for torch
    from clearhead.jobs.experiments import EXPERIMENTS

    asked = [one for one in lectures.names() if lectures.SOURCES[one].question]
    if show_list:
        wide = max(map(len, asked))
        for one in asked:
            typer.echo(f"{one:{wide}}  {lectures.SOURCES[one].question}")
        return
    if name is not None and name not in asked:
        raise UserError(f"There is no question '{name}': {nearest(name, asked)}")
    wanted = asked if name is None else [name]
    if as_json:
        show_json(
            [
                {
                    "name": one,
                    "question": lectures.SOURCES[one].question,
                    "answer": lectures.SOURCES[one].answer,
                    "experiments": [dataclasses.asdict(run()) for run in EXPERIMENTS.get(one, ())],
                }
                for one in wanted
            ]
        )
        return
    for one in wanted:
        source = lectures.SOURCES[one]
        typer.echo(f"{source.deck} · {source.title}\n{source.about}\n\n{source.question}\n")
        if not _waited():
            return
        typer.echo(f"{source.answer}\n")
        if one not in EXPERIMENTS:
            typer.echo(f"The numbers: clearhead examples {one}\n")
        for experiment in EXPERIMENTS.get(one, ()):
            typer.echo("Running an experiment …", err=True)
            found = experiment()
            typer.echo(f"{found.title}. {found.about}\n")
            show_table(found.columns, found.rows, numbers=range(1, len(found.columns)))
            typer.echo(f"\n{found.shows}\n")


def _waited() -> bool:
    """Wait for the Enter key if there is a terminal; False: no more questions are wanted."""
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    try:
        typed = input("Think, then press Enter (q to quit): ")
    except EOFError:
        return False
    typer.echo()
    return typed.strip().lower() != "q"
