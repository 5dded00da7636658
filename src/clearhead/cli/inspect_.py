"""`clearhead inspect`: what a bundle holds, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    bundle: Annotated[Path, typer.Argument(help="The bundle to look at.")],
) -> None:
    """Print a bundle's config, parameters and checksums.

    \b
    Examples:
      clearhead inspect en-de
    """
    from clearhead.bundle import describe  # here, so that --help does not wait for torch

    typer.echo(describe(bundle))
