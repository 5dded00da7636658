"""`clearhead translate`: what a trained bundle makes of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.texts import chunks


def translate(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a trained model.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts; without any, lines from a pipe.")
    ] = None,
    beam: Annotated[int, typer.Option(min=1, metavar="N", help="Places of the beam; 1 is greedy.")] = 1,
    length_penalty: Annotated[
        float, typer.Option(metavar="A", help="Power of the length that scores are divided by.")
    ] = 1.0,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …")] = "auto",
) -> None:
    """Translate or summarise texts with a trained bundle, one line for each.

    An empty line stays an empty line; the order is kept.

    \b
    Examples:
      clearhead translate runs/en-fr "I love deep learning."
      clearhead translate runs/en-fr --beam 5 < lines.en > lines.fr
    """
    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.decoding.run import translate as run

    model = load(bundle, device=pick_device(device))
    for lines in chunks(texts):
        for one in run(model, lines, beam=beam, length_penalty=length_penalty):
            typer.echo(one.text)
