"""`clearhead generate`: how a trained language model goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def generate(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a trained language model.")],
    prompt: Annotated[str, typer.Argument(metavar="[PROMPT]", help="How the text begins.")] = "",
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens to write.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0.0, metavar="T", help="0: the likeliest token each time; 1: as probable.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The same seed writes the same text.")] = 0,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …")] = "auto",
) -> None:
    """Continue a text with a trained language model.

    \b
    Examples:
      clearhead generate runs/book "It was"
      clearhead generate runs/book "It was" --temperature 0 --tokens 50
    """
    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.decoding.run import generate as run

    model = load(bundle, device=pick_device(device))
    typer.echo(run(model, prompt, tokens, temperature=temperature, seed=seed))
