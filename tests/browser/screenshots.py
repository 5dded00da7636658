"""Take the pictures of docs/images from the real page in a real browser.

    python -m tests.browser.screenshots [BUNDLE] [--only REGEX] [--out FOLDER]

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
from urllib.parse import urlencode

from .driving import browser, explorer, lacking

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOME = Path("docs/images")
DEMONSTRATION = Path("runs/demo-en-fr")  # where `clearhead demo` leaves its bundle
TEXT = "The cat is sleeping on the chair."
LIMIT = 200_000  # bytes of a picture


@dataclass(frozen=True)
class Shot:
    """One picture: a view, what its address says beyond the text, and how large the window is."""

    name: str
    view: str
    params: dict[str, str | int]
    height: int = 900
    width: int = 1280
    dark: bool = False
    scroll: str = ""  # what is brought to the top of the window
    focus: str = ""  # a part that is focused, so that its reading shows

    @property
    def address(self) -> str:
        return f"/#/{self.view}?{urlencode({'text': TEXT, **self.params})}"


CONTEXTS = {
    "word": "chair",
    "sentences": "The chair is red.\nThe cat is sleeping on the chair.\nI see a chair.\nWhere is the chair?",
}
SHOTS = (
    Shot("run", "run", {"step": 3}),
    Shot("run-beam", "run", {"strategy": "beam", "beam": 4, "step": 4}, height=1000, scroll="h2:has-text('beam')"),
    Shot("inside", "inside", {"box": "decoder.0.cross"}, height=1100),
    Shot("attention", "attention", {"kind": "decoder.cross", "layer": 1, "head": 0, "row": 3, "column": 3}, height=1200),
    Shot("positions", "positions", {"a": "sinusoidal", "b": "alibi"}, height=1100),
    Shot("contexts", "contexts", CONTEXTS, height=1100),
    Shot("depth", "depth", {}, height=1100),
    Shot("lectures", "lectures", {}, height=1000),
    Shot("training", "training", {}, height=1000),
    Shot("attention-dark", "attention", {"kind": "decoder.cross", "show": "summary", "how": "alignment"}, dark=True),
    Shot("run-narrow", "run", {"step": 3}, width=390, height=844),
    Shot("depth-narrow", "depth", {}, width=390, height=844, dark=True),
)


def take(opened: Browser, home: str, shot: Shot, out: Path) -> Path:
    """One picture, once nothing moves any more."""
    context = opened.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.dark else "light",
        reduced_motion="reduce",
        has_touch=shot.width < 600,
    )
    page = context.new_page()
    page.goto(home + shot.address)
    page.wait_for_load_state("networkidle")
    page.locator("main h1").wait_for()
    page.wait_for_function("!document.querySelector('[aria-busy=true]')")
    if shot.scroll:
        page.locator(shot.scroll).first.evaluate("it => it.closest('section')?.scrollIntoView()")
    if shot.focus:
        page.locator(shot.focus).first.focus()
    page.wait_for_timeout(300)
    path = out / f"explorer-{shot.name}.png"
    page.screenshot(path=path)
    context.close()
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
