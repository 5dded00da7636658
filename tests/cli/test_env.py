"""`clearhead env`: it says what is true of this machine, hides who uses it, and its self-test can fail."""

from __future__ import annotations

import getpass
import json
import os
import platform
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.cli import main as cli
from clearhead.decoding import native
from clearhead.jobs import environment
from clearhead.jobs.environment import Step


def test_the_facts_are_those_of_this_machine_and_name_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "home" / "ann" / ".cache" / "clearhead" / "packed"
    cache.mkdir(parents=True)
    (cache / "packed-1.bin").write_bytes(bytes(3_000_000))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "ann"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    monkeypatch.setattr(environment, "_library", lambda source, why_not: {"usable": False, "why": "a test"})
    monkeypatch.setattr("clearhead.base.library.os.geteuid", lambda: 1000)
    assert cli.main(["env", "--no-test", "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert (found["clearhead"], found["packages"]["torch"]) == (clearhead.__version__, torch.__version__)
    assert found["python"].startswith(platform.python_version())
    assert found["caches"]["packed weights"] == {"folder": "~/.cache/clearhead/packed", "bytes": 3_000_000}
    assert found["variables"]["OMP_NUM_THREADS"] == "1"
    assert "ann" not in text.replace("annotated", "")
    assert cli.main(["env", "--no-test"]) == 0
    printed = capsys.readouterr().out
    assert "    bytes: 2.9 MiB\n" in printed
    assert f"torch {torch.__version__}" in printed


def test_a_gpu_that_cannot_be_used_is_in_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "_library", lambda source, why_not: {"usable": False, "why": "a test"})
    monkeypatch.setattr(environment, "unused_gpu", lambda: "This machine has a GPU, but …")
    assert cli.main(["env", "--no-test"]) == 0
    assert "  problem: This machine has a GPU, but …\n" in capsys.readouterr().out
    monkeypatch.setattr(environment, "unused_gpu", lambda: None)
    assert "problem" not in environment.facts("x")["GPUs"]


def test_the_engine_is_there_or_the_report_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = environment.facts("x")["C++ engine"]
    assert found["usable"] == (native.why_not() is None)
    assert found["why"] if not found["usable"] else found["used"] in found["instruction sets"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    without = environment.facts("x")["C++ engine"]
    assert without["usable"] or "no-such-compiler" in without["why"]  # a wheel needs no compiler


def test_the_self_test_passes_and_notices_a_wrong_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "SECONDS", float("inf"))  # a busy machine may take longer
    steps = {step.name: step for step in environment.self_test()}
    assert steps["train"].passed, steps
    assert steps["decode"].passed, steps
    assert steps["C++ engine"].passed is (True if native.why_not() is None else None), steps
    monkeypatch.setattr(environment, "_train", lambda run: (False, "The loss did not fall."))
    assert [step.passed for step in environment.self_test()][:3] == [False, None, None]


def test_numbers_that_are_not_the_references_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = object()
    monkeypatch.setattr(environment, "load", lambda run, device=None: bundle)

    class One:
        ids, logp = (1, 2), -3.0

    for forced, passed in ((-3.0001, True), (-3.01, False), (float("nan"), False)):
        other = type("Other", (), {"logp": forced})
        monkeypatch.setattr(environment, "translate", lambda *given, **how: [One])
        monkeypatch.setattr(environment, "score_ids", lambda *given, other=other: [other])
        assert environment._decode(Path("run"), ["text"], "cpu", "torch")[0] is passed


def test_a_failed_self_test_ends_with_1_and_what_takes_too_long_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "facts", lambda version: {"clearhead": version})
    failed = [Step("train", False, 1.0, "The loss did not fall."), Step("decode", None, 0.0, "Skipped.")]
    monkeypatch.setattr(environment, "self_test", lambda: failed)
    assert cli.main(["env"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert cli.main(["env", "--json"]) == 1
    assert [one["result"] for one in json.loads(capsys.readouterr().out)["self-test"]] == [
        "FAILED",
        "skipped",
    ]
    monkeypatch.undo()
    monkeypatch.setattr(environment, "SECONDS", -1.0)
    assert {step.passed for step in environment.self_test()} == {None}
