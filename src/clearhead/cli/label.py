"""`clearhead label`: the classes of texts, or the tags of their words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.starting import hurry, settle
from clearhead.cli.texts import chunks


def label(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A trained classifier or tagger.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts; without any, lines from a pipe.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …")] = "auto",
) -> None:
    """Name the class of each text with its probability, or the tag of each word, one line for each text.

    \b
    Examples:
      clearhead label runs/reviews "a lovely film"
      clearhead label runs/reviews < reviews.txt
    """
    hurry(bundle)

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.decoding.labels import classify, tag, unread_sentence

    model = load(bundle, device=pick_device(device))
    settle()
    before, unread = 0, None
    for lines in chunks(texts):
        if model.config.head.kind == "tag":
            for tags in tag(model, lines):
                typer.echo(" ".join(tags))
        else:
            if unread is None and (unread := unread_sentence(model, lines, before)) is not None:
                typer.echo(f"clearhead: {unread}", err=True)
            before += len(lines)
            for name, share in classify(model, lines):
                typer.echo(f"{name}\t{share:.4f}")
