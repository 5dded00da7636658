"""The command `clearhead`: its table of commands, and how it ends.

Every way to end is decided here: a `UserError`, a wrong option or a full disk is
one sentence on stderr and exit code 2, Ctrl-C is 130, a closed pipe is quiet.
Anything else is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import typer

import clearhead
from clearhead.base.errors import UserError
from clearhead.cli import (
    demo,
    evaluate,
    examples,
    explain,
    explore,
    export,
    generate,
    import_,
    inspect_,
    label,
    plan,
    presets,
    score,
    train,
    translate,
    verify,
)
from clearhead.cli.grouped import GroupedHelp

BAD_INPUT = 2
INTERRUPTED = 130  # 128 + the number of the interrupt signal, as shells count it

# name on the command line -> the function behind it
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "train": train.train,
    "translate": translate.translate,
    "generate": generate.generate,
    "score": score.score,
    "label": label.label,
    "evaluate": evaluate.evaluate,
    "verify": verify.verify,
    "explore": explore.explore,
    "explain": explain.explain,
    "examples": examples.examples,
    "presets": presets.presets,
    "plan": plan.plan,
    "inspect": inspect_.inspect,
    "import": import_.import_,
    "export": export.export,
}


def app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands; to build all of them takes a while."""
    made = typer.Typer(
        name="clearhead",
        help="The Transformer, exactly: train it from text files, use it, measure it, look inside.",
        epilog="Start with: clearhead demo",
        no_args_is_help=True,
        add_completion=False,
        # Plain help: the decorated kind imports rich, which would double the time to the first line.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        made.command(name, cls=GroupedHelp)(COMMANDS[name])
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
    command = typer.main.get_command(app(given[:1] if given[:1] and given[0] in COMMANDS else COMMANDS))
    try:
        outcome = command.main(args=given, prog_name="clearhead", standalone_mode=False)
        if sys.stdout is not None:  # it is None where the caller closed it
            sys.stdout.flush()  # here, so that a closed pipe is met inside this try
    except UserError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # the reader has gone, as `| head` does
        return _give_up_output()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _give_up_output()
        return _complain("The disk is full.")
    except Exception as error:
        if not _is_usage_error(error):
            raise
        return _explain_usage(error)
    finally:
        gc.enable()  # where a command ended before it had settled
    return outcome if isinstance(outcome, int) else 0


def _give_up_output() -> int:
    """Leave nothing for the interpreter to flush, and to fail on, at its very end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _complain(sentence: str) -> int:
    print(f"clearhead: {sentence}", file=sys.stderr)
    return BAD_INPUT


def _is_usage_error(error: Exception) -> bool:
    """Is it the parser's own complaint? Told by its shape: typer has moved the class between versions."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _explain_usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    if (
        type(error).__name__ == "NoArgsIsHelpError"
    ):  # a bare `clearhead` asks for help, and that is no mistake
        typer.echo(context.get_help() if context else "")
        return 0
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    sentence = " ".join(message.split())
    end = "" if sentence.endswith((".", "?", "!")) else "."
    path = context.command_path if context is not None else "clearhead"
    return _complain(f"{sentence}{end} Try '{path} --help'.")
