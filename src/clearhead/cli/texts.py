"""Lines of text as input and output of a command: arguments, files, pipes, standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead.base.errors import UserError
from clearhead.cli.asking import Files

if TYPE_CHECKING:
    from clearhead.decoding.options import Options
    from clearhead.decoding.writer import Writer
    from clearhead.jobs.formats import Format
    from clearhead.jobs.lines import Check, Lines

CHUNK = 256  # lines that are processed together


def chunks(texts: Sequence[str] | None) -> Iterator[list[str]]:
    """The texts given as arguments, or the lines of standard input; memory stays bounded for any number."""
    from clearhead.jobs.lines import pipe_lines  # here, so that --help does not wait for torch

    lines = iter(texts) if texts else pipe_lines()
    while chunk := list(islice(lines, CHUNK)):
        yield chunk


def check_files(files: Files, texts: Sequence[str] | None) -> bool:
    """Refuse what can be refused before a bundle is read. True: the output is already complete."""
    from clearhead.jobs.resumable_output import check_output  # here, so that --help does not wait for torch

    if texts and files.input is not None:
        raise UserError("Give the texts either as arguments or with --input.")
    if files.output is None and (files.force or files.restart):
        raise UserError("--force and --restart need --output FILE.")
    finished = files.output is not None and check_output(
        files.output, files.input, force=files.force, restart=files.restart
    )
    if finished:
        typer.echo(f"{files.output} is already complete.", err=True)
    return finished


def open_lines(
    files: Files, texts: Sequence[str] | None, check: Check | None = None, prefix: str = ""
) -> Lines:
    """The given texts, wherever they come from; `prefix` is put before each that is not empty."""
    # here, so that --help does not wait for torch
    from clearhead.jobs.lines import Lines, file_lines, pipe_lines
    from clearhead.text.tokenizer import checked_text

    if texts:
        return Lines([checked_text(text) for text in texts], "the texts", check, prefix)
    if files.input is not None:
        return Lines(file_lines(files.input), f"'{files.input}'", check, prefix)
    return Lines(pipe_lines(), "the input", check, prefix)


def through(
    writer: Writer, options: Options, lines: Lines, format: Format, files: Files, settings: dict[str, Any]
) -> None:
    """Send lines through a writer to the output; `settings` are all that determines what is written."""
    from clearhead.jobs.lines import count_lines  # here, so that --help does not wait for torch
    from clearhead.jobs.resumable_output import PartFile, Sink, Stream, is_stream, standard_output
    from clearhead.jobs.writing import write_lines

    total = count_lines(files.input) if files.input is not None and _watched() else None
    sink: Sink
    if files.output is None:
        sink = standard_output()
    elif is_stream(files.output):
        with open(files.output, "wb") as file:
            write_lines(writer, lines, options, format, Stream(file), total)
        return
    else:
        sink = PartFile(files.output, settings, restart=files.restart, force=files.force)
        if sink.done.lines:
            typer.echo(f"clearhead: resuming after line {sink.done.lines:,}.", err=True)
    write_lines(writer, lines, options, format, sink, total)
    if isinstance(sink, PartFile):
        typer.echo(f"Wrote {files.output}.", err=True)


def settings_of(bundle: Path, writer: Writer, given: dict[str, Any], **more: Any) -> dict[str, Any]:
    """All settings that determine what is written, by the names that a person types."""
    from clearhead.jobs.writing import digest_of  # here, so that --help does not wait for torch

    model = digest_of(bundle, writer.bundle)
    where = {"bundle": model, "--dtype": writer.dtype, "--device": writer.device.type}
    return {**where, **given, **{name: value for name, value in more.items() if value}}


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
