"""Attention over a picture's patches and over the notes of a piece: the drawings' numbers are the model's."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, save
from clearhead.cli.main import main
from clearhead.data.notes import placed_notes
from clearhead.data.pictures import as_text
from clearhead.explorer.attention import attention, summary
from clearhead.explorer.classes import classes
from clearhead.explorer.contexts import contexts
from clearhead.explorer.depth import depth
from clearhead.explorer.evidence import evidence
from clearhead.explorer.inside import inside
from clearhead.explorer.patches import overlay, seen_by_the_head
from clearhead.explorer.picture_report import note_weights
from clearhead.explorer.report import explain
from clearhead.explorer.session import Session
from clearhead.explorer.verdict import verdict
from clearhead.explorer.words import texts, unpacked
from clearhead.models import build
from clearhead.nn.look import Look
from clearhead.text.events import events_tokenizer
from clearhead.text.tokenizer import Tokenizer

from .test_report import Read, equal

PIXELS = np.random.default_rng(1).integers(0, 256, (1, 8, 8), np.uint8)
TEXT = as_text(PIXELS)


def of_pictures(class_token: bool = False, tokenizer: Tokenizer | None = None, **more: Any) -> Bundle:
    torch.manual_seed(0)
    image = {"image__size": 8, "image__patch": 2, "image__channels": 1, "image__class_token": class_token}
    head = {"head__kind": "classify", "head__classes": 3}
    pooling = "first" if class_token else "mean"
    model = build("tiny", family="vision", head__pooling=pooling, **image, **head, **more).eval()
    return Bundle(model, tokenizer, {"task": "image", "labels": ["a", "b", "c"]})


def of_music() -> Bundle:
    torch.manual_seed(0)
    tokenizer = events_tokenizer()
    model = build("tiny", family="decoder", vocabulary=tokenizer.vocabulary_size, position__name="music")
    return Bundle(model.eval(), tokenizer, {"task": "music", "documents": True})


@pytest.mark.parametrize("class_token", [False, True])
def test_the_page_has_the_weights_of_the_model(class_token: bool) -> None:
    bundle = of_pictures(class_token)
    session, look = Session(bundle, "tiny"), Look(["encoder.*.self.weights"])
    pixels = torch.from_numpy(PIXELS.astype(np.float32)) / 127.5 - 1
    with torch.no_grad():
        logits = bundle.model(pixels[None], look=look).logits[0]
    read = Read(explain(session, TEXT))
    assert not read.faults
    assert not read.open
    first = int(class_token)
    for layer in range(2):
        for head in range(4):
            weights = look[f"encoder.{layer}.self.weights"][0, head]
            row = weights[0] if class_token else weights.mean(0)
            found = read.values(f"Attention, layer-{layer + 1}-head-{head + 1}")
            assert equal(found, row[first:].reshape(4, 4))
    mixed = torch.eye(16 + first, dtype=torch.float64)
    for layer in range(2):
        mean = look[f"encoder.{layer}.self.weights"][0].double().mean(0)
        mixed = (mean + torch.eye(len(mean))) / 2 @ mixed
    expected = (mixed[0] if class_token else mixed.mean(0))[first:].reshape(4, 4)
    assert torch.allclose(read.values("Rollout through all layers").double(), expected, atol=1e-7)
    shares = [line[-1] for line in read.numbers["The probability of every class"] if line]
    assert shares == pytest.approx(sorted(logits.softmax(-1).tolist(), reverse=True), abs=1e-6)


def test_a_drawing_is_the_picture_under_its_weights() -> None:
    weights = torch.zeros(4, 4)
    weights[1, 2] = 0.5
    drawn = overlay(TEXT, weights, 8).astype(float)
    cell = len(drawn) // 8
    pixels = PIXELS[0].repeat(cell, 0).repeat(cell, 1)[..., None].astype(float)
    dark, light = (np.array(colour) for colour in ((68, 1, 84), (253, 231, 37)))
    heat = np.broadcast_to(dark, drawn.shape).copy()
    heat[2 * cell : 4 * cell, 4 * cell : 6 * cell] = light  # the patch in row 2 and column 3
    assert np.abs(drawn - (0.4 * pixels + 0.6 * heat)).max() <= 0.5 + 1e-9
    config = of_pictures().config
    assert torch.equal(seen_by_the_head(torch.ones(5, 16, 16), config), torch.ones(5, 4, 4))


def test_views_of_a_picture() -> None:
    session = Session(of_pictures(class_token=True), "tiny")
    found = attention(session, TEXT)
    [kind] = found["kinds"]
    assert texts(kind["rows"])[:3] == ["[CLS]", "1,1", "1,2"]
    assert texts(kind["columns"])[-1] == "4,4"
    assert unpacked(kind["weights"]).shape == (2, 4, 17, 17)
    picture = found["picture"]
    assert (picture["side"], picture["first"], picture["pooling"]) == (4, 1, "first")
    content = base64.b64decode(picture["source"].removeprefix("data:image/png;base64,"))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(content)))[:, :, 0], PIXELS[0])
    assert unpacked(summary(session, TEXT, kind="encoder.self", how="rollout")["weights"]).shape == (17, 17)
    said = verdict(session, TEXT)
    assert sum(one["p"] for one in said["classes"]) == pytest.approx(1)
    refused = [
        lambda: inside(session, TEXT),
        lambda: depth(session, TEXT),
        lambda: classes(session, TEXT),
        lambda: contexts(session, "a", ["a b", "b a"]),
        lambda: evidence(session, TEXT, kind="encoder.self", layer=0, head=0, row=0),
        lambda: session.trace("a text"),
        lambda: session.trace(as_text(PIXELS[:, :4, :4])),
        lambda: session.trace(TEXT, "a target"),
    ]
    for ask in refused:
        with pytest.raises(UserError, match=r"pictures?|patches|no target"):
            ask()


def test_explain_writes_a_page_and_each_drawing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(of_pictures(tokenizer=Tokenizer.words(())), tmp_path / "bundle")
    Image.fromarray(PIXELS[0]).save(tmp_path / "good.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "good.png").read_bytes()[:50])
    Image.fromarray(PIXELS[0]).resize((40, 40)).save(tmp_path / "large.png")
    out = tmp_path / "out"
    for bad, sentence in {"broken": "damaged", "large": "40 × 40", "none": "There is no picture"}.items():
        asked = ["explain", str(tmp_path / "bundle"), str(tmp_path / f"{bad}.png"), "--out", str(out)]
        assert main(asked) != 0
        assert sentence in capsys.readouterr().err
        assert not out.exists()
    good = ["explain", str(tmp_path / "bundle"), str(tmp_path / "good.png"), "--out"]
    assert main([*good, str(out)]) == 0
    heads = {f"layer-{layer}-head-{head}.png" for layer in (1, 2) for head in (1, 2, 3, 4)}
    assert {one.name for one in out.iterdir()} == {
        "index.html",
        "picture.png",
        "rollout.png",
        "mean.png",
        *heads,
    }
    assert main([*good, str(out)]) == 0  # a second time
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    assert main([*good, str(tmp_path / "mine")]) != 0
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert main([*good, str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == (out / "index.html").read_bytes()


def test_a_note_has_the_weights_of_its_events() -> None:
    chorale = ["<start>", *["pitch60", "rest", "pitch55", "rest", "pitch60", "rest", "pitch53", "rest"]]
    row = torch.arange(9, dtype=torch.float64)
    found = placed_notes(chorale)
    assert [(note.pitch, places) for note, places in found] == [(55, (3,)), (60, (1, 5)), (53, (7,))]
    assert note_weights(found, row).tolist() == [3, 6, 7]
    played = placed_notes(["velocity16", "on60", "shift50", "on64", "shift50", "off60", "shift10"])
    assert [(note.pitch, places) for note, places in played] == [(60, (1, 5)), (64, (3,))]


def test_the_explorer_is_told_which_columns_are_notes() -> None:
    session = Session(of_music(), "tiny")
    text = "velocity16 on60 shift50 off60 on64 shift20"
    words = [word["text"] for word in session.trace(text).target]
    first, second = attention(session, text)["notes"]
    assert (first["pitch"], first["begin"], first["end"]) == (60, 0.0, 0.5)
    assert [words[column] for column in first["columns"]] == ["on60", "off60"]
    assert [words[column] for column in second["columns"]] == ["on64"]


def test_the_page_of_a_piece_shows_which_notes_were_looked_at() -> None:
    session = Session(of_music(), "tiny")
    for piece in session.examples:
        assert all(word["kind"] != "special" for word in session.trace(piece).target[1:])
        page = explain(session, piece)
        trace = session.trace(piece)
        notes = placed_notes(texts(trace.target))
        last = trace.attention("decoder.self", 1)[:, -1].double().mean(0)
        drawn = page.partition("Layer 2, mean of its heads")[2].partition("</svg>")[0]
        shown = [float(one) for one in re.findall(r"<title>pitch \d+, from .*? s: (.*?)</title>", drawn)]
        assert shown == pytest.approx([float(last[list(places)].sum()) for _, places in notes], rel=1e-3)
        assert min(int(y) for y in re.findall(r'<text[^>]* y="(\d+)"', drawn)) > 10  # names are whole
    assert "Which notes it looked at" not in explain(session, "shift20")
