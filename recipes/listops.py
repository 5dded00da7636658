"""Write ListOps: nested operations on digits, and the digit that each evaluates to.

    python recipes/listops.py DATA
    python recipes/listops.py DATA --shortest 100 --longest 500 --train 40000

writes DATA/listops/{train,validation,test}.tsv for `attention-listops.toml`. An expression is a list such as
`[MAX 2 9 [MIN 4 7 ] 0 ]`, with tokens separated by spaces; operations are MIN, MAX, MED (the median, rounded
down) and SM (the sum modulo 10). A reader must know where each list begins and ends, over hundreds of tokens.
Without options, sizes are those of the Long Range Arena: 500 to 2,000 tokens, ten arguments and ten levels at
most, 96,000 + 2,000 + 2,000 expressions. No expression occurs twice, and the same seed writes the same files.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from clearhead.base.atomic import atomic_write_text

OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(statistics.median(values)),
    "SM": lambda values: sum(values) % 10,
}
SMALLEST = 4  # tokens of a list: the operation, two digits and the bracket
PARTS = {"train": 96_000, "validation": 2_000, "test": 2_000}
TRIES = 1000  # expressions that may be rejected for one that is kept


def expression(chance: random.Random, tokens: int, depth: int, arguments: int) -> tuple[list[str], int]:
    """About so many tokens and at most so many levels of lists, and the digit that they come to."""
    if tokens < SMALLEST or depth == 0:
        digit = chance.randrange(10)
        return [str(digit)], digit
    name = chance.choice(list(OPERATIONS))
    room = tokens - 2
    count = chance.randint(2, min(arguments, room))
    words, values = [f"[{name}"], []
    for share in _shares(chance, room, count):
        inner, value = expression(chance, share, depth - 1, arguments)
        words += inner
        values.append(value)
    return [*words, "]"], OPERATIONS[name](values)


def _shares(chance: random.Random, room: int, count: int) -> list[int]:
    """So many tokens dealt to the arguments: at least one each, the rest as it falls."""
    cuts = sorted(chance.randint(0, room - count) for _ in range(count - 1))
    return [1 + high - low for low, high in zip([0, *cuts], [*cuts, room - count], strict=True)]


def expressions(
    count: int, seed: int, shortest: int = 500, longest: int = 2000, depth: int = 10, arguments: int = 10
) -> list[tuple[str, int]]:
    """Different expressions of every length between the two about equally often."""
    chance, found, tries = random.Random(seed), dict[str, int](), 0
    while len(found) < count:
        words, value = expression(chance, chance.randint(shortest, longest), depth, arguments)
        text = " ".join(words)
        if shortest <= len(words) <= longest and text not in found:
            found[text], tries = value, 0
        else:
            tries += 1
        if tries > TRIES:
            raise ValueError(f"there are too few expressions of {shortest} to {longest} tokens like these")
    return list(found.items())


def write(data: Path, parts: dict[str, int] | None = None, seed: int = 1, **sizes: int) -> Path:
    """Write the three files; returns their folder."""
    counts, folder = parts or PARTS, data / "listops"
    rows = iter(expressions(sum(counts.values()), seed, **sizes))
    for name, count in counts.items():
        lines = [f"{text}\t{value}\n" for text, value in (next(rows) for _ in range(count))]
        atomic_write_text(folder / f"{name}.tsv", "text\tlabel\n" + "".join(lines))
    return folder


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description="Write ListOps: nested operations on digits.")
    parser.add_argument("data", type=Path)
    for name, usual in (("shortest", 500), ("longest", 2000), ("depth", 10), ("arguments", 10), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N")
    for name, usual in PARTS.items():
        parser.add_argument(f"--{name}", type=int, default=usual, metavar="N", help="expressions")
    chosen = vars(parser.parse_args())
    data, parts = chosen.pop("data"), {name: chosen.pop(name) for name in PARTS}
    if not SMALLEST <= chosen["shortest"] <= chosen["longest"] or min(*parts.values(), chosen["depth"]) < 1:
        parser.error("give 4 <= shortest <= longest, and at least one level and one expression of each part")
    if chosen["arguments"] < 2:
        parser.error("an operation has two arguments at least")
    try:
        print(f"Wrote {write(data, parts, **chosen)}")
    except ValueError as error:
        sys.exit(f"listops.py: {error}: change --shortest, --longest, --depth or --arguments.")


if __name__ == "__main__":
    main()
