"""`clearhead generate`: continue a text with a trained language model."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.base.errors import UserError, nearest
from clearhead.cli.asking import Asked, Computing, Files
from clearhead.cli.options import takes_groups
from clearhead.cli.starting import hurry
from clearhead.cli.texts import check_files, open_lines, settings_of, through

if TYPE_CHECKING:
    from clearhead.decoding.options import Options
    from clearhead.decoding.writer import Writer

ASK = "> "


@takes_groups
def generate(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a trained language model.")],
    asked: Asked,
    files: Files,
    computing: Computing,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT]",
            help="Beginning of the text, or a MIDI file. Without it, reads lines from a pipe, or starts a "
            "dialogue.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.mid", help="Music: write the piece as a MIDI file."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE.png", help="Music: draw the piece as a piano roll."),
    ] = None,
) -> None:
    """Continue a text with a trained language model, token by token.

    What is not said is as the bundle's own settings have it. A bundle without any draws with a temperature of
    0.8 unless another search is asked for, and writes at most 200 tokens. Without a prompt: every line of
    --input or of a pipe is one, and gets one line; at a terminal, a talk begins (/help says what can be
    changed).

    \b
    Examples:
      clearhead generate runs/book "It was"
      clearhead generate runs/book "It was" --temperature 0 --max-length 50
      clearhead generate runs/book "It was" --top-p 0.9 --nbest 3 --json
      clearhead generate runs/book --input prompts.txt --output texts.txt
      clearhead generate runs/book
      clearhead generate runs/chorales --out piece.mid --picture piece.png --max-length 512
      clearhead generate runs/piano beginning.mid --out longer.mid
    """
    asked.check()
    if out is not None or picture is not None:
        _piece(bundle, asked, files, computing, prompt or "", out, picture)
        return
    if prompt is not None and (files.output is not None or files.input is not None):
        raise UserError(
            "The text of a single prompt goes to standard output: leave out --input and --output."
        )
    hurry(bundle, keep=computing.way == "torch" or computing.draft is not None)
    if check_files(files, None):
        return
    talk = prompt is None and files.input is None and _is_terminal()
    if talk and (files.as_json or files.output is not None):
        raise UserError("Give a prompt, or --input FILE, or lines on standard input: `… < lines.txt`.")
    if talk:
        _talk(computing.writer(bundle, continues=True), asked)
    elif prompt is not None:
        _one(computing.writer(bundle, continues=True), asked, prompt, files.as_json)
    else:
        _lines(bundle, asked, files, computing)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _ready(writer: Writer, asked: Asked) -> Options:
    from clearhead.jobs.writing import refuse_impossible  # here, so that --help does not wait for torch

    options = _effective(writer, asked).options(writer.tokenizer, True, writer.own)
    refuse_impossible(writer, options)
    return options


def _events(writer: Writer, prompt: str) -> str:
    from clearhead.jobs.music import prompt_of  # here, so that --help does not wait for torch

    return prompt_of(writer.bundle, prompt)


def _check_line(writer: Writer, number: int, prompt: str) -> None:
    from clearhead.jobs.writing import refuse_long_prompt  # here, as above

    if _events(writer, prompt) != prompt:
        raise UserError(f"Line {number} names a MIDI file, which is only read as a single prompt.")
    refuse_long_prompt(writer, number, prompt)


def _effective(writer: Writer, asked: Asked) -> Asked:
    """A bundle's own decoding settings apply; for bundles without any there are defaults."""
    return asked.for_generating() if writer.own is None else asked


def _format(writer: Writer, options: Options, as_json: bool) -> Any:
    """JSON separates the prompt from its continuation, plain lines have the whole text."""
    from clearhead.decoding.run import continuation
    from clearhead.jobs.formats import Format  # here, so that --help does not wait for torch

    behind = functools.partial(continuation, writer, stops=options.stop_texts)
    return Format(
        as_json=as_json,
        nbest=options.nbest > 1,
        text_of=behind if as_json else lambda prompt, written: prompt + behind(prompt, written),
        source="prompt",
    )


def _one(writer: Writer, asked: Asked, prompt: str, as_json: bool) -> None:
    options = _ready(writer, asked)
    prompt = _events(writer, prompt)
    if not as_json and options.nbest == 1:
        _stream(writer, prompt, options)
        return
    from clearhead.jobs.lines import Answer  # here, so that --help does not wait for torch

    for number, written in writer.write([prompt], options):
        format = _format(writer, options, as_json)
        typer.echo(format.render(Answer(number, prompt, written, None)), nl=False)


def _piece(
    bundle: Path,
    asked: Asked,
    files: Files,
    computing: Computing,
    prompt: str,
    out: Path | None,
    picture: Path | None,
) -> None:
    """Write a piece of music, and with it a MIDI file, a picture, or both."""
    from clearhead.data.music import MIDI  # here, so that --help does not wait for torch
    from clearhead.data.notes import notes_of
    from clearhead.decoding.run import stream_with
    from clearhead.jobs import music

    if files.input is not None or files.output is not None or files.as_json or (asked.nbest or 1) > 1:
        raise UserError(
            "--out and --picture write one piece: leave out --input, --output, --json and --nbest."
        )
    places = [(path, ends) for path, ends in ((out, MIDI), (picture, (".png",))) if path is not None]
    for path, endings in places:
        music.check_place(path, endings, files.force)
    writer = computing.writer(bundle, continues=True)
    if writer.bundle.metadata.get("task") != "music":
        raise UserError(f"'{bundle}' was not trained on music: --out and --picture are for --task music.")
    prompt = music.prompt_of(writer.bundle, prompt)
    text = prompt + "".join(stream_with(writer, prompt, _ready(writer, asked)))
    notes = notes_of(text)
    if not notes:
        raise UserError("The model wrote no notes: train it longer, or change --seed.")
    if out is not None:
        music.write_midi(out, notes)
    if picture is not None:
        music.draw_roll(picture, notes, max((note.end for note in notes_of(prompt)), default=0.0))
    written = " and ".join(f"'{path}'" for path, _ in places)
    typer.echo(f"{len(notes):,} notes, {max(note.end for note in notes):.1f} seconds: {written}.", err=True)


def _stream(writer: Writer, prompt: str, options: Options) -> None:
    """Show the prompt, and each further piece as soon as it is certain."""
    from clearhead.decoding.run import stream_with  # here, so that --help does not wait for torch

    _show(prompt)
    for piece in stream_with(writer, prompt, options):
        _show(piece)
    _show("\n")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _lines(bundle: Path, asked: Asked, files: Files, computing: Computing) -> None:
    """Each line of a file or pipe is a prompt."""
    if files.input is None and sys.stdin is None:
        raise UserError("Give a prompt, or --input FILE, or lines on standard input: `… < lines.txt`.")
    opened = open_lines(files, None)
    writer = computing.writer(bundle, continues=True)
    opened.check = functools.partial(_check_line, writer)
    options = _ready(writer, asked)
    settings = settings_of(bundle, writer, asked.given(), **{"--json": files.as_json})
    through(writer, options, opened, _format(writer, options, files.as_json), files, settings)


# -- interactive ---------------------------------------------------------------------------------------


def _talk(writer: Writer, asked: Asked) -> None:
    """Read a line, continue it, and repeat until the input ends; a line that begins with / is a command."""
    from clearhead.jobs.lines import seed_of  # here, so that --help does not wait for torch

    _ready(writer, asked)
    typer.echo("Type the beginning of a text. /help shows the settings; Ctrl-D exits.", err=True)
    turn = 0
    while True:
        try:
            line = input(ASK)
        except EOFError:
            typer.echo(err=True)
            return
        try:
            if line.startswith("/"):
                asked = _changed(writer, asked, line[1:])
                continue
            own = dataclasses.replace(asked, seed=seed_of(asked.seed, turn))
            turn += 1
            _stream(writer, _events(writer, line), _ready(writer, own))
        except UserError as error:
            typer.echo(f"clearhead: {error}", err=True)
        except KeyboardInterrupt:  # ends this text, not the session
            typer.echo()


def _changed(writer: Writer, asked: Asked, line: str) -> Asked:
    """Carry out `/help` or `/NAME VALUE`; raise an error for anything else."""
    name, _, value = line.strip().partition(" ")
    if name in ("help", "?", ""):
        for setting, now in _settings(_effective(writer, asked), writer.own).items():
            typer.echo(f"  /{setting.ljust(16)}{now}", err=True)
        typer.echo(
            "Change a setting with /NAME VALUE, reset it with /NAME. Ctrl-C stops a text; Ctrl-D exits.",
            err=True,
        )
        return asked
    field = name.removeprefix("--").replace("-", "_")
    known = {one.name: one for one in dataclasses.fields(Asked)}
    if field not in known:
        names = [one.replace("_", "-") for one in known]
        raise UserError(f"There is no setting '/{name}': {nearest(name, ['help', *names])}")
    fresh = dataclasses.replace(asked, **{field: _value(known[field], value.strip())})
    _ready(writer, fresh)
    return fresh


def _settings(asked: Asked, own: Options | None) -> dict[str, str]:
    """Every current setting, by the name that changes it."""
    found = {}
    for field in dataclasses.fields(asked):
        value = getattr(asked, field.name)
        if value is None and own is not None and field.name != "prefix":  # that one is ids there
            value = getattr(own, field.name, None)
        found[field.name.replace("_", "-")] = "" if value is None else str(value)
    return found


def _value(field: dataclasses.Field[Any], text: str) -> Any:
    """A text as the value of a setting; no text at all means its default."""
    if not text:
        return field.default
    kind = str(field.type)
    try:
        if "list[" in kind:
            return [text]
        if "float" in kind:
            return float(text)
        if "bool" in kind:
            return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[
                text.lower()
            ]
        return int(text) if "Annotated[int" in kind or "int |" in kind else text
    except (ValueError, KeyError) as error:
        raise UserError(f"'/{field.name.replace('_', '-')}' cannot be '{text}'.") from error
