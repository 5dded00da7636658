"""Options that several commands share, singly and in groups, and help that shows the groups.

A dataclass whose fields are annotated with `typer.Option` is a group of options. A command that takes such a
dataclass as one of its arguments, and is decorated with `takes_groups`, has all of these options on its
command line and gets them as one object.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

Command = Callable[..., None]


def option(metavar: str | None, help: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option, in a group of the help if it has a `panel`; without `names` it is named after its field.

    An option whose metavar equals its name is named explicitly: Typer 0.27 would turn it into `--FILE`.
    """
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **more)


Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a trained model.")]
Device = Annotated[str, option("NAME", "auto, cpu, cuda, cuda:1, …")]
AsJson = Annotated[bool, option(None, "Write JSON instead of tables.", "--json")]


def takes_groups(command: Command) -> Command:
    """Replace every dataclass argument of a command by the options that are its fields."""
    hints = typing.get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        spread = _fields(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]
        shown += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in spread]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        given = {}
        for name, group in groups.items():
            own = [field.name for field in dataclasses.fields(group)]
            given[name] = group(**{field: values.pop(field) for field in own if field in values})
        command(**values, **given)

    del wrapper.__wrapped__  # its signature is no longer the command's
    wrapper.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in shown}
    return wrapper


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]


class GroupedHelp(TyperCommand):
    """Plain help with a heading for each group of options (their `rich_help_panel`)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title in sorted(groups, key=lambda title: title != "Arguments"):  # stable: arguments first
            with formatter.section(title):
                formatter.write_dl(groups[title])
