"""Does an installed wheel decode with the engine that it brings, without any compiler?

python wheels/try_engine.py    (with a Python that the wheel is installed in)
"""

from __future__ import annotations

import os
import sys

os.environ["CXX"] = "there-is-no-compiler"  # nothing but the wheel's own counts

import torch  # after the variable, which counts from here on

import clearhead
from clearhead.base.compiler import ENGINE
from clearhead.base.library import library
from clearhead.decoding.backend import Symbols
from clearhead.decoding.native import NativeRows
from clearhead.decoding.native.binding import instruction_sets

SOURCES = [[3 + (7 * i + t) % 60 for t in range(1 + i % 9)] for i in range(15)]
STEPS = 5


def difference(model: torch.nn.Module, instruction_set: str) -> float:
    """Greedy search with the engine, and the largest difference to the model's own log-probabilities."""
    rows = NativeRows(model, Symbols(1, 2, (0, 1)), instruction_set=instruction_set)
    scores, worst = rows.admit(SOURCES), 0.0
    texts = [[1] for _ in SOURCES]
    for _ in range(STEPS):
        found = scores.logp()
        for i, text in enumerate(texts):
            wanted = model(torch.tensor([SOURCES[i]]), torch.tensor([text])).logits[0, -1].log_softmax(-1)
            worst = max(worst, float((found[i] - wanted).abs().max()))
            text.append(int(found[i].argmax()))
        scores = rows.step(torch.arange(len(texts)), torch.tensor([text[-1] for text in texts]))
    return worst


def main() -> None:
    if library().file.parent != ENGINE.packaged:
        sys.exit(f"The engine was not taken from the wheel but from {library().file}.")
    torch.manual_seed(0)
    model = clearhead.build("tiny").eval()
    for name in instruction_sets():
        with torch.inference_mode():
            worst = difference(model, name)
        print(f"{name}: differs from PyTorch by {worst:.1e}")
        if not worst < 1e-4:
            sys.exit("The engine's numbers are not PyTorch's.")


if __name__ == "__main__":
    main()
