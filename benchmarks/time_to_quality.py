"""How long from starting the command to a scored translator: `clearhead train` by wall-clock time.

    python benchmarks/time_to_quality.py --data DATA [--recipe multi30k-en-de-fast] [--seeds 1 2 3]

Each run is a separate process that starts cold, without anything that an earlier one compiled or tokenised.
It counts everything from the first import on: reading, tokenizer, kernels, recording of CUDA graphs,
training, validation, the search for the test set's translations. The table gives the seconds until the test
set was scored and until the command returned (it still draws curves and measures number formats), the
training time among them, and the score of the test set.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

RECIPES = Path(__file__).resolve().parent.parent / "recipes"


class Run(NamedTuple):
    """What a run took, in seconds, and what came of it."""

    scored: float
    ended: float
    training: float
    metric: str
    score: float
    device: str


def run(recipe: str, seed: int, data: Path) -> Run:
    """One run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        # Triton, torch.compile and clearhead cache what they compile: with an empty folder all start over
        names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
        cold = {name: f"{folder}/{name}" for name in names}
        command = [sys.executable, "-m", "clearhead", "train", "--recipe", str(RECIPES / f"{recipe}.toml")]
        command += ["--data", str(data), "--out", f"{folder}/run", "--set", f"seed={seed}", "--view", "quiet"]
        began, date = time.perf_counter(), time.time()
        done = subprocess.run(command, env={**os.environ, **cold}, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if done.returncode:
            sys.exit(done.stderr.strip())
        scored = Path(folder, "run", "training", "test.md").stat().st_mtime - date
        told = json.loads(Path(folder, "run", "metadata.json").read_text(encoding="utf-8"))["metadata"]
    name = next(name for name in told["test"] if name.endswith("BLEU"))
    training = told["training"]
    return Run(scored, seconds, training["seconds"], name, told["test"][name], training["device"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="where the data lie")
    parser.add_argument("--recipe", default="multi30k-en-de-fast", metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N")
    options = parser.parse_args()
    found = []
    for seed in options.seeds:
        one = run(options.recipe, seed, options.data)
        found.append(one)
        print(
            f"seed {seed}: scored after {one.scored:6.1f} s, {one.ended:6.1f} s in all, "
            f"{one.training:6.1f} s of training, {one.metric} {one.score:.2f}, on {one.device}",
            flush=True,
        )
    if len(found) > 1:
        scored, ended, score = (
            statistics.mean(getattr(one, name) for one in found) for name in ("scored", "ended", "score")
        )
        print(f"mean:   scored after {scored:6.1f} s, {ended:6.1f} s in all, {found[0].metric} {score:.2f}")


if __name__ == "__main__":
    main()
