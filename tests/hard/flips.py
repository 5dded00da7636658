"""One flipped bit in any file that a bundle or a run reads: it is named, or it changes nothing.

Bundles of every task are loaded and asked; an interrupted run is resumed to its end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import clearhead
from clearhead.bundle import Bundle
from clearhead.decoding.labels import class_probabilities, tag
from clearhead.decoding.options import Options
from clearhead.decoding.run import generate, translate

from ..flipping import copied, flips, interrupted, resumed, used, wrong
from ..system.commands import backwards, sequences, write_pairs
from .tally import Tally

KEPT = Path(__file__).parent.parent / "kept" / "0.1"
TASKS = ("translate", "summarise", "generate", "classify", "tag")
RUN: dict[str, Any] = {
    "tokenizer__kind": "words",
    "steps": 12,
    "model__width": 16,
    "model__layers": 1,
    "model__attention__heads": 2,
    "model__feedforward__width": 32,
    "averaging__ema": 0.9,
    "averaging__snapshots": 2,
    "batch__tokens": 128,
    "validation__every": 4,
    "validation__decode": 2,
    "saving__every": 4,
    "saving__seconds": 1e9,
    "saving__log_every": 2,
    "compute__device": "cpu",
}


def asked(bundle: Bundle) -> object:
    """A short answer that depends on everything in a bundle."""
    task, text = bundle.metadata.get("task"), "the good cat sees the dog"
    if task == "classify":
        return class_probabilities(bundle, [text])
    if task == "tag":
        return tag(bundle, [text])
    options = Options(beam=2, max_length=6)
    if task == "generate":
        return generate(bundle, "The ", options)
    return [one.text for one in translate(bundle, [text], options)]


def run(count: int, seed: int, folder: Path) -> Tally:
    """So many flips, three of four in bundles, which are quicker to try."""
    tally = Tally("flipped bits")
    home = folder / "flips"
    home.mkdir()
    in_runs = count // 4
    for number, task in enumerate(TASKS):
        whole = clearhead.save(clearhead.load(KEPT / task), home / task)
        reference = used(whole, asked)
        assert reference.refused is None, reference.refused
        share = (count - in_runs) // len(TASKS) + (number < (count - in_runs) % len(TASKS))
        for flip in flips(whole, share, seed=seed + number):
            flip.apply(copied(whole, home / "one"))
            _judge(tally, f"bundle for {task}", flip, lambda: used(home / "one", asked), reference)
    write_pairs(home / "pairs.tsv", sequences(80, 2, 5, "abcdef", seed=1), backwards)
    clearhead.train(home / "finished", file=home / "pairs.tsv", **RUN)
    whole = interrupted(home / "finished", home / "interrupted")
    reference = resumed(copied(whole, home / "one"))
    assert reference.refused is None, reference.refused
    for flip in flips(whole, in_runs, seed=seed):
        flip.apply(copied(whole, home / "one"))
        _judge(tally, "run", flip, lambda: resumed(home / "one"), reference)
    return tally


def _judge(tally: Tally, what: str, flip: Any, try_it: Any, reference: Any) -> None:
    try:
        found = try_it()
    except Exception as error:
        tally.bad("traceback", f"{what}: {flip}: {type(error).__name__}: {error}")
        return
    fault = wrong(flip, found, reference)
    if fault is not None:
        tally.bad("silent", f"{what}: {fault}")
    elif found.refused is not None:
        tally.one("named and refused")
    else:
        tally.one("named, and gone on" if set(found.said) - set(reference.said) else "without effect")
