"""Write the corpora that need no download: digits to copy, reverse and sort, and the phrasebook.

    python recipes/toy.py FOLDER              # all of them
    python recipes/toy.py FOLDER copy sort    # some of them

Each is three files of tab-separated pairs, `train.tsv`, `validation.tsv` and
`test.tsv`, under FOLDER/toy/NAME. No source occurs twice, so no test example was
trained on. The same seed writes the same files.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from clearhead.base.atomic import atomic_write_text
from clearhead.jobs.demo import write_phrasebook

SHORTEST, LONGEST = 4, 9  # digits in a row
PARTS = {"train": 8000, "validation": 300, "test": 1000}
SEED = 1

DIGITS: dict[str, Callable[[Sequence[str]], Sequence[str]]] = {
    "copy": list,
    "reverse": lambda digits: digits[::-1],
    "sort": sorted,
}
PHRASEBOOKS = {"phrasebook-en-fr": "en-fr", "phrasebook-en-de": "en-de"}
NAMES = (*DIGITS, *PHRASEBOOKS)


def write(folder: Path, name: str) -> Path:
    """Write one of the corpora, and return its own folder."""
    place = folder / "toy" / name
    if name in PHRASEBOOKS:
        write_phrasebook(place, PHRASEBOOKS[name])
        return place
    rows = iter(distinct_rows(sum(PARTS.values()), SEED))
    for part, count in PARTS.items():
        lines = []
        for _ in range(count):
            digits = next(rows)
            lines.append(f"{' '.join(digits)}\t{' '.join(DIGITS[name](digits))}\n")
        atomic_write_text(place / f"{part}.tsv", "".join(lines))
    return place


def distinct_rows(count: int, seed: int) -> list[str]:
    """Rows of digits, all different, of every length about equally often."""
    chance = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        length = chance.randint(SHORTEST, LONGEST)
        found["".join(chance.choices("0123456789", k=length))] = None
    return list(found)


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description="Write the corpora that need no download.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}; without: all")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.names) - set(NAMES))
    if unknown:
        parser.error(f"there is no corpus '{unknown[0]}': known are {', '.join(NAMES)}")
    for name in chosen.names or NAMES:
        print(f"Wrote {write(chosen.folder, name)}")


if __name__ == "__main__":
    main()
