"""`clearhead explain`: what a model did with one text, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import Device, option


def explain(
    bundle: Annotated[Path, typer.Argument(help="The model to look into.")],
    text: Annotated[str, typer.Argument(help="The text it is given.")],
    out: Annotated[Path, option("FILE", "The page to write.", "--out")],
    target: Annotated[
        str | None, option("TEXT", "What it is taken to write; without it, what it writes itself.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Write one page that shows what a model does with a text: every step, every head, every layer.

    The file needs nothing else: no script, no network.

    \b
    Examples:
      clearhead explain runs/demo-en-fr "I love deep learning." --out report.html
      clearhead explain en-fr "A red book." --target "Un livre rouge." --out report.html
    """
    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.atomic import atomic_write_text
    from clearhead.base.device import pick_device
    from clearhead.explorer.report import explain as explained
    from clearhead.explorer.session import Session

    if out.is_dir():
        raise UserError(f"'{out}' is a folder: say what the file in it is called.")
    session = Session(load(bundle, device=pick_device(device)), bundle.resolve().name or "model")
    atomic_write_text(out, explained(session, text, target))
    typer.echo(f"Wrote {out}")
