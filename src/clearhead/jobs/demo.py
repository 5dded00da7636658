"""The demo: trains a translator from scratch on the built-in phrasebook, and uses it.

Nothing is downloaded: the sentences come from a grammar (`phrasebook`). The held-out ones combine words as no
training sentence does, so the model gets them right by understanding, not by memory.
"""

from __future__ import annotations

from pathlib import Path

from clearhead.api import load
from clearhead.base.atomic import atomic_write_text
from clearhead.base.errors import UserError, nearest
from clearhead.bundle import Bundle, is_bundle
from clearhead.decoding.alignment import alignment, draw_alignment
from clearhead.decoding.run import translate
from clearhead.jobs.recipe import Table
from clearhead.jobs.train import resume, train
from clearhead.phrasebook import PAIRS, examples, split
from clearhead.training.run_folder import RunFolder
from clearhead.training.view import make_view

TRAIN, HELD_OUT, SEED = 120_000, 1000, 1

# Found by trial: narrow, shallow and in small batches, so two minutes are enough for many steps; a token for
# every word; positions that depend only on distance, which copy dates and long clauses more faithfully; and
# no dropout, because the grammar never runs out of sentences.
RECIPE: Table = {
    "steps": 1700,
    "tokenizer": {"vocabulary": 2200},
    "model": {
        "width": 128,
        "layers": 2,
        "dropout": 0.0,
        "attention": {"heads": 4},
        "feedforward": {"width": 256},
        "embedding": {"dropout": 0.0},
        "norm": {"place": "pre"},
        "position": {"name": "rotary"},
    },
    "batch": {"tokens": 768},
    "schedule": {"name": "cosine", "rate": 4e-3, "warmup": 100, "floor": 0.02},
    "objective": {"label_smoothing": 0.0, "consistency": 0.0},
    "averaging": {"snapshots": 0},
    "validation": {"every": 400, "decode": 100, "patience": None},
    "saving": {"log_every": 20},
}


def home_of(pair: str) -> Path:
    """The default folder of the demo."""
    return Path("runs") / f"demo-{pair}"


def demonstrate(out: Path, pair: str = "en-fr", *, again: bool = False, view: str = "auto") -> Bundle:
    """Train the demo's translator, or load an existing one."""
    if pair not in PAIRS:
        raise UserError(f"The phrasebook has no pair '{pair}': {nearest(pair, PAIRS)}")
    folder = RunFolder(out)
    if is_bundle(out) and not again:
        return load(out)
    if folder.record.exists() and not again:
        return resume(out, view=view).bundle
    make_view(view)  # refuses an unknown name before anything is written
    folder.refuse_place()
    if not again:
        folder.refuse_occupied()  # checked again under the lock; here, so a refusal leaves no phrasebook
    texts = write_phrasebook(out.with_name(f"{out.name}-phrasebook"), pair)
    files = {name: {"file": str(path)} for name, path in texts.items()}
    settings: Table = {"data": {**files, "train": [files["train"]]}, **RECIPE}
    return train(out, settings, view=view, replace=again).bundle


def write_phrasebook(
    folder: Path, pair: str, count: int = TRAIN, held_out: int = HELD_OUT
) -> dict[str, Path]:
    """The phrasebook as three files of tab-separated pairs."""
    parts = split(pair, count, held_out, SEED)
    found = {}
    for name, pairs in (("train", parts.train), ("validation", parts.validation), ("test", parts.test)):
        found[name] = folder / f"{name}.tsv"
        atomic_write_text(found[name], "".join(f"{source}\t{target}\n" for source, target in pairs))
    return found


def show(bundle: Bundle, pair: str) -> list[tuple[str, str, str]]:
    """A few sentences: the source, the model's translation, and the reference."""
    chosen = examples(pair)
    outputs = translate(bundle, [source for source, _ in chosen], way="torch")
    return [(source, one.text, right) for (source, right), one in zip(chosen, outputs, strict=True)]


def picture(bundle: Bundle, source: str) -> str:
    """Which source words the decoder attended to for each word it wrote."""
    return draw_alignment(alignment(bundle, source, words=True))
