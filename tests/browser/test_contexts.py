"""View 5, contexts: one word in several sentences, layer by layer."""

from __future__ import annotations

import pytest
import torch

from clearhead.explorer.words import unpacked

from .conftest import Ask, Open
from .visiting import floats, single

pytestmark = pytest.mark.browser

SENTENCES = ["the cat sees a dog", "a red cat", "two birds like the old cat"]
LINK = {"word": "cat", "sentences": "\n".join(SENTENCES)}


def test_the_cosines_are_the_models(visit: Open, ask: Ask) -> None:
    page = visit("contexts", **LINK, layer=1)
    answer = ask("/api/contexts", model="translator", word="cat", sentences=SENTENCES)
    between = unpacked(answer["between"])
    assert page.page.get_by_role("slider", name="Layer").input_value() == "1"
    grid = page.grid("Cosine between")
    assert single(page.cell(grid, 0, 2)) == float(between[1, 0, 2])
    assert single(page.hovered(grid, 2, 1, (3, 3))) == float(between[1, 2, 1])
    page.page.get_by_role("slider", name="Layer").focus()
    page.key("ArrowRight")
    page.expect(layer=2)
    assert single(page.cell(page.grid("Cosine between"), 0, 2)) == float(between[2, 0, 2])
    marked = page.region("Where they lie").locator(".here").all_inner_texts()
    assert "".join(marked) == "cat" * 3


def test_the_chart_is_read_and_picked_by_keyboard_and_mouse(visit: Open, ask: Ask) -> None:
    page = visit("contexts", **LINK, like="static")
    static = unpacked(ask("/api/contexts", model="translator", word="cat", sentences=SENTENCES)["static"])
    chart = page.page.get_by_role("application", name="Similarity by layer")
    chart.focus()
    page.key("Home", "ArrowRight")
    values = page.region("How similar").locator("figcaption .value b").all_inner_texts()
    assert [single(float(one.replace("−", "-"))) for one in values] == static[1].tolist()
    page.key("Enter")
    page.expect(layer=1)
    box = chart.bounding_box()
    assert box is not None
    page.page.mouse.click(box["x"] + box["width"] - 30, box["y"] + box["height"] / 2)
    page.expect(layer=2)
    page.radio("Similarity", "With embedding").focus()
    page.key("ArrowLeft")
    page.expect(like=None)


def test_words_and_sentences_are_edited(visit: Open) -> None:
    page = visit("contexts", **LINK)
    page.button("Add a sentence").click()
    page.page.locator("li:last-child input:focus").wait_for()
    page.page.keyboard.type("the sun sees a cat")
    page.key("Enter").settled()
    assert page.params["sentences"].splitlines() == [*SENTENCES, "the sun sees a cat"]
    page.button("Remove sentence 1").focus()
    page.key("Enter").settled()
    assert page.params["sentences"].splitlines() == [*SENTENCES[1:], "the sun sees a cat"]
    page.page.get_by_label("Word", exact=True).fill("moon")
    said = page.page.get_by_role("status").filter(has_text="moon")
    assert said.inner_text() == "“moon” does not occur in “a red cat”: change the sentence or the word."


def test_what_is_saved(visit: Open, ask: Ask) -> None:
    page = visit("contexts", **LINK, layer=1)
    answer = ask("/api/contexts", model="translator", word="cat", sentences=SENTENCES)
    static, between, plane = (unpacked(answer[name]) for name in ("static", "between", "projection"))
    for name in ("contexts-cat-similarity", "contexts-cat-plane"):
        page.drawings(name)
        rows = torch.tensor([[float(one) for one in row[3:]] for row in page.table(name)[1:]])
        rows = rows.reshape(3, 3, 6)
        assert torch.equal(rows[..., 0], static)
        assert torch.equal(rows[..., 1:3], plane)
        assert torch.equal(rows[..., 3:], between)
    name = f"contexts-cat-{answer['layers'][1]}"
    page.drawings(name)
    assert torch.equal(torch.tensor(floats(page.table(name))), between[1])


@pytest.mark.parametrize("model", ["writer", "labeller"])
def test_other_families(visit: Open, ask: Ask, model: str) -> None:
    sentences = ["the cat sleeps .", "a dog sees the cat"]
    page = visit("contexts", model=model, word="cat", sentences="\n".join(sentences), layer=2)
    between = unpacked(ask("/api/contexts", model=model, word="cat", sentences=sentences)["between"])
    assert single(page.cell(page.grid("Cosine between"), 0, 1)) == float(between[2, 0, 1])
