"""How long from starting the command to a scored translator: `clearhead train` by the clock on the wall.

    python benchmarks/time_to_quality.py --data DATA [--recipe multi30k-en-de-fast] [--seeds 1 2 3]

Each run is a process of its own that starts cold: nothing that an earlier one compiled or tokenised is there.
Counted is all of it, from the first import to the test set's score on the screen: reading, tokenizer,
recording of CUDA graphs, training, validation, the search for the test set's translations. The table gives
seconds, the seconds of them that were training steps, and the score of the test set.
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

RECIPES = Path(__file__).resolve().parent.parent / "recipes"


def run(recipe: str, seed: int, data: Path) -> tuple[float, float, str, float, str]:
    """Seconds in all, of them in training; the score's name, the score, the device."""
    with tempfile.TemporaryDirectory() as folder:
        # Triton, torch.compile and we keep what was compiled: an empty folder makes all begin anew
        names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
        cold = {name: f"{folder}/{name}" for name in names}
        command = [sys.executable, "-m", "clearhead", "train", "--recipe", str(RECIPES / f"{recipe}.toml")]
        command += ["--data", str(data), "--out", f"{folder}/run", "--set", f"seed={seed}", "--view", "quiet"]
        began = time.perf_counter()
        done = subprocess.run(command, env={**os.environ, **cold}, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if done.returncode:
            sys.exit(done.stderr.strip())
        told = json.loads(Path(folder, "run", "metadata.json").read_text(encoding="utf-8"))["metadata"]
    name = next(name for name in told["test"] if name.endswith("BLEU"))
    return seconds, told["training"]["seconds"], name, told["test"][name], told["training"]["device"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="where the data lie")
    parser.add_argument("--recipe", default="multi30k-en-de-fast", metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N")
    options = parser.parse_args()
    found = []
    for seed in options.seeds:
        found.append(run(options.recipe, seed, options.data))
        seconds, training, name, score, device = found[-1]
        print(
            f"seed {seed}: {seconds:6.1f} s in all, {training:6.1f} s of training steps, "
            f"{name} {score:.2f}, on {device}",
            flush=True,
        )
    if len(found) > 1:
        print(
            f"mean:   {statistics.mean(one[0] for one in found):6.1f} s, "
            f"{found[0][2]} {statistics.mean(one[3] for one in found):.2f}"
        )


if __name__ == "__main__":
    main()
