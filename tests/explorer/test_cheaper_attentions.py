"""Every kind of attention can be explored, and the weights that are drawn are those that it mixes values by.

The witness is an ordinary pass with a hook on each layer's last projection, which knows nothing of weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.explorer import attention as maps
from clearhead.explorer.attention_weights import are_shares, as_shares, attention_of
from clearhead.explorer.classes import classes
from clearhead.explorer.contexts import contexts
from clearhead.explorer.depth import depth
from clearhead.explorer.evidence import evidence
from clearhead.explorer.inside import inside, tensor
from clearhead.explorer.report import explain
from clearhead.explorer.running import Asked, run
from clearhead.explorer.session import Session
from clearhead.explorer.words import unpacked
from clearhead.models.config import LayerRule
from clearhead.nn.layers import FeedForwardConfig
from clearhead.nn.parts import NoFeedForwardConfig, attention_kind

from .test_pictures import TEXT as PICTURE
from .test_pictures import of_pictures

Make = Callable[..., Any]
TEXT, TARGET = "who sees the old green house ?", "qui voit la vieille maison ?"


def attention(kind: str, **settings: Any) -> Any:
    config: Any = attention_kind(kind).config
    return config(**{"heads": 4, **settings})


def rule(**settings: Any) -> LayerRule:
    return LayerRule(**settings)


HASHED = {"chunk": 2, "buckets": (4,), "rounds": 2}
COMPRESSED, LOCAL = attention("compressed", stride=2), attention("sparse", local=3)
ALTERNATING = (rule(attention=COMPRESSED), rule(every=2, attention=LOCAL))
# Name → family, and changes of the model.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("decoder", {"attention": attention("linear", kv_heads=2)}),
    "linear, encoder": ("encoder", {"attention": attention("linear"), "position__name": "rotary"}),
    "performer": ("decoder", {"attention": attention("performer", features=6)}),
    "linformer": ("encoder", {"attention": attention("linformer", projected=3, max_length=20)}),
    "linformer, apart": (
        "encoder",
        {"attention": attention("linformer", projected=3, max_length=20, share="none", kv_heads=2)},
    ),
    "linformer, of all layers": (
        "encoder",
        {"attention": attention("linformer", projected=3, max_length=20, share="layers")},
    ),
    "nystrom": ("encoder", {"attention": attention("nystrom", landmarks=3)}),
    "nystrom, convolution": ("encoder", {"attention": attention("nystrom", landmarks=4, convolution=3)}),
    "reformer": ("decoder", {"attention": attention("reformer", **HASHED)}),
    "reformer, one chunk": ("encoder", {"attention": attention("reformer")}),
    "window": ("decoder", {"attention": attention("sparse", window=2, global_tokens=1)}),
    "longformer": (
        "encoder",
        {"attention": attention("sparse", window=2, global_tokens=1, global_projections=True)},
    ),
    "compressed": ("decoder", {"attention": COMPRESSED, "position__name": "rotary"}),
    "compressed, overlapping": ("encoder", {"attention": attention("compressed", stride=2, kernel_size=3)}),
    "alternating": ("decoder", {"layer_pattern": ALTERNATING}),
    "linear, unmasked": ("decoder", {"attention": attention("linear"), "causal_mask": False}),
    "reformer, unmasked": ("decoder", {"attention": attention("reformer", **HASHED), "causal_mask": False}),
    "alternating, unmasked": ("decoder", {"layer_pattern": ALTERNATING, "causal_mask": False}),
    "linear, no residual": ("encoder-decoder", {"attention": attention("linear"), "residual": False}),
    "both stacks": (
        "encoder-decoder",
        {
            "attention": attention("linear"),
            "layer_pattern": (rule(stack="encoder", attention=attention("nystrom", landmarks=3)),),
        },
    ),
}
WRITTEN = ("performer", "alternating")
OTHER_ROWS = ("linformer", "nystrom", "compressed")  # need not add up to 1


def opened(session_of: Make, name: str) -> Session:
    family, changes = KINDS[name]
    session: Session = session_of(family, "pre", **changes)
    return session


def target_of(session: Session) -> str | None:
    return TARGET if session.has_source else None


def mixed_by(session: Session, path: str) -> tuple[Tensor, Any]:
    """(H, T, V): what a layer's heads gave in an ordinary pass, and the layer's attention."""
    stack, layer, part = path.split(".")
    own = attention_of(session.model, f"{stack}.{part}", int(layer))
    taken: list[Tensor] = []
    hook = own.output.register_forward_pre_hook(lambda _, given: taken.append(given[0][0]))
    with torch.no_grad():
        session.model(*session.trace(TEXT, target_of(session)).inputs)
    hook.remove()
    return taken[0].unflatten(-1, (own.config.heads, -1)).transpose(0, 1), own


def paths(session: Session) -> list[str]:
    return [
        f"{stack}.{layer}.{part}"
        for stack, part in (kind.split(".") for kind in session.kinds)
        for layer in range(session.layers[stack])
    ]


@pytest.mark.parametrize("name", KINDS)
def test_weights_times_values_are_what_the_layer_gives(session_of: Make, name: str) -> None:
    session = opened(session_of, name)
    trace = session.trace(TEXT, target_of(session))
    for path in paths(session):
        wanted, own = mixed_by(session, path)
        v = trace[f"{path}.v"]
        weights = trace[f"{path}.weights"]
        found = weights @ v.repeat_interleave(own.config.heads // len(v), 0)
        if f"{path}.global_v" in trace.names:
            found[:, 0] = (weights @ trace[f"{path}.global_v"])[:, 0]
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(
                own.output(found.transpose(0, 1).flatten(1)), trace[f"{path}.added"], atol=1e-5, rtol=1e-5
            )
        if own.config.kind not in OTHER_ROWS:
            assert are_shares(weights), path
    for kind in session.kinds:
        rows, columns = trace.sides(kind)
        drawn = trace.attention(kind)
        assert drawn.shape[-2:] == (len(rows), len(columns))
        if kind == "decoder.self":
            assert (drawn.triu(1).abs().max() == 0) == session.config.causal_mask


def test_linear_weights_by_hand(session_of: Make) -> None:
    trace = opened(session_of, "linear").trace(TEXT)
    q, k = trace["decoder.1.self.q"], trace["decoder.1.self.k"].repeat_interleave(2, 0)
    alike = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    torch.testing.assert_close(trace.attention("decoder.self", 1), alike / alike.sum(-1, keepdim=True))
    torch.testing.assert_close(trace["decoder.1.self.products"].tril(), alike)


def test_performer_weights_by_hand(session_of: Make) -> None:
    session = opened(session_of, "performer")
    trace = session.trace(TEXT)
    directions = attention_of(session.model, "decoder.self", 0).score.directions
    q, k = (trace[f"decoder.0.self.{name}"] * 8**-0.25 for name in "qk")
    features = [(x @ directions.T - x.square().sum(-1, keepdim=True) / 2).exp() for x in (q, k)]
    alike = (features[0] @ features[1].mT).tril()
    wanted = alike / alike.sum(-1, keepdim=True)
    torch.testing.assert_close(trace.attention("decoder.self", 0), wanted, atol=1e-5, rtol=1e-4)


def test_linformer_weights_by_hand(session_of: Make) -> None:
    session = opened(session_of, "linformer")
    trace, own = session.trace(TEXT), attention_of(session.model, "encoder.self", 0)
    q, k = (trace[f"encoder.0.self.{name}"] for name in "qk")
    e, f = (one[0, : q.shape[1]].detach() for one in (own.project_keys, own.project_values))
    shares = (q @ (e.T @ k).mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(trace["encoder.0.self.mixture_weights"], shares)
    torch.testing.assert_close(trace.attention("encoder.self", 0), shares @ f.T)
    assert trace.attention("encoder.self", 0).min() < 0


def test_nystrom_rows_add_up_to_nearly_one(session_of: Make) -> None:
    trace = opened(session_of, "nystrom").trace(TEXT)
    three = (trace[f"encoder.1.self.{name}"] for name in ("to_landmarks", "inverse", "from_landmarks"))
    product = torch.linalg.multi_dot
    weights = trace.attention("encoder.self", 1)
    for head, factors in enumerate(zip(*three, strict=True)):
        torch.testing.assert_close(product(factors), weights[head], atol=1e-5, rtol=1e-4)
    assert (weights.sum(-1) - 1).abs().max() < 0.2


def test_windows_are_zero_outside(session_of: Make) -> None:
    weights = opened(session_of, "window").trace(TEXT).attention("decoder.self")
    size = weights.shape[-1]
    seen = torch.ones(size, size).tril().triu(-1)
    seen[:, 0] = 1
    assert torch.equal(weights > 0, seen.bool().expand_as(weights))
    far = opened(session_of, "longformer").trace(TEXT)
    assert torch.equal(far["encoder.0.self.allowed"] > 0, far.attention("encoder.self", 0)[0] > 0)


def test_a_block_s_weight_is_shared_out(session_of: Make) -> None:
    trace = opened(session_of, "compressed").trace(TEXT)
    blocks, tokens = trace["decoder.0.self.weights"], trace.attention("decoder.self", 0)
    assert blocks.shape[-1] == -(-tokens.shape[-1] // 2)
    whole = tokens.shape[-1] // 2
    pairs = tokens[..., : 2 * whole].unflatten(-1, (whole, 2))
    torch.testing.assert_close(pairs.sum(-1), blocks[..., :whole])
    assert tokens[:, 0].abs().max() == 0  # no block has ended
    torch.testing.assert_close(tokens[:, 1:].sum(-1), torch.ones_like(tokens[:, 1:, 0]))
    overlapping = opened(session_of, "compressed, overlapping").trace(TEXT)
    sums = overlapping.attention("encoder.self", 0).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("name", KINDS)
def test_every_view_opens(session_of: Make, name: str) -> None:
    session = opened(session_of, name)
    target = target_of(session)
    found = maps.attention(session, TEXT, target)
    json.dumps(found, allow_nan=False)
    for kind in found["kinds"]:
        assert torch.equal(unpacked(kind["weights"]), session.trace(TEXT, target).attention(kind["kind"]))
        assert kind["note"]
    for kind in session.kinds:
        mean = maps.summary(session, TEXT, target, kind=kind, how="mean")
        followed = maps.summary(session, TEXT, target, kind=kind, how="rollout")
        mixed = unpacked(followed["weights"])
        assert mixed.isfinite().all()
        torch.testing.assert_close(mixed.sum(-1), torch.ones(len(mixed)))
        shares = are_shares(unpacked(mean["weights"]))
        assert ("Negative weights" in followed["note"]) or shares
    for kind in classes(session, TEXT, target)["kinds"]:
        mass = unpacked(kind["mass"])
        torch.testing.assert_close(mass.sum(-1), torch.ones_like(mass[..., 0]))
    json.dumps(depth(session, TEXT, target), allow_nan=False)
    assert contexts(session, "cat", ["the cat sleeps", "a cat sings"])["layers"]
    if session.symbols is not None and session.config.causal_mask:  # without it they cannot write
        found_run = run(session, "the cat", Asked(max_length=3))
        assert found_run["steps"]
        assert "those of exact attention" in found_run["cost"]["note"]
    if session.family == "decoder" and name not in WRITTEN:  # which takes long, as they write on and on
        return
    page = explain(session, TEXT, target)
    for kind in found["kinds"]:
        assert kind["note"].split(". ")[0].replace("'", "&#x27;") in page


@pytest.mark.parametrize("name", KINDS)
def test_the_inside_is_drawn(session_of: Make, name: str) -> None:
    session = opened(session_of, name)
    target = target_of(session)
    trace = session.trace(TEXT, target)
    for box in inside(session, TEXT, target)["boxes"]:
        for step in box["steps"]:
            exact = trace[step["name"]]
            assert list(exact.shape) == step["shape"], step["name"]
            assert step["formula"]
            headed = step["axes"][0] in ("head", "group")
            found = tensor(session, TEXT, target, name=step["name"], head=3 if headed else None)
            values = unpacked(found["tensor"])
            if headed:
                exact = exact[3 * len(exact) // 4]
            if step["axes"][-1] != "vocabulary":
                assert torch.equal(values.flatten(), exact.float().flatten()), step["name"]
            assert len(found["rows"]) == len(values)
            assert found["columns"] is None or len(found["columns"]) == values.shape[1]


@pytest.mark.parametrize("name", KINDS)
def test_evidence_is_what_happens(session_of: Make, name: str) -> None:
    """Without a column: the same change made by a hook on what the heads give."""
    session = opened(session_of, name)
    target, row, head = target_of(session), 5, 2
    kind = session.kinds[-1]
    found = evidence(session, TEXT, target, kind=kind, layer=0, head=head, row=row)
    json.dumps(found, allow_nan=False)
    trace = session.trace(TEXT, target)
    path = kind.replace(".", ".0.")
    weights, values = trace[f"{path}.weights"][head, row], trace[f"{path}.v"]
    values = values[head * len(values) // 4]
    own = attention_of(session.model, kind, 0)
    assert found["weights"] == pytest.approx(weights.tolist(), abs=1e-6)
    assert len(found["columns"]) == len(weights)
    column = int(weights.abs().argmax())
    new = weights.clone()
    new[column] = 0
    if are_shares(weights):
        new = new / new.sum() if new.sum() > 0 else new
    change = (new - weights) @ values
    size = own.config.value_size

    def edit(_: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        changed = given[0].clone()
        changed[0, row, head * size : (head + 1) * size] += change
        return (changed,)

    logits = []
    for hooked in (False, True):
        hook = own.output.register_forward_pre_hook(edit) if hooked else None
        with torch.no_grad():
            logits.append(session.model(*trace.inputs).logits[0].double().log_softmax(-1))
        if hook is not None:
            hook.remove()
    before, after = (one if session.family == "encoder" else one[row] for one in logits)
    chosen = int(before.argmax())
    assert found["ablated"][column] == pytest.approx(float(after[chosen] - before[chosen]), abs=2e-5)


def test_a_picture_s_weights_are_explained() -> None:
    mixing = attention("linformer", projected=3, max_length=20)
    session = Session(of_pictures(True, attention=mixing), "tiny")
    assert "3 learned mixtures" in explain(session, PICTURE)
    assert maps.attention(session, PICTURE)["kinds"][0]["note"]


def test_shares() -> None:
    exact = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    assert as_shares(exact) is exact
    signed = as_shares(torch.tensor([[-1.0, 3.0], [0.0, 0.0]]))
    assert signed.tolist() == [[0.25, 0.75], [0.0, 1.0]]


def test_layers_without_a_feed_forward(session_of: Make) -> None:
    session = session_of("decoder", "pre", layer_pattern=(rule(first=1, feedforward=NoFeedForwardConfig()),))
    assert not any(box["id"] == "decoder.1.feedforward" for box in inside(session, TEXT)["boxes"])
    found = depth(session, TEXT)
    assert [one["name"] for one in found["sublayers"]][-1] == "decoder.1.self"
    other = FeedForwardConfig(width=8, activation="silu")
    session = session_of("decoder", "pre", layer_pattern=(rule(first=1, feedforward=other),))
    assert "SiLU" in session.trace(TEXT).anatomy.steps["decoder.1.feedforward.active"].formula


def test_layers_may_have_different_numbers_of_heads(session_of: Make) -> None:
    two = attention("multihead", heads=2)
    session = session_of("decoder", "pre", layer_pattern=(rule(first=1, attention=two),))
    trace = session.trace(TEXT)
    assert session.heads == [4, 2]
    whole = maps.attention(session, TEXT)["kinds"][0]
    assert "Layers have 4, 2 heads" in whole["note"]
    weights = unpacked(whole["weights"])
    assert weights.shape[:2] == (2, 4)
    assert torch.equal(weights[1, :2], trace["decoder.1.self.weights"])
    assert weights[1, 2:].abs().max() == 0
    mean = unpacked(maps.summary(session, TEXT, kind="decoder.self", how="mean")["weights"])
    torch.testing.assert_close(
        mean, torch.cat([trace.attention("decoder.self", one) for one in (0, 1)]).mean(0)
    )
    followed = unpacked(maps.summary(session, TEXT, kind="decoder.self", how="rollout")["weights"])
    torch.testing.assert_close(followed.sum(-1), torch.ones(len(followed)))
    assert classes(session, TEXT)["kinds"]
    assert evidence(session, TEXT, kind="decoder.self", layer=1, head=1, row=3)["sentence"]
    found = tensor(session, TEXT, name="decoder.1.self.weights", head=1)
    assert torch.equal(unpacked(found["tensor"]), weights[1, 1])
    for ask in (
        lambda: tensor(session, TEXT, name="decoder.1.self.weights", head=2),
        lambda: maps.one(session, TEXT, kind="decoder.self", layer=1, head=2),
    ):
        with pytest.raises(UserError, match="There is no head 2"):
            ask()
    assert "4 and 2" in explain(session, TEXT)
