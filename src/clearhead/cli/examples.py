"""`clearhead examples`: the worked examples, with every number shown."""

from __future__ import annotations

from typing import Annotated

import typer

from clearhead.cli.options import option


def examples(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One example; without it, all of them in order.")
    ] = None,
    markdown: Annotated[bool, option(None, "Write Markdown, as in the documentation.", "--markdown")] = False,
    show_list: Annotated[bool, option(None, "List the names and stop.", "--list")] = False,
    slips: Annotated[bool, option(None, "List what else the slides have wrong.", "--slips")] = False,
) -> None:
    """Show the Transformer at work on small numbers: worked examples from five lectures.

    \b
    Examples:
      clearhead examples
      clearhead examples contextual-apple
      clearhead examples --slips
      clearhead examples --markdown > examples.md
    """
    from clearhead import lectures  # here, so that --help does not wait for torch

    if show_list:
        typer.echo(lectures.listing())
    elif slips:
        lectures.slips_to_terminal()
    elif markdown:
        typer.echo(lectures.to_markdown(lectures.examples(name)), nl=False)
    else:
        lectures.to_terminal(lectures.examples(name))
