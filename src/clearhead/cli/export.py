"""`clearhead export`: a bundle of ours into the folder another toolkit reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    bundle: Annotated[Path, typer.Argument(help="The bundle to export.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="Who will read it: huggingface.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder to write.")],
) -> None:
    """Write a bundle as the folder another toolkit reads.

    \b
    Examples:
      clearhead export en-de --to huggingface --out en-de-hf
    """
    from clearhead.bundle import load_bundle  # here, so that --help does not wait for torch
    from clearhead.interop import export_folder

    export_folder(load_bundle(bundle), out, to=to)
    typer.echo(f"Wrote {out}")
