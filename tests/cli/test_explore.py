"""`clearhead explore` starts a real server and ends well; `clearhead explain` writes one page."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from clearhead.base.errors import UserError
from clearhead.bundle import save
from clearhead.cli import explore as command
from clearhead.explorer.server import serve as serving
from clearhead.explorer.server.serve import address_of, bind
from clearhead.jobs import demo
from clearhead.jobs.train import train

from ..decoding.bundles import translator
from ..jobs.making import settings, write_corpus
from .making import Run

TEXT = "the cat sleeps"


@contextmanager
def started(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A server of its own process, the address it said, and what else it said before."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", "explore", *map(str, arguments), "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        said: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.strip())
            if "http://" in line:
                break
        assert said, process.stderr.read() if process.stderr else ""
        yield process, said[-1].split(": ", 1)[1].rstrip("/"), said[:-1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_it_starts_says_where_answers_and_ends_by_ctrl_c(bundles: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with started(bundles / "translator", bundles / "writer", "--port", str(port)) as (
            process,
            home,
            said,
        ):
            assert said == [f"Port {port} is in use; using {home.rpartition(':')[2]} instead."]
            with httpx.Client(base_url=home, timeout=20) as client:
                models = client.get("/api/models").json()["models"]
                assert [model["name"] for model in models] == ["translator", "writer"]
                assert client.post("/api/run", json={"text": TEXT}).status_code == 200
                assert client.post("/api/run", content=b"{").status_code in (400, 422)
                rebound = client.get("/api/models", headers={"host": "evil.example"})
                assert rebound.status_code == 403
                process.send_signal(signal.SIGINT)  # with a connection open
                out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in out
    assert "Traceback" not in err
    assert "Error" not in err


def test_names_of_bundles() -> None:
    found = command.named([Path("a/x"), Path("b/x"), Path("x-2"), Path("c/x")])
    assert list(found) == ["x", "x-2", "x-2-2", "x-3"]
    assert found["x-2"] == Path("b/x")


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In place of serving for ever: note what would be served, and say that it is ready."""
    seen: list[Any] = []

    def serve(app: Any, listener: socket.socket, ready: Any) -> None:
        seen.append((app, listener.getsockname()))
        ready()
        listener.close()

    monkeypatch.setattr(serving, "serve", serve)
    return seen


def test_without_a_bundle_the_demonstration_is_trained_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Path] = []

    def demonstrate(folder: Path, pair: str) -> Any:
        trained.append(folder)
        return save(translator(), folder)

    monkeypatch.setattr(demo, "demonstrate", demonstrate)
    recorded(monkeypatch)
    first = run("explore", "--port", "0")
    assert first.code == 0
    assert "training the demo translator first" in first.lines[0]
    assert first.lines[1].startswith("demo-en-fr: http://127.0.0.1:")
    second = run("explore", "--port", "0")
    assert "trained" not in second.stdout
    assert trained == [Path("runs/demo-en-fr")]


def test_other_hosts_are_warned_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch)
    ended = run("explore", "translator", "--port", "0", "--host", "0.0.0.0")
    assert ended.code == 0
    assert "Anyone who can reach '0.0.0.0'" in ended.stderr
    assert ended.lines[0].startswith("translator: http://127.0.0.1:")


def test_the_page_is_opened_when_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(command.typer, "launch", opened.append)
    recorded(monkeypatch)
    assert run("explore", "translator", "--port", "0").code == 0
    assert opened == []
    ended = run("explore", "translator", "--port", "0", "--open")
    assert [f"translator: {one}" for one in opened] == [ended.lines[0]]


def test_without_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in command.NEEDED else real(name)
    )
    ended = run("explore", "translator")
    assert ended.code == 2
    sentence = 'The explorer needs the packages fastapi and uvicorn: pip install "clearhead[explore]".'
    assert ended.stderr == f"clearhead: {sentence}\n"


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["explore", "absent"], "absent"),
        (["explore", "translator", "--port", "70000"], "--port"),
        (["explore", "translator", "--host", "no.such.host.invalid"], "no address 'no.such.host.invalid'"),
        (["explore", "translator", "--host", "192.0.2.1"], "cannot listen on '192.0.2.1'"),
        (["explore", "translator", "--device", "abacus"], "abacus"),
        (["explain", "translator", "  ", "--out", "r.html"], "empty"),
        (["explain", "translator", TEXT], "--out"),
        (["explain", "absent", TEXT, "--out", "r.html"], "absent"),
        (["explain", "writer", "abba", "--target", "x", "--out", "r.html"], "no target"),
        (["explain", "translator", TEXT, "--out", "."], "'.'"),
    ],
)
def test_mistakes_are_sentences(run: Run, tmp_path: Path, arguments: list[str], part: str) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.stderr.startswith("clearhead: ")
    assert ended.stderr.count("\n") == 1
    assert part in ended.stderr
    assert not (tmp_path / "r.html").exists()


def test_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port) as second:
            assert second.getsockname()[1] > port
            assert address_of(second, "0.0.0.0") == f"http://127.0.0.1:{second.getsockname()[1]}/"
        monkeypatch.setattr(serving, "TRIED", 1)
        with pytest.raises(UserError, match="are in use"):
            bind("127.0.0.1", port)
    if socket.has_ipv6:
        with bind("::1", 0) as third:
            assert address_of(third, "::1") == f"http://[::1]:{third.getsockname()[1]}/"


@pytest.mark.parametrize("name, text", [("translator", TEXT), ("writer", "abba"), ("labeller", TEXT)])
def test_explain_writes_one_page(run: Run, tmp_path: Path, name: str, text: str) -> None:
    ended = run("explain", name, text, "--out", "report.html")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "Wrote report.html\n", "")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert text in page
    assert run("explain", name, text, "--out", "again.html").code == 0
    assert (tmp_path / "again.html").read_text("utf-8") == page  # the same each time


def test_explain_takes_a_target(run: Run, tmp_path: Path) -> None:
    assert run("explain", "translator", TEXT, "--target", "le chat dort", "--out", "r.html").code == 0
    assert "chat" in (tmp_path / "r.html").read_text("utf-8")


def test_a_run_that_is_still_under_way(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    done = train(tmp_path / "mine", settings(corpus), view="quiet")
    for path in done.folder.iterdir():  # as it was before the end: everything but the bundle
        if path.is_file():
            path.unlink()
    served = recorded(monkeypatch)
    ended = run("explore", done.folder, "--port", "0")
    assert "has not finished: using its best weights so far, from step" in ended.stderr
    with TestClient(served[0][0], base_url="http://127.0.0.1") as client:
        found = client.get("/api/training").json()
        assert found["there"]
        assert found["curves"]["train"]

    for name in ("weights", "checkpoints"):  # before the first validation: as it began
        shutil.rmtree(done.folder / "training" / name)
    ended = run("explore", done.folder, "--port", "0")
    assert "has not finished: using the weights it started with, from step 0 of 12." in ended.stderr
    (done.folder / "training" / "data" / "ready.json").unlink()
    ended = run("explore", done.folder, "--port", "0")
    assert ended.code == 2
    assert "still reading its corpus" in ended.stderr
