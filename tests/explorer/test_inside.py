"""Every number of the drawing is the model's own, whatever the model's settings.

The witness is an ordinary pass with hooks on the model's modules, which knows nothing of the explorer.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.explorer.inside import SHOWN, inside, tensor
from clearhead.explorer.session import Session
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import unpacked
from clearhead.nn.experts import ExpertsConfig
from clearhead.nn.positions.absolute import sinusoid

from .conftest import SEVERAL

Make = Callable[..., Any]
TEXT, TARGET = "who sees the old green house ?", "qui voit la vieille maison ?"

LLAMA = {
    "attention__kv_heads": 2,
    "attention__bias": False,
    "feedforward__gated": True,
    "feedforward__activation": "silu",
    "feedforward__bias": False,
    "norm__kind": "rms",
    "position__name": "rotary",
    "embedding__scale": False,
    "embedding__tie_output": False,
}
BERT = {
    "position__name": "learned",
    "embedding__norm": True,
    "embedding__token_types": 2,
    "embedding__scale": False,
    "feedforward__activation": "gelu",
    "head__pooler": True,
}
T5 = {
    "attention__score": "dot",
    "position__name": "t5",
    "norm__kind": "rms",
    "embedding__output_scale": 0.5,
    "feedforward__bias": False,
}

LATENT = {"attention__kind": "latent", "attention__kv_heads": None, "attention__query_latent_dim": 20}

BARE = {
    "residual": False,
    "norm__kind": "none",
    "feedforward__kind": "none",
    "causal_mask": False,
    "cross_attention": False,
}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "original": ("encoder-decoder", "post", {}),
    "pre-norm": ("encoder-decoder", "pre", {}),
    "two vocabularies": ("separate", "post", {"decoder_layers": 1}),
    "rotary": ("encoder-decoder", "pre", {"position__name": "rotary"}),
    "rotary, post": ("encoder-decoder", "post", {"position__name": "rotary", "norm__final": True}),
    "t5": ("encoder-decoder", "pre", T5),
    "alibi decoder": ("decoder", "pre", {"position__name": "alibi"}),
    "gpt": ("decoder", "pre", {"position__name": "learned", "feedforward__activation": "gelu_tanh"}),
    "llama": ("decoder", "pre", LLAMA),
    "latent": ("decoder", "pre", {**LLAMA, **LATENT}),
    "latent, no rotary part": ("decoder", "post", {"attention__kind": "latent", "attention__rotary_dim": 0}),
    "post decoder": ("decoder", "post", {}),
    "soft cap": (
        "decoder",
        "post",
        {"attention__softcap": 2.0, "attention__scale": 0.4, "position__name": "none"},
    ),
    "additive": ("encoder-decoder", "post", {"attention__score": "additive"}),
    "bilinear": ("decoder", "pre", {"attention__score": "bilinear", "attention__query_dim": 5}),
    "shaw": ("decoder", "pre", {"position__name": "shaw", "position__values": True}),
    "transformer-xl": ("decoder", "pre", {"position__name": "transformer_xl"}),
    "bert": ("encoder", "post", BERT),
    "pre-norm encoder": ("encoder", "pre", {"head__pooling": "mean"}),
    "masked words": ("encoder", "post", {**BERT, "head__kind": "mlm"}),
    "tags": ("encoder", "pre", {"head__kind": "tag"}),
    "several tags": ("encoder", "pre", SEVERAL),
    "no head": ("encoder", "pre", {"head__kind": "none"}),
    "no residual": ("encoder-decoder", "pre", {"residual": False}),
    "no residual, post": ("encoder-decoder", "post", {"residual": False}),
    "no norms": ("encoder-decoder", "pre", {"norm__kind": "none"}),
    "no norms, masked words": ("encoder", "post", {**BERT, "head__kind": "mlm", "norm__kind": "none"}),
    "no feed-forward": ("encoder-decoder", "post", {"feedforward__kind": "none"}),
    "no causal mask": ("encoder-decoder", "pre", {"causal_mask": False}),
    "no causal mask, t5": ("decoder", "pre", {**T5, "causal_mask": False}),
    "no cross-attention": ("encoder-decoder", "pre", {"cross_attention": False}),
    "attention alone": ("encoder-decoder", "post", BARE),
}


def opened(session_of: Make, model: str) -> tuple[Session, Trace]:
    kind, place, changes = MODELS[model]
    session = session_of(kind, place, **changes)
    return session, session.trace(TEXT, TARGET if session.has_source else None)


class Witness:
    """Inputs and outputs of every module in one ordinary pass."""

    def __init__(self, session: Session, trace: Trace) -> None:
        self.taken: dict[str, Tensor] = {}
        self.given: dict[str, Tensor] = {}
        hooks = [
            module.register_forward_hook(self._note(name)) for name, module in session.model.named_modules()
        ]
        with torch.no_grad():
            session.model(*trace.inputs)
        for hook in hooks:
            hook.remove()

    def _note(self, name: str) -> Callable[..., None]:
        def note(module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
            if given and isinstance(given[0], Tensor):
                self.taken[name] = given[0][0]
            if isinstance(out, Tensor):
                self.given[name] = out[0]

        return note


@pytest.mark.parametrize("model", MODELS)
def test_every_tensor_is_what_passed_through_the_modules(session_of: Make, model: str) -> None:
    session, trace = opened(session_of, model)
    witness = Witness(session, trace)
    made = trace.anatomy.made
    checked = set()

    def same(name: str, tensor: Tensor) -> None:
        if name in trace.anatomy.steps:
            assert torch.equal(trace[name], tensor), name
            checked.add(name)

    for stack, layers in session.layers.items():
        embedding = {"encoder": "source_embedding", "decoder": "target_embedding"}[stack]
        embedding = embedding if session.has_source else "embedding"
        same(f"{stack}.embedding", witness.given[embedding])
        for i in range(layers):
            for part in ("self", "cross", "feedforward"):
                path = f"{stack}.{i}.{part}"
                inner = {"self": "attention", "cross": "cross_attention"}.get(part, "feedforward")
                outer = {"self": "attention_residual", "cross": "cross_residual"}.get(
                    part, f"{inner}_residual"
                )
                inner, outer = f"{stack}.layers.{i}.{inner}", f"{stack}.layers.{i}.{outer}"
                if outer not in witness.given:
                    continue
                same(f"{path}.normed", witness.taken[inner])
                same(f"{path}.sum", witness.taken[f"{outer}.norm"])
                same(f"{path}.output", witness.given[outer])
                assert torch.equal(trace[trace.anatomy.after[path]], witness.given[outer]), path
                same(f"{path}.added", witness.given[f"{inner}.output"])
                if part == "feedforward":
                    same(f"{path}.hidden", witness.given[f"{inner}.inner"])
                    same(f"{path}.gate", witness.given.get(f"{inner}.gate", torch.empty(0)))
                    same(f"{path}.active", witness.taken[f"{inner}.output"])
                    continue
                same(f"{path}.concat", witness.taken[f"{inner}.output"])
                if f"{path}.latent" in trace.anatomy.steps:
                    latents_are_their_modules(session, trace, witness, path, inner)
                    continue
                for letter, module in (("q", "query"), ("k", "key"), ("v", "value")):
                    flat = trace[f"{path}.{letter}"].transpose(0, 1).flatten(1)
                    plain = witness.given[f"{inner}.{module}"]
                    if f"{path}.{letter}_plain" in made:
                        turned, flat = flat, trace[f"{path}.{letter}_plain"].transpose(0, 1).flatten(1)
                        checked.add(f"{path}.{letter}_plain")
                        assert torch.equal(flat[0], turned[0])  # position 0 is not turned
                        assert not torch.allclose(flat[1], turned[1])
                        assert torch.allclose(flat.norm(dim=-1), turned.norm(dim=-1), rtol=1e-5)
                    assert torch.equal(flat, plain), path
    if "transformed" in made:
        same("transformed", witness.given["head.transform"])
    rest = {name.rpartition(".")[2] for name in set(made) - checked}
    by_hand = {"ids", "rows", "positions", "placed", "types", "typed", "products", "scaled", "bias"}
    assert rest <= by_hand | {"allowed", "masked", "scores", "probabilities", "pooled"}  # checked below


def test_experts_show_who_is_chosen(session_of: Make) -> None:
    experts = ExpertsConfig(experts=4, chosen=2, shared=1, width=8)
    session = session_of("decoder", "pre", feedforward=experts)
    trace = session.trace(TEXT, None)
    witness = Witness(session, trace)
    path, inner = "decoder.0.feedforward", "decoder.layers.0.feedforward"
    weights, scores = trace[f"{path}.weights"], trace[f"{path}.scores"]
    assert torch.equal(trace[f"{path}.added"], witness.given[inner])
    assert ((weights > 0).sum(-1) == 2).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
    assert ((weights > 0) == (scores >= scores.topk(2).values[:, -1:])).all()
    load = trace[f"{path}.load"]
    assert torch.equal(load, (weights > 0).sum(0) / (2 * len(weights) / 4))
    sent = tensor(session, TEXT, name=f"{path}.load")
    assert (len(sent["rows"]), sent["high"]) == (1, float(load.max()))
    assert torch.equal(trace[f"{path}.balance"], session.model.decoder.layers[0].feedforward.router.balance)


def latents_are_their_modules(
    session: Session, trace: Trace, witness: Witness, path: str, inner: str
) -> None:
    """Heads but for what is rotated, which is there as it is in the latents."""
    config = session.config.attention.replace(width=session.config.width)
    content, size = config.content_size, config.latent_size
    latent, k = trace[f"{path}.latent"], trace[f"{path}.k"]
    assert torch.equal(latent[0, :, :size], witness.given[f"{inner}.norm"])
    assert torch.equal(k[..., content:], latent[..., size:].expand(config.heads, -1, -1))
    for name, module in (("q", "query"), ("k", "key"), ("v", "value")):
        plain = witness.given[f"{inner}.{module}"].unflatten(-1, (config.heads, -1)).transpose(0, 1)
        assert torch.equal(trace[f"{path}.{name}"][..., :content], plain[..., :content]), name


@pytest.mark.parametrize("model", MODELS)
def test_the_ends_by_hand(session_of: Make, model: str) -> None:
    session, trace = opened(session_of, model)
    for stack in session.layers:
        ids = trace.source_ids[0] if stack == "encoder" else trace.target_ids[0]
        embedding = getattr(session.model, "embedding", None)
        if embedding is None:
            embedding = getattr(
                session.model, "source_embedding" if stack == "encoder" else "target_embedding"
            )
        x = embedding.table.weight[ids]
        assert torch.equal(trace[f"{stack}.ids"], ids)
        assert torch.equal(trace[f"{stack}.rows"], x)
        if session.config.embedding.scale:
            x = x * math.sqrt(session.config.width)
            assert torch.equal(trace[f"{stack}.scaled"], x)
        if session.config.position.name == "sinusoidal":
            waves = sinusoid(torch.arange(len(ids)), session.config.width).float()
            assert torch.equal(trace[f"{stack}.positions"], waves)
        if session.config.position.name == "learned":
            assert torch.equal(trace[f"{stack}.positions"], embedding.position.table[: len(ids)])
        if f"{stack}.positions" in trace.names:
            x = x + trace[f"{stack}.positions"]
            assert torch.equal(trace[f"{stack}.placed"], x)
        if embedding.types is not None:
            assert torch.equal(trace[f"{stack}.types"], embedding.types.weight[:1].expand_as(x))
            x = x + embedding.types.weight[0]
            assert torch.equal(trace[f"{stack}.typed"], x)
        if embedding.norm is not None:
            x = embedding.norm(x)
        assert torch.allclose(trace[f"{stack}.embedding"], x, atol=1e-6)
    if "logits" in trace.anatomy.steps:
        assert torch.equal(trace["probabilities"], trace.logits.softmax(-1))
    if "scores" in trace.anatomy.steps:  # those of several columns of tags, side by side
        columns = trace["scores"].split(list(session.config.head.columns), dim=-1)
        shares = torch.cat([one.softmax(-1) for one in columns], dim=-1)
        torch.testing.assert_close(trace["probabilities"], shares)
        with torch.no_grad():
            assert close(trace["scores"], session.model.head.classifier(trace["encoder.output"]))
    if "pooled" in trace.anatomy.steps:
        out = session.model(trace.source_ids)
        assert torch.equal(trace["pooled"], out.pooled[0])


def close(one: Tensor, other: Tensor) -> bool:
    """Whether they differ by float32's rounding alone; without norms, numbers grow large."""
    return torch.allclose(one, other, atol=1e-6 * max(10.0, float(other.abs().max())))


@pytest.mark.parametrize("model", MODELS)
def test_scores_by_hand(session_of: Make, model: str) -> None:
    """From queries and keys to weighted values, in plain arithmetic beside the model's definition."""
    session, trace = opened(session_of, model)
    config = session.config.attention.replace(width=session.config.width)
    for kind in session.kinds:
        stack, part = kind.split(".")
        for i in range(session.layers[stack]):
            path = f"{stack}.{i}.{part}"
            q, k, v = (trace[f"{path}.{name}"] for name in "qkv")
            k, v = (one.repeat_interleave(config.heads // config.groups, 0) for one in (k, v))
            scores = trace[f"{path}.scores"]
            if config.score == "scaled_dot":
                products = torch.einsum("htd,hsd->hts", q, k)
                assert close(trace[f"{path}.products"], products)
                scaled = products * (config.scale or 1 / math.sqrt(config.key_size))
                name = f"{path}.scaled" if f"{path}.scaled" in trace.names else f"{path}.scores"
                assert close(trace[name], scaled)
            else:
                assert f"{path}.products" not in trace.names
            whole = trace[f"{path}.scaled"] if f"{path}.scaled" in trace.names else scores
            if f"{path}.bias" in trace.names:
                whole = whole + trace[f"{path}.bias"]
                assert trace[f"{path}.bias"].abs().max() > 0
            if config.softcap is not None:
                whole = config.softcap * torch.tanh(whole / config.softcap)
            assert torch.equal(scores, whole)
            if kind == "decoder.self" and session.config.causal_mask:
                below = torch.ones(scores.shape[1:]).tril()
                assert torch.equal(trace[f"{path}.allowed"], below)
                masked = scores.masked_fill(below == 0, -torch.inf)
                assert torch.equal(trace[f"{path}.masked"], masked)
            else:
                masked = scores
                assert f"{path}.allowed" not in trace.names
            weights = masked.softmax(-1)
            assert torch.equal(trace[f"{path}.weights"], weights)
            if session.config.position.name != "shaw":  # which adds to the values
                assert close(trace[f"{path}.mixed"], weights @ v)
            assert torch.equal(trace[f"{path}.concat"], torch.cat(list(trace[f"{path}.mixed"]), dim=-1))


@pytest.mark.parametrize("model", MODELS)
def test_the_drawing_holds_together(session_of: Make, model: str) -> None:
    session, trace = opened(session_of, model)
    drawn = inside(session, TEXT, TARGET if session.has_source else None)
    assert json.loads(json.dumps(drawn)) == drawn
    ids = [box["id"] for box in drawn["boxes"]]
    assert len(set(ids)) == len(ids)
    assert [box["order"] for box in drawn["boxes"]] == list(range(len(ids)))
    made_by: set[str] = set()
    for box in drawn["boxes"]:
        assert box["steps"], box["id"]
        for step in box["steps"]:
            assert list(trace[step["name"]].shape) == step["shape"], step["name"]
            assert len(step["axes"]) == len(step["shape"])
            assert step["formula"]
            made_by.add(step["name"])
    flows = [arrow for arrow in drawn["arrows"] if arrow["kind"] == "flow"]
    for arrow in drawn["arrows"]:
        assert ids.index(arrow["from"]) < ids.index(arrow["to"])
    # Each box but the tokens gets its input by one arrow, and there is a way on from all but the last.
    assert sorted(arrow["to"] for arrow in flows) == sorted(id for id in ids if not id.endswith(".tokens"))
    assert_parts_are_the_models(session, drawn)
    memories = [arrow["to"] for arrow in drawn["arrows"] if arrow["kind"] == "memory"]
    assert memories == [id for id in ids if id.endswith(".cross")]
    assert drawn["source"] == (trace.source or None)
    assert drawn["target"] == (trace.target or None)


def assert_parts_are_the_models(session: Session, drawn: dict[str, Any]) -> None:
    """What the model has is in the drawing, once for each module, and what it lacks is not."""
    modules = [name for name, _ in session.model.named_modules()]
    parts = {
        f"{stack}.{i}.{short}"
        for stack, layers in session.layers.items()
        for i in range(layers)
        for short, long in {"self": "attention", "cross": "cross_attention"}.items() | {("feedforward",) * 2}
        if f"{stack}.layers.{i}.{long}" in modules
    }
    labels = {box["id"]: box["label"] for box in drawn["boxes"]}
    config, pre = session.config, session.config.norm.place == "pre"
    normed = config.norm.kind != "none"
    assert {id for id in labels if id.split(".")[-1] in ("self", "cross", "feedforward")} == parts
    into = [arrow["to"] for arrow in drawn["arrows"] if arrow["kind"] == "residual"]
    assert set(into) == {id for id in labels if id.endswith(".add")}
    assert set(into) == ({f"{part}.add" for part in parts} if config.residual else set())
    assert all(labels[id] == ("Add & Norm" if normed and not pre else "Add") for id in into)
    alone = {id.removesuffix(".norm") for id in labels if id.endswith(".norm") and id.count(".") > 1}
    assert alone == (parts if normed and (pre or not config.residual) else set())
    masked = {id for id, label in labels.items() if label == "Masked self-attention"}
    hides = config.causal_mask and "decoder" in session.layers
    assert masked == {id for id in parts if hides and id.startswith("decoder") and id.endswith(".self")}


def test_arrows_carry_the_shapes_of_what_they_carry(session_of: Make) -> None:
    session = session_of("encoder-decoder", "pre")
    drawn = inside(session, TEXT, "le chat")
    shapes = {(arrow["from"], arrow["to"]): arrow["shape"] for arrow in drawn["arrows"]}
    assert shapes[("encoder.tokens", "encoder.table")] == [8]
    assert shapes[("encoder.norm", "decoder.1.cross")] == [8, 32]
    assert shapes[("decoder.0.self", "decoder.0.self.add")] == [3, 32]
    assert shapes[("output", "softmax")] == [3, session.config.vocabulary]


@pytest.mark.parametrize("model", MODELS)
def test_every_name_can_be_asked(session_of: Make, model: str) -> None:
    session, trace = opened(session_of, model)
    target = TARGET if session.has_source else None
    for box in inside(session, TEXT, target)["boxes"]:
        for step in box["steps"]:
            headed = step["axes"][0] in ("head", "group")
            found = tensor(session, TEXT, target, name=step["name"], head=3 if headed else None)
            json.dumps(found, allow_nan=False)
            values, exact = unpacked(found["tensor"]), trace[step["name"]]
            assert values.dim() == 2
            if headed:
                exact = exact[3 * len(exact) // session.config.attention.heads]
            if step["axes"][-1] == "vocabulary":
                best = exact.amax(0).sort(descending=True, stable=True).indices[:SHOWN]
                exact = exact[:, best]
                assert found["columns"] == [trace.word(int(id))["text"] for id in best]
            assert torch.equal(values.flatten(), exact.float().flatten()), step["name"]
            finite = values[values.isfinite()]
            assert (found["low"], found["high"]) == (finite.min().item(), finite.max().item())
            assert len(found["rows"]) == len(values)
            assert found["columns"] is None or len(found["columns"]) == values.shape[1]


def test_rows_and_columns_have_their_words(session_of: Make) -> None:
    session = session_of("separate", "pre")
    found = tensor(session, "the cat sleeps .", "le chat dort", name="decoder.1.cross.weights", head=1)
    assert found["rows"] == ["<start>", "le", "chat", "dort"]
    assert found["columns"] == ["the", "cat", "sleeps", ".", "<stop>"]
    assert found["formula"] == "A = softmax(scores)"
    classifier = session_of("encoder")
    scores = tensor(classifier, "the cat", name="probabilities")
    assert scores["columns"] == ["good", "bad", "so-so"]
    assert sum(unpacked(scores["tensor"])[0].tolist()) == pytest.approx(1.0)
    ids = tensor(classifier, "the cat", name="encoder.ids")
    assert unpacked(ids["tensor"]).tolist() == [[1.0], [4.0], [5.0]]
    classifier.bundle.metadata["labels"] = None
    assert tensor(classifier, "the cat", name="logits")["columns"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "name, head, sentence",
    [
        ("decoder.0.self.weight", None, "did you mean 'decoder.0.self.weights'"),
        ("decoder.0.self.weights", 4, "no head 4: this layer has 4"),
        ("decoder.0.self.weights", -1, "no head -1"),
        ("decoder.output", 0, "has no heads"),
    ],
)
def test_what_is_not_there(session_of: Make, name: str, head: int | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        tensor(session_of("encoder-decoder"), TEXT, TARGET, name=name, head=head)


def test_grouped_keys_are_those_of_their_query_head(session_of: Make) -> None:
    session = session_of("decoder", "pre", **LLAMA)
    trace = session.trace(TEXT)
    for head, group in enumerate([0, 0, 1, 1]):
        found = tensor(session, TEXT, name="decoder.0.self.k", head=head)
        assert torch.equal(unpacked(found["tensor"]), trace["decoder.0.self.k"][group])
    q, k = trace["decoder.0.self.q"], trace["decoder.0.self.k"]
    assert torch.allclose(trace["decoder.0.self.products"][3], F.linear(q[3], k[1]), atol=1e-5)


def test_a_recurrent_model_is_not_drawn(session_of: Make) -> None:
    session = session_of("recurrent")
    for ask in (lambda: inside(session, TEXT), lambda: tensor(session, TEXT, name="logits")):
        with pytest.raises(UserError, match="is recurrent"):
            ask()


def test_a_sentence_is_drawn_at_once(session_of: Make) -> None:
    """20 tokens, a small model: far below the 300 ms that a page may take."""
    session = session_of("encoder-decoder", "pre", width=128)
    text = "the cat sees the old green house " * 3
    begun = time.perf_counter()
    inside(session, text, TARGET)
    tensor(session, text, TARGET, name="decoder.1.cross.products", head=0)
    assert time.perf_counter() - begun < 0.3
