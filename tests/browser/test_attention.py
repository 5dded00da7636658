"""View 3, attention: all heads, one head, sums of them, classes, and the question whether it explains."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead
from clearhead.bundle import Bundle
from clearhead.data.notes import placed_notes
from clearhead.decoding.labels import class_probabilities
from clearhead.decoding.pictures import picture_text
from clearhead.explorer.patches import seen_by_the_head
from clearhead.explorer.server.pictures import in_an_address
from clearhead.explorer.words import unpacked

from ..explorer.test_picture_files import write_turned
from ..explorer.test_pictures import TEXT as SQUARE
from .conftest import Ask, Open
from .visiting import floats, number, single

pytestmark = pytest.mark.browser

TEXT = "the cat sees a dog"
TARGET = "DOG A SEES"
Bundles = dict[str, Bundle]
CROSS = {"text": TEXT, "target": TARGET, "kind": "decoder.cross"}


def test_heads_are_picked_by_mouse_and_keyboard(visit: Open, bundles: Bundles) -> None:
    page = visit("attention", **CROSS)
    trace = clearhead.trace(bundles["translator"], TEXT, TARGET)
    thumbnails = page.page.get_by_role("group", name="Cross-attention, all heads").get_by_role("button")
    assert thumbnails.count() == 4
    thumbnails.nth(1).click()
    page.expect(layer=0, head=1)
    wanted = trace.attention("decoder.cross", layer=0, head=1)
    grid = page.grid("Layer 1, head 2")
    assert page.cell(grid, 2, 1) == pytest.approx(float(wanted[2, 1]), rel=1e-6)
    assert page.hovered(grid, 1, 2, tuple(wanted.shape)) == pytest.approx(float(wanted[1, 2]), rel=1e-6)
    thumbnails.nth(1).focus()
    page.key("ArrowDown", "ArrowLeft")
    page.expect(layer=1, head=0)
    wanted = trace.attention("decoder.cross", layer=1, head=0)
    grid = page.grid("Layer 2, head 1")
    page.cell(grid, 1, 3)
    page.key("Enter")
    page.expect(row=1, column=3)
    reading = page.region("Layer 2, head 1").locator("output.reading")
    assert number(reading.locator("strong").inner_text()) == pytest.approx(float(wanted[1, 3]), rel=1e-6)
    page.radio("Kind of attention", "Cross").focus()
    page.key("ArrowLeft").settled()
    page.expect(kind="decoder.self", row=None)


def test_a_link_brings_back_the_head_and_the_cell(visit: Open, bundles: Bundles) -> None:
    page = visit("attention", **CROSS, layer=0, head=1, row=2, column=1)
    wanted = clearhead.trace(bundles["translator"], TEXT, TARGET).attention("decoder.cross", 0, 1)
    strong = page.region("Layer 1, head 2").locator("output strong")
    assert number(strong.inner_text()) == pytest.approx(float(wanted[2, 1]), rel=1e-6)
    page.go("attention", **CROSS, layer=0, head=1, row=2, **{"as": "lines"})
    said = page.region("Layer 1, head 2").locator(".reading").inner_text()
    assert "looks at" in said
    lines = page.region("Layer 1, head 2").get_by_role("application")
    lines.focus()
    page.key("ArrowUp")
    page.expect(row=1)
    page.drawings("attention-decoder.cross-layer1-head2")


def test_maps_are_saved_as_the_model_has_them(visit: Open, bundles: Bundles) -> None:
    page = visit("attention", **CROSS, layer=1, head=1)
    trace = clearhead.trace(bundles["translator"], TEXT, TARGET)
    name = "attention-decoder.cross-layer2-head2"
    page.drawings(name)
    rows = page.table(name)
    assert rows[0][1:] == [word["text"] for word in trace.source]
    wanted = trace.attention("decoder.cross", layer=1, head=1)
    torch.testing.assert_close(torch.tensor(floats(rows)), wanted, rtol=1e-6, atol=1e-8)
    page.drawings("attention-decoder.cross-all-heads")
    every = [float(row[4]) for row in page.table("attention-decoder.cross-all-heads")[1:]]
    wanted = trace.attention("decoder.cross").flatten()
    torch.testing.assert_close(torch.tensor(every), wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("how", ["mean", "rollout", "alignment"])
def test_summed_up(visit: Open, ask: Ask, how: str) -> None:
    page = visit("attention", **CROSS, show="summary", how=how)
    assert page.radio("How to summarise the maps", how.capitalize()).get_attribute("aria-checked") == "true"
    answer = ask("/api/attention/summary", model="translator", **CROSS, how=how)
    weights = unpacked(answer["weights"])
    region = page.region(f"Cross-attention: {how}")
    assert answer["note"] in region.inner_text()
    assert "layer 0" not in answer["note"]
    assert single(page.cell(page.grid(f"Cross-attention: {how}"), 1, 2)) == float(weights[1, 2])
    name = f"attention-decoder.cross-{how}"
    page.drawings(name)
    assert torch.equal(torch.tensor(floats(page.table(name))), weights)


def test_summing_up_by_hand(visit: Open) -> None:
    page = visit("attention", **CROSS)
    page.radio("What to show", "Summary").click()
    page.settled()
    page.expect(show="summary")
    page.page.get_by_label("Layer").select_option("1")
    page.settled()
    assert "The mean over the heads of layer 2." in page.region("Cross-attention: mean").inner_text()
    page.radio("How to summarise the maps", "Mean").focus()
    page.key("ArrowRight").settled()
    page.expect(how="rollout", layer=1)


def test_classes_of_tokens(visit: Open, ask: Ask) -> None:
    page = visit("attention", text=TEXT, show="classes")
    answer = ask("/api/attention/classes", model="translator", text=TEXT)
    bars = page.region("Encoder self-attention").get_by_role("application")
    bars.focus()
    page.key("ArrowRight", "ArrowRight")
    mass = unpacked(answer["kinds"][0]["mass"])[0, 1]
    said = page.region("Encoder self-attention").locator(".reading").inner_text()
    assert f"{100 * float(mass[0]):.1f} %" in said
    name = "attention-by-class-encoder.self"
    page.drawings(name)
    rows = [[float(one) for one in row[3:]] for row in page.table(name)[1:]]
    assert torch.equal(torch.tensor(rows), unpacked(answer["kinds"][0]["mass"]).flatten(0, 1))
    page.radio("Texts to average over", "The example sentences").click()
    page.settled()
    page.expect(over="examples")
    bars.locator("g.bar").nth(3).click()
    page.expect(show=None, kind="encoder.self", layer=1, head=1)


def test_is_it_an_explanation(visit: Open, ask: Ask) -> None:
    page = visit("attention", **CROSS, show="evidence", layer=1, head=1, row=2)
    answer = ask("/api/attention/evidence", model="translator", **CROSS, layer=1, head=1, row=2)
    region = page.region("depends on")
    assert answer["sentence"] in region.inner_text()
    cells = region.locator("tbody td").evaluate_all("all => all.map(it => it.title)")
    drawn = [[single(number(one)) for one in cells[i::3]] for i in range(3)]
    assert drawn == [[single(x) for x in answer[name]] for name in ("weights", "gradient", "ablated")]
    name = "evidence-decoder.cross-layer2-head2-row2"
    page.drawings(name)
    rows = page.table(name)[1:]
    assert [[float(x) for x in row[2:]] for row in rows] == [
        list(three) for three in zip(answer["weights"], answer["gradient"], answer["ablated"], strict=True)
    ]
    page.radio("Token order", "As in the text").focus()
    page.key("ArrowRight")
    page.expect(sort="weights")
    first = region.locator("tbody td").first.get_attribute("title")
    assert single(number(str(first))) == single(max(answer["weights"]))
    page.page.get_by_role("group", name="target token just read").get_by_role("button").nth(1).click()
    page.settled()
    page.expect(row=1)


@pytest.mark.parametrize("model, kind", [("writer", "decoder.self"), ("labeller", "encoder.self")])
def test_other_families(visit: Open, bundles: Bundles, model: str, kind: str) -> None:
    text = "the cat sleeps ."
    page = visit("attention", model=model, text=text, layer=0, head=0)
    wanted = clearhead.trace(bundles[model], text).attention(kind, layer=0, head=0)
    assert page.cell(page.grid("Layer 1, head 1"), 2, 1) == pytest.approx(float(wanted[2, 1]), rel=1e-6)
    page.go("attention", model=model, text=text, show="evidence")
    assert page.region("depends on").count() == 1


def test_weights_of_a_cheaper_attention_may_be_negative(visit: Open, bundles: Bundles) -> None:
    page = visit("attention", model="mixture", text="the cat sleeps", layer=0, head=1)
    wanted = clearhead.trace(bundles["mixture"], "the cat sleeps").attention("encoder.self", 0, 1)
    row, column = divmod(int(wanted.argmin()), wanted.shape[1])
    assert wanted[row, column] < 0
    grid = page.grid("Layer 1, head 2")
    assert page.cell(grid, row, column) == pytest.approx(float(wanted[row, column]), rel=1e-6)
    legend = page.region("Layer 1, head 2").locator(".legend").get_attribute("aria-label")
    assert legend is not None
    assert "from −" in legend
    assert "3 learned mixtures" in page.page.locator("main").inner_text()
    page.go("attention", model="mixture", text="the cat sleeps", show="summary", how="rollout")
    assert "count with their absolute value" in page.page.locator("main").inner_text()


def test_a_piano_roll_shows_which_notes_were_looked_at(visit: Open, bundles: Bundles) -> None:
    text = "pitch67 pitch62 pitch59 pitch43 pitch67 pitch62 pitch57 pitch42"
    page = visit("attention", model="chorales", text=text, layer=1, head=2)
    trace = clearhead.trace(bundles["chorales"], text)
    notes = placed_notes([word["text"] for word in trace.target])
    weights = trace.attention("decoder.self", 1, 2)
    drawn = page.region("Layer 2, head 3, over the notes").get_by_role("button", name=re.compile("^Pitch"))
    assert drawn.count() == len(notes)

    def shown() -> list[float]:
        return [number(str(one.get_attribute("aria-label")).rpartition(" ")[2]) for one in drawn.all()]

    def wanted(row: int) -> list[float]:
        return [float(weights[row, list(places)].sum()) for _, places in notes]

    assert shown() == pytest.approx(wanted(-1), rel=1e-2, abs=1e-3)
    drawn.first.focus()
    page.key("Enter").settled()
    page.expect(row=max(notes[0][1]))
    assert shown() == pytest.approx(wanted(max(notes[0][1])), rel=1e-2, abs=1e-3)
    rows = page.table("notes-layer2-head3")
    assert [row[-1] for row in floats(rows)] == pytest.approx(wanted(max(notes[0][1])), abs=1e-6)
    page.go("attention", model="chorales", text=text, show="summary", how="rollout")
    assert page.region("Rollout, over the notes").get_by_role("button", name=re.compile("^Pitch")).count()


def test_patches_over_a_picture_have_the_model_s_weights(
    visit: Open, bundles: Bundles, tmp_path: Path
) -> None:
    """A file is read as `clearhead label` reads it, and a patch that is clicked shows what it attends to."""
    pixels = np.random.default_rng(2).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "file.png")
    text = picture_text(bundles["squares"], tmp_path / "file.png")
    page = visit("attention", model="squares", text=SQUARE)
    page.page.locator("input[type=file]").set_input_files(tmp_path / "file.png")
    page.expect(text=text)
    page.go("attention", model="squares", text=text, layer=1, head=0)
    patches = page.button(re.compile("^Patch"), page.region("Layer 2, head 1, over the picture"))

    def shown() -> list[float]:
        return [number(patch.get_attribute("title") or "") for patch in patches.all()]

    weights = clearhead.trace(bundles["squares"], text).attention("encoder.self", layer=1, head=0)
    assert shown() == pytest.approx(weights[0, 1:].tolist(), rel=1e-3)
    patches.nth(6).click()
    page.expect(row=7)  # after the class token
    assert shown() == pytest.approx(weights[7, 1:].tolist(), rel=1e-3)


def test_a_photo_is_read_as_the_command_line_reads_it(visit: Open, bundles: Bundles, tmp_path: Path) -> None:
    """A large photo stands in the address by a name; one that the server does not have is asked for again."""
    photo = write_turned(tmp_path / "photo.jpg")
    name = in_an_address(picture_text(bundles["photos"], photo))
    page = visit("run", model="photos")
    page.page.get_by_text("There is no picture yet").wait_for()
    page.refusals = True
    page.go("run", model="photos", text=name)
    page.page.get_by_text("The server no longer has this picture: choose its file again.").wait_for()
    (tmp_path / "broken.jpg").write_bytes(photo.read_bytes()[:5000])
    page.page.locator("input[type=file]").set_input_files(tmp_path / "broken.jpg")
    page.page.get_by_text("The picture 'broken.jpg' is damaged: replace it.").wait_for()
    page.page.locator("input[type=file]").set_input_files(photo)
    own = page.button("Your picture")
    own.wait_for()
    assert page.page.get_by_role("alert").count() == 0
    page.expect(text=name)
    assert own.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 64
    shares = class_probabilities(bundles["photos"], [str(photo)])[0]
    bars = page.settled().page.get_by_test_id("verdict").locator("li")
    for bar in bars.all():
        shown = number(bar.locator(".number").inner_text().removesuffix("%")) / 100
        assert shown == pytest.approx(shares[bar.locator(".label").inner_text()], abs=5.1e-4)
    assert bars.count() == 3
    page.go("attention", model="photos", text=name, layer=1, head=0)
    weights = clearhead.trace(bundles["photos"], str(photo)).attention("encoder.self", layer=1, head=0)
    patches = page.button(re.compile("^Patch"), page.region("Layer 2, head 1, over the picture"))
    drawn = [number(patch.get_attribute("title") or "") for patch in patches.all()]
    assert drawn == pytest.approx(
        seen_by_the_head(weights, bundles["photos"].config).flatten().tolist(), rel=1e-3
    )
