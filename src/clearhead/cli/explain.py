"""`clearhead explain`: what a model did with one text, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import Device, option

PAGE = "index.html"  # in a folder with drawings


def explain(
    bundle: Annotated[Path, typer.Argument(help="The folder of a trained model.")],
    text: Annotated[str, typer.Argument(help="The text to explain, or a picture or MIDI file.")],
    out: Annotated[
        Path,
        option(
            "FILE",
            "The page to write; for a picture, a folder for the page and its drawings.",
            "--out",
        ),
    ],
    target: Annotated[
        str | None, option("TEXT", "Explain this target instead of the model's own output.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Write one page that shows what a model does with a text: every step, every head, every layer.

    The file needs nothing else: no script, no network. Of a picture it shows where each head looked, drawn
    over it; of a piece of music, which notes it looked at.

    \b
    Examples:
      clearhead explain runs/demo-en-fr "I love deep learning." --out report.html
      clearhead explain en-fr "A red book." --target "Un livre rouge." --out report.html
      clearhead explain runs/digits seven.png --out seven/
      clearhead explain runs/chorales piece.mid --out notes.html
    """
    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.atomic import atomic_folder, atomic_write_text, is_vacant
    from clearhead.base.device import pick_device
    from clearhead.decoding.pictures import picture_text
    from clearhead.explorer.picture_report import drawings
    from clearhead.explorer.report import explain as explained
    from clearhead.explorer.session import Session
    from clearhead.jobs.music import prompt_of

    session = Session(load(bundle, device=pick_device(device)), bundle.resolve().name or "model")
    drawn = session.family == "vision" and out.suffix.lower() not in (".html", ".htm")
    if drawn and not (is_vacant(out) or (out / PAGE).is_file()):
        raise UserError(f"'{out}' is in the way: name a new folder, or one of an earlier explanation.")
    if not drawn and out.is_dir():
        raise UserError(f"'{out}' is a folder: name a file in it.")
    if session.family == "vision":
        text = picture_text(session.bundle, text)
    text = prompt_of(session.bundle, text)
    page = explained(session, text, target)
    if drawn:
        with atomic_folder(out) as folder:
            (folder / PAGE).write_text(page, encoding="utf-8")
            for name, content in drawings(session, text).items():
                (folder / name).write_bytes(content)
    else:
        atomic_write_text(out, page)
    typer.echo(f"Wrote {out}")
