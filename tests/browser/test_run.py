"""View 1, run: what the page writes, step by step, is what the library writes."""

from __future__ import annotations

import pytest

from clearhead.bundle import Bundle
from clearhead.decoding.options import Options
from clearhead.decoding.run import generate, translate

from .conftest import Ask, Open
from .visiting import Visit, number, single

pytestmark = pytest.mark.browser

TEXT = "the cat sees a dog"
Bundles = dict[str, Bundle]


def chips(page: Visit) -> list[str]:
    written = page.page.get_by_role("group", name="Tokens that were written")
    return written.get_by_role("button").all_inner_texts()


def test_the_page_writes_what_the_library_writes(visit: Open, bundles: Bundles, ask: Ask) -> None:
    page = visit("run", text=TEXT)
    found = translate(bundles["translator"], [TEXT])[0]
    output = page.page.get_by_test_id("output")
    assert output.text_content() == found.text
    facts = page.region("The text as it is written").locator("b").all_inner_texts()
    assert number(facts[0]) == pytest.approx(found.logp, rel=1e-5)
    answer = ask("/api/run", model="translator", text=TEXT)
    assert chips(page) == [step["chosen"]["text"] for step in answer["steps"]]

    page.go("run", model="writer", text="a dog eats")
    told = generate(bundles["writer"], "a dog eats").removeprefix("a dog eats")
    assert output.text_content() == (told or "(nothing)")


def test_steps_by_mouse_and_keyboard(visit: Open, ask: Ask) -> None:
    page = visit("run", text=TEXT)
    answer = ask("/api/run", model="translator", text=TEXT)
    written = page.page.get_by_role("group", name="Tokens that were written")
    written.get_by_role("button").nth(2).click()
    page.expect(step=3)
    check_distribution(page, answer["steps"][2])
    page.key("ArrowLeft")
    page.expect(step=2)
    check_distribution(page, answer["steps"][1])
    page.key("Home")
    page.expect(step=1)
    page.button("On one step").click()
    page.expect(step=2)
    page.button("Back one step").focus()
    page.key("Enter")
    page.expect(step=1)
    page.go("run", text=TEXT, step=3)  # a link brings one back
    assert written.get_by_role("button", pressed=True).inner_text() == answer["steps"][2]["chosen"]["text"]
    check_distribution(page, answer["steps"][2])


def check_distribution(page: Visit, step: dict) -> None:  # type: ignore[type-arg]
    """Both columns of bars have the model's probabilities, to the last digit."""
    region = page.region("Next-token distribution")
    assert region.get_by_role("heading").inner_text() == f"Next token at step {step['position'] + 1}"
    drawn = region.locator("svg .bar").evaluate_all("all => all.map(it => [+it.dataset.id, +it.dataset.p])")
    assert drawn == [[one["id"], one["p"]] for one in (*step["before"], *step["after"])]


def test_dials_by_keyboard_change_what_is_written(visit: Open, ask: Ask) -> None:
    page = visit("run", text=TEXT)
    page.radio("Strategy", "Greedy").focus()
    page.key("ArrowRight").settled()
    page.expect(strategy="sample")
    page.page.get_by_role("slider", name="Temperature").focus()
    page.key(*["ArrowRight"] * 5).settled()
    page.page.get_by_role("slider", name="Top-k").focus()
    page.key(*["ArrowRight"] * 3).settled()
    asked = {name: page.params[name] for name in ("temperature", "top_k")}
    assert float(asked["temperature"]) > 1
    answer = ask(
        "/api/run",
        model="translator",
        text=TEXT,
        strategy="sample",
        temperature=float(asked["temperature"]),
        top_k=int(asked["top_k"]),
    )
    assert answer["steps"][0]["kept"] == int(asked["top_k"])
    page.page.get_by_role("group", name="Tokens that were written").get_by_role("button").first.click()
    check_distribution(page, answer["steps"][0])
    page.button("Reset dials").click()
    page.settled()
    page.expect(temperature=None, top_k=None, strategy="sample")


def test_the_beam(visit: Open, ask: Ask, bundles: Bundles) -> None:
    page = visit("run", text=TEXT, strategy="beam", beam=3, step=2)
    assert page.radio("Strategy", "Beam").get_attribute("aria-checked") == "true"
    answer = ask("/api/run", model="translator", text=TEXT, strategy="beam", beam=3)
    found = translate(bundles["translator"], [TEXT], Options(beam=3))[0]
    assert page.page.get_by_test_id("output").text_content() == found.text
    region = page.region("Beam search")
    nodes = answer["tree"]["nodes"]
    assert region.locator("[data-node]").count() == len(nodes)
    best = [nodes[id] for id in answer["tree"]["best"]]
    reading = region.locator(".reading")
    assert single(number(reading.locator("b").first.inner_text())) == single(best[1]["score"])
    region.get_by_role("application").focus()
    page.key("ArrowRight")
    assert single(number(reading.locator("b").nth(1).inner_text())) == single(best[2]["logp"])
    page.key("Enter")
    page.expect(step=3)
    pruned = next(node for node in nodes if node["state"] == "pruned")
    region.locator(f"[data-node='{pruned['id']}'] rect").click()
    page.expect(step=pruned["step"] + 1)
    assert reading.locator(".state").inner_text() == "pruned"
    page.drawings("beam")
    rows = page.table("beam")
    assert rows[0] == ["id", "parent", "step", "token", "logp", "score", "state"]
    assert [[float(row[4]), float(row[5])] for row in rows[1:]] == [[n["logp"], n["score"]] for n in nodes]


def test_what_is_saved_are_the_servers_numbers(visit: Open, ask: Ask) -> None:
    page = visit("run", text=TEXT, step=2)
    answer = ask("/api/run", model="translator", text=TEXT)
    rows = page.table("run")
    assert [(int(row[1]), row[2], float(row[3])) for row in rows[1:]] == [
        (step["chosen"]["id"], step["chosen"]["text"], step["logp"]) for step in answer["steps"]
    ]
    name = "distribution-step-2"
    page.drawings(name)
    chances = {one["id"]: one["p"] for one in answer["steps"][1]["before"]}
    assert {int(row[0]): float(row[2]) for row in page.table(name)[1:]} == chances
    page.drawings("passes-inference")
    cost = answer["cost"]
    table = {row[0]: (int(row[1]), int(row[2])) for row in page.table("passes-inference")[1:]}
    assert table["forward passes of the decoder"] == (1, cost["inference"]["passes"])
    assert table["query–key pairs per layer and head"] == (
        cost["training"]["attended"],
        cost["inference"]["attended"],
    )


def test_training_and_inference_views(visit: Open) -> None:
    page = visit("run", text=TEXT, mode="training")
    region = page.region("Training and inference")
    assert "in one pass" in region.inner_text()
    page.radio("View", "Training view").focus()
    page.key("ArrowRight")
    page.expect(mode=None)
    assert "cached keys and at itself" in region.inner_text()


def test_it_moves_only_where_motion_is_welcome(visit: Open) -> None:
    page = visit("run", text=TEXT, still=False, max_length=6)
    page.button("Write again").click()
    page.button("Pause").click()
    assert 1 <= int(page.params["step"]) < len(chips(page))
    page.button("Write on").click()
    page.button("Write again").wait_for()  # it has come to the end by itself
    still = visit("run", text=TEXT, max_length=6)
    still.button("Write again").click()
    assert still.button("Pause").count() == 0


def test_a_model_that_writes_nothing_says_so(visit: Open) -> None:
    page = visit("run", model="labeller")
    assert "it predicts the most likely one" in page.page.locator("main header p").first.inner_text()
    assert page.page.get_by_role("radiogroup", name="Strategy").count() == 0
