"""The package's front door: lazy, complete, and cheap to open."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import clearhead

LIGHT = ("base.errors", "base.config", "base.atomic", "base.progress", "base.settings", "text.tokenizer")


def test_every_public_name_can_be_fetched() -> None:
    for name in clearhead.__all__:
        assert getattr(clearhead, name) is not None
        assert name in dir(clearhead)
    assert set(clearhead.__all__) == {*clearhead._HOMES, "__version__"}


@pytest.mark.parametrize("name", sorted(set(clearhead.__all__) - {"__version__"}))
def test_every_public_name_shows_how_it_is_used(name: str) -> None:
    """The examples themselves are run as doctests."""
    assert ">>>" in (getattr(clearhead, name).__doc__ or "")


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(clearhead.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {
        name: home.removesuffix(f".{name}") if name == "masks" else home
        for name, home in clearhead._HOMES.items()
    }
    assert seen == homes


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        clearhead.nonsense  # noqa: B018


@pytest.mark.parametrize("module", ["", *LIGHT])
def test_light_modules_import_no_torch(module: str) -> None:
    target = f"clearhead.{module}".rstrip(".")
    code = f"import sys, {target}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
