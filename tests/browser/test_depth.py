"""View 6, depth: what each sub-layer adds, and what the model would say after each layer."""

from __future__ import annotations

import pytest

import clearhead
from clearhead.bundle import Bundle
from clearhead.explorer.words import unpacked

from .conftest import Ask, Open
from .visiting import single

pytestmark = pytest.mark.browser

TEXT, TARGET = "the cat sees a dog", "DOG A SEES"
Bundles = dict[str, Bundle]


def test_the_norms_are_those_of_what_is_added(visit: Open, ask: Ask, bundles: Bundles) -> None:
    page = visit("depth", text=TEXT, target=TARGET)
    answer = ask("/api/depth", model="translator", text=TEXT, target=TARGET)
    norms, stream = unpacked(answer["norms"]), unpacked(answer["stream"])
    grid = page.grid("Norm of what each sub-layer adds")
    assert single(page.cell(grid, 4, 2)) == float(norms[4, 2])
    assert single(page.hovered(grid, 1, 1, tuple(norms.shape))) == float(norms[1, 1])
    added = clearhead.trace(bundles["translator"], TEXT, TARGET)["decoder.1.cross.added"][2]
    assert float(norms[4, 2]) == pytest.approx(float(added.norm()), rel=1e-5)
    page.radio("Measured as", "Norm").focus()
    page.key("ArrowRight")
    page.expect(size="ratio")
    ratio = page.cell(page.grid("Size of each sub-layer’s contribution"), 4, 2)
    assert ratio == pytest.approx(float(norms[4, 2] / stream[4, 2]), rel=1e-5)


def test_early_readings_by_mouse_keyboard_and_link(visit: Open, ask: Ask) -> None:
    page = visit("depth", text=TEXT, target=TARGET, row=1, column=2)
    answer = ask("/api/depth", model="translator", text=TEXT, target=TARGET)

    def check(row: int, column: int) -> None:
        guesses = answer["predictions"][row]["top"][column]
        items = page.region("What it would predict").locator(".detail li")
        assert items.locator(".text").all_inner_texts() == [one["text"] for one in guesses]
        written = items.locator(".number").all_inner_texts()
        assert [float(one.rstrip(" %").lstrip("< ")) for one in written] == pytest.approx(
            [100 * one["p"] for one in guesses], abs=0.0501
        )

    check(1, 2)
    cells = page.region("What it would predict").locator("tbody button")
    cells.nth(1).click()
    page.expect(row=0, column=1)
    check(0, 1)
    page.key("ArrowDown", "ArrowRight")
    page.expect(row=1, column=2)
    check(1, 2)


def test_what_is_saved(visit: Open, ask: Ask) -> None:
    page = visit("depth", text=TEXT, target=TARGET)
    answer = ask("/api/depth", model="translator", text=TEXT, target=TARGET)
    norms, stream = unpacked(answer["norms"]), unpacked(answer["stream"])
    page.drawings("depth-contributions")
    rows = [[float(one) for one in row[3:]] for row in page.table("depth-contributions")[1:]]
    wanted = zip(norms.flatten(), stream[:-1].flatten(), stream[1:].flatten(), strict=True)
    assert rows == [[float(x) for x in three] for three in wanted]
    page.drawings("depth-predictions")
    chances = [float(row[5]) for row in page.table("depth-predictions")[1:]]
    assert chances == [
        one["p"] for height in answer["predictions"] for place in height["top"] for one in place
    ]


@pytest.mark.parametrize("model", ["writer", "labeller"])
def test_other_families(visit: Open, ask: Ask, model: str) -> None:
    text = "the cat sleeps ."
    page = visit("depth", model=model, text=text)
    answer = ask("/api/depth", model=model, text=text)
    norms = unpacked(answer["norms"])
    grid = page.grid("Norm of what each sub-layer adds")
    assert single(page.cell(grid, 2, 1)) == float(norms[2, 1])
    heading = page.region("What it would predict").locator("thead th").nth(1).inner_text()
    assert heading == ("whole text" if model == "labeller" else answer["words"][0]["text"])
