"""The frame around the views: tabs, models, themes, sizes, errors, the keyboard."""

from __future__ import annotations

import httpx
import pytest

from .conftest import Ask, Open

pytestmark = pytest.mark.browser

VIEWS = ("run", "inside", "attention", "positions", "contexts", "depth", "lectures", "training")
TEXT = "the cat sees a dog"


def test_every_view_opens_by_mouse_and_by_keyboard(visit: Open) -> None:
    page = visit("run", text=TEXT)
    links = page.page.get_by_role("navigation", name="Views").get_by_role("link")
    assert links.count() == len(VIEWS)
    for view in VIEWS:
        links.filter(has_text=view.capitalize()).click()
        page.settled()
        assert page.view == view
        assert page.params["text"] == TEXT
        assert page.page.locator("main h1").inner_text() == view.capitalize()
        assert page.page.title() == f"{view.capitalize()} · clearhead explorer"
        assert page.page.locator(".tabs [aria-current]").inner_text() == view.capitalize()
    page.page.get_by_role("link", name="clearhead", exact=True).focus()
    for view in VIEWS:
        page.page.locator(f"nav [data-view={view}]").focus()
        page.key("Enter").settled()
        assert page.page.locator("main h1").inner_text() == view.capitalize()
    page.page.go_back()
    assert page.settled().view == "lectures"


def test_one_may_skip_to_the_view(visit: Open) -> None:
    page = visit("depth", text=TEXT)
    page.key("Tab")
    assert page.page.evaluate("document.activeElement.textContent") == "Skip to the view"
    page.key("Enter")
    assert page.page.evaluate("document.activeElement.id") == "main"
    assert page.view == "depth"


@pytest.mark.parametrize("view", VIEWS)
def test_the_focus_can_be_seen_everywhere(visit: Open, view: str) -> None:
    assert visit(view, text=TEXT, strategy="beam", beam=2).unseen_focus() == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("model", ["translator", "writer", "labeller"])
def test_nothing_is_wider_than_the_window(visit: Open, width: int, model: str) -> None:
    page = visit("run", width=width, model=model)
    for view in VIEWS:
        for more in {"run": [{}, {"strategy": "beam"}], "attention": PAGES}.get(view, [{}]):
            page.go(view, model=model, **more)
            if page.page.get_by_role("alert").count():
                assert "does not write text" in page.page.get_by_role("alert").inner_text()
            assert page.overflow() <= 0, (view, more)


PAGES = [{}, {"as": "lines"}, {"show": "summary"}, {"show": "classes"}, {"show": "evidence"}]


def test_a_long_text_fits_too(visit: Open) -> None:
    text = " ".join(["the old green house sees a small bird"] * 8)
    page = visit("run", width=390, text=text)
    for view in ("run", "inside", "attention", "depth"):
        assert page.go(view, text=text).overflow() <= 0, view


def test_colours_follow_the_system_until_one_is_chosen(visit: Open) -> None:
    page = visit("run", dark=True)
    theme = page.page.locator("html")
    assert theme.get_attribute("data-theme") == "dark"
    page.page.get_by_role("button", name="Use light colours").click()
    assert theme.get_attribute("data-theme") == "light"
    page.page.reload()
    page.settled()
    assert theme.get_attribute("data-theme") == "light"
    page.page.get_by_role("button", name="Use dark colours").focus()
    page.key("Enter")
    assert theme.get_attribute("data-theme") == "dark"


def test_each_model_can_be_chosen(visit: Open, ask: Ask) -> None:
    page = visit("attention", text=TEXT, kind="decoder.cross", layer=1)
    choice = page.page.get_by_role("combobox", name="Model")
    for info in ask("/api/models")["models"]:
        choice.select_option(info["name"])
        page.settled()
        # neither pictures nor music are read as sentences: such models begin with examples of their own
        page.expect(text=None if info["name"] in ("chorales", "squares", "photos") else TEXT)
        if info["name"] != "translator":
            page.expect(model=info["name"], kind=None, layer=None)
        facts = page.page.locator("header .facts").inner_text()
        assert facts.startswith(info["family"])
        kinds = page.page.get_by_role("radiogroup", name="Kind of attention")
        assert kinds.count() == (1 if len(info["kinds"]) > 1 else 0)


def test_a_refusal_is_shown_as_its_sentence(visit: Open, home: str) -> None:
    text = "bird " * 600
    page = visit("run")
    page.refusals = True
    for view in ("run", "inside", "attention", "depth"):
        refused = httpx.post(f"{home}/api/{view}", json={"text": text})
        assert refused.status_code == 400
        page.go(view, text=text)
        assert page.page.get_by_role("alert").inner_text().strip() == refused.json()["error"]
    page.page.get_by_label("Text to read").fill(TEXT)
    page.key("Enter").settled()
    assert page.page.get_by_role("alert").count() == 0


def test_a_silent_server_is_said_and_asked_again(visit: Open) -> None:
    page = visit("run", text=TEXT)
    page.refusals = True
    page.page.route("**/api/**", lambda route: route.abort())
    page.go("training")
    said = page.page.get_by_role("alert")
    assert "server does not respond" in said.inner_text()
    page.page.unroute("**/api/**")
    page.button("Try again", said).click()
    page.settled()
    assert page.page.get_by_role("alert").count() == 0
    assert page.region("Loss").count() == 1


def test_what_is_typed_goes_into_the_address(visit: Open) -> None:
    page = visit("inside", text=TEXT)
    page.page.get_by_label("Text to read").fill("a bird sees the sun")
    page.key("Enter").settled()
    page.expect(text="a bird sees the sun")
    page.page.get_by_label("Text to write").fill("SUN THE")  # and no Enter: after a rest
    page.settled(rest=700)
    page.expect(target="SUN THE")
    page.page.get_by_role("group", name="Examples").get_by_role("button").first.click()
    page.settled()
    page.expect(target=None)
    assert page.params["text"] == page.page.get_by_label("Text to read").input_value()
