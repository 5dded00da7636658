"""The command `clearhead`: its table of commands, and how it exits.

Every exit is decided here: a `UserError`, a wrong option, or a refusal by the system (a full disk, a name too
long, too little memory) gives one sentence on stderr and exit code 2; Ctrl-C gives 130; a closed pipe is
silent. Anything else is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated

import typer

import clearhead
from clearhead.base.errors import UserError, shown
from clearhead.cli.options import GroupedHelp

BAD_INPUT = 2
INTERRUPTED = 128 + signal.SIGINT  # 130, as in shells
# what the system says when it fails, and the same in plain words
_REASONS = {
    errno.ENOSPC: "The disk is full.",
    errno.EDQUOT: "The disk quota is exhausted.",
    errno.EFBIG: "A file would exceed the size limit (see `ulimit -f`).",
    errno.EMFILE: "Too many files are open (see `ulimit -n`).",
}

# in the order of the help
COMMANDS = (
    *("demo", "train", "translate", "generate", "fill", "score", "label", "embed", "evaluate", "compare"),
    *(
        "verify",
        "explore",
        "explain",
        "contexts",
        "examples",
        "quiz",
        "presets",
        "plan",
        "bench",
        "inspect",
        "import",
        "export",
        "env",
    ),
)
TAKEN = ("import", "inspect")  # names that mean something else in Python: ours have an underscore


def command_named(name: str) -> Callable[..., None]:
    """The function behind a command, in the module of the same name."""
    own = f"{name}_" if name in TAKEN else name
    found: Callable[..., None] = getattr(import_module(f"clearhead.cli.{own}"), own)
    return found


def app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands; building all of them takes a while."""
    made = typer.Typer(
        name="clearhead",
        help="The Transformer, exactly: train it from text files, use it, measure it, look inside.",
        epilog="Start with: clearhead demo",
        no_args_is_help=True,
        # Plain help: the decorated kind imports rich, which would double the time to the first line.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        made.command(name, cls=GroupedHelp)(command_named(name))
    made.callback()(root)
    return made


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"clearhead {clearhead.__version__}")
        raise typer.Exit()


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The Transformer, exactly: train it from text files, use it, measure it, look inside."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _refuse_odd_bytes(given)
        command = typer.main.get_command(app(given[:1] if given[:1] and given[0] in COMMANDS else COMMANDS))
        outcome = command.main(args=given, prog_name="clearhead", standalone_mode=False)
        if sys.stdout is not None:  # None if the caller closed it
            sys.stdout.flush()  # here, so that a closed pipe raises inside this try
    except UserError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader is gone, as with `| head`
        _give_up_output()
        return 1
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # what Click makes of it
            _give_up_output()
        raise
    except Exception as error:
        sentence = _explained(error)
        if sentence is None:
            raise
        _give_up_output(error)
        return _complain(sentence) if sentence else 0
    finally:
        gc.enable()  # if a command ended before `settle`
    return outcome if isinstance(outcome, int) else 0


def _refuse_odd_bytes(given: Sequence[str]) -> None:
    """Names and texts are UTF-8 everywhere else; others could be neither stored nor shown."""
    for argument in given:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(
                f"The argument {shown(argument)} is not UTF-8 text: rename or convert it."
            ) from None


def _explained(error: Exception) -> str | None:
    """A sentence for what is not a bug of ours; "": already reported; None: it is one."""
    if _is_usage_error(error):
        return _explain_usage(error)
    if isinstance(error, OSError):
        name = f" for {shown(str(error.filename))}" if error.filename else ""
        return _REASONS.get(
            error.errno or 0, f"The operating system reports an error{name}: {error.strerror or error}."
        )
    if isinstance(error, MemoryError) or _lacks_memory(error):
        return "Out of memory: use a smaller model, batch or beam, or another device."
    if isinstance(error, RecursionError):
        return "The input is nested too deeply."
    if isinstance(error, UnicodeEncodeError):
        wrong = ascii(error.object[error.start : error.end])
        return f"The output's encoding ({error.encoding}) has no {wrong}: set PYTHONIOENCODING=utf-8."
    return None


def _lacks_memory(error: Exception) -> bool:
    """Recognises torch's error by its shape: importing torch here would take a second."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _give_up_output(error: Exception | None = None) -> None:
    """Leave nothing for the interpreter to flush, and to fail on, when it exits."""
    if sys.stdout is None or not (error is None or isinstance(error, OSError)):
        return
    with suppress(OSError, ValueError):  # a caller's own stream has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(sentence: str) -> int:
    sentence = re.sub(r"\S{300,}", lambda found: f"{found[0][:100]}…{found[0][-20:]}", sentence)
    if sys.stderr is not None:  # print would use standard output
        with suppress(OSError):  # nobody is left to read it
            print(f"clearhead: {sentence}", file=sys.stderr)
    return BAD_INPUT


def _is_usage_error(error: Exception) -> bool:
    """Is it the parser's own complaint? Told by its shape: typer has moved the class between versions."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _explain_usage(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # a bare `clearhead` asks for help: no mistake
        typer.echo(context.get_help() if context else "")
        return ""
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    sentence = " ".join(message.split())
    end = "" if sentence.endswith((".", "?", "!")) else "."
    path = context.command_path if context is not None else "clearhead"
    return f"{sentence}{end} Try '{path} --help'."
