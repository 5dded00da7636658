"""Tiny Shakespeare as pairs: some characters, and those that follow them.

    python recipes/continuations.py DATA

reads DATA/tiny-shakespeare/input.txt.gz and writes DATA/continuations/{train,validation,test}.tsv, for
`which-shakespeare.toml`: a decoder reads a pair in one row, an encoder-decoder on both sides, and both
predict the same characters. The last tenth of the text is held out, its first half for validation. A line
break is written as ¶, since a line of a file is one example.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

LENGTH = 128  # characters of a source, and of a target


def pairs(text: str) -> list[tuple[str, str]]:
    """Every LENGTH characters with the next LENGTH; each is a target once."""
    flat = text.replace("\n", "¶").replace("\t", " ")
    starts = range(0, len(flat) - 2 * LENGTH + 1, LENGTH)
    return [(flat[at : at + LENGTH], flat[at + LENGTH : at + 2 * LENGTH]) for at in starts]


def write(data: Path) -> Path:
    """Write the three files; returns their folder."""
    text = gzip.decompress((data / "tiny-shakespeare" / "input.txt.gz").read_bytes()).decode("utf-8")
    first, second = int(0.9 * len(text)), int(0.95 * len(text))
    folder = data / "continuations"
    folder.mkdir(parents=True, exist_ok=True)
    parts = {"train": text[:first], "validation": text[first:second], "test": text[second:]}
    for name, part in parts.items():
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(part))
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write tiny Shakespeare as pairs of texts.")
    parser.add_argument("data", type=Path)
    try:
        print(f"Wrote {write(parser.parse_args().data)}")
    except FileNotFoundError as error:
        sys.exit(f"continuations.py: there is no '{error.filename}': give the folder with tiny-shakespeare/.")
