"""Files, functions and signatures stay small enough to read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "clearhead"
FILE_LINES = 400
FUNCTION_LINES = 60  # without the signature and the docstring, which may hold examples
INIT_ARGUMENTS = 8  # without configs, which are there to carry many settings
CORE = ("nn", "models")  # elsewhere a record may be one row of a table, as in interop

Function = ast.FunctionDef | ast.AsyncFunctionDef


def length(function: Function) -> int:
    assert function.end_lineno is not None
    first = function.body[0]
    signature = first.lineno - function.lineno  # a command's options fill many lines and are no logic
    whole = function.end_lineno - function.lineno + 1 - max(signature - 1, 0)
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        whole -= first.end_lineno - first.lineno + 1
    return whole


def plain_arguments(function: Function) -> list[str]:
    """The arguments that are neither `self` nor a config."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [
        argument.arg
        for argument in every
        if argument.arg not in ("self", "config")
        and not (argument.annotation and "Config" in ast.unparse(argument.annotation))
    ]


def record_fields(node: ast.ClassDef) -> list[str]:
    """What a dataclass that is no config is made from: its fields are constructor arguments, too."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    if not any("dataclass" in mark for mark in marks) or any("Config" in ast.unparse(b) for b in node.bases):
        return []
    return [
        ast.unparse(member.target)
        for member in node.body
        if isinstance(member, ast.AnnAssign) and "ClassVar" not in ast.unparse(member.annotation)
    ]


def faults_in(source: str, name: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > FILE_LINES:
        yield f"{name} has {lines} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function) and length(node) > FUNCTION_LINES:
            yield f"{name}: {node.name} has {length(node)} lines"
        if isinstance(node, ast.ClassDef):
            fields = record_fields(node) if name.startswith(CORE) else []
            if len(fields) > INIT_ARGUMENTS:
                yield f"{name}: {node.name} has {len(fields)} fields"
            for member in node.body:
                if isinstance(member, Function) and member.name == "__init__":
                    arguments = plain_arguments(member)
                    if len(arguments) > INIT_ARGUMENTS:
                        yield f"{name}: {node.name} takes {len(arguments)} arguments"


def test_sizes() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    faults = [
        fault for path in paths for fault in faults_in(path.read_text("utf-8"), str(path.relative_to(SOURCE)))
    ]
    assert faults == []


def test_every_file_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


@pytest.mark.parametrize(
    "source, count",
    [
        ("x = 1\n" * 401, 1),
        ("x = 1\n" * 400, 0),
        ("def f():\n" + "    x = 1\n" * 60, 1),
        ("def f():\n" + "    x = 1\n" * 59, 0),
        ('def f():\n    """A\n\n    B\n    """\n' + "    x = 1\n" * 59, 0),
        ("class A:\n    def __init__(self, a, b, c, d, e, f, g, h, i): ...\n", 1),
        ("class A:\n    def __init__(self, config, a: XConfig, b, c, d, e, *, f, g, h, i): ...\n", 0),
    ],
)
def test_the_checker_counts_right(source: str, count: int) -> None:
    assert len(list(faults_in(source, "made up"))) == count
