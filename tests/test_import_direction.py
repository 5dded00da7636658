"""Imports point down the ladder of rooms, and never in a circle.

Reads the source of every module without running it. An import inside a function
counts like any other, except in `cli` (which imports late to start fast) and in
the package's own `__init__` (which fetches names late).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

PACKAGE = "clearhead"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE

# room -> its rung; a room imports from itself and from lower rungs only, never from a neighbour
LADDER = {
    "base": 0,
    "text": 1,
    "phrasebook": 1,
    "nn": 2,
    "data": 2,
    "models": 3,
    "bundle": 4,
    "lectures": 4,
    "planner": 4,
    "training": 5,
    "decoding": 5,
    "interop": 5,
    "evaluation": 6,
    "verify": 6,
    "serving": 6,
    "explorer": 6,
    "api": 6,
    "tasks": 7,
    "jobs": 8,
    "cli": 9,
}
FRONT_DOORS = {PACKAGE, f"{PACKAGE}.__main__"}  # they stand outside the ladder

Sources = Mapping[str, str]  # full module name -> source; packages by their own name


def sources_on_disk() -> dict[str, str]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def imports_of(name: str, sources: Sources) -> set[str]:
    """The modules of the package that a module imports, anywhere in its source."""
    is_package = any(other.startswith(f"{name}.") for other in sources)
    here = name.split(".") if is_package else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(sources[name])):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                # `from package import module` names the module, `from module import name` the module it is in
                found.add(whole if whole in sources or origin == PACKAGE else origin)
    return {target for target in found if target.split(".")[0] == PACKAGE}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def ladder_faults(sources: Sources) -> list[str]:
    faults = []
    for name in sorted(set(sources) - FRONT_DOORS):
        room = room_of(name)
        if room not in LADDER:
            faults.append(f"{name}: the room '{room}' has no rung on the ladder")
            continue
        for target in sorted(imports_of(name, sources)):
            other = room_of(target)
            if target == PACKAGE and room == "cli":
                continue  # the command line prints the version
            if other == room:
                continue
            if other not in LADDER:
                faults.append(f"{name} imports {target} by way of the front door")
            elif LADDER[other] >= LADDER[room]:
                faults.append(f"{name} imports {target}, which is not below it")
    return faults


def circles(sources: Sources) -> list[str]:
    """Modules that reach themselves by imports, each circle told once."""
    edges = {
        name: {target for target in imports_of(name, sources) if target in sources and target != name}
        for name in set(sources) - FRONT_DOORS
    }
    found: dict[frozenset[str], str] = {}
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            circle = trail[trail.index(name) :]
            found.setdefault(frozenset(circle), " -> ".join([*circle, name]))
        elif name not in done:
            for target in sorted(edges.get(name, ())):
                visit(target, [*trail, name])
            done.add(name)

    for name in sorted(edges):
        visit(name, [])
    return sorted(found.values())


def test_imports_point_down() -> None:
    assert ladder_faults(sources_on_disk()) == []


def test_there_are_no_circles() -> None:
    assert circles(sources_on_disk()) == []


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    "module, source, fault",
    [
        ("clearhead.nn.a", "import clearhead.models.build", "models.build, which is not below"),
        ("clearhead.nn.a", "from clearhead.data import batch", "clearhead.data"),
        ("clearhead.data.a", "from clearhead import nn", "clearhead.nn"),
        ("clearhead.nn.a", "from ..models import build", "clearhead.models"),
        ("clearhead.nn.a", "def f():\n    from clearhead.models.build import build", "models.build"),
        ("clearhead.training.a", "from clearhead.decoding.beam import search", "decoding.beam"),
        ("clearhead.serving.a", "if True:\n    import clearhead.evaluation", "clearhead.evaluation"),
        ("clearhead.models.a", "from clearhead import build", "front door"),
        ("clearhead.base.a", "import clearhead", "front door"),
        ("clearhead.drawer.a", "", "no rung"),
    ],
)
def test_the_checker_sees_what_is_wrong(module: str, source: str, fault: str) -> None:
    faults = ladder_faults({module: source})
    assert len(faults) == 1
    assert fault in faults[0]


@pytest.mark.parametrize(
    "module, source",
    [
        ("clearhead.data.a", "from clearhead.text.tokenizer import Tokenizer"),
        ("clearhead.cli.a", "import torch\nimport clearhead\nfrom clearhead.serving import x"),
        ("clearhead.nn.a", "from clearhead.nn.b import c\nfrom . import d\nimport clearheaded"),
        ("clearhead", "from clearhead.cli import main"),
    ],
)
def test_the_checker_lets_pass_what_is_right(module: str, source: str) -> None:
    assert ladder_faults({module: source}) == []


def test_the_checker_sees_circles() -> None:
    sources = {
        "clearhead.nn": "from clearhead.nn.a import x",
        "clearhead.nn.a": "from clearhead.nn import b",
        "clearhead.nn.b": "def late():\n    from .c import y",
        "clearhead.nn.c": "import clearhead.nn.a",
    }
    assert circles(sources) == ["clearhead.nn.a -> clearhead.nn.b -> clearhead.nn.c -> clearhead.nn.a"]
    sources["clearhead.nn.c"] = "from clearhead.nn import x"
    assert len(circles(sources)) == 1
    sources["clearhead.nn.c"] = ""
    assert circles(sources) == []
