"""Small corpora and recipes for the tests of this room."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.jobs.recipe import Table, merged

# As small as can be and still decode something.
TINY: Table = {
    "steps": 12,
    "tokenizer": {"vocabulary": 320},
    "model": {"width": 16, "layers": 1, "attention": {"heads": 2}, "feedforward": {"width": 32}},
    "batch": {"tokens": 512, "workers": 0},
    "schedule": {"rate": 5e-3, "warmup": 2},
    "averaging": {"snapshots": 2},
    "validation": {"every": 4, "decode": 6, "patience": None},
    "saving": {"log_every": 4, "seconds": 1e9, "tensorboard": False},
    "compute": {"device": "cpu"},
}
WORDS = [
    *("the", "a", "cat", "dog", "bird", "house", "tree", "sees", "eats"),
    *("likes", "old", "green", "small", "two", "red", "blue", "sky", "sun"),
]


def lines(count: int, seed: int = 0) -> list[str]:
    """Different made-up sentences."""
    chance = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(chance.choice(WORDS) for _ in range(chance.randint(2, 7)))] = None
    return list(found)


def rows(task: str, count: int = 80, seed: int = 0) -> list[tuple[str, str]]:
    """Examples of a task: sentences backwards, how long they are, or which words begin with s."""
    answers = {
        "classify": lambda line: "long" if len(line.split()) > 4 else "short",
        "regress": lambda line: str(1.5 * len(line)),
        "tag": lambda line: " ".join("S" if word[0] == "s" else "O" for word in line.split()),
    }
    answer = answers.get(task, lambda line: " ".join(reversed(line.split())).upper())
    return [(line, answer(line)) for line in lines(count, seed)]


def write_corpus(folder: Path, task: str = "translate", count: int = 80, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if task in ("generate", "mask", "denoise"):
        path = folder / "text.txt"
        path.write_text("".join(f"{line}\n" for line in lines(count, seed)), encoding="utf-8")
        return path
    if task == "image":
        path = folder / "pictures.npz"
        generator = np.random.default_rng(seed)
        labels = np.arange(count) % 2
        images = generator.integers(0, 100, (count, 8, 8), np.uint8)
        images[labels == 1, :, :4] += 150  # the left half is bright
        np.savez(path, images=images, labels=np.array(["left" if one else "none" for one in labels]))
        return path
    if task == "music":
        chance = random.Random(seed)
        pieces = [[[chance.randint(60, 72), 60, -1, 48] for _ in range(8)] for _ in range(count)]
        path = folder / "chorales.json"
        path.write_text(json.dumps(pieces), encoding="utf-8")
        return path
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows(task, count, seed)), encoding="utf-8")
    return path


def settings(file: Path, task: str = "translate", **tables: Any) -> Table:
    """A tiny recipe for one file."""
    return merged(TINY, {"task": task, "data": {"train": [{"file": str(file)}]}}, tables)
