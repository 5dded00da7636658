"""The one small run that is killed, interrupted and damaged, and how it would have ended undisturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .commands import Ended, Warm, everything, settings

# Dropout, a moving average, an average of snapshots and accumulation: all that must come back exactly.
# Checkpoints never fall due by the clock, so that both runs have the same ones.
SETTINGS = settings(
    tokenizer__kind="words",
    steps=60,
    model__width=16,
    model__layers=1,
    model__attention__heads=2,
    model__feedforward__width=32,
    model__dropout=0.2,
    batch__tokens=128,
    batch__accumulate=2,
    schedule__warmup=20,
    averaging__ema=0.9,
    averaging__snapshots=3,
    validation__every=7,
    validation__decode=4,
    validation__samples=1,
    validation__metric="chrf",
    saving__every=4,
    saving__seconds=1e9,
    saving__log_every=3,
)
SAVING = settings(saving__every=4, saving__seconds=1e9, saving__log_every=3)
TRAIN = ("train", "--file", "pairs.tsv", "--out", "run", "--view", "plain", *SETTINGS)
RESUME = ("train", "--resume", "run", "--view", "plain")


def go(warm: Warm, run: Path, **strike: Any) -> Ended:
    """What a person types after a kill: resume, or the first command again where nothing had begun."""
    arguments = RESUME if (run / "training" / "run.json").exists() else TRAIN
    return warm(*arguments, folder=run.parent, **strike)


def assert_same(run: Path, whole: Path, *, but: str = "nothing") -> None:
    """Every file that the clock has no part in is the same, and nothing unfinished lies about."""
    found, wanted = everything(run), everything(whole)
    unlike = [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]
    unlike = [name for name in unlike if but not in name]
    assert not unlike, unlike
    assert not list(run.parent.glob(".run.writing-*"))
