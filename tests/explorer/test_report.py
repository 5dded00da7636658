"""The report stands by itself, can be read without seeing it, and its numbers are the trace's."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.explorer import report as paper
from clearhead.explorer.attention import alignment_weights
from clearhead.explorer.depth import depth
from clearhead.explorer.report import explain
from clearhead.explorer.running import Asked, run
from clearhead.explorer.session import Session
from clearhead.explorer.svg import bar, heat_map, lines, number, short, small_map, table
from clearhead.explorer.verdict import verdict
from clearhead.explorer.words import unpacked

from .conftest import make_bundle

TEXT, TARGET = "the cat sleeps .", "le chat dort ."
NAMES = {"encoder.self": "Encoder self-attention", "decoder.self": "Decoder self-attention"}
NAMES["decoder.cross"] = "Cross-attention"
VOID = {"meta", "img", "br", "link", "input", "rect", "polyline", "image"}

Make = Callable[..., Any]


class Read(HTMLParser):
    """Tables by caption, as they would be read aloud; every tag with its attributes; open tags at the end."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.numbers: dict[str, list[list[float]]] = {}
        self.text = ""
        self._caption = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "caption":
            self._caption = ""
        if tag == "tr" and self._caption:
            self.tables.setdefault(self._caption, []).append([])
            self.numbers.setdefault(self._caption, []).append([])
        if tag in ("td", "th") and self._caption:
            self.tables[self._caption][-1].append("")
        if tag == "data" and self._caption:
            self.numbers[self._caption][-1].append(float(dict(attrs)["value"] or "nan"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)
        if tag == "table":
            self._caption = ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "title"):
            return
        self.text += data
        if self.open and self.open[-1] == "caption":
            self._caption += data
        elif self._caption and self.tables.get(self._caption) and self.tables[self._caption][-1]:
            self.tables[self._caption][-1][-1] += data

    def values(self, caption: str) -> torch.Tensor:
        return torch.tensor([line for line in self.numbers[caption] if line])


def equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """To the last bit of float32."""
    return np.array_equal(found.float().numpy(), expected.float().numpy())


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(make_bundle(), "tiny")


@pytest.fixture(scope="module")
def page(session: Session) -> str:
    return explain(session, TEXT, TARGET)


def test_every_head_s_numbers_are_the_trace_s(session: Session, page: str) -> None:
    read, trace = Read(page), session.trace(TEXT, TARGET)
    for kind, name in NAMES.items():
        for layer in range(2):
            for head in range(4):
                found = read.values(f"{name}, layer {layer + 1}, head {head + 1}")
                assert equal(found, trace.attention(kind, layer, head))
    grid = [tag for tag in read.tags if tag[0] == "img"]
    assert len(grid) == 3 * 2 * 4
    assert all(one["alt"] and one["src"].startswith("data:image/png;base64,") for _, one in grid)


def test_the_alignment_is_the_trace_s(session: Session, page: str) -> None:
    read, trace = Read(page), session.trace(TEXT, TARGET)
    weights, _ = alignment_weights(trace, "decoder.cross", None)
    title = "Where the decoder looked for each token it wrote"
    assert equal(read.values(title), weights)
    rows = read.tables[title]
    assert [name for name in rows[0] if name] == [word["text"] for word in trace.source]
    assert [row[0] for row in rows[1:]] == [word["text"] for word in trace.following]
    # what the drawing says of each cell is the same number
    cells = re.findall(r"<title>[^<]* → [^<]*: ([^<]*)</title>", page)
    drawn = torch.tensor([float(one) for one in cells[: weights.numel()]]).reshape(weights.shape)
    assert equal(drawn, weights)


def test_depth_is_the_view_s(session: Session, page: str) -> None:
    read, found = Read(page), depth(session, TEXT, TARGET)
    assert equal(read.values("Norm of each sub-layer's contribution"), unpacked(found["norms"]))
    assert equal(read.values("Norm of the residual stream"), unpacked(found["stream"]))
    said = read.values("If the model stopped there: its most likely token and the probability")
    tops = [[top[0]["p"] for top in one["top"]] for one in found["predictions"]]
    assert equal(said, torch.tensor(tops))


def test_parts_that_were_taken_out_are_named_and_not_told_of(session_of: Make) -> None:
    out = {"residual": False, "causal_mask": False, "cross_attention": False, "norm__kind": "none"}
    session = session_of("encoder-decoder", **out)
    page = explain(session, TEXT, TARGET)
    read = Read(page)
    assert "residual connections, cross-attention, causal mask, norms" in read.text
    assert "each word looks at all of them, without a causal mask" in read.text
    assert "x ← f(x)" in read.text
    assert equal(read.values("Norm of the stream"), unpacked(depth(session, TEXT, TARGET)["stream"]))
    assert not [one for one in ("Alignment", "residual stream", "those before it") if one in read.text]


def test_every_step_of_the_run_is_told(session: Session, page: str) -> None:
    read, steps = Read(page), run(session, TEXT, Asked(shown=5))["steps"]
    told = read.values("Every step, and what the model found most likely")
    expected = [[step["logp"], *(one["p"] for one in step["before"][:5])] for step in steps]
    assert equal(told, torch.tensor(expected))


def test_it_needs_nothing_else(page: str) -> None:
    read = Read(page)
    names = {tag for tag, _ in read.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    for _, attributes in read.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert "@import" not in page
    assert "url(" not in page
    assert not re.findall(r"https?://", page)
    rules = [one["content"] for tag, one in read.tags if tag == "meta" and "http-equiv" in one]
    assert rules == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "prefers-color-scheme: dark" in page


def test_it_is_whole_and_can_be_read_aloud(page: str) -> None:
    read = Read(page)
    assert read.faults == []
    assert read.open == []
    assert ("html", {"lang": "en"}) in read.tags
    drawings = [one for tag, one in read.tags if tag == "svg"]
    assert all(one.get("aria-label") or one.get("aria-hidden") for one in drawings)
    heads = [one for tag, one in read.tags if tag == "th"]
    assert all(one.get("scope") in ("row", "col") for one in heads)
    assert sum(tag == "table" for tag, _ in read.tags) == sum(tag == "caption" for tag, _ in read.tags)


@pytest.mark.parametrize(
    "kind, position",
    [("separate", "rotary"), ("decoder", "alibi"), ("encoder", "none"), ("recurrent", "sinusoidal")],
)
def test_every_family_can_be_explained(kind: str, position: str) -> None:
    session = Session(make_bundle(kind, "pre", position__name=position), kind)
    read = Read(explain(session, TEXT))
    assert read.faults == read.open == []
    for name in session.kinds:
        title = f"{NAMES[name]}, layer 1, head 1"
        assert equal(read.values(title), session.trace(TEXT).attention(name, 0, 0))
    assert ("Depth" in read.text) == (kind != "recurrent")
    assert ("It wrote" in read.text) == (kind != "encoder")


def test_a_labelling_model_s_report_has_its_labels() -> None:
    session = Session(make_bundle("encoder", "pre"), "judge")
    found, read = verdict(session, TEXT), Read(explain(session, TEXT))
    assert f"It says {found['label']}" in read.text
    told = read.values("How much each word contributes")
    assert torch.equal(told, torch.tensor([[part["support"], part["p"]] for part in found["parts"]]))
    tagger = Session(make_bundle("encoder", "pre", head__kind="tag", head__classes=3), "tagger")
    chances = Read(explain(tagger, TEXT)).values("The tag of each word").flatten().tolist()
    assert chances == pytest.approx([word["top"][0]["p"] for word in verdict(tagger, TEXT)["words"]])


def test_what_a_user_types_is_text_and_nothing_else(session_of: Make) -> None:
    evil = '</title><script>alert("1")</script> <img src=x onerror=y> & "cat"'
    read = Read(explain(session_of(), evil))
    assert "script" not in {tag for tag, _ in read.tags}
    assert not any("onerror" in one for _, one in read.tags)
    assert evil in read.text


def test_a_long_text_has_pictures_but_no_endless_tables(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "MOST_NUMBERS", 1000)
    read = Read(explain(session, TEXT * 12, TARGET * 3))
    assert "too many numbers" in read.text
    assert sum(tag == "img" for tag, _ in read.tags) == 24
    assert not any("head 1" in caption for caption in read.tables)


def test_what_cannot_be_explained_is_a_sentence(session: Session) -> None:
    for text in ("", "cat " * 600):
        with pytest.raises(UserError):
            explain(session, text)


def test_small_drawings() -> None:
    values = torch.tensor([[0.0, 1.0], [float("-inf"), float("nan")]])
    drawn = heat_map(values, ["a", "b<"], ["c", "d"], "title", None)
    assert drawn.count("<rect") == 4 + 16
    assert "b&lt;" in drawn
    assert 'fill="#440154"' in drawn
    assert 'fill="#fde725"' in drawn
    large = heat_map(torch.zeros(60, 60), [""] * 60, [""] * 60, "large")
    assert "<image" in large
    assert "data:image/png" in small_map(values, "x", (0.0, 1.0))
    assert "−∞" in table(values, ["a", "b"], ["c", "d"], "t")
    assert lines([(1.0, float("nan"))], "t", "x", "y") == ""
    assert "polyline" in lines([(1.0, 2.0)], "t", "x", "y")
    assert short("x" * 99).endswith("…")
    assert 'width="100"' in bar(7.0)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1e-30, 123456.789, 1 / 3, float("inf")])
def test_numbers_are_exact(value: float) -> None:
    found = re.search('value="([^"]*)"', number(value))
    assert found is not None
    assert np.float32(found[1]) == np.float32(value)
