"""View 4, positions: two schemes beside each other, the model's own with its own numbers."""

from __future__ import annotations

import pytest
import torch

from clearhead.explorer.words import unpacked

from .conftest import Ask, Open
from .visiting import floats, single

pytestmark = pytest.mark.browser


def test_two_schemes_side_by_side(visit: Open, ask: Ask) -> None:
    page = visit("positions", a="sinusoidal", b="alibi", length=32)
    waves, alibi = ask("/api/positions", model="translator", schemes=["sinusoidal", "alibi"], length=32)[
        "schemes"
    ]
    for scheme, label in ((waves, "Sinusoidal"), (alibi, "ALiBi")):
        region = page.region(label)
        rules = region.get_by_role("list", name="Guidelines").get_by_role("listitem")
        for rule, wanted in zip(rules.all(), scheme["guidelines"], strict=True):
            assert wanted["sentence"] in rule.inner_text()
            assert rule.get_by_role("img", name="kept" if wanted["holds"] else "broken").count() == 1
            assert not {"-1", "causal="} & set(wanted["sentence"].split())
    table, bias = unpacked(waves["table"]), unpacked(alibi["bias"])
    grid = page.grid("Sinusoidal: the signal of each position")
    assert single(page.cell(grid, 3, 1)) == float(table[3, 1])
    assert page.hovered(grid, 2, 5, tuple(table.shape)) == pytest.approx(float(table[2, 5]), rel=1e-6)
    assert single(page.cell(page.grid("ALiBi: added"), 5, 1)) == float(bias[0, 5, 1])


def test_choices_by_mouse_and_keyboard(visit: Open) -> None:
    page = visit("positions")
    page.page.get_by_label("First scheme").select_option("rotary")
    page.settled()
    page.expect(a="rotary")
    page.page.get_by_label("Compare with").focus()
    page.key("Home").settled()
    assert page.page.locator("main section.panel").count() == 1
    page.page.get_by_role("combobox", name="Positions").select_option("16")
    page.settled()
    page.expect(length=16)
    chart = page.page.get_by_role("application", name="similarity by distance")
    chart.focus()
    page.key("ArrowRight", "ArrowRight")
    assert page.page.locator("figcaption .where").inner_text() == "distance 1"


def test_a_bias_has_heads(visit: Open, ask: Ask) -> None:
    page = visit("positions", a="alibi", b="none", length=16, head=1)
    scheme = ask("/api/positions", model="translator", schemes=["alibi"], length=16)["schemes"][0]
    bias = unpacked(scheme["bias"])
    assert page.page.get_by_role("combobox", name="Head").input_value() == "1"
    assert single(page.cell(page.grid("ALiBi: added"), 4, 0)) == float(bias[1, 4, 0])
    page.page.get_by_role("combobox", name="Head").select_option("0")
    page.expect(head=None)
    name = "positions-alibi-bias-head1"
    page.drawings(name)
    assert torch.equal(torch.tensor(floats(page.table(name))), bias[0])


def test_what_is_saved(visit: Open, ask: Ask) -> None:
    page = visit("positions", a="sinusoidal", b="t/T", length=16)
    scheme = ask("/api/positions", model="translator", schemes=["sinusoidal"], length=16)["schemes"][0]
    for part in ("table", "waves", "similarity"):
        page.drawings(f"positions-sinusoidal-{part}")
    table = torch.tensor(floats(page.table("positions-sinusoidal-table")))
    assert torch.equal(table, unpacked(scheme["table"]))
    assert floats(page.table("positions-sinusoidal-waves")) == [wave["values"] for wave in scheme["waves"]]
    rows = page.table("positions-sinusoidal-similarity")[1:]
    assert [float(row[-1]) for row in rows] == scheme["similarity"]["values"]
