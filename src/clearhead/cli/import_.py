"""`clearhead import`: somebody else's model folder into a bundle of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    folder: Annotated[Path, typer.Argument(help="A model folder of Hugging Face or llama2.c, on this disk.")],
    out: Annotated[Path, typer.Option("--out", metavar="BUNDLE", help="The bundle to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a bundle that is there.")] = False,
) -> None:
    """Turn a model folder of Hugging Face or llama2.c into a bundle.

    \b
    Examples:
      clearhead import opus-mt-en-de --out en-de
    """
    from clearhead.bundle import save  # here, so that --help does not wait for torch
    from clearhead.decoding.defaults import not_carried
    from clearhead.interop import import_folder

    bundle = import_folder(folder)
    save(bundle, out, overwrite=overwrite)
    typer.echo(bundle.summary())
    if left := not_carried(bundle.metadata, bundle.config.family):
        typer.echo(f"Settings for decoding that change nothing here: {', '.join(left)}.")
    typer.echo(f"Wrote {out}")
