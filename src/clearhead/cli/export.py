"""`clearhead export`: a bundle of ours into the folder another toolkit reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.options import option


def export(
    bundle: Annotated[Path, typer.Argument(help="The bundle to export.")],
    to: Annotated[str, option("FORMAT", "Target format: huggingface, ctranslate2 or onnx.")],
    out: Annotated[Path, option("FOLDER", "The folder to write.")],
    quantize: Annotated[
        str | None,
        option(
            "KIND", "For ctranslate2, the number format of the weights: int8, int16, float16, bfloat16, …"
        ),
    ] = None,
) -> None:
    """Write a bundle as the folder another toolkit reads.

    \b
    Examples:
      clearhead export en-de --to huggingface --out en-de-hf
      clearhead export en-de --to ctranslate2 --quantize int8 --out en-de-ct2
      clearhead export en-de --to onnx --out en-de-onnx
    """
    from clearhead.interop import export_folder  # here, so that --help does not wait for torch
    from clearhead.training.bundle_or_run import load_bundle_or_run

    export_folder(load_bundle_or_run(bundle), out, to=to, quantize=quantize)
    typer.echo(f"Wrote {out}")
