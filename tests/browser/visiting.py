"""A page as a reader has it: where it is, what it says, what it saves; and what it must never do.

Knows the explorer's parts by their roles and names, as a screen reader does, and nothing about numbers.
"""

from __future__ import annotations

import csv
import io
import math
import re
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit
from xml.etree import ElementTree

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PATIENCE = 20  # seconds

FOCUSED = """() => {
  const it = document.activeElement;
  if (!it || it === document.body) return null;
  const style = getComputedStyle(it), box = it.getBoundingClientRect();
  const inner = it.querySelector(":scope > rect");  // a box of a drawing shows its focus by its edge
  const edge = inner ? parseFloat(getComputedStyle(inner).strokeWidth) : 0;
  return {
    what: `${it.tagName} ${it.getAttribute("aria-label") ?? it.textContent.trim().slice(0, 30)}`,
    seen: (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2) || edge >= 2,
    shown: box.width > 0 && box.height > 0,
  };
}"""


class Visit:
    """One page of one reader."""

    def __init__(self, page: Page, home: str) -> None:
        self.page, self.home = page, home
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.ended: list[str] = []
        self.refusals = False  # a test that provokes an error of the server says so
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("requestfinished", lambda request: self.ended.append(request.url))
        page.on("requestfailed", lambda request: self.ended.append(request.url))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not (self.refusals and text.startswith("Failed to load")):
            self.errors.append(f"{kind}: {text}")

    def close(self) -> None:
        """Whatever was tested: nothing was logged, and nobody else was asked."""
        self.page.context.close()
        assert self.errors == []
        strangers = [url for url in self.asked if not url.startswith((f"{self.home}/", "blob:", "data:"))]
        assert strangers == []

    @property
    def under_way(self) -> int:
        return len(self.asked) - len(self.ended)

    # -- where it is ----------------------------------------------------------------------------------

    def go(self, view: str, **params: object) -> Visit:
        """Open a deep link, and wait until all is there."""
        written = {name: value for name, value in params.items() if value is not None}
        self.page.goto(f"{self.home}/#/{view}?{urlencode(written)}")
        self.page.locator("main h1").wait_for()
        return self.settled()

    def settled(self, rest: int = 180) -> Visit:
        """Once nothing was asked for so many milliseconds, which is longer than a page lets a dial rest."""
        quiet, began = 0, time.monotonic()
        while quiet < rest:
            assert time.monotonic() - began < PATIENCE, f"still asking after {PATIENCE} s"
            self.page.wait_for_timeout(30)
            busy = self.under_way > 0 or self.page.locator("main .busy.on").count() > 0
            quiet = 0 if busy else quiet + 30
        return self

    def expect(self, **params: object) -> None:
        """The address holds these; None: it does not hold that one."""
        wanted = {name: None if value is None else str(value) for name, value in params.items()}
        for _ in range(50):
            if {name: self.params.get(name) for name in wanted} == wanted:
                return
            self.page.wait_for_timeout(20)
        assert {name: self.params.get(name) for name in wanted} == wanted

    @property
    def view(self) -> str:
        return urlsplit(self.page.url).fragment.partition("?")[0].removeprefix("/")

    @property
    def params(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.page.url).fragment.partition("?")[2]))

    # -- what is in it --------------------------------------------------------------------------------

    def button(self, name: str | re.Pattern[str], within: Locator | None = None) -> Locator:
        return (within or self.page.locator("main")).get_by_role("button", name=name)

    def radio(self, group: str, name: str) -> Locator:
        return self.page.get_by_role("radiogroup", name=group).get_by_role("radio", name=name, exact=True)

    def region(self, name: str | re.Pattern[str]) -> Locator:
        return self.page.get_by_role("region", name=name)

    def grid(self, name: str | re.Pattern[str]) -> Locator:
        return self.page.get_by_role("grid", name=name).first

    def key(self, *keys: str) -> Visit:
        for one in keys:
            self.page.keyboard.press(one)
        return self

    def cell(self, grid: Locator, row: int, column: int) -> float:
        """The value that the keyboard reads in a cell of a heat map."""
        grid.focus()
        self.key("Control+Home", *["ArrowDown"] * row, *["ArrowRight"] * column)
        cell = grid.get_by_role("gridcell")
        assert cell.get_attribute("aria-colindex") == str(column + 1)
        return number(str(cell.text_content()).rpartition(":")[2])

    def hovered(self, grid: Locator, row: int, column: int, size: tuple[int, int]) -> float:
        """The value that the mouse reads in a cell: the cells fill the lower right of the sheet."""
        frame = self._cell_size(grid)
        box = grid.bounding_box()
        assert box is not None
        x = box["width"] - (size[1] - column - 0.5) * frame[0]
        y = box["height"] - (size[0] - row - 0.5) * frame[1]
        grid.hover(position={"x": x, "y": y})
        cell = grid.get_by_role("gridcell")
        assert cell.get_attribute("aria-colindex") == str(column + 1)
        return number(str(cell.text_content()).rpartition(":")[2])

    def _cell_size(self, grid: Locator) -> tuple[float, float]:
        """How large a cell is drawn: the frame around the cell under the cursor says it."""
        self.cell(grid, 0, 0)
        box = grid.locator(".frame").last.bounding_box()
        assert box is not None
        grid.blur()
        return box["width"], box["height"]

    # -- what it saves --------------------------------------------------------------------------------

    def saved(self, name: str, kind: str) -> bytes:
        """What a save button gives; `name` is the file's, without its ending."""
        button = self.page.get_by_role("button", name=f"Save {name} as {kind}", exact=True).first
        with self.page.expect_download() as waiting:
            button.click()
        file = waiting.value
        assert file.suggested_filename.endswith(f".{kind.lower()}")
        with open(file.path(), "rb") as content:
            return content.read()

    def table(self, name: str) -> list[list[str]]:
        """A CSV file's rows, its heading first."""
        return list(csv.reader(io.StringIO(self.saved(name, "CSV").decode("utf-8"))))

    def drawings(self, name: str) -> None:
        """The SVG is a document that stands alone, the PNG a picture of some size."""
        drawing = ElementTree.fromstring(self.saved(name, "SVG"))
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(drawing.attrib["width"]) > 20
        written = ElementTree.tostring(drawing, encoding="unicode")
        assert len(list(drawing.iter())) > 3
        assert not re.search(r"(href|src|url)\s*[=(]\s*[\"']?\s*https?:", written)
        picture = self.saved(name, "PNG")
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", picture[16:24])
        assert width > 20
        assert height > 20

    # -- what must hold anywhere ----------------------------------------------------------------------

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        wide: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return wide

    def unseen_focus(self, most: int = 60) -> list[str]:
        """Walk through the page by Tab: what has the focus and does not show it."""
        found: list[str] = []
        for _ in range(most):
            self.key("Tab")
            focused = self.page.evaluate(FOCUSED)
            if focused is None:
                break
            if not (focused["seen"] and focused["shown"]):
                found.append(focused["what"])
        return found


def number(text: str) -> float:
    """A number as the page writes it.

    >>> number(" −1.5e−7 "), number("−∞")
    (-1.5e-07, -inf)
    """
    plain = text.strip().replace("−", "-").replace("∞", "inf").replace("\u202f", "")
    return float(plain)


def single(value: float) -> float:
    """The nearest float32."""
    return value if math.isinf(value) else float(struct.unpack("<f", struct.pack("<f", value))[0])


def floats(rows: Sequence[Sequence[str]]) -> list[list[float]]:
    """A matrix of a CSV file without its labels."""
    return [[float(one.replace("Infinity", "inf")) for one in row[1:]] for row in rows[1:]]
