"""`clearhead label`: the classes or numbers of texts, one by one or in twos, or the tags of their words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import Device
from clearhead.cli.starting import hurry, settle
from clearhead.cli.texts import chunks


def label(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A trained classifier or tagger.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...",
            help="Texts, or pairs of texts one after the other; without any, lines from a pipe, the texts "
            "of a pair separated by a tab.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Name the class of each text with its probability, its number, or the tag of each word, line by line.

    \b
    Examples:
      clearhead label runs/reviews "a lovely film"
      clearhead label runs/reviews < reviews.txt
      clearhead label runs/alike "a cat sleeps" "an animal rests"
      clearhead label runs/alike < pairs.tsv
    """
    hurry(bundle)

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.decoding.labels import classify, reads_two, regress, tag, unread_sentence

    model = load(bundle, device=pick_device(device))
    settle()
    kind = model.config.head.kind
    if kind == "tag":
        for lines in chunks(texts):
            for tags in tag(model, lines):
                typer.echo(" ".join(tags))
        return
    before, unread = 0, None
    two = kind in ("classify", "number") and reads_two(model)
    for given in _given(texts, two):
        if unread is None and (unread := unread_sentence(model, given, before)) is not None:
            typer.echo(f"clearhead: {unread}", err=True)
        before += len(given)
        if kind == "number":
            for value in regress(model, given):
                typer.echo(f"{value:.6g}")
        else:
            for name, share in classify(model, given):
                typer.echo(f"{name}\t{share:.4f}")


def _given(texts: list[str] | None, two: bool | None) -> Iterator[list[str | tuple[str, str]]]:
    """Texts, or pairs of them, some at a time; `two` None: a tab in a text makes two of it."""
    if two and texts:
        if len(texts) % 2:
            raise UserError(f"This model judges two texts together, and there are {len(texts)}: give pairs.")
        yield list(zip(texts[::2], texts[1::2], strict=True))
        return
    before = 0
    for lines in chunks(texts):
        given: list[str | tuple[str, str]] = []
        for number, line in enumerate(lines, start=before + 1):
            parts = [line] if two is False else line.split("\t")
            if two and len(parts) != 2:
                raise UserError(
                    f"Line {number} has {len(parts) - 1} tabs: this model judges two texts together, which "
                    f"one tab separates."
                )
            given.append((parts[0], parts[1]) if len(parts) == 2 else line)
        before += len(lines)
        yield given
