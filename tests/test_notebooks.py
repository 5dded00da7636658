"""The notebooks: without outputs, and every cell runs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    plain = json.loads(path.read_text(encoding="utf-8"))
    assert (plain["nbformat"], plain["nbformat_minor"]) == (4, 5)
    return list(plain["cells"])


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) == 4
    page = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in page for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stripped(path: Path) -> None:
    """Outputs change with every run; the diff of a notebook should be what somebody wrote."""
    found = cells(path)
    assert found[0]["cell_type"] == "markdown"
    assert found[0]["source"][0].startswith("# ")
    assert len({cell["id"] for cell in found}) == len(found)
    for cell in found:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse("".join(cell["source"]))  # plain Python, no magic


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell in one namespace; what a notebook would show is asked for as a notebook asks."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(path):
        if cell["cell_type"] == "code":
            run(ast.parse("".join(cell["source"]), path.name), names)


def run(tree: ast.Module, names: dict[str, Any]) -> None:
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        print(shown._repr_html_()[:200] if hasattr(shown, "_repr_html_") else repr(shown)[:2000])
