"""View 2, inside: the drawing opens by mouse and keyboard, and every number in it is the model's."""

from __future__ import annotations

import pytest
import torch

import clearhead
from clearhead.bundle import Bundle

from .conftest import Ask, Open
from .visiting import floats, single

pytestmark = pytest.mark.browser

TEXT = "the cat sees a dog"
Bundles = dict[str, Bundle]


def test_boxes_open_by_mouse_and_keyboard(visit: Open, ask: Ask) -> None:
    page = visit("inside", text=TEXT)
    boxes = ask("/api/inside", model="translator", text=TEXT)["boxes"]
    drawing = page.region("The architecture")
    drawing.locator('[data-spot="decoder.0.cross"]').click()
    page.expect(box="decoder.0.cross")
    chain = page.region("Inside the box")
    cross = next(one for one in boxes if one["id"] == "decoder.0.cross")
    assert chain.get_by_role("heading").first.inner_text() == cross["label"]
    steps = chain.get_by_role("list", name="Steps inside this box").get_by_role("link")
    assert steps.all_inner_texts() == [step["label"] for step in cross["steps"]]
    page.key("ArrowUp", "Enter").settled()
    assert page.params["box"] != "decoder.0.cross"
    drawing.locator("[data-spot]", has_text="Layer 2").last.focus()
    page.key("Enter").settled()
    page.expect(layer=1)


def test_every_drawn_number_is_the_models(visit: Open, bundles: Bundles) -> None:
    page = visit("inside", text=TEXT, box="decoder.1.cross", head=1)
    trace = clearhead.trace(bundles["translator"], TEXT)
    assert page.radio("Head", "2").get_attribute("aria-checked") == "true"
    for name, label in (("q", "queries Q"), ("weights", "weights")):
        card = page.page.locator(f'[data-tensor="decoder.1.cross.{name}"]')
        card.scroll_into_view_if_needed()
        page.settled()
        wanted = trace[f"decoder.1.cross.{name}"][1]
        grid = card.get_by_role("grid")
        assert str(grid.get_attribute("aria-label")).startswith(label)
        assert page.cell(grid, 2, 1) == pytest.approx(float(wanted[2, 1]), rel=1e-6)
        assert page.hovered(grid, 1, 2, tuple(wanted.shape)) == pytest.approx(float(wanted[1, 2]), rel=1e-6)


def test_what_is_saved_is_the_trace(visit: Open, bundles: Bundles, ask: Ask) -> None:
    page = visit("inside", text=TEXT, box="decoder.1.self", head=1, step=7)
    trace = clearhead.trace(bundles["translator"], TEXT)
    weights = "decoder.1.self.weights"
    page.page.locator(f'[data-tensor="{weights}"]').scroll_into_view_if_needed()
    page.settled()
    rows = page.table(f"{weights}-head2")
    assert [row[0] for row in rows[1:]] == [word["text"] for word in trace.target]
    torch.testing.assert_close(torch.tensor(floats(rows)), trace[weights][1], rtol=1e-6, atol=1e-7)
    assert single(float(rows[2][1])) == float(rows[2][1])  # float32, as the model has it
    page.drawings(f"{weights}-head2")
    page.drawings("architecture")
    arrows = ask("/api/inside", model="translator", text=TEXT)["arrows"]
    assert [row[:2] for row in page.table("architecture")[1:]] == [[one["from"], one["to"]] for one in arrows]


@pytest.mark.parametrize("model, box", [("writer", "decoder.0.self"), ("labeller", "encoder.1.self")])
def test_other_families(visit: Open, bundles: Bundles, model: str, box: str) -> None:
    text = "the cat sleeps ."
    page = visit("inside", model=model, text=text, box=box)
    card = page.page.locator(f'[data-tensor="{box}.weights"]')
    card.scroll_into_view_if_needed()
    page.settled()
    wanted = clearhead.trace(bundles[model], text)[f"{box}.weights"][0]
    assert page.cell(card.get_by_role("grid"), 1, 0) == pytest.approx(float(wanted[1, 0]), rel=1e-6)
    assert page.page.get_by_label("Text to write").count() == 0


def test_a_given_target_is_looked_at(visit: Open, ask: Ask) -> None:
    page = visit("inside", text=TEXT, target="DOG A", box="decoder.0.self")
    answer = ask("/api/inside", model="translator", text=TEXT, target="DOG A")
    name = next(box for box in answer["boxes"] if box["id"] == "decoder.0.self")["steps"][0]["name"]
    rows = page.table(name)
    assert [row[0] for row in rows[1:]] == [word["text"] for word in answer["target"]]
    own = ask("/api/inside", model="translator", text=TEXT)["target"]
    assert own != answer["target"]


def test_experts_are_called_experts(visit: Open, bundles: Bundles) -> None:
    text = "the cat sleeps"
    page = visit("inside", model="mixture", text=text, box="encoder.0.feedforward")
    trace = clearhead.trace(bundles["mixture"], text)
    for name, size in (("weights", "× 4 experts"), ("load", "4 experts")):
        tensor = f"encoder.0.feedforward.{name}"
        card = page.page.locator(f'[data-tensor="{tensor}"]')
        card.scroll_into_view_if_needed()
        page.settled()
        assert size in card.locator(".size").inner_text()
        assert card.locator(".axes").inner_text().endswith("→ expert")
        wanted = trace[tensor] if name == "weights" else trace[tensor][None]
        assert page.cell(card.get_by_role("grid"), 0, 2) == pytest.approx(float(wanted[0, 2]), rel=1e-6)
        assert "expert 3" in card.locator("output.reading").inner_text()
