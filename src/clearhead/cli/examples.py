"""`clearhead examples`: the worked examples, with every number shown."""

from __future__ import annotations

from typing import Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import AsJson, option
from clearhead.cli.table import show_json


def examples(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One example; without it, all of them in order.")
    ] = None,
    markdown: Annotated[bool, option(None, "Write Markdown, as in the documentation.", "--markdown")] = False,
    show_list: Annotated[bool, option(None, "List the names and stop.", "--list")] = False,
    slips: Annotated[bool, option(None, "List the other mistakes on the slides.", "--slips")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the Transformer at work on small numbers: worked examples from five lectures.

    \b
    Examples:
      clearhead examples
      clearhead examples contextual-apple
      clearhead examples --slips
      clearhead examples contextual-apple --json
      clearhead examples --markdown > examples.md
    """
    if as_json + markdown + show_list + slips > 1:
        raise UserError("Choose one of --json, --markdown, --list and --slips.")

    from clearhead import lectures  # here, so that --help does not wait for torch

    if as_json:
        show_json([lectures.as_plain(one) for one in lectures.examples(name)])
    elif show_list:
        typer.echo(lectures.listing())
    elif slips:
        lectures.slips_to_terminal()
    elif markdown:
        typer.echo(lectures.to_markdown(lectures.examples(name)), nl=False)
    else:
        lectures.to_terminal(lectures.examples(name))
