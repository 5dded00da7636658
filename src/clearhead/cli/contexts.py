"""`clearhead contexts`: one word in several sentences, layer by layer, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import AsJson, Bundle, Device, option
from clearhead.cli.starting import hurry, settle
from clearhead.cli.table import show_json, show_table


def contexts(
    bundle: Bundle,
    word: Annotated[str, typer.Argument(metavar="WORD", help="A word that occurs in every sentence.")],
    sentences: Annotated[
        list[str], typer.Argument(metavar="SENTENCE...", help="2 to 12 sentences that contain the word.")
    ],
    out: Annotated[Path | None, option("FILE", "Also write a page with a picture (.html).", "--out")] = None,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Follow one word through several sentences: how far each layer carries its vectors apart.

    `static` is the cosine of the word's vector with its entry in the embedding table, a column for each
    sentence; 1–2 and so on are the cosines between two sentences.

    \b
    Examples:
      clearhead contexts runs/minilm apple "I ate an apple." "Apple sells phones." "an apple tree"
      clearhead contexts runs/demo-en-fr book "I read a book." "The book is red." --out book.html
    """
    if out is not None and out.suffix not in (".html", ".htm"):
        raise UserError(f"'{out}' must end in .html.")
    hurry(bundle)

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.atomic import atomic_write_text
    from clearhead.base.device import pick_device
    from clearhead.explorer.contexts import contexts as computed
    from clearhead.explorer.contexts_page import columns_and_rows, page, plain
    from clearhead.explorer.session import Session

    if out is not None and out.is_dir():
        raise UserError(f"'{out}' is a folder: name a file in it.")
    session = Session(load(bundle, device=pick_device(device)), bundle.resolve().name or "model")
    settle()
    found = computed(session, word, sentences)
    if as_json:
        show_json(plain(found), indent=None)
    else:
        for number, one in enumerate(found["occurrences"], start=1):
            pieces = " ".join(piece["text"] for piece in found["spellings"][one["spelling"]])
            typer.echo(f"{number}  {one['sentence']}  [{pieces}]")
        titles, rows = columns_and_rows(found)
        show_table(titles, rows, numbers=range(1, len(titles)))
    if out is not None:
        atomic_write_text(out, page(found, session.name))
        typer.echo(f"Wrote {out}", err=as_json)
