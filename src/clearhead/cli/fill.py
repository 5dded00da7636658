"""`clearhead fill`: words for the gaps of a text, by a model that was trained to predict hidden ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import Device, option
from clearhead.cli.starting import hurry, settle
from clearhead.cli.table import show_json
from clearhead.cli.texts import chunks

MOST = 1000  # words for a gap


def fill(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A bundle trained with --task mask or denoise.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="Texts with [MASK] for each gap. Without any, reads lines from a pipe."
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            "-k",
            metavar="K",
            help="Print the K most likely words for each gap with their probabilities.",
        ),
    ] = None,
    as_json: Annotated[
        bool, option(None, "One JSON object per text, with the words of each gap.", "--json")
    ] = False,
    device: Device = "auto",
) -> None:
    """Fill the gaps of each text, written [MASK], and print the whole text, line by line.

    A masked language model puts one token into each gap. With --top it prints the most likely ones: the
    number of the gap, the word and its probability, separated by tabs. A model trained to denoise writes a
    span of any length for each gap.

    \b
    Examples:
      clearhead fill runs/bert "the [MASK] sat on the mat"
      clearhead fill runs/bert "the [MASK] sat on the [MASK]" --top 5
      clearhead fill runs/t5 "Thank you [MASK] me to your party [MASK] week."
      clearhead fill runs/bert --json < gaps.txt
    """
    if top is not None and not 1 <= top <= MOST:
        raise UserError(f"--top must be a whole number from 1 to {MOST:,}, not {top}.")
    hurry(bundle)

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.decoding.fill import fill as fill_gaps

    model = load(bundle, device=pick_device(device))
    settle()
    if top is not None and model.config.head.kind != "mlm":
        raise UserError(
            "--top only works with masked language models, and this one writes a span for each gap: "
            "leave it out."
        )
    first = 1
    for lines in chunks(texts):
        filled = fill_gaps(model, lines, top=top or 1, first=first)
        first += len(lines)
        for text, found in zip(lines, filled, strict=True):
            if as_json:
                gaps = [[{"word": word, "probability": share} for word, share in gap] for gap in found.gaps]
                show_json({"text": text, "filled": found.text, "gaps": gaps}, indent=None)
            elif top is None:
                typer.echo(found.text)
            else:
                for number, gap in enumerate(found.gaps, start=1):
                    for word, share in gap:
                        typer.echo(f"{number}\t{word}\t{share:.4f}")
