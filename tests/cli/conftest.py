"""Bundles on disk that the tests of commands share, and a way to run commands beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .making import Run, runner, write_bundles


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def run(
    bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs a command in a folder of its own, with the bundles in it by name."""
    for bundle in bundles.iterdir():
        (tmp_path / bundle.name).symlink_to(bundle, target_is_directory=True)
    return runner(tmp_path, monkeypatch, capsys)
