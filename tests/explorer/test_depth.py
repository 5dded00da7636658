"""The stream adds up, norms are those of the model's tensors, the last prediction is the model's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.explorer.depth import depth, early
from clearhead.explorer.session import Session
from clearhead.explorer.words import unpacked
from clearhead.nn.look import Look

Make = Callable[..., Any]
TEXT = "who sees the old green house ?"
SHAPES = [
    ("encoder-decoder", "pre", {}),
    ("encoder-decoder", "post", {}),
    ("encoder-decoder", "pre", {"norm__kind": "rms", "position__name": "rotary"}),
    ("encoder-decoder", "post", {"norm__final": True, "embedding__output_scale": 0.5}),
    ("decoder", "pre", {}),
    ("decoder", "post", {"embedding__tie_output": False, "embedding__output_bias": True}),
    ("encoder", "pre", {}),
    ("encoder", "post", {"head__pooling": "mean", "head__pooler": True}),
    ("encoder", "pre", {"head__kind": "tag"}),
    ("encoder", "post", {"head__kind": "mlm"}),
    ("encoder-decoder", "pre", {"residual": False}),
    ("encoder-decoder", "post", {"residual": False}),
    ("decoder", "pre", {"norm__kind": "none"}),
    ("decoder", "post", {"feedforward__kind": "none", "causal_mask": False}),
    ("encoder-decoder", "pre", {"cross_attention": False}),
]


def seen(session: Session) -> dict[str, Tensor]:
    look = Look("*")
    with torch.no_grad():
        session.model(*session.trace(TEXT).inputs, look=look)
    return {name: tensor[0] for name, tensor in look.seen.items()}


@pytest.mark.parametrize("kind, place, changes", SHAPES)
def test_norms_and_stream(session_of: Make, kind: str, place: str, changes: dict[str, Any]) -> None:
    session = session_of(kind, place, **changes)
    found, taps = depth(session, TEXT), seen(session)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    stack = "encoder" if kind == "encoder" else "decoder"
    across = kind == "encoder-decoder" and changes.get("cross_attention", True)
    parts = ["self", *(["cross"] if across else []), "feedforward"]
    parts = parts[:-1] if changes.get("feedforward__kind") == "none" else parts
    assert [(one["layer"], one["kind"]) for one in found["sublayers"]] == [
        (i, p) for i in (0, 1) for p in parts
    ]
    norms, stream = unpacked(found["norms"]), unpacked(found["stream"])
    x = taps[f"{stack}.embedding"]
    assert torch.equal(stream[0], x.norm(dim=-1))
    for number, one in enumerate(found["sublayers"]):
        added = taps[f"{one['name']}.added"]
        assert torch.equal(norms[number], added.norm(dim=-1))
        x = x + added if session.config.residual else added
        if place == "pre":
            assert torch.allclose(stream[number + 1], x.norm(dim=-1), rtol=1e-5)
    for layer in (0, 1):
        assert torch.equal(stream[(layer + 1) * len(parts)], taps[f"{stack}.{layer}.output"].norm(dim=-1))
    trace = session.trace(TEXT)
    assert found["words"] == (trace.source if stack == "encoder" else trace.target)
    said = {"pre": "f(norm(x))", "post": "f(x)"}["post" if session.config.norm.kind == "none" else place]
    said = f"x + {said}" if session.config.residual else said
    assert f"x ← {said}" in found["note"].replace("norm(x +", "x +").replace("norm(f(x))", "f(x)")


@pytest.mark.parametrize("kind, place, changes", SHAPES)
def test_the_last_prediction_is_the_models_own(
    session_of: Make, kind: str, place: str, changes: dict[str, Any]
) -> None:
    session = session_of(kind, place, **changes)
    found, taps = depth(session, TEXT), seen(session)
    stack = "encoder" if kind == "encoder" else "decoder"
    assert torch.equal(early(session.model, taps[f"{stack}.1.output"]), taps["logits"])
    assert [one["after"] for one in found["predictions"]] == ["embedding", "layer 1", "layer 2"]
    logits = taps["logits"] if taps["logits"].dim() == 2 else taps["logits"].unsqueeze(0)
    shares = logits.softmax(-1)
    last = found["predictions"][-1]["top"]
    assert len(last) == len(logits)
    for place_found, share, final in zip(last, shares, found["final"], strict=True):
        best = share.topk(min(5, share.numel()))
        assert [one["id"] for one in place_found] == best.indices.tolist()
        assert [one["p"] for one in place_found] == best.values.tolist()
        assert final["id"] == place_found[0]["id"]
        assert final["text"] == place_found[0]["text"]
    # and before that it is another one, or there would be nothing to see
    assert found["predictions"][0]["top"] != last
    if kind == "encoder" and changes.get("head__kind") != "mlm":
        assert {one["text"] for one in last[0]} == {"good", "bad", "so-so"}


def test_the_lens_by_hand(session_of: Make) -> None:
    session = session_of("decoder", "pre")
    taps = seen(session)
    model = session.model
    by_hand = model.decoder.norm(taps["decoder.0.output"]) @ model.embedding.table.weight.T
    top = depth(session, TEXT)["predictions"][1]["top"]
    for words, scores in zip(top, by_hand, strict=True):
        assert [one["id"] for one in words] == scores.topk(5).indices.tolist()
        assert [one["p"] for one in words] == pytest.approx(
            scores.softmax(-1).topk(5).values.tolist(), rel=1e-4
        )


def test_without_a_head_or_a_stream(session_of: Make) -> None:
    found = depth(session_of("encoder", "pre", head__kind="none"), TEXT)
    assert found["predictions"] == []
    assert found["final"] == []
    with pytest.raises(UserError, match="recurrent"):
        depth(session_of("recurrent"), TEXT)
    with pytest.raises(UserError, match="empty"):
        depth(session_of("decoder"), " ")
