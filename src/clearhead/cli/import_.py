"""`clearhead import`: somebody else's model folder into a bundle of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    folder: Annotated[Path, typer.Argument(help="A model folder of Hugging Face, on this disk.")],
    out: Annotated[Path, typer.Option("--out", metavar="BUNDLE", help="The bundle to write.")],
) -> None:
    """Turn a model folder of Hugging Face into a bundle.

    \b
    Examples:
      clearhead import opus-mt-en-de --out en-de
    """
    from clearhead.interop import import_folder  # here, so that --help does not wait for torch

    import_folder(folder, out)
    typer.echo(f"Wrote {out}")
