"""What the system tests share: small corpora, a way to run command lines, and what a run left behind."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200"}

# files with the time of day in them, and checksums of such
CLOCKS = ("timing.jsonl", "events.out.", "test.md", "test.html", "lock", "SHA256SUMS")

Words = Sequence[str]


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int  # negative: the signal that killed it
    stdout: str
    stderr: str
    took: float = 0.0  # seconds by the clock
    computed: float = 0.0  # seconds of processor time


class Warm:
    """Runs command lines in forks of one process that has imported everything (`warm.py`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "warm.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self._answer() == {"ready": True}

    def __call__(self, *arguments: str | Path, folder: Path | None = None, **strike: Any) -> Ended:
        """Run one command line to its end; `strike` is when it gets a signal (see `warm.py`)."""
        texts = [self.folder / "stdout", self.folder / "stderr"]
        order = {
            "arguments": [str(one) for one in arguments],
            "folder": str(folder or self.folder),
            "stdout": str(texts[0]),
            "stderr": str(texts[1]),
            "signal": int(signal.SIGKILL),
            **strike,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        stdout, stderr = (path.read_text("utf-8", "replace") for path in texts)
        return Ended(answer["code"], stdout, stderr, answer["took"], answer["computed"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the warm process has died"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


def cold(*arguments: str | Path, folder: Path, until: Path | None = None, timeout: float = 180) -> Ended:
    """Run one command line as a user does, in a process of its own; killed when the file `until` appears."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "clearhead", *map(str, arguments)],
            cwd=folder,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        while process.poll() is None:
            late = time.monotonic() - begun > timeout
            if late or (until is not None and until.exists()):
                process.kill()
            time.sleep(0.005)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read())
    return Ended(process.returncode, *texts, took=time.monotonic() - begun)


def settings(**values: Any) -> list[str]:
    """`a__b=1` as the command line says it: --set a.b=1."""
    return [
        word
        for name, value in values.items()
        for word in ("--set", f"{name.replace('__', '.')}={json.dumps(value)}")
    ]


def sequences(count: int, shortest: int, longest: int, symbols: str, seed: int) -> list[list[str]]:
    """That many different sequences of symbols."""
    chance = random.Random(seed)
    found: dict[tuple[str, ...], None] = {}
    while len(found) < count:
        found[tuple(chance.choices(symbols, k=chance.randint(shortest, longest)))] = None
    return [list(one) for one in found]


def write_pairs(path: Path, sources: Sequence[Words], target_of: Callable[[list[str]], Words]) -> Path:
    """A table of sources and what becomes of them, words apart by spaces."""
    rows = [f"{' '.join(source)}\t{' '.join(target_of(list(source)))}\n" for source in sources]
    path.write_text("".join(rows), encoding="utf-8")
    return path


def backwards(words: list[str]) -> list[str]:
    return words[::-1]


def everything(run: Path) -> dict[str, str]:
    """What a run left, without what the clock has a part in: each file's name and a digest of it."""
    found: dict[str, str] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir() or path.name.startswith(CLOCKS):
            continue
        found[name] = hashlib.sha256(_without_clock(path)).hexdigest()
    return found


def _without_clock(path: Path) -> bytes:
    if path.name == "state.json":
        plain = json.loads(path.read_bytes())
        del plain["facts"]["seconds"]
    elif path.name == "metadata.json":
        plain = json.loads(path.read_bytes())
        plain = {"sha256": plain["sha256"], "metadata": plain["metadata"]}
        del plain["metadata"]["training"]["seconds"]
    else:
        return path.read_bytes()
    return json.dumps(plain, sort_keys=True).encode()
