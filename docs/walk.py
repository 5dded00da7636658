"""Count what a reader passes on the way of a batch, of a request and of one attention call.

    python docs/walk.py            # prints the table
    python docs/walk.py --write    # puts it into ARCHITECTURE.md

A profiler watches three calls. What they count:

- files: the files of the package in which at least one function ran,
- lines: the lines of those files together, to the nearest hundred,
- changes of file: calls from a function in one file of the package to a function in another. Code outside the
  package (PyTorch, the standard library) lies between without being counted.

Where each walk begins and ends:

- corpus: rows of text → tokenizer → store on disk. This happens once for a corpus, so it has no goal.
- batch: store → loader → batch → objective → model → loss → gradient → update. The settings, the ids of
  special tokens, the model and the optimiser have been made before.
- attention: one call of `MultiHeadAttention` with a padding mask.
- request: `Writer(bundle)` on a CPU, then one text → ids → the C++ engine, greedily → text. The bundle has
  been loaded before.

Each walk is taken once before it is counted, so imports, caches and the compiled engine are in place. The
goals were set from walks through release 0.1 that counted 34 files and 5,700 lines for the batch (these give
31 and 5,000; with the ids of special tokens, which are read from the tokenizer, 33 and 5,700), 38 changes
(here 40) and 39 files for the request (here 38).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import clearhead
from clearhead.bundle.folder import load_bundle
from clearhead.data.columns import Row
from clearhead.data.config import FilterConfig
from clearhead.data.encoding import Encoder, Tokenizers, tokenise
from clearhead.data.load import Loader
from clearhead.data.plan import BatchConfig
from clearhead.data.store import Store
from clearhead.data.store_writer import StoreWriter
from clearhead.decoding.writer import Writer
from clearhead.phrasebook import pairs
from clearhead.tasks import TASKS
from clearhead.training.config import TrainConfig
from clearhead.training.objectives import LabelObjective
from clearhead.training.optimiser import build_optimiser, rate_at
from clearhead.training.step import Precision, Stepper

PACKAGE = Path(clearhead.__file__).resolve().parent
PAGE = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"
BEGIN, END = "<!-- walk: written by `python docs/walk.py --write` -->\n", "<!-- end of walk -->\n"
RELEASED = {  # what release 0.1 had
    "corpus": "13 files, 2,800 lines",
    "batch": "31 files, 5,000 lines",
    "attention": "40 changes",
    "request": "38 files, 6,700 lines",
}
GOALS = {"batch": "≤ 20 files, ≤ 4,500 lines", "attention": "≤ 12 changes", "request": "≤ 20 files"}
COMMAND = "python docs/walk.py --write"


@dataclass
class Walk:
    """What was seen of one call."""

    changes: int = 0
    files: set[str] = field(default_factory=set)
    _open: list[str] = field(
        default_factory=list
    )  # the files of the functions that are running, outermost first

    def watch(self, call: Callable[[], Any]) -> Walk:
        """Run the call under the profiler."""
        sys.setprofile(self._event)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith(str(PACKAGE)):
            return
        if event == "return":
            if self._open:  # a generator that is closed returns without having been called
                self._open.pop()
            return
        self.files.add(file)
        if self._open and self._open[-1] != file:
            self.changes += 1
        self._open.append(file)

    @property
    def lines(self) -> int:
        """Of all files passed, to the nearest hundred, so that not every comment changes the table."""
        return round(sum(len(Path(file).read_text("utf-8").splitlines()) for file in self.files), -2)


def walks() -> dict[str, Walk]:
    """Every walk by its name, in the order of the table."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        return {name: Walk().watch(call) for name, call in _calls(Path(folder)).items()}


def _calls(folder: Path) -> dict[str, Callable[[], Any]]:
    """The calls to watch; each has been made once already."""
    rows = [Row(*pair, line=0) for pair in pairs("en-fr", 40, seed=1)]
    both = Tokenizers.of(
        clearhead.Tokenizer.words([text for row in rows for text in (row.source, row.target)])
    )
    model = clearhead.build("tiny", vocabulary=both.target.vocabulary_size)
    config = TrainConfig(model=model.config, batch=BatchConfig(tokens=512, workers=0))
    filter, encoding, specials = FilterConfig(), TASKS["translate"].encoding(), both.specials()
    cpu = torch.device("cpu")
    stepper = Stepper(
        model,
        LabelObjective(config.objective.label_smoothing),
        build_optimiser(model, config.optimiser, cpu),
        Precision(cpu, torch.float32),
        config.optimiser.clip,
    )

    def corpus(name: str = "again") -> Store:
        with StoreWriter(folder / name, "translate", encoding.ranges(both)) as writer:
            tokenise(rows, Encoder(encoding, both, filter), writer)
        return Store(folder / name)

    store = corpus("once")

    def batch() -> None:
        loader = Loader([store], encoding, config.batch, specials, seed=1)
        made = next(iter(loader.batches(epoch=0)))
        stepper.step([made], rate_at(config.schedule, 1, config.model.width))

    batch()
    layer = model.encoder.layers[0].attention
    x = torch.zeros(2, 6, config.model.width)

    def attention() -> None:
        layer(x, mask=clearhead.masks.Padding([3, 6]))

    attention()
    framing = encoding.framings(both).to_dict()  # as training notes it
    clearhead.save(model, folder / "bundle", tokenizer=both.target, metadata={"framing": framing})
    bundle = load_bundle(folder / "bundle")

    def request() -> None:
        list(Writer(bundle, device="cpu").in_order([rows[0].source]))

    request()
    return {"corpus": corpus, "batch": batch, "attention": attention, "request": request}


def table(found: dict[str, Walk]) -> str:
    """The walks as a table in Markdown."""
    lines = ["| walk | files | lines | changes of file | goal | release 0.1 |", "|---|---|---|---|---|---|"]
    for name, walk in found.items():
        goal, before = GOALS.get(name, ""), RELEASED[name]
        changes = f"{walk.changes:,}" if name == "attention" else ""
        lines.append(f"| {name} | {len(walk.files)} | {walk.lines:,} | {changes} | {goal} | {before} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """The table as it stands in ARCHITECTURE.md."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into ARCHITECTURE.md")
    parser.add_argument("--files", action="store_true", help="name the files of each walk, with their lines")
    asked = parser.parse_args()
    found = walks()
    print(table(found), end="")
    for name, walk in found.items() if asked.files else ():
        print(f"\n{name}")
        for file in sorted(walk.files):
            print(f"{len(Path(file).read_text('utf-8').splitlines()):6}  {Path(file).relative_to(PACKAGE)}")
    if asked.write:
        page = re.sub(
            re.escape(BEGIN) + ".*" + re.escape(END),
            lambda _: BEGIN + table(found) + END,
            PAGE.read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
