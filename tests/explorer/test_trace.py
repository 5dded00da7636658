"""A trace gives the model's own tensors, computes what is asked for and no more, and changes nothing."""

from __future__ import annotations

import xml.dom.minidom
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.explorer import trace as trace_module
from clearhead.explorer.running import run
from clearhead.explorer.session import Session, trace
from clearhead.explorer.trace import Trace
from clearhead.nn.look import Look

from ..decoding.bundles import translator

Make = Callable[..., Any]
TEXT, TARGET = "who sees the old green house ?", "qui voit la vieille maison ?"
KINDS = ["encoder-decoder", "separate", "decoder", "encoder", "recurrent"]


def taps(bundle: Bundle, seen: Trace) -> dict[str, Tensor]:
    """All that an ordinary pass offers."""
    look = Look("*")
    with torch.no_grad():
        bundle.model(*[ids for ids in (seen.source_ids, seen.target_ids) if ids.numel()], look=look)
    return look.seen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["pre", "post"])
def test_every_tap_is_the_models_own(bundle_of: Make, kind: str, place: str) -> None:
    bundle = bundle_of(kind, place)
    seen = trace(bundle, TEXT)
    known = taps(bundle, seen)
    assert set(known) <= set(seen.names)
    for name, tensor in known.items():
        assert torch.equal(seen[name], tensor[0]), name
    assert torch.equal(seen.logits, known["logits"][0])


def test_attention_in_all_its_shapes(bundle_of: Make) -> None:
    bundle = bundle_of("encoder-decoder", decoder_layers=3)
    seen = trace(bundle, TEXT, TARGET)
    known = taps(bundle, seen)
    rows, columns = len(seen.target), len(seen.source)
    every = seen.attention("decoder.cross")
    assert every.shape == (3, 4, rows, columns)
    for layer in range(3):
        exact = known[f"decoder.{layer}.cross.weights"][0]
        assert torch.equal(every[layer], exact)
        assert torch.equal(seen.attention("decoder.cross", layer), exact)
        for head in range(4):
            assert torch.equal(seen.attention("decoder.cross", layer=layer, head=head), exact[head])
    assert torch.equal(seen.attention("decoder.cross", head=1), every[:, 1])
    assert seen.attention("encoder.self").shape == (2, 4, columns, columns)
    assert torch.allclose(every.sum(-1), torch.ones(3, 4, rows))


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("decoder.cros",), "no attention 'decoder.cros': did you mean 'decoder.cross'"),
        (("decoder.cross", 2), "no layer 2 in 'decoder.cross': it has 2"),
        (("decoder.cross", -1), "no layer -1"),
        (("decoder.self", 0, 4), "no head 4 in 'decoder.self': it has 4"),
        (("decoder.self", None, -1), "no head -1"),
    ],
)
def test_what_is_not_there(bundle_of: Make, arguments: tuple[Any, ...], sentence: str) -> None:
    seen = trace(bundle_of("encoder-decoder"), TEXT, TARGET)
    with pytest.raises(UserError, match=sentence):
        seen.attention(*arguments)


def test_wrong_names_get_the_nearest(bundle_of: Make) -> None:
    seen = trace(bundle_of("decoder"), TEXT)
    with pytest.raises(UserError, match=r"no tensor named 'decoder.0.self.weight' here: did you mean"):
        seen["decoder.0.self.weight"]
    with pytest.raises(UserError, match=r"no attention 'encoder.self'"):
        seen.attention("encoder.self")


class Counted(Look):
    """A look that notes what was really computed."""

    asked: list[dict[str, Any]] = []  # noqa: RUF012 - one list for all, emptied by each test

    def __init__(self, wanted: Any) -> None:
        super().__init__(wanted)
        Counted.asked.append(dict(self._wanted))


def test_only_what_is_asked_for_is_computed(bundle_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "Look", Counted)
    Counted.asked.clear()
    seen = trace(bundle_of("encoder-decoder"), TEXT, TARGET)
    assert Counted.asked == []  # nothing was asked, nothing was run
    one = seen.attention("decoder.cross", layer=1, head=2)
    assert Counted.asked[1:] == [{"decoder.1.cross.weights": [2]}]
    assert not any("weights" in name or "scores" in name for name in Counted.asked[0])
    assert torch.equal(one, seen.attention("decoder.cross", layer=1, head=2))
    assert len(Counted.asked) == 2  # it is remembered
    whole = seen.attention("decoder.cross", layer=1)
    assert Counted.asked[2:] == [{"decoder.1.cross.weights": None}]
    assert torch.equal(whole[2], one)
    assert torch.equal(seen["decoder.1.cross.weights"], whole)
    seen.attention("decoder.cross", layer=1, head=3)  # it is a slice of what is known
    assert len(Counted.asked) == 3
    seen.attention("decoder.cross")
    assert Counted.asked[3:] == [{"decoder.0.cross.weights": None}]


def test_what_is_kept_has_a_bound(bundle_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundle_of("encoder-decoder", "pre")
    whole = trace(bundle, TEXT, TARGET)
    monkeypatch.setattr(trace_module, "ROOM", 20_000)
    seen = trace(bundle, TEXT, TARGET)
    for name in [*seen.names, *reversed(seen.names)]:
        assert torch.equal(seen[name], whole[name])
    kept = sum(one.numel() * one.element_size() for one in seen._seen.values())
    everything = sum(whole[name].numel() * 4 for name in whole.names)
    assert kept < everything / 2


def test_a_pass_through_changes_nothing(bundle_of: Make) -> None:
    bundle = bundle_of("encoder-decoder")
    before = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    seen = trace(bundle, TEXT, TARGET)
    plain = bundle.model(seen.source_ids, seen.target_ids).logits[0]
    for name in seen.names:
        assert not seen[name].requires_grad
    assert torch.equal(seen.logits, plain)
    assert all(torch.equal(before[name], now) for name, now in bundle.model.state_dict().items())


def test_from_a_folder(bundle_of: Make, tmp_path: Path) -> None:
    bundle = bundle_of("encoder-decoder")
    folder = clearhead.save(bundle, tmp_path / "saved")
    seen = trace(folder, TEXT, TARGET)
    assert torch.equal(seen.logits, trace(bundle, TEXT, TARGET).logits)
    assert torch.equal(trace(str(folder), TEXT, TARGET).logits, seen.logits)
    with pytest.raises(UserError, match="nowhere"):
        trace(tmp_path / "nowhere", TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_notebook(bundle_of: Make, kind: str) -> None:
    seen = trace(bundle_of(kind), 'the cat <script>alert("x")</script> sleeps')
    page = seen._repr_html_()
    xml.dom.minidom.parseString(page)  # well-formed
    assert "<script" not in page
    assert "http" not in page
    stack = "encoder" if kind == "encoder" else "decoder"
    part = "self" if kind in ("decoder", "encoder") else "cross"
    layers = seen.layers_of(f"{stack}.{part}")
    layer = max(layers - 2, 0) if part == "cross" else layers - 1
    mean = seen.attention(f"{stack}.{part}", layer).mean(0)
    assert f": {mean[-1, 0].numpy()!s}<" in page


def test_a_notebook_does_not_draw_a_million_cells(bundle_of: Make) -> None:
    page = trace(bundle_of("decoder"), "the cat " * 200)._repr_html_()
    assert page.count("<title>") == 40 * 40


def test_repr(bundle_of: Make) -> None:
    assert repr(trace(bundle_of("encoder-decoder"), "the cat", "le chat")) == (
        "Trace(encoder-decoder, 3 source tokens, 3 target tokens)"
    )


def test_a_decoder_that_translates_shows_source_and_target_in_one_row() -> None:
    seen = trace(translator(family="decoder"), "the cat", "le chat dort")
    assert [word["text"] for word in seen.target] == ["the", "cat", "<start>", "le", "chat", "dort"]
    assert seen.source == []
    assert seen.reading.following == (*seen.reading.target[1:], 2)
    assert run(Session(seen.bundle), "the cat")["source"][-1]["text"] == "<start>"
