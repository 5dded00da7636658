"""Compare two trees of this repository: do they learn and write the same, and which is faster?

    python benchmarks/before_after.py BEFORE [AFTER] [--results] [--speed] [--rounds 10] [--only REGEX]
                                      [--markdown FILE]

BEFORE and AFTER are checkouts, such as `git worktree add ../before COMMIT`; AFTER defaults to this one.

`--results` trains every task for a few steps on made-up text with explicit settings (CPU, float32) and
compares all losses of the logs and the bytes of the weights, then writes texts with every search, by PyTorch
and by the C++ engine, and compares these. `--speed` has both trees decode (as `decode.py` does) and train
(as `training.py` does) in separate processes, which take turns; the table gives the median of the rounds'
ratios, before ÷ after: above 1, the tree AFTER is faster. Without either option, both are done. `--markdown`
also writes the speeds as a table into a file, row by row.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from decode_peers.wire import Contender, Job, Process, serve

HERE = Path(__file__).resolve().parents[1]
TASKS = ("translate", "summarise", "generate", "classify", "tag")
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "house",
    "tree",
    "sees",
    "eats",
    "likes",
    "old",
    "green",
    "small",
    "two",
    "red",
    "blue",
    "sky",
    "sun",
]
SETTINGS = [
    "steps=30",
    "tokenizer.vocabulary=320",
    "model.width=32",
    "model.layers=2",
    "model.attention.heads=4",
    "model.feedforward.width=64",
    "batch.tokens=512",
    "batch.workers=2",
    "schedule.rate=0.005",
    "schedule.warmup=4",
    "averaging.snapshots=2",
    "averaging.ema=0.9",
    "validation.every=10",
    "validation.decode=6",
    "saving.log_every=1",
    "saving.seconds=0",
    "saving.tensorboard=false",
    "compute.device=cpu",
    "compute.threads=1",
    "model.dropout=0.1",
]
SEARCHES = (
    "", "--beam 4", "--beam 5 --nbest 3 --length-penalty 0.6", "--beam 4 --groups 2 --diversity 0.5",
    "--sample --seed 3 --temperature 0.9 --top-k 20", "--sample --top-p 0.8 --nbest 2", "--no-repeat 2",
    "--beam 3 --early-stopping true --min-length 3",
)  # fmt: skip
CASES = ("greedy-b1", "greedy-b32", "beam4-b1", "beam4-b32")
KINDS = ("int8", "float32", "torch")


def environment(tree: Path, threads: int) -> dict[str, str]:
    """Everything comes from this tree."""
    path = os.pathsep.join([str(tree / "src"), str(tree / "benchmarks")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}


def clearhead(tree: Path, *words: str, given: str = "") -> str:
    """What a command of this tree writes to standard output."""
    done = subprocess.run(
        (sys.executable, "-m", "clearhead", *words),
        env=environment(tree, 1), input=given, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{tree}: clearhead {' '.join(words)} failed:\n{done.stderr}")
    return done.stdout


# -- equal results -------------------------------------------------------------------------------------


def sentences(count: int) -> list[str]:
    chance = random.Random(0)
    return sorted({" ".join(chance.choices(WORDS, k=chance.randint(2, 7))) for _ in range(count)})


def write_corpus(folder: Path, task: str) -> Path:
    answers = {
        "generate": lambda words: "",
        "classify": lambda words: "long" if len(words) > 4 else "short",
        "tag": lambda words: " ".join("S" if word[0] == "s" else "O" for word in words),
    }
    answer = answers.get(task, lambda words: " ".join(reversed(words)))
    rows = [(line, answer(line.split())) for line in sentences(120)]
    path = folder / (f"{task}.txt" if task == "generate" else f"{task}.tsv")
    text = "".join(f"{a}\n" if task == "generate" else f"{a}\t{b}\n" for a, b in rows)
    path.write_text(text, encoding="utf-8")
    return path


def log_of(run: Path) -> list[str]:
    """The lines of a run's log; entries that only one of the trees can write are for the reader to judge."""
    return (run / "training" / "log.jsonl").read_text(encoding="utf-8").splitlines()


def outputs(tree: Path, runs: Path) -> Iterator[tuple[str, str]]:
    """What each search writes with the models of this tree."""
    lines = "\n".join([*sentences(120)[::7], "", "the old cat sees a bird and the sun"]) + "\n"
    for way in ("torch", "native"):
        for words in SEARCHES:
            told = [*words.split(), "--way", way]
            if "nbest" in words:
                told.append("--json")
            if (runs / "translate").exists():
                written = clearhead(tree, "translate", str(runs / "translate"), *told, given=lines)
                yield f"translate {words} --way {way}", written
            if (runs / "generate").exists() and "--groups" not in words and "--nbest" not in words:
                told = [*told, "--max-length", "12", "the old"]
                yield (
                    f"generate {words} --way {way}",
                    clearhead(tree, "generate", str(runs / "generate"), *told),
                )


def same_results(trees: Sequence[Path], only: str) -> bool:
    equal = True
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing)
        for task in filter(re.compile(only).search, TASKS):
            corpus = write_corpus(folder, task)
            found: list[tuple[list[str], str]] = []
            for number, tree in enumerate(trees):
                run = folder / f"tree-{number}" / task
                settings = [word for one in SETTINGS for word in ("--set", one)]
                clearhead(tree, "train", "--file", str(corpus), "--task", task, "--out", str(run), *settings)
                weights = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
                found.append((log_of(run), weights))
            same = found[0] == found[1]
            equal &= same
            print(
                f"{task:12} {len(found[0][0]):4} lines of the log and the weights: {verdict(same)}",
                flush=True,
            )
            if not same:
                print_first_difference(found[0][0], found[1][0])
        texts = [dict(outputs(tree, folder / f"tree-{number}")) for number, tree in enumerate(trees)]
        for name, text in texts[0].items():
            equal &= text == texts[1][name]
            print(f"{name:66} {verdict(text == texts[1][name])}", flush=True)
    return equal


def verdict(same: bool) -> str:
    return "equal" if same else "DIFFERENT"


def print_first_difference(before: Sequence[str], after: Sequence[str]) -> None:
    for one, other in zip(before, after, strict=False):
        if one != other:
            print(f"  before {one}\n  after  {other}")
            return
    print(f"  {len(before)} lines before, {len(after)} after; or the weights alone differ")


# -- speed --------------------------------------------------------------------------------------------


def train_worker(tree: str) -> None:
    """Training steps of a tree, by the very functions of its own `training.py`."""
    sys.path.insert(0, str(Path(tree) / "benchmarks"))
    import torch

    import training

    def build() -> tuple[dict[str, Any], dict[str, Any]]:
        torch.manual_seed(0)
        device, size = torch.device("cpu"), training.replace(training.SIZES["small"], tokens=2048)
        given = training.batches(size, 4, device)
        step = training.ours(size, device, torch.float32, training.Stepper)

        def case() -> dict[str, Any]:
            for batch in given:
                step(batch)
            return {"units": sum(batch.tokens for batch in given)}

        return {"small": case}, {"tree": tree}

    serve(build)


def contender(tree: Path, kind: str, bundle: Path, threads: int) -> Contender:
    if kind == "training":
        command: tuple[str, ...] = (sys.executable, str(Path(__file__).resolve()), str(tree), "--worker")
    else:
        job = Job("ids", str(bundle), str(bundle), kind, threads=threads, cases=CASES)
        command = (sys.executable, "-m", "decode_peers.worker_ours", job.line())
    return Contender(f"{kind}, {tree.name}", kind, command, environment(tree, threads))


def speed(trees: Sequence[Path], rounds: int, threads: int, only: str, markdown: Path | None = None) -> None:
    note = partial(_note, markdown)
    here = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    note(f"Commit {commit(trees[0])} (before) and {commit(trees[1])} (after) on {here}; {rounds} rounds.\n")
    note("| case | before, units/s | after, units/s | before ÷ after, paired | middle half |")
    note("|---|---|---|---|---|")
    print(f"\n{'':26} {'before':>10} {'after':>10}  units/s, medians   before ÷ after, paired", flush=True)
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing)
        # by the older tree, which may not know every setting that the newer one writes
        made_so = "import sys; from decode_peers.weights import *; prepare(TRANSLATOR, Path(sys.argv[1]))"
        words = (sys.executable, "-c", made_so, str(folder))
        subprocess.run(words, env=environment(trees[0], threads), check=True, capture_output=True)
        for kind in (*KINDS, "training"):
            cases = ("small",) if kind == "training" else CASES
            wanted = [case for case in cases if re.search(only, f"{kind} {case}")]
            if not wanted:
                continue
            made = [contender(tree, kind, folder / "bundle", threads) for tree in trees]
            processes = [Process(one, folder / f"{n}.log", 600.0) for n, one in enumerate(made)]
            for case in wanted:
                times = paired(processes, case, rounds)
                ratios = sorted(a / b for a, b in zip(*times, strict=True))
                before, after = (processes[0].run(case)["units"] / statistics.median(one) for one in times)
                spread = f"{ratios[len(ratios) // 4]:.3f} to {ratios[-1 - len(ratios) // 4]:.3f}"
                middle = statistics.median(ratios)
                print(
                    f"{kind + ' ' + case:26} {before:10.1f} {after:10.1f} {middle:18.3f} ({spread})",
                    flush=True,
                )
                note(f"| {kind} {case} | {before:.1f} | {after:.1f} | {middle:.3f} | {spread} |")
            for process in processes:
                process.close()


def _note(file: Path | None, line: str) -> None:
    if file is not None:
        with file.open("a", encoding="utf-8") as page:
            page.write(f"{line}\n")


def commit(tree: Path) -> str:
    """The commit of a worktree, in short."""
    done = subprocess.run(
        ("git", "-C", str(tree), "rev-parse", "--short", "HEAD"), capture_output=True, text=True
    )
    return done.stdout.strip() or str(tree)


def paired(processes: Sequence[Process], case: str, rounds: int) -> list[list[float]]:
    """Seconds of both, round by round, in a new order each time; a visit's best of several short runs."""
    chance = random.Random(0)
    times: list[list[float]] = [[] for _ in processes]
    for turn in range(rounds + 1):
        for number in chance.sample(range(len(processes)), len(processes)):
            answers = processes[number].visit(case, quick=False)
            if "error" in answers[-1]:
                raise SystemExit(f"{processes[number].contender.name}, {case}: {answers[-1]['error']}")
            if turn:
                times[number].append(statistics.median(one["seconds"] for one in answers))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?", default=HERE)
    parser.add_argument("--results", action="store_true", help="compare losses, weights and texts")
    parser.add_argument("--speed", action="store_true", help="compare speed")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", metavar="REGEX", help="tasks, or cases such as 'int8 greedy'")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the speeds as a table, too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        train_worker(str(options.before))
        return
    trees = [options.before.resolve(), options.after.resolve()]
    both = options.results == options.speed
    equal = same_results(trees, options.only) if options.results or both else True
    if options.speed or both:
        speed(trees, options.rounds, options.threads, options.only, options.markdown)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
