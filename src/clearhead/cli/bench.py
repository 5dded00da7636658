"""`clearhead bench`: what every kind of attention costs, and how far it is from the exact one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.base.errors import UserError, shown
from clearhead.base.reading import read_text
from clearhead.cli.options import AsJson, Device, option
from clearhead.cli.table import show_json, show_table

LARGEST = 1 << 28  # bytes of a text
USUAL = {"cpu": (256, 4096), "cuda": (256, 131_072)}  # lengths, by doubling
DECODED = (1_000, 10_000, 100_000)


def bench(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="What to measure: attention.")],
    lengths: Annotated[
        str | None, option("N,N,…", "Tokens of a text: 256,1024 or, doubled each time, 256-131072.")
    ] = None,
    bundle: Annotated[
        Path | None, option("FOLDER", "Also compare on this model's weights.", "--bundle")
    ] = None,
    text: Annotated[
        Path | None, option("FILE", "Text for that model to read; random tokens without it.")
    ] = None,
    kinds: Annotated[
        str | None, option("A,B,…", "Kinds to measure, such as exact,window,linear.  [default: all]")
    ] = None,
    causal: Annotated[bool, option(None, "Use a causal mask.", "--causal")] = False,
    decode: Annotated[
        bool, option(None, "Measure decoding instead: one token after 1,000 to 100,000 others.", "--decode")
    ] = False,
    width: Annotated[int, option("N", "Width of the layer.", "--width", min=1)] = 256,
    heads: Annotated[int, option("N", "Heads of the layer.", "--heads", min=1)] = 4,
    rows: Annotated[int, option("N", "Texts in a batch.", "--rows", min=1)] = 1,
    seconds: Annotated[
        float, option("N", "Time limit for one cell of the table, with compiling.", "--seconds", min=0.0)
    ] = 10.0,
    device: Device = "auto",
    dtype: Annotated[
        str, option("NAME", "Number format to time: auto, float32, bf16, fp16 or float64.")
    ] = "auto",
    out: Annotated[Path | None, option("FILE", "Write a page with charts to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure every kind of attention: time, memory, and error against exact attention, by text length.

    Cells that would take too long or too much memory are left out and say so. Errors are those of random
    inputs and, with --bundle, of a trained model's projections.

    \b
    Examples:
      clearhead bench attention
      clearhead bench attention --lengths 256-16384 --causal --out attention.html
      clearhead bench attention --bundle runs/wiki --text test.txt --device cuda --json
      clearhead bench attention --decode
    """
    if what != "attention":
        raise UserError(f"There is no benchmark {shown(what)}: use 'attention'.")
    if text is not None and bundle is None:
        raise UserError("--text needs a trained model to read it: give --bundle as well.")
    if decode and bundle is not None:
        raise UserError("--decode only measures time and memory: leave --bundle out.")
    written = None if text is None else read_text(text, LARGEST)
    asked = None if lengths is None else _lengths(lengths)
    if out is not None and out.is_dir():
        raise UserError(f"'{out}' is a folder: give the page a name, such as --out attention.html.")

    from clearhead.base.device import pick_device, pick_dtype  # here, so that --help does not wait for torch
    from clearhead.jobs import bench_attention as job
    from clearhead.jobs import bench_attention_page as pages
    from clearhead.jobs.attention_kinds import contenders
    from clearhead.jobs.bench_decoding import decode as decode_all
    from clearhead.nn.attention import AttentionConfig
    from clearhead.training.bundle_or_run import load_bundle_or_run

    place, members = pick_device(device), contenders(kinds)
    usual = DECODED if decode else _doubled(*USUAL.get(place.type, USUAL["cpu"]))
    trained = None
    if bundle is not None:
        trained = job.Trained(load_bundle_or_run(bundle, device=place), bundle.name, written, place)
    setting = job.Setting(
        like=AttentionConfig(width=width, heads=heads) if trained is None else trained.like,
        lengths=usual if asked is None else asked,
        device=place,
        dtype=pick_dtype(dtype, place),
        causal=causal or decode or (trained is not None and trained.causal),
        rows=rows,
        seconds=seconds,
    )
    if decode:
        steps, notes = decode_all(setting, members)
        _show(
            lambda draw: pages.decoding_page(setting, steps, notes, draw),
            pages.plain_decoding(setting, steps, notes) if as_json else None,
            out,
        )
        return
    found = job.bench(
        setting, members, trained, lambda found, tokens: typer.echo(pages.verdict(found, tokens), err=True)
    )
    _show(lambda draw: pages.page(found, draw), pages.plain(found) if as_json else None, out)


def _show(make: Any, plain: dict[str, Any] | None, out: Path | None) -> None:
    from clearhead.jobs.bench_attention_page import write

    if plain is not None:
        show_json(plain, indent=None)
    else:
        whole = make(False)
        typer.echo(f"{whole.title}\n")
        for section in whole.sections:
            typer.echo(section.title)
            for table in section.tables:
                show_table(table.header, table.rows, numbers=range(1, len(table.header)))
            for note in section.notes:
                typer.echo(note)
            typer.echo()
    if out is not None:  # last: results that took minutes are not lost if it cannot be written
        write(make, out)
        typer.echo(f"Wrote {out}", err=True)


def _lengths(text: str) -> tuple[int, ...]:
    """`256,1024`, or `256-4096`, which is 256, 512, … 4096."""
    spread = re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", text)
    if spread is not None:
        return _doubled(int(spread[1]), int(spread[2]))
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*\d{1,9}\s*", part) for part in parts):
        raise UserError(f"Write lengths as 256,1024 or 256-131072, not {shown(text)}.")
    return tuple(int(part) for part in parts)


def _doubled(first: int, last: int) -> tuple[int, ...]:
    found = []
    while 0 < first <= last:
        found.append(first)
        first *= 2
    return tuple(found)
