"""How much memory a large corpus needs: ten million pairs, from two text files to a trained bundle.

    python benchmarks/corpus.py [--pairs 10000000] [--steps 20] [--folder FOLDER] [-- --set A.B=C …]

Writes two text files of made-up sentences of everyday lengths, runs `clearhead train` on them in a separate
process, with few steps of a small model, and reports what each phase of it took. Memory is the peak resident
set that Linux records for the process (VmHWM), reset at the start of each phase. Arguments after `--` go to
`clearhead train`. Needs Linux and, for ten million pairs, 6 GB of disk. Exit status 1: the run needed 2 GB or
more.

Knows nothing about how the trainer works inside: it detects phases by the files that the trainer opens and
writes.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from clearhead.base.device import name_of_cpu

LIMIT = 2e9  # bytes
LOOK_EVERY = 0.05  # seconds
WORDS = 200_000  # distinct words in each language
CHUNK = 50_000  # sentences made at a time
# a small model and small held-out sets: their memory and time do not grow with the corpus
SETTINGS = {
    "model.width": 128,
    "model.layers": 2,
    "model.attention.heads": 4,
    "model.feedforward.width": 512,
    "tokenizer.vocabulary": 16_000,
    "batch.tokens": 2048,
    "data.split.validation": 200,
    "data.split.test": 200,
    "validation.decode": 20,
}


def vocabulary(chance: np.random.Generator, letters: str) -> list[bytes]:
    """Made-up words, the frequent ones short, each with the space that follows it; the last is a line end."""
    found: dict[str, None] = {}
    while len(found) < WORDS:
        lengths = 2 + chance.poisson(np.minimum(1 + (len(found) + np.arange(1000)) / 200, 7))
        drawn = "".join(chance.choice(list(letters), int(lengths.sum())))
        found |= {
            drawn[end - length : end]: None for end, length in zip(np.cumsum(lengths), lengths, strict=True)
        }
    words = list(found)[:WORDS]
    return [f"{word} ".encode() for word in words] + [b"\n"]


def write_corpus(paths: tuple[Path, Path], pairs: int) -> None:
    """Two aligned files: word frequencies by Zipf's law, lengths log-normal, half of them up to 12 words.

    The target is the source word for word in another language, with some neighbours swapped.
    """
    chance = np.random.default_rng(1)
    languages = vocabulary(chance, "abcdefghilmnoprstuvw"), vocabulary(chance, "aàbcdeéèfghiklmnoprstuüz")
    shares = np.cumsum(1 / (np.arange(WORDS) + 3.0))
    with open(paths[0], "wb") as source, open(paths[1], "wb") as target:
        for begin in range(0, pairs, CHUNK):
            count = min(CHUNK, pairs - begin)
            lengths = np.clip(np.exp(chance.normal(np.log(12), 0.6, count)), 1, 120).astype(int) + 1
            words = np.searchsorted(shares, chance.random(int(lengths.sum())) * shares[-1])
            ends = np.cumsum(lengths) - 1
            words[ends] = WORDS
            source.write(b"".join(map(languages[0].__getitem__, words.tolist())))
            swapped = np.flatnonzero(chance.random(len(words) - 1) < 0.2)[::2]
            inner = (words[swapped] != WORDS) & (words[swapped + 1] != WORDS)
            swapped = swapped[inner & (np.diff(swapped, append=len(words) + 2) > 1)]
            words[swapped], words[swapped + 1] = words[swapped + 1], words[swapped]
            target.write(b"".join(map(languages[1].__getitem__, words.tolist())))


@dataclass
class Phase:
    """A part of the run, and what it took."""

    name: str
    over: Callable[[], bool]
    seconds: float = 0.0
    work: float = 0.0  # seconds of processor time, over all threads
    peak: int = 0  # bytes


class Watcher:
    """Follows a process through its phases."""

    def __init__(self, process: subprocess.Popen[bytes], source: Path, run: Path) -> None:
        self.process = process
        self.source = source
        self.size = source.stat().st_size
        self.worked = 0.0  # seconds of processor time so far
        self.furthest = 0  # bytes of the source that have been read
        data, record = run / "training" / "data", run / "training" / "run.json"
        self.phases = [
            Phase("reading, checking, splitting", lambda: self._reads_again() or record.exists()),
            Phase("learning the tokenizer", record.exists),
            Phase("tokenising", (data / "train-0").exists),
            Phase("held-out texts", (data / "ready.json").exists),
            Phase("training and scoring", lambda: False),
        ]

    def watch(self) -> int:
        """Look at the process until it ends; its exit status."""
        self._forget_peak()
        for phase in self.phases:
            began, worked = time.perf_counter(), self.worked
            while self.process.poll() is None and not phase.over():
                phase.peak = max(phase.peak, self._peak())
                self._look_at_work()
                time.sleep(LOOK_EVERY)
            phase.peak = max(phase.peak, self._peak())
            phase.seconds, phase.work = time.perf_counter() - began, self.worked - worked
            self._forget_peak()
        return self.process.wait()

    def _peak(self) -> int:
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(found[0]) * 1024 if found else 0

    def _forget_peak(self) -> None:
        with suppress(OSError):  # it may have ended by now
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _look_at_work(self) -> None:
        with suppress(OSError, IndexError):
            times = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            self.worked = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    def _reads_again(self) -> bool:
        """Has the source file been read, and been opened once more?

        The very end of the first reading may pass between two looks.
        """
        place = self._place()
        if place is None:
            return False
        self.furthest = max(self.furthest, place)
        return self.furthest > 0.9 * self.size and place < 0.5 * self.size

    def _place(self) -> int | None:
        """Where in the source file the process reads, if it does."""
        folder = Path(f"/proc/{self.process.pid}")
        try:
            for handle in (folder / "fd").iterdir():
                if os.readlink(handle) == str(self.source):
                    return int((folder / "fdinfo" / handle.name).read_text().split()[1])
        except OSError:  # closed meanwhile
            pass
        return None


def train(folder: Path, files: tuple[Path, Path], steps: int, extra: list[str]) -> tuple[list[Phase], int]:
    """Run the command, watched: its phases, and the most memory it had."""
    source, target = files
    run = folder / "run"
    settings = [f"--set={name}={value}" for name, value in {"steps": steps, **SETTINGS}.items()]
    places = ["--source", str(source), "--target", str(target), "--out", str(run)]
    command = [sys.executable, "-m", "clearhead", "train", *places, *settings, "--view", "plain", *extra]
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            watcher = Watcher(process, source, run)
            status = watcher.watch()
        finally:
            if process.poll() is None:
                process.kill()
    if status != 0:
        text = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        raise SystemExit(f"clearhead train failed with status {status}:\n{text[-4000:]}")
    # the peak of the process, as recorded by the system
    return watcher.phases, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def show(name: str, phases: Sequence[Phase], pairs: int | None = None, peak: int = 0) -> None:
    seconds, work = sum(one.seconds for one in phases), sum(one.work for one in phases)
    rate = f"{pairs / max(seconds, 1e-9):,.0f}" if pairs else ""
    peak = max(peak, *(one.peak for one in phases), 0)
    print(f"{name:<32} {seconds:8.1f} {work:9.1f} {rate:>10} {peak / 1e6:8.0f}")


def measure(folder: Path, pairs: int, steps: int, extra: list[str]) -> int:
    """Make the corpus, train on it, print the table; the exit status."""
    began = time.perf_counter()
    files = folder / f"{pairs}.source", folder / f"{pairs}.target"
    if not all(path.exists() for path in files):
        unfinished = folder / "source.part", folder / "target.part"
        write_corpus(unfinished, pairs)
        for part, path in zip(unfinished, files, strict=True):
            part.replace(path)
    size, took = sum(path.stat().st_size for path in files), time.perf_counter() - began
    print(f"Corpus: {pairs:,} pairs, {size / 1e9:.2f} GB of text, made in {took:.0f} s")
    print(f"Machine: {name_of_cpu()}, {platform.system()}")
    print(f"Python {platform.python_version()}, torch {version('torch')}\n", flush=True)
    phases, whole = train(folder, files, steps, extra)
    print(f"{'phase':<32} {'seconds':>8} {'CPU time':>9} {'pairs/s':>10} {'peak MB':>8}")
    for phase in phases[:-1]:
        show(phase.name, [phase], pairs)
    show(f"{phases[-1].name}, {steps} steps", phases[-1:])
    show("all of it", phases, peak=whole)
    met = whole < LIMIT
    print(f"\nUnder {LIMIT / 1e9:.0f} GB: {'yes' if met else 'NO'}")
    return 0 if met else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where the corpus and the run go, and stay")
    parser.add_argument("extra", nargs="*", help="options for clearhead train, after --")
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return measure(options.folder.resolve(), options.pairs, options.steps, options.extra)
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder).resolve(), options.pairs, options.steps, options.extra)


if __name__ == "__main__":
    sys.exit(main())
