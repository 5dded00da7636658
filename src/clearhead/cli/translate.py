"""`clearhead translate`: translate or summarise texts with a trained bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.asking import FILES, Asked, Computing, Files
from clearhead.cli.options import option, takes_groups
from clearhead.cli.starting import hurry
from clearhead.cli.texts import check_files, open_lines, settings_of, through


@takes_groups
def translate(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a trained model.")],
    asked: Asked,
    files: Files,
    computing: Computing,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Texts. Without any, reads lines from a pipe."),
    ] = None,
    source_prefix: Annotated[
        str | None,
        option(
            "TEXT", "Prefix for every line, to choose one task of a bundle that has several.", panel=FILES
        ),
    ] = None,
    alignments: Annotated[
        bool, option(None, "Also print word alignments as i-j (source-target).", "--alignments", panel=FILES)
    ] = False,
) -> None:
    """Translate or summarise texts with a trained bundle, one line for each.

    What is not said is as the bundle's own settings have it; a bundle without any is searched greedily. An
    empty line stays an empty line; the order is kept. A line too long for the model is split behind
    sentences, else between words, and what is written for the parts is joined. With --output, a run that was
    interrupted goes on where it stopped when the same command is given again.

    \b
    Examples:
      clearhead translate runs/en-fr "I love deep learning."
      clearhead translate runs/en-fr --beam 5 < lines.en > lines.fr
      clearhead translate runs/en-fr --beam 5 --input lines.en.gz --output lines.fr
      clearhead translate runs/en-fr --beam 8 --nbest 8 --json --input lines.en --output lines.json
      clearhead translate runs/en-fr --sample --top-p 0.9 --nbest 3 "I love deep learning."
      clearhead translate runs/many --source-prefix "summarise: " < mails.txt
      clearhead translate runs/en-fr --prefix "J'" --ban profond --alignments "I love deep learning."
    """
    asked.check()
    hurry(bundle, keep=computing.way == "torch" or computing.draft is not None)
    if check_files(files, texts):
        return

    from clearhead.jobs.formats import Format  # here, so that --help does not wait for torch
    from clearhead.jobs.writing import refuse_impossible

    lines = open_lines(files, texts, prefix=source_prefix or "")
    writer = computing.writer(bundle, continues=False)
    options = asked.options(writer.tokenizer, continues=False, own=writer.defaults)
    refuse_impossible(writer, options)
    aligned = writer.bundle if alignments else None
    format = Format(as_json=files.as_json, nbest=options.nbest > 1, aligned=aligned)
    extra = {"--json": files.as_json, "--alignments": alignments, "--source-prefix": source_prefix}
    through(writer, options, lines, format, files, settings_of(bundle, writer, asked.given(), **extra))
