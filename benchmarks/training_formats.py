"""Is what is learnt in bf16 as good as in float32? The same runs in both, over several seeds, on this device.

    python benchmarks/training_formats.py --data DATA [--steps 600] [--seeds 3] [--set model.width=256 …]

DATA is the folder with `multi30k/` (raw text, English to German). Each run is `clearhead train` with a number
of steps, a seed and `compute.dtype`; the table gives the validation loss after the last step, and by how much
bf16's is higher. The machine may be busy: nothing here depends on the clock, and the seconds are for
information only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FORMATS = ("float32", "bf16")
DROPOUT = 0.1


def trained(
    captions: Path, folder: Path, steps: int, seed: int, dtype: str, own: list[str]
) -> tuple[float, float]:
    """The validation loss of one run, and its seconds."""
    files = {"--source": "train.en.gz", "--target": "train.de.gz"}
    command = [sys.executable, "-m", "clearhead", "train", "--out", str(folder), "--view", "quiet"]
    for name, file in files.items():
        command += [name, str(captions / file)]
    for language in ("en", "de"):
        command += ["--validation", str(captions / f"val.{language}.gz")]
    settings: dict[str, object] = {
        "seed": seed,
        "steps": steps,
        "compute.dtype": dtype,
        "schedule.warmup": max(steps // 10, 1),
    }
    settings |= {"validation.every": steps, "validation.decode": 0}
    # what is chosen by how much time there is, which is more in bf16
    settings |= {"model.dropout": DROPOUT, "model.embedding.dropout": DROPOUT, "schedule.name": "cosine"}
    for setting in [*(f"{name}={value}" for name, value in settings.items()), *own]:
        command += ["--set", setting]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    [log] = folder.rglob("log.jsonl")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    [*_, last] = [line for line in lines if line["kind"] == "validation"]
    return float(last["loss"]), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="own", metavar="A.B=C")
    options = parser.parse_args()
    losses: dict[str, list[float]] = {dtype: [] for dtype in FORMATS}
    print(f"| seed | {' | '.join(FORMATS)} | bf16 higher by |\n|---|---|---|---|")
    for seed in range(1, options.seeds + 1):
        for dtype in FORMATS:
            with tempfile.TemporaryDirectory() as folder:
                run = Path(folder) / "run"
                loss, seconds = trained(
                    options.data / "multi30k", run, options.steps, seed, dtype, options.own
                )
            losses[dtype].append(loss)
            print(f"  {dtype}, seed {seed}: {loss:.4f} in {seconds:.0f} s", file=sys.stderr, flush=True)
        one, other = (losses[dtype][-1] for dtype in FORMATS)
        print(f"| {seed} | {one:.4f} | {other:.4f} | {other / one - 1:+.2%} |", flush=True)
    one, other = (statistics.mean(losses[dtype]) for dtype in FORMATS)
    print(f"| mean | {one:.4f} | {other:.4f} | {other / one - 1:+.2%} |")


if __name__ == "__main__":
    main()
