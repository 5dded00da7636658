"""`clearhead examples`: the worked examples, with every number shown."""

from __future__ import annotations

from typing import Annotated

import typer


def examples(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One example; without it, all of them in order.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write Markdown, as in the documentation.")
    ] = False,
) -> None:
    """Show the Transformer at work on small numbers.

    \b
    Examples:
      clearhead examples
      clearhead examples --markdown > examples.md
    """
    from clearhead.lectures import run  # here, so that --help does not wait for torch

    run(name, markdown)
