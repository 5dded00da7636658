"""`clearhead explain`: what a model did with one text, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import Device, option


def explain(
    bundle: Annotated[Path, typer.Argument(help="The folder of a trained model.")],
    text: Annotated[str, typer.Argument(help="The text to explain, or a picture file.")],
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
      clearhead explain runs/chorales "pitch67 pitch62 pitch59 pitch43" --out notes.html
    """
    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.atomic import atomic_folder, atomic_write_text
    from clearhead.base.device import pick_device
    from clearhead.decoding.pictures import picture_text
    from clearhead.explorer.picture_report import drawings
    from clearhead.explorer.report import explain as explained
    from clearhead.explorer.session import Session

    if out.is_dir():
        raise UserError(f"'{out}' is a folder: name a file in it.")
    session = Session(load(bundle, device=pick_device(device)), bundle.resolve().name or "model")
    if session.family == "vision":
        text = picture_text(session.bundle, text)
    page = explained(session, text, target)
    if session.family == "vision" and not out.suffix:
        with atomic_folder(out, new=True) as folder:
            (folder / "index.html").write_text(page, encoding="utf-8")
            for name, content in drawings(session, text).items():
                (folder / name).write_bytes(content)
    else:
        atomic_write_text(out, page)
    typer.echo(f"Wrote {out}")
