"""Run of a model that labels: the verdict, the classes' bars, and the words that carried it."""

from __future__ import annotations

import pytest

from .conftest import Ask, Open
from .visiting import number

pytestmark = pytest.mark.browser

TEXT = "the old cat sleeps ."


def percent(text: str) -> float:
    return number(text.removesuffix("%")) / 100


@pytest.mark.parametrize("width", [1280, 390])
def test_a_classifier_s_verdict_is_the_server_s(visit: Open, ask: Ask, width: int) -> None:
    page = visit("run", model="labeller", text=TEXT, width=width)
    answer = ask("/api/verdict", model="labeller", text=TEXT)
    assert page.page.get_by_role("radiogroup", name="Strategy").count() == 0
    assert page.page.get_by_role("heading", name=f"“{answer['label']}”").count() == 1
    bars = page.page.get_by_test_id("verdict").locator("li")
    assert bars.count() == len(answer["classes"])
    for bar, one in zip(bars.all(), answer["classes"], strict=True):
        assert bar.locator(".label").inner_text() == one["label"]
        assert percent(bar.locator(".number").inner_text()) == pytest.approx(one["p"], abs=5.1e-4)
        track, filled = (bar.locator(part).bounding_box() for part in (".track", ".track span"))
        assert track
        assert filled
        assert filled["width"] / track["width"] == pytest.approx(one["p"], abs=0.01)
    rows = page.region("Which words does it depend on?").locator("tbody tr")
    assert [row.locator("th").inner_text() for row in rows.all()] == TEXT.split()
    for row, part in zip(rows.all(), answer["parts"], strict=True):
        assert number(row.locator("td").nth(1).inner_text()) == pytest.approx(part["support"], rel=0.01)
        assert percent(row.locator("td").nth(2).inner_text()) == pytest.approx(part["p"], abs=5.1e-4)
    page.radio("Word order", "Strongest support first").click()
    page.expect(sort="support")
    shown = [number(row.locator("td").nth(1).inner_text()) for row in rows.all()]
    assert shown == sorted(shown, reverse=True)
    assert page.overflow() <= 0
    if width == 1280:
        for name in ("verdict-classes", "verdict-words"):
            page.drawings(name)
        assert [row[1] for row in page.table("verdict-words")[1:]] == TEXT.split()


def test_a_tagger_s_words_have_their_tags(visit: Open, ask: Ask) -> None:
    page = visit("run", model="tagger", text=TEXT)
    answer = ask("/api/verdict", model="tagger", text=TEXT)
    words = page.page.get_by_test_id("verdict").locator("li").all()
    assert [word.locator(".word").inner_text() for word in words] == TEXT.split()
    assert [word.locator("b").inner_text() for word in words] == [one["tag"] for one in answer["words"]]


def test_an_emptied_field_shows_no_old_answer(visit: Open) -> None:
    page = visit("run", model="labeller", text=TEXT)
    field = page.page.get_by_role("textbox", name="Text")
    field.fill("")
    page.page.get_by_text("There is no text yet").wait_for()
    assert page.page.get_by_test_id("verdict").count() == 0
    page.page.reload()  # the address holds it, too
    page.page.get_by_text("There is no text yet").wait_for()
    field.fill("a dog")
    page.settled(600)
    assert page.region("Which words does it depend on?").locator("tbody tr").count() == 2


def test_a_busy_server_is_asked_again_and_the_page_says_so(visit: Open) -> None:
    page = visit("lectures")
    page.refusals = True
    told: list[int] = []

    def busy(route: object) -> None:
        told.append(1)
        if len(told) > 2:
            route.continue_()  # type: ignore[attr-defined]
            return
        route.fulfill(  # type: ignore[attr-defined]
            status=429, json={"error": "The model is busy."}, headers={"Retry-After": "1"}
        )

    page.page.route("**/api/verdict", busy)
    page.page.goto(f"{page.home}/#/run?model=labeller&text=the+cat")
    page.page.get_by_text("The model is busy. Trying again in 1 s (2 of 5).").wait_for()
    page.page.get_by_test_id("verdict").wait_for()
    assert len(told) == 3
    assert page.page.get_by_text("Trying again").count() == 0
