"""`clearhead env`: what to paste into a bug report, and whether this installation works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

import clearhead
from clearhead.cli.options import AsJson, option
from clearhead.cli.table import plain_table, show_json

if TYPE_CHECKING:
    from clearhead.jobs.environment import Step

BYTES = ("memory", "bytes")
SELF_EVIDENT = (*BYTES, "name")  # values that need no label


def env(
    no_test: Annotated[
        bool, option(None, "Print the facts only, without the self-test.", "--no-test")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print what to paste into a bug report: versions, devices, caches, and the result of a self-test.

    The self-test takes at most 20 seconds, after the C++ engine has been compiled (once). It trains a model
    for a few steps and checks that the C++ engine and the GPU decode like the reference. The report names
    neither you nor your home folder. The exit code is 1 if the self-test fails.

    \b
    Examples:
      clearhead env
      clearhead env --json > env.json
      clearhead env --no-test
    """
    from clearhead.jobs.environment import facts, self_test  # here, so that --help does not wait for torch

    found = facts(clearhead.__version__)
    if not as_json:
        typer.echo("\n".join(_lines(found)))
    steps = [] if no_test else self_test()
    if as_json:
        told = [
            {"name": one.name, "result": one.result, "seconds": one.seconds, "sentence": one.sentence}
            for one in steps
        ]
        show_json({**found, "self-test": told})
    elif steps:
        typer.echo(f"\n{_table(steps)}")
    if any(one.passed is False for one in steps):
        raise typer.Exit(1)


def _lines(found: dict[str, Any], indent: str = "") -> list[str]:
    """One line per fact, groups indented; packages share a line."""
    lines: list[str] = []
    for name, value in found.items():
        if name.endswith("packages"):
            there = [f"{one} {version}" for one, version in value.items() if version is not None]
            absent = [one for one, version in value.items() if version is None]
            missing = f"; not installed: {', '.join(absent)}" if absent else ""
            lines.append(f"{name}: {', '.join(there)}{missing}")
        elif isinstance(value, dict) and value:
            lines += [f"{indent}{name}", *_lines(value, f"{indent}  ")]
        elif isinstance(value, dict | list):
            lines.append(f"{indent}{name}: {', '.join(map(_item, value)) or 'none'}")
        else:
            lines.append(f"{indent}{name}: {_text(name, value)}")
    return lines


def _item(value: Any) -> str:
    """An item of a list: a name, or a device with its properties."""
    if not isinstance(value, dict):
        return str(value)
    shown = (_text(name, one) if name in SELF_EVIDENT else f"{name} {one}" for name, one in value.items())
    return " · ".join(shown)


def _text(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "none"}[value]
    if name not in BYTES:
        return str(value)
    return f"{value / 2**30:,.1f} GiB" if value >= 2**30 else f"{value / 2**20:,.1f} MiB"


def _table(steps: list[Step]) -> str:
    rows = [[one.name, one.result, f"{one.seconds:.1f}", one.sentence] for one in steps]
    return plain_table(["self-test", "result", "seconds", ""], rows, numbers=[2])
