"""The maps are the model's own taps, bit for bit, and each way of summing them up is what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.decoding.alignment import alignment
from clearhead.explorer import attention as maps
from clearhead.explorer.attention import THUMBNAIL, thumbnails
from clearhead.explorer.words import unpacked
from clearhead.nn.look import Look

Make = Callable[..., Any]
TEXT, TARGET = "who sees the old green house ?", "qui voit la vieille maison ?"
FAMILIES = ["encoder-decoder", "separate", "decoder", "encoder", "recurrent"]


def taps(session: Any, text: str, target: str | None, kind: str) -> torch.Tensor:
    """(L, H, R, C) by a pass of the model itself."""
    trace = session.trace(text, target)
    look = Look("*.weights")
    with torch.no_grad():
        session.model(*trace.inputs, look=look)
    stack, part = kind.split(".")
    names = sorted(name for name in look.seen if name.startswith(stack) and f".{part}." in name)
    return torch.cat([look[name] for name in names])


@pytest.mark.parametrize(
    "kind_of_model, changes",
    [
        *((family, {}) for family in FAMILIES),
        ("encoder-decoder", {"cross_attention": False}),
        ("decoder", {"causal_mask": False, "residual": False, "norm__kind": "none"}),
    ],
)
def test_all_maps_are_the_taps(session_of: Make, kind_of_model: str, changes: dict[str, Any]) -> None:
    session = session_of(kind_of_model, **changes)
    target = TARGET if session.has_source else None
    found = maps.attention(session, TEXT, target)
    json.dumps(found, allow_nan=False)
    assert [one["kind"] for one in found["kinds"]] == session.kinds
    for one in found["kinds"]:
        wanted = taps(session, TEXT, target, one["kind"])
        weights = unpacked(one["weights"])
        assert torch.equal(weights, wanted)
        assert list(weights.shape) == [one["layers"], one["heads"], len(one["rows"]), len(one["columns"])]
        assert not one["thumbnails"]
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        last = one["layers"] - 1, one["heads"] - 1
        single = maps.one(session, TEXT, target, kind=one["kind"], layer=last[0], head=last[1])
        assert torch.equal(unpacked(single["weights"]), wanted[last])
        assert (single["rows"], single["columns"]) == (one["rows"], one["columns"])


def test_rows_and_columns_are_who_looks_and_who_is_looked_at(session_of: Make) -> None:
    session = session_of()
    by_kind = {one["kind"]: one for one in maps.attention(session, TEXT, TARGET)["kinds"]}
    trace = session.trace(TEXT, TARGET)
    assert by_kind["encoder.self"]["rows"] == by_kind["encoder.self"]["columns"] == trace.source
    assert by_kind["decoder.self"]["rows"] == by_kind["decoder.self"]["columns"] == trace.target
    assert (by_kind["decoder.cross"]["rows"], by_kind["decoder.cross"]["columns"]) == (
        trace.target,
        trace.source,
    )


def test_many_weights_come_as_thumbnails_and_one_map_as_it_is(
    session_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of("decoder")
    long = " ".join(["the cat sleeps ."] * 20)  # 80 tokens, 8 maps of 6,400
    monkeypatch.setattr(maps, "MOST_WEIGHTS", 50_000)
    [one] = maps.attention(session, long)["kinds"]
    wanted = taps(session, long, None, "decoder.self")
    assert one["thumbnails"]
    assert one["weights"]["shape"] == [2, 4, THUMBNAIL, THUMBNAIL]
    assert torch.equal(unpacked(one["weights"]), thumbnails(wanted))
    whole = unpacked(maps.one(session, long, kind="decoder.self", layer=1, head=2)["weights"])
    assert torch.equal(whole, wanted[1, 2])


@given(rows=st.integers(1, 100), columns=st.integers(1, 100), seed=st.integers(0, 99))
def test_a_thumbnail_is_means_over_blocks(rows: int, columns: int, seed: int) -> None:
    weights = torch.rand(1, 2, rows, columns, generator=torch.Generator().manual_seed(seed))
    small = thumbnails(weights)
    height, width = min(rows, THUMBNAIL), min(columns, THUMBNAIL)
    assert small.shape == (1, 2, height, width)
    for i, j in [(0, 0), (height - 1, width - 1), (height // 2, width // 3)]:
        block = weights[
            :,
            :,
            i * rows // height : -(-(i + 1) * rows // height),
            j * columns // width : -(-(j + 1) * columns // width),
        ]
        torch.testing.assert_close(small[:, :, i, j], block.mean((-2, -1)))


def test_means_are_over_heads_and_layers(session_of: Make) -> None:
    session = session_of()
    for kind in session.kinds:
        wanted = taps(session, TEXT, TARGET, kind).double()
        everything = maps.summary(session, TEXT, TARGET, kind=kind, how="mean")
        torch.testing.assert_close(unpacked(everything["weights"]), wanted.mean((0, 1)).float())
        one = maps.summary(session, TEXT, TARGET, kind=kind, how="mean", layer=1)
        torch.testing.assert_close(unpacked(one["weights"]), wanted[1].mean(0).float())
        assert "layer 2" in one["note"]


@pytest.mark.parametrize("kind_of_model, kind", [("encoder", "encoder.self"), ("decoder", "decoder.self")])
@pytest.mark.parametrize("residual", [True, False])
def test_rollout_is_the_product_of_layers_with_residuals(
    session_of: Make, kind_of_model: str, kind: str, residual: bool
) -> None:
    session = session_of(kind_of_model, layers=3, residual=residual)
    first, second, third = taps(session, TEXT, None, kind).double().mean(1)
    if residual:
        first, second, third = ((one + torch.eye(len(one))) / 2 for one in (first, second, third))
    wanted = third @ second @ first
    found = maps.summary(session, TEXT, kind=kind, how="rollout")
    torch.testing.assert_close(unpacked(found["weights"]), wanted.float())
    torch.testing.assert_close(unpacked(found["weights"]).sum(-1), torch.ones(len(first)))
    part = maps.summary(session, TEXT, kind=kind, how="rollout", layer=0)
    torch.testing.assert_close(unpacked(part["weights"]), first.float())
    assert ("no residual connections" in found["note"]) != residual


@pytest.mark.parametrize("residual", [True, False])
def test_cross_rollout_is_the_product_over_both_stacks(session_of: Make, residual: bool) -> None:
    """All tokens of both sides as one long vector of shares, each sub-layer as one large matrix."""
    session = session_of(residual=residual)
    kept = 0.5 if residual else 0.0
    reading, own, cross = (taps(session, TEXT, TARGET, kind).double().mean(1) for kind in session.kinds)
    sources, targets = reading.shape[-1], own.shape[-1]
    eye = torch.eye(sources + targets).double()
    shares = eye.clone()

    def sublayer(block: torch.Tensor, rows: slice, columns: slice) -> torch.Tensor:
        step = eye.clone()
        step[rows, rows] *= kept
        step[rows, columns] += block * (1 - kept)
        return step

    read, write = slice(0, sources), slice(sources, None)
    for weights in reading:
        shares = sublayer(weights, read, read) @ shares
    for layer in range(len(own)):
        shares = sublayer(own[layer], write, write) @ shares
        shares = sublayer(cross[layer], write, read) @ shares
    torch.testing.assert_close(shares.sum(-1), torch.ones(sources + targets).double())
    wanted = shares[write, read] / shares[write, read].sum(-1, keepdim=True)
    found = unpacked(maps.summary(session, TEXT, TARGET, kind="decoder.cross", how="rollout")["weights"])
    torch.testing.assert_close(found, wanted.float())


@pytest.mark.parametrize("kind_of_model", ["encoder-decoder", "separate", "recurrent"])
def test_alignment_is_the_librarys(session_of: Make, kind_of_model: str) -> None:
    session = session_of(kind_of_model)
    for target in (TARGET, None):
        wanted = alignment(session.bundle, TEXT, target)
        found = maps.summary(session, TEXT, target, kind="decoder.cross", how="alignment")
        torch.testing.assert_close(unpacked(found["weights"]), torch.tensor(wanted.weights))
        assert len(found["rows"]) == len(wanted.target)
        assert [word["text"] for word in found["rows"]][:-1] == list(wanted.target)[:-1]
        assert found["rows"][-1]["kind"] == "special"  # what is written last is the stop symbol
        assert found["rows"] == session.trace(TEXT, target).following


@pytest.mark.parametrize(
    "ask, said",
    [
        (lambda s: maps.one(s, TEXT, kind="decoder.cross", layer=2, head=0), "no layer 2"),
        (lambda s: maps.one(s, TEXT, kind="decoder.cross", layer=0, head=4), "no head 4"),
        (lambda s: maps.one(s, TEXT, kind="decoder.crss", layer=0, head=0), "did you mean 'decoder.cross'"),
        (lambda s: maps.one(s, TEXT, kind="weights", layer=0, head=0), "no attention 'weights'"),
        (lambda s: maps.one(s, "", kind="decoder.cross", layer=0, head=0), "empty"),
        (
            lambda s: maps.summary(s, TEXT, kind="encoder.self", how="alignment"),
            "links a source to a target",
        ),
        (lambda s: maps.summary(s, TEXT, kind="encoder.self", how="men"), "did you mean 'mean'"),
        (lambda s: maps.summary(s, TEXT, kind="encoder.self", how="rollout", layer=9), "no layer 9"),
        (lambda s: maps.summary(s, TEXT, kind="encoder.self", how="mean", layer=-1), "no layer -1"),
    ],
)
def test_what_is_not_there_is_refused(session_of: Make, ask: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ask(session_of())


def test_a_recurrent_model_has_no_rollout(session_of: Make) -> None:
    with pytest.raises(UserError, match="has none"):
        maps.summary(session_of("recurrent"), TEXT, kind="decoder.cross", how="rollout")
