"""Take the pictures of docs/images from the real page in a real browser.

    python tests/browser/screenshots.py [BUNDLE] [--only REGEX] [--out FOLDER]

Run in the project's folder, or by `make screenshots`. Without a bundle the demonstration's is taken, and
trained first (about two minutes) where there is none. Every picture is what a reader sees at the address
given here: 1280 pixels wide and light, with a few dark ones and a few as wide as a telephone.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))  # wherever this is loaded from

from driving import browser, explorer, lacking
from visiting import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOME = Path("docs/images")
DEMONSTRATION = Path("runs/demo-en-fr")  # where `clearhead demo` leaves its bundle
TEXT = "The cat is sleeping on the chair."
LIMIT = 200_000  # bytes of a picture


Params = dict[str, str | int]


@dataclass(frozen=True)
class Shot:
    """One picture: a view, what its address says beyond the text, and how large the window is."""

    name: str
    view: str
    params: Params
    height: int = 900
    width: int = 1280
    dark: bool = False
    top: str = ""  # the part, by its name, that is brought to the top of the window


ALIGNED: Params = {"kind": "decoder.cross", "show": "summary", "how": "alignment", "row": 2, "column": 3}
SHOTS = (
    Shot("run", "run", {"step": 4}, height=1340),
    Shot("run-beam", "run", {"strategy": "beam", "step": 4}, height=740, top="Beam search"),
    Shot("inside", "inside", {"box": "decoder.0.cross", "head": 1}, top="The architecture"),
    Shot("attention", "attention", {"kind": "decoder.cross", "head": 1, "row": 3, "column": 6}, height=1080),
    Shot(
        "evidence",
        "attention",
        {"kind": "decoder.cross", "show": "evidence", "row": 2},
        height=980,
        top="depends on",
    ),
    Shot("positions", "positions", {"a": "sinusoidal", "b": "alibi"}, height=1010),
    Shot("contexts", "contexts", {}, height=1230, top="How similar"),
    Shot("depth", "depth", {"row": 1, "column": 3}, height=1080, top="Norm of"),
    Shot("lectures", "lectures", {"step": 7}),
    Shot("training", "training", {}, height=960),
    Shot("attention-dark", "attention", ALIGNED, height=1060, dark=True),
    Shot("run-narrow", "run", {"step": 4}, width=390, height=844, top="The text as"),
    Shot("depth-narrow", "depth", {}, width=390, height=844, dark=True, top="Norm of"),
)


def take(opened: Browser, home: str, shot: Shot, out: Path) -> Path:
    """One picture, once nothing moves any more."""
    context = opened.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.dark else "light",
        reduced_motion="reduce",
        has_touch=shot.width < 600,
    )
    visit = Visit(context.new_page(), home)
    visit.go(shot.view, text=TEXT, **shot.params)
    page = visit.page
    if shot.top:
        visit.region(shot.top).first.evaluate(
            "it => scrollTo(0, it.getBoundingClientRect().top + scrollY - 12)"
        )
    visit.settled(300)
    path = out / f"explorer-{shot.name}.png"
    page.screenshot(path=path)
    visit.close()
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", nargs="?", type=Path, default=None)
    parser.add_argument("--only", default="", help="names of pictures, as a regular expression")
    parser.add_argument("--out", type=Path, default=HOME)
    asked = parser.parse_args()
    missing = lacking()
    if missing:
        print(missing, file=sys.stderr)
        return 2
    if asked.bundle is None and not (DEMONSTRATION / "config.json").is_file():
        subprocess.run([sys.executable, "-m", "clearhead", "demo"], check=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    large = False
    with explorer(asked.bundle or DEMONSTRATION) as home, browser() as opened:
        for shot in SHOTS:
            if re.search(asked.only, shot.name):
                path = take(opened, home, shot, asked.out)
                size = path.stat().st_size
                large = large or size > LIMIT
                print(f"{path}  {size / 1000:.0f} kB{'  too large' if size > LIMIT else ''}")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
