"""`clearhead import`: another toolkit's model folder into a bundle of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.options import option


def import_(
    folder: Annotated[Path, typer.Argument(help="A local model folder of Hugging Face or llama2.c.")],
    out: Annotated[Path, option("BUNDLE", "The bundle to write.", "--out")],
    overwrite: Annotated[bool, option(None, "Overwrite an existing bundle.", "--overwrite")] = False,
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
        typer.echo(f"These decoding settings have no effect here: {', '.join(left)}.")
    typer.echo(f"Wrote {out}")
