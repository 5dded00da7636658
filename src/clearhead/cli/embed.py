"""`clearhead embed`: texts as vectors, and the texts of a file that are nearest to a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import Bundle, Device, option
from clearhead.cli.starting import hurry, settle


def embed(
    bundle: Bundle,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts. Without any, reads --file or lines from a pipe."),
    ] = None,
    file: Annotated[Path | None, option("FILE", "One text per line, plain or gzip.", "--file")] = None,
    out: Annotated[
        Path | None, option("FILE", "Write the vectors to this .npy, .jsonl or .tsv file.", "--out")
    ] = None,
    nearest: Annotated[str | None, option("TEXT", "Print the texts nearest to this one, by cosine.")] = None,
    count: Annotated[int, option("N", "Number of texts that --nearest prints.", "-k", min=1)] = 5,
    pooling: Annotated[str, option("KIND", "Pooling over tokens: mean, first or last.")] = "mean",
    layer: Annotated[
        int | None, option("N", "Layer to take vectors from; 0 is the embedding.  [default: the last]")
    ] = None,
    normalise: Annotated[bool, option(None, "Scale every vector to length 1.", "--normalise")] = False,
    as_json: Annotated[bool, option(None, "Write JSON lines.", "--json")] = False,
    device: Device = "auto",
) -> None:
    """Turn each text into one vector, with a model of any family; or search a file by meaning.

    One line a text, tabs between the numbers. With --nearest: the cosine, the line's number and the line.

    \b
    Examples:
      clearhead embed runs/minilm "a lovely film" --json
      clearhead embed runs/minilm --file corpus.txt --out corpus.npy
      clearhead embed runs/minilm --file corpus.txt --nearest "how do I reset it?" -k 5
      clearhead embed runs/en-fr --layer 2 --pooling first < lines.txt
    """
    if texts and file is not None:
        raise UserError("Give the texts either as arguments or with --file.")
    if out is not None and (nearest is not None or as_json):
        raise UserError(
            "--out writes vectors in the format its ending names: leave out --nearest and --json."
        )
    hurry(bundle)

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device
    from clearhead.decoding.embed import Pooling, check_embedding
    from clearhead.decoding.embed import embed as vectors_of
    from clearhead.jobs import embedding
    from clearhead.jobs.lines import file_lines, pipe_lines

    if out is not None:
        embedding.check_output(out)
    model = load(bundle, device=pick_device(device))
    settle()
    check_embedding(model, pooling, layer)
    how = cast(Pooling, pooling)
    lines = iter(texts) if texts else file_lines(file) if file is not None else pipe_lines()
    chunks = embedding.embedded(
        lines,
        lambda some, before: vectors_of(
            model, some, pooling=how, layer=layer, normalise=normalise, before=before
        ),
    )
    if nearest is not None:
        [query] = vectors_of(model, [nearest], pooling=how, layer=layer)
        for one in embedding.search(chunks, query, count):
            plain = json.dumps(one._asdict(), ensure_ascii=False)
            typer.echo(plain if as_json else f"{one.cosine:.4f}\t{one.line}\t{one.text}")
    elif out is not None:
        typer.echo(f"Wrote {embedding.write(chunks, out):,} vectors to {out}.", err=True)
    else:
        for chunk in chunks:
            for line in embedding.rendered(chunk, as_json):
                typer.echo(line)
