"""`clearhead presets`: the named models that can be built."""

from __future__ import annotations

import typer


def presets() -> None:
    """List the named models that can be built.

    \b
    Examples:
      clearhead presets
      clearhead plan --preset base
    """
    from clearhead.models.presets import presets as known  # here, so that --help does not wait for torch

    for name in known():
        typer.echo(name)
