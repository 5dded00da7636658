"""Views 7 and 8: the worked examples beside their slides, and the run behind a bundle."""

from __future__ import annotations

import re

import pytest

from .conftest import Ask, Open
from .visiting import number, single

pytestmark = pytest.mark.browser


def test_an_example_is_walked_by_keyboard_and_mouse(visit: Open, ask: Ask) -> None:
    page = visit("lectures")
    examples = ask("/api/lectures")["examples"]
    first = examples[0]
    article = page.page.get_by_role("article", name=first["title"])
    page.button("Next step", article).click()
    page.expect(step=1)
    article.get_by_role("button", name="Next step").focus()
    page.key("ArrowRight")
    page.expect(step=2)
    page.key("End")
    page.expect(step=len(first["steps"]) - 1)
    other = examples[3]
    page.page.get_by_role("navigation", name="Worked examples").get_by_role(
        "button", name=other["title"]
    ).focus()
    page.key("Enter")
    page.expect(example=other["id"], step=None)
    assert page.page.get_by_role("article", name=other["title"]).count() == 1


def test_every_misprint_is_marked(visit: Open, ask: Ask) -> None:
    for example in ask("/api/lectures")["examples"][:1]:
        for place, step in enumerate(example["steps"]):
            if not step["wrong"]:
                continue
            page = visit("lectures", example=example["id"], step=place)
            printed = page.page.get_by_role("table", name=f"{step['name']}, as printed on the slide")
            marked = printed.locator("td", has_text="(wrong)").all_inner_texts()
            wrong = [step["printed"][row][column] for row, column in step["wrong"]]
            assert [number(one.replace("(wrong)", "")) for one in marked] == wrong
            shown = page.page.get_by_role("table", name=f"{step['name']}, recomputed").locator("td")
            texts = [re.sub(r"\(.*\)", "", one).strip() for one in shown.all_inner_texts()]
            numbers = [number(one) for one in texts if one]  # its brackets are cells, too
            assert numbers == pytest.approx([x for row in step["value"] for x in row], abs=5.01e-5)
            if example["erratum"]:
                assert example["erratum"] in page.page.get_by_role("article").inner_text()


def test_errata_and_answers_wait_for_their_step(visit: Open, ask: Ask) -> None:
    answer = ask("/api/lectures")
    example = next(one for one in answer["examples"] if one["answer"] and one["erratum"])
    last = len(example["steps"]) - 1
    for step in (0, example["erratum_at"], last):
        page = visit("lectures", example=example["id"], step=step)
        text = page.page.get_by_role("article").inner_text()
        assert example["question"] in text
        assert (example["erratum"] in text) == (step >= example["erratum_at"])
        assert (example["answer"] in text) == (step == last)
    assert f"Other mistakes on the slides: {len(answer['slips'])}" in page.page.locator("main").inner_text()


def test_examples_are_saved(visit: Open, ask: Ask) -> None:
    example = ask("/api/lectures")["examples"][0]
    page = visit("lectures", example=example["id"])
    name = f"lecture-{example['id']}"
    page.drawings(name)
    values = [x for step in example["steps"] for row in step["value"] for x in row]
    assert [float(row[4]) for row in page.table(name)[1:]] == values


def test_curves_are_the_logs(visit: Open, ask: Ask) -> None:
    page = visit("training", measure="loss", log="y")
    answer = ask("/api/training")
    train = answer["curves"]["train"]
    assert page.radio("Vertical axis", "Log").get_attribute("aria-checked") == "true"
    chart = page.page.get_by_role("application", name="Loss by step")
    chart.focus()
    page.key("Home")
    caption = page.region("Loss").locator("figcaption")
    assert caption.locator(".where").inner_text() == f"Step {train[0]['step']}"
    assert single(number(caption.locator(".value b").first.inner_text())) == single(train[0]["loss"])
    box = chart.bounding_box()
    assert box is not None
    chart.blur()
    page.page.mouse.move(box["x"] + box["width"] - 26, box["y"] + box["height"] / 2)
    assert caption.locator(".where").inner_text() == f"Step {answer['curves']['validation'][-1]['step']}"
    page.page.get_by_label("Curve").select_option("rate")
    page.expect(measure="rate")
    page.radio("Vertical axis", "Log").focus()
    page.key("ArrowLeft")
    page.expect(log=None)


def test_the_run_is_saved(visit: Open, ask: Ask) -> None:
    page = visit("training")
    answer = ask("/api/training")
    page.drawings("training-loss")
    rows = page.table("training-loss")
    losses = [float(row[rows[0].index("loss")]) for row in rows[1:]]
    curves = answer["curves"]
    assert losses == [point["loss"] for point in (*curves["train"], *curves["validation"])]
    assert answer["samples"]
    assert [row[2] for row in page.table("training-samples")[1:]] == [
        one["written"] for one in answer["samples"]
    ]
    page.drawings("training-flops")
    spent = {row[0]: float(row[1]) for row in page.table("training-flops")[1:]}
    assert spent["This run"] == answer["flops"]["spent"]


def test_a_bundle_without_a_log_says_so(visit: Open) -> None:
    page = visit("training", model="writer")
    assert "has no training log" in page.page.locator("main").inner_text()
