"""The protocol between the driver and the contenders: one process each, one line of JSON there and one back.

A worker says `{"ready": true, "cases": […], "info": {…}}` once it is loaded, or `{"ready": false, "error":
…}`. Then each line `{"case": name}` makes it run that case once and answer `{"seconds", "units", "rss"}`: the
time, the number of tokens, and its peak memory in MB, which is reset before. It may add `ids` or `texts`, so
that outputs can be compared. `{"quit": true}` ends it.

Uses only the standard library, so that an environment with a single toolkit can import it.
"""

from __future__ import annotations

import json
import os
import random
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FIRST_WORD = 10  # lower ids are special in some vocabulary
SETTLED = 1.0  # seconds; a shorter run is first done once unmeasured, to warm the caches again
ENOUGH, MOST = 0.5, 5  # a visit ends after this many seconds or runs
Answer = dict[str, Any]
Cases = Mapping[str, Callable[[], Answer]]


def sentences(count: int, length: int, vocabulary: int, seed: int = 1) -> list[list[int]]:
    """Rows of made-up ids, the same for every contender.

    >>> sentences(2, 3, 100) == sentences(2, 3, 100)
    True
    """
    chance = random.Random(seed)
    return [[chance.randrange(FIRST_WORD, vocabulary) for _ in range(length)] for _ in range(count)]


def shape_of(case: str) -> tuple[int, int]:
    """Places of the beam and rows of the batch that a case's name asks for.

    >>> shape_of("greedy-b32"), shape_of("beam4-b1")
    ((1, 32), (4, 1))
    """
    search, _, batch = case.partition("-b")
    return int(search.removeprefix("beam")) if search != "greedy" else 1, int(batch)


@dataclass(frozen=True)
class Job:
    """What a worker of ours is to do, as its only argument in JSON."""

    task: str  # ids: sources of forced length; text: the lines of a file
    folder: str  # the model in the worker's own format
    bundle: str  # the same as a bundle, whose tokenizers all contenders use
    kind: str = "float32"  # number format, or another variant
    device: str = "cpu"
    threads: int = 1
    cases: tuple[str, ...] = ()
    given: int = 25  # tokens given, without the end symbol
    new: int = 32  # tokens to write
    vocabulary: int = 32_000
    source: str = ""  # text: the file
    beam: int = 1  # text: beam size
    limit: int | None = None  # text: most tokens written for a line
    once: bool = False  # text: write the lines to standard output and end
    setting: str = ""  # text: how to batch, if an earlier run has found the fastest way

    @classmethod
    def read(cls) -> Job:
        """From the worker's own command line."""
        return cls.parse(sys.argv[1])

    @classmethod
    def parse(cls, line: str) -> Job:
        plain = json.loads(line)
        return cls(**{**plain, "cases": tuple(plain["cases"])})

    def line(self) -> str:
        return json.dumps(asdict(self))

    def rows(self) -> int:
        """Sources that the largest case needs."""
        return max(shape_of(case)[1] for case in self.cases)

    def lines(self) -> list[str]:
        return Path(self.source).read_text(encoding="utf-8").splitlines()


# -- the worker's side ------------------------------------------------------------------------------


def peak_memory() -> float:
    """The most that was resident since the mark was set back, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def reset_peak_memory() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:  # not permitted everywhere; then it is the peak of the whole process
        return


def serve(build: Callable[[], tuple[Cases, Mapping[str, Any]]]) -> None:
    """A worker's main: load, then answer until told to end. What libraries print goes to standard error."""
    wire = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def send(**message: Any) -> None:
        wire.write(json.dumps(message) + "\n")

    try:
        cases, info = build()
    except Exception as error:  # the others still run, and the table says why this one did not
        send(ready=False, error=f"{type(error).__name__}: {error}"[:300])
        return
    send(ready=True, cases=list(cases), info=dict(info))
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("quit"):
            return
        reset_peak_memory()
        began = time.perf_counter()
        try:
            answer = cases[request["case"]]()
        except Exception as error:
            send(error=f"{type(error).__name__}: {error}"[:300])
            continue
        seconds = time.perf_counter() - began
        send(**{"seconds": seconds, "rss": peak_memory(), **answer})


# -- the driver's side ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """One toolkit in one number format, and how its process is started."""

    name: str
    kind: str  # float32, bf16 or int8: like is compared with like
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ours: bool = False


class Process:
    """A contender under way."""

    def __init__(self, contender: Contender, log: Path, timeout: float) -> None:
        self.contender, self.timeout, self.log = contender, timeout, log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                contender.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **contender.environment},
            )
        self.rest = b""
        self.hello = self._answer()

    def run(self, case: str) -> Answer:
        return self._answer() if self._tell({"case": case}) else self._ended()

    def visit(self, case: str, quick: bool) -> list[Answer]:
        """Runs of a case until there are enough; the last one may be an error."""
        answers = [self.run(case)]
        if quick or "error" in answers[0] or answers[0]["seconds"] >= SETTLED:
            return answers
        answers = []
        while len(answers) < MOST and sum(one["seconds"] for one in answers) < ENOUGH:
            answers.append(self.run(case))
            if "error" in answers[-1]:
                break
        return answers

    def close(self) -> None:
        self._tell({"quit": True})
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:  # nobody is left to read the rest
                continue

    def _tell(self, message: Mapping[str, Any]) -> bool:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return False
        return True

    def _answer(self) -> Answer:
        assert self.process.stdout is not None
        end = time.monotonic() + self.timeout
        while b"\n" not in self.rest:
            if not select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
                self.process.kill()
                return {"error": f"no answer in {self.timeout:.0f} s"}
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                return self._ended()
            self.rest += piece
        line, _, self.rest = self.rest.partition(b"\n")
        found: Answer = json.loads(line)
        return found

    def _ended(self) -> Answer:
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return {"error": f"the process ended: {' '.join(last) or 'without a word'}"[:300]}


@dataclass
class Cell:
    """What was measured of one contender in one case."""

    runs: list[Answer] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [one["seconds"] for one in self.runs]

    @property
    def rate(self) -> float:
        """Tokens a second, the median."""
        return statistics.median(one["units"] / one["seconds"] for one in self.runs)

    @property
    def best(self) -> float:
        return max(one["units"] / one["seconds"] for one in self.runs)

    @property
    def memory(self) -> float:
        return max(one["rss"] for one in self.runs)

    @property
    def wrote(self) -> list[list[int]] | None:
        found: list[list[int]] | None = self.runs[-1].get("ids")
        return found


@dataclass
class Measured:
    """All cells of a run, by case and contender, and what could not be measured."""

    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    info: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def start(
    contenders: Sequence[Contender], logs: Path, timeout: float, say: Callable[[str], None]
) -> tuple[list[Process], Measured]:
    """All processes, one after another; those that cannot start are left out and noted."""
    ready, measured = [], Measured()
    for number, contender in enumerate(contenders):
        try:
            process = Process(contender, logs / f"{number}.log", timeout)
        except OSError as error:
            measured.failures[contender.name] = str(error)
            continue
        if process.hello.get("ready"):
            measured.info[contender.name] = process.hello.get("info", {})
            ready.append(process)
            say(f"ready: {contender.name} {measured.info[contender.name]}")
        else:
            measured.failures[contender.name] = str(process.hello.get("error"))
            process.close()
            say(f"failed: {contender.name}: {measured.failures[contender.name]}")
    return ready, measured


@dataclass(frozen=True)
class Pace:
    """How often and how patiently to measure."""

    rounds: int = 5
    pause: float = 0.3  # seconds between visits, for idle threads to go to sleep
    cap: float = 15.0  # seconds; a cell that took this long is skipped from the third round on
    quick: bool = False  # one run per visit


def measure(
    processes: Sequence[Process],
    cases: Sequence[str],
    pace: Pace,
    measured: Measured,
    say: Callable[[str], None],
) -> None:
    """Every case: each contender once unmeasured, then rounds, each in a new random order."""
    chance = random.Random(0)
    for case in cases:
        able = [one for one in processes if case in one.hello["cases"]]
        cells = measured.cells.setdefault(case, {})
        for turn in range(pace.rounds + 1):
            for process in chance.sample(able, len(able)):
                name = process.contender.name
                cell = cells.setdefault(name, Cell())
                if turn > 2 and sum(cell.seconds) > pace.cap:
                    continue
                time.sleep(pace.pause)
                answers = process.visit(case, pace.quick) if turn else [process.run(case)]
                if "error" in answers[-1]:
                    measured.failures[f"{name}, {case}"] = answers[-1]["error"]
                    able.remove(process)
                elif turn:
                    cell.runs += answers
        for name in [name for name, cell in cells.items() if not cell.runs]:
            del cells[name]
        for name, cell in cells.items():
            say(f"{case:12} {name:36} {cell.rate:10.1f}/s, best {cell.best:10.1f}, {len(cell.runs)} runs")
