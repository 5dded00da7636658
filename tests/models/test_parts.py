"""Layers made of parts that are passed in: kinds and patterns in a config, states that move, what parts say.

Shapes: B rows, S source tokens, T target tokens.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import clearhead
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding import native
from clearhead.decoding.backend import Symbols
from clearhead.decoding.native.rows import supports
from clearhead.decoding.speculative import speculate
from clearhead.interop.onnx import export_onnx
from clearhead.models import ModelConfig, build
from clearhead.models.config import LayerRule
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.compressed import CompressedConfig
from clearhead.nn.attention.latent import LatentConfig
from clearhead.nn.attention.linear import LinearConfig as SummingConfig
from clearhead.nn.attention.linformer import LinformerConfig
from clearhead.nn.attention.nystrom import NystromConfig
from clearhead.nn.attention.performer import PerformerConfig
from clearhead.nn.attention.reformer import ReformerConfig
from clearhead.nn.attention.sparse import SparseConfig
from clearhead.nn.experts import ExpertsConfig
from clearhead.nn.layers import FeedForward, FeedForwardConfig
from clearhead.nn.parts import build_attention

from ..nn.own_parts import LinearAttention, LinearConfig, RunningSum, Telling, TellingConfig, add
from .families import SOURCE, begin, ids, model_for, one_pass, step
from .test_decoding_state import Rows, close

LINEAR = LinearConfig(heads=2)
LATENT = LatentConfig(heads=2, latent_dim=5, query_latent_dim=6)
EVERY_SECOND = (LayerRule(first=1, every=2, attention=LINEAR, cross_attention=AttentionConfig(heads=4)),)

MIXTURES = (LayerRule(stack="encoder", attention=LinformerConfig(heads=2, projected=3, max_length=9)),)
LANDMARKS = (LayerRule(stack="encoder", attention=NystromConfig(heads=2, landmarks=3, convolution=3)),)

COMPRESSED_ABOVE = (
    LayerRule(attention=SparseConfig(heads=2, local=4)),
    LayerRule(first=1, attention=CompressedConfig(heads=2)),
)
EXPERTS_ABOVE = (LayerRule(first=1, feedforward=ExpertsConfig(width=8, experts=4, shared=1)),)


@pytest.fixture(autouse=True)
def _own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch)


def with_own_parts(family: str, **changes: Any) -> nn.Module:
    with pytest.MonkeyPatch.context() as patch:
        add(patch)
        return model_for(family, **changes)


# --- what is remembered: keys and values, hidden states, running sums ------------------------------

KINDS: dict[str, nn.Module] = {
    "keys and values": model_for("decoder", scheme="rotary"),
    "keys and values, a source": model_for("encoder-decoder", scheme="t5", heads="grouped"),
    "hidden states": model_for("recurrent"),
    "latents": model_for("decoder", scheme="rotary", attention=LATENT),
    "sums of features": model_for("decoder", scheme="rotary", attention=SummingConfig(heads=2)),
    "sums of random features": model_for("encoder-decoder", attention=PerformerConfig(heads=2, features=9)),
    "a window": model_for("decoder", attention=SparseConfig(heads=2, window=3, global_tokens=1)),
    "keys and values, a source in mixtures": model_for("encoder-decoder", layer_pattern=MIXTURES),
    "blocks between windows": model_for("decoder", scheme="rotary", layer_pattern=COMPRESSED_ABOVE),
    "keys and values, a source by landmarks": model_for("encoder-decoder", layer_pattern=LANDMARKS),
    "shared queries and keys": model_for("decoder", scheme="rotary", attention=ReformerConfig(heads=2)),
    "running sums": with_own_parts("decoder", attention=LINEAR),
    "experts above a dense layer": model_for("decoder", scheme="rotary", layer_pattern=EXPERTS_ABOVE),
    "every second layer": with_own_parts("decoder", scheme="rotary", layer_pattern=EVERY_SECOND),
    "every second layer, a source": with_own_parts("encoder-decoder", layer_pattern=EVERY_SECOND),
}


class MovingRows(Rows):
    """As `Rows`, with rows that leave, come back, and go to a device and back."""

    def take(self, rows: list[int]) -> MovingRows:
        taken = MovingRows(self.model, 1)
        taken.state = self.state.take(torch.tensor(rows))
        stay = [row for row in range(len(self.past)) if row not in rows]
        taken._hold(self, rows)
        self._hold(self, stay)
        return taken

    def join(self, other: MovingRows) -> None:
        self.state.join(other.state)
        self.past = [*self.past, *other.past]
        self.source = torch.cat([self.source, other.source])
        self.source_lengths = torch.cat([self.source_lengths, other.source_lengths])
        self.seed += other.seed

    def there_and_back(self) -> None:
        before = self.state.bytes
        assert self.state.to("cpu") is self.state
        assert self.state.bytes == before

    def _hold(self, other: Rows, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.long)
        self.past = [list(other.past[row]) for row in rows]
        self.source, self.source_lengths = other.source[index], other.source_lengths[index]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
@torch.no_grad()
def test_states_move_as_rows_computed_from_scratch(kind: str, data: st.DataObject) -> None:
    """Every `add` compares with rows that are computed alone and at once."""
    rows, parked = MovingRows(KINDS[kind], data.draw(st.integers(2, 3))), []
    rows.add(2, None)
    moves = ["add", "add ragged", "reorder", "take", "return", "move", "newcomers"]
    for what in data.draw(st.lists(st.sampled_from(moves), min_size=3, max_size=6)):
        count = len(rows.past)
        if what == "add":
            rows.add(data.draw(st.integers(1, 2)), None)
        elif what == "add ragged":
            rows.add(2, data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
        elif what == "reorder":
            rows.reorder(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4)))
        elif what == "take" and count > 1:
            leave = st.lists(st.integers(0, count - 1), min_size=1, max_size=count - 1, unique=True)
            parked.append(rows.take(data.draw(leave)))
            parked[-1].there_and_back()
        elif what == "return" and parked:
            rows.join(parked.pop())
        elif what == "move":
            rows.there_and_back()
        elif what == "newcomers" and count < 5:
            new = MovingRows(KINDS[kind], 1, seed=7)
            new.add(data.draw(st.integers(1, 3)), None)
            rows.join(new)
    for one in [rows, *parked]:
        one.add(1, None)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", sorted(KINDS))
@torch.no_grad()
def test_parked_on_the_host_and_back(kind: str) -> None:
    model = copy.deepcopy(KINDS[kind]).cuda()
    source, tokens = ids(3, SOURCE).cuda(), ids(3, 6, seed=1).cuda()
    wanted = one_pass(model, source, tokens)
    state = begin(model, source)
    step(model, tokens[:, :4], state)
    parked = state.take(torch.tensor([1], device="cuda")).to("cpu")
    order = torch.tensor([0, 2, 1])
    close(step(model, tokens[[0, 2], 4:5], state), wanted[[0, 2], 4:5])
    before = parked.bytes
    assert parked.to("cuda").bytes == before
    step(model, tokens[[1], 4:5], parked)
    state.join(parked)
    close(step(model, tokens[order, 5:], state), wanted[order, 5:])


@torch.no_grad()
def test_rows_that_share_a_source_leave_with_it() -> None:
    model = KINDS["every second layer, a source"]
    source, tokens = ids(2, SOURCE), ids(4, 3, seed=1)
    state = model.begin(source)
    step(model, tokens[[0, 2], :1], state)
    state.reorder(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1]))
    tokens[1, 0], tokens[3, 0] = tokens[0, 0], tokens[2, 0]
    step(model, tokens[:, 1:2], state)
    first = state.take(torch.tensor([0, 1]), torch.tensor([0]))
    assert (first.rows, len(first.memory), state.rows, len(state.memory)) == (2, 1, 2, 1)
    for rest, rows in ((first, slice(0, 2)), (state, slice(2, 4))):
        wanted = one_pass(model, source.repeat_interleave(2, 0)[rows], tokens[rows])
        close(step(model, tokens[rows, 2:], rest), wanted[:, 2:])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["running sums", "every second layer, a source"])
def test_a_sum_cannot_be_cut(kind: str) -> None:
    model = KINDS[kind]
    state = begin(model, ids(2, SOURCE))
    step(model, ids(2, 3), state)
    for length in (2, torch.tensor([1, 2])):
        with pytest.raises(UserError, match=r"cannot undo tokens: .*\('RunningSum'\) cannot be truncated"):
            state.truncate(length)
    cuttable = model_for(model.config.family)
    for large, small in ((model, cuttable), (cuttable, model)):
        with pytest.raises(UserError, match="decode without a draft model"):
            speculate(large, small, [3, 4, 2], symbols=Symbols(1, 2, (0, 1)), limit=4)


def test_a_part_refuses_a_state_of_another() -> None:
    whole = MultiHeadAttention(AttentionConfig(width=8, heads=2))
    with pytest.raises(UserError, match="'RunningSum' cannot be used here, where 'KeyValues' or 'Memory' is"):
        whole(torch.randn(1, 2, 8), state=RunningSum())
    mixed, plain = (KINDS[name] for name in ("every second layer", "keys and values"))
    state, other = begin(mixed, ids(1, SOURCE)), begin(plain, ids(1, SOURCE))
    step(plain, ids(1, 1), other)
    with pytest.raises(UserError, match="'RunningSum' cannot be used here"):
        step(plain, ids(1, 1), state)
    with pytest.raises(UserError, match="States of different models"):
        other.join(state)


# --- kinds and patterns in a config ---------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "vocabulary": 20,
    "width": 8,
    "layers": 4,
    "attention": {"heads": 2},
    "feedforward": {"width": 12},
}


def test_a_kind_has_settings_of_its_own() -> None:
    config = ModelConfig.from_dict({**PLAIN, "attention": {"kind": "linear", "heads": 2, "floor": 2.0}})
    assert config.attention == LinearConfig(heads=2, floor=2.0)
    assert ModelConfig.from_dict(config.to_dict()) == config
    ModelConfig.check_names({"attention": {"kind": "linear", "floor": 2.0}})
    plain = ModelConfig.from_dict(PLAIN)
    changed = plain.replace(attention__kind="linear", attention__floor=2.0)
    assert changed == config
    assert changed.replace(attention__kind="multihead") == plain
    for wrong, sentence in (
        ({"attention": {"kind": "linaer"}}, "no kind of attention 'linaer': did you mean 'linear'"),
        ({"feedforward": {"kind": "dens"}}, "no kind of feed-forward 'dens': did you mean 'dense'"),
        ({"attention": {"kind": "multihead", "floor": 1.0}}, "Unknown attention setting 'attention.floor'"),
        ({"attention": {"kind": "linear", "softcap": 2.0}}, "no scores that a soft cap"),
    ):
        with pytest.raises(UserError, match=sentence):
            ModelConfig.from_dict({**PLAIN, **wrong})
    with pytest.raises(UserError, match="AttentionConfig has the settings of the attention 'multihead'"):
        AttentionConfig(kind="linear")


def kinds_of(config: dict[str, Any]) -> list[str]:
    """L or m for the attention of each layer, t or d for its feed-forward, * where its width is not 12."""
    model = build(ModelConfig.from_dict({**PLAIN, "family": "decoder", **config}))
    letters = {LinearAttention: "L", MultiHeadAttention: "m", Telling: "t", FeedForward: "d"}
    return [
        letters[type(layer.attention)]
        + letters[type(layer.feedforward)]
        + ("" if layer.feedforward.inner.out_features == 12 else "*")
        for layer in model.decoder.layers
    ]


@pytest.mark.parametrize(
    "pattern, wanted",
    [
        ([], "md md md md"),
        ([{"first": 1, "feedforward": {"kind": "telling", "width": 12}}], "md mt mt mt"),
        ([{"first": 1, "every": 2, "attention": {"kind": "linear", "heads": 2}}], "md Ld md Ld"),
        ([{"first": 0, "every": 3, "last": 2, "feedforward": {"width": 5}}], "md* md md md"),
        (
            [
                {"attention": {"kind": "linear", "heads": 2}},
                {"first": 3, "attention": {"heads": 4}, "feedforward": {"kind": "telling", "width": 7}},
            ],
            "Ld Ld Ld mt*",
        ),
    ],
)
def test_parts_differ_by_layer(pattern: list[dict[str, Any]], wanted: str) -> None:
    assert kinds_of({"layer_pattern": pattern}) == wanted.split()
    config = ModelConfig.from_dict({**PLAIN, "layer_pattern": pattern})
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_what_a_rule_says_about_cross_attention_is_kept() -> None:
    rules = [{"cross_attention": {"heads": 4}}, {"first": 1, "every": 2, "attention": {"heads": 1}}]
    config = ModelConfig.from_dict({**PLAIN, "layer_pattern": rules})
    found = [[one.heads for one in config.parts_of("decoder", layer)[:2]] for layer in range(2)]
    assert found == [[2, 4], [1, 4]]


def test_a_pattern_may_be_of_one_stack() -> None:
    rule = {"stack": "encoder", "feedforward": {"kind": "telling"}}
    model = build(ModelConfig.from_dict({**PLAIN, "layer_pattern": [rule]}))
    assert {type(layer.feedforward) for layer in model.encoder.layers} == {Telling}
    assert {type(layer.feedforward) for layer in model.decoder.layers} == {FeedForward}


@pytest.mark.parametrize(
    "pattern, sentence",
    [
        ([{"first": 4, "feedforward": {"width": 3}}], "matches no layer of this model"),
        ([{"attention": {"heads": 3}}], "8 does not divide into 3 heads"),
        ([{"attention": {"width": 9, "heads": 3}}], "contradicts the model's width=8"),
        ([{"attention": {"kind": "linear"}}], "cannot be used as cross-attention: set cross_attention"),
        (
            [{"attention": {"window": 3}}],
            r"'layer_pattern\[0\]\.attention\.window': it belongs to the kind 'sparse'",
        ),
        ([{"feedforward": {"experts": 3}}], "it belongs to the kind 'experts'"),
        ([{"layer": 1}], "Unknown layer pattern setting 'layer_pattern.*layer'"),
    ],
)
def test_patterns_that_cannot_be(pattern: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(ModelConfig.from_dict({**PLAIN, "layer_pattern": pattern}))


def test_layers_with_other_heads_have_positions_of_their_own() -> None:
    """A shared table of biases has one row for each head."""
    rule = {"first": 2, "attention": {"heads": 4}}
    plain = {**PLAIN, "family": "decoder", "position": {"name": "t5"}, "layer_pattern": [rule]}
    model = build(ModelConfig.from_dict(plain)).eval()
    first, second, third, last = (layer.attention.position for layer in model.decoder.layers)
    assert [first is second, third is last, first is third] == [True, True, False]
    assert model(ids(2, 3)).logits.shape == (2, 3, 20)


def test_without_a_pattern_weights_begin_as_they_always_did() -> None:
    torch.manual_seed(0)
    one = build(ModelConfig.from_dict(PLAIN))
    torch.manual_seed(0)
    other = build(
        ModelConfig.from_dict({**PLAIN, "layer_pattern": [{"first": 3, "attention": {"heads": 4}}]})
    )
    for (name, a), (other_name, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(a, b)


# --- who must say no -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"attention__kind": "linear"},
        {"attention__kind": "reformer"},
        {"feedforward__kind": "telling"},
        {"layer_pattern": (LayerRule(first=1, feedforward=FeedForwardConfig(width=3)),)},
    ],
)
def test_fast_engines_and_exports_refuse_parts_they_do_not_know(
    change: dict[str, Any], tmp_path: Any
) -> None:
    model = build(ModelConfig.from_dict({**PLAIN, "family": "decoder"}), **change).eval()
    reason = supports(model)
    assert reason is not None
    assert "does not support" in reason
    plain = build(ModelConfig.from_dict({**PLAIN, "family": "decoder"})).eval()
    assert supports(plain) is None
    plain.decoder.layers[1].feedforward = Telling(8, TellingConfig(width=12))
    assert supports(plain) is not None  # looks at the modules themselves, too
    pytest.importorskip("onnx")
    with pytest.raises(UserError, match="cannot be exported to ONNX"):
        export_onnx(Bundle(model), tmp_path / "out")


def test_a_part_states_its_costs() -> None:
    plain = {**PLAIN, "family": "decoder"}
    usual = clearhead.plan(ModelConfig.from_dict(plain), dtype="float32").memory
    linear = clearhead.plan(ModelConfig.from_dict(plain).replace(attention__kind="linear"), dtype="float32")
    mixed = clearhead.plan(
        ModelConfig.from_dict({**plain, "layer_pattern": [EVERY_SECOND[0].to_dict()]}), dtype="float32"
    )
    assert (usual.state_fixed, usual.state_per_token) == (0, 4 * 16 * 4)
    assert (linear.memory.state_fixed, linear.memory.state_per_token) == (4 * 2 * 4 * 5 * 4, 0)
    assert (mixed.memory.state_fixed, mixed.memory.state_per_token) == (2 * 2 * 4 * 5 * 4, 2 * 16 * 4)
    assert linear.flops.scores == 0 < mixed.flops.scores
    assert "whatever the length" in str(mixed)
    model = build(ModelConfig.from_dict(plain).replace(attention__kind="linear")).eval()
    state = model.begin()
    model(ids(3, 5), state=state)
    assert state.bytes == 3 * linear.memory.state


def test_a_part_is_refused_where_it_cannot_serve() -> None:
    assert isinstance(build_attention(LINEAR.replace(width=8), clearhead.position("none")), LinearAttention)
    with pytest.raises(UserError, match="cannot be used as cross-attention"):
        build_attention(LINEAR.replace(width=8))


# --- what parts say besides their result ----------------------------------------------------------


def run(model: nn.Module, lengths: Tensor | None) -> Any:
    family = model.config.family
    if family == "vision":
        return model(torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    if family == "encoder-decoder":
        return model(ids(2, SOURCE), ids(2, 4), source_lengths=lengths, target_lengths=lengths)
    return model(ids(2, 4), lengths=lengths)


@pytest.mark.parametrize("family", ["encoder-decoder", "encoder", "decoder", "vision", "head"])
def test_extras_reach_the_output_of_every_family(family: str) -> None:
    head = {"head__kind": "classify", "head__pooling": "last"} if family == "head" else {}
    family = "decoder" if family == "head" else family
    stacks = {"encoder-decoder": ["encoder", "decoder"], "decoder": ["decoder"]}.get(family, ["encoder"])
    pattern = (LayerRule(first=1, feedforward=TellingConfig(width=6)),)
    model = with_own_parts(family, layer_pattern=pattern, **head).train()
    lengths = None if family == "vision" else torch.tensor([2, 4])
    found = run(model, lengths).extras
    assert list(found.losses) == ["size"]
    loss, weight = found.losses["size"]
    assert weight == 0.5
    assert list(found.statistics) == [f"{stack}.1.feedforward.tokens" for stack in stacks]
    tokens = (
        20 if family == "vision" else 6
    )  # 2 images of 9 patches and a class token; padding is not counted
    assert all(value.item() == tokens for value in found.statistics.values())
    loss.backward()
    assert all(layer.feedforward.output.weight.grad is not None for layer in layers_of(model, stacks)[1::2])
    seen = [run(model.eval(), lengths), run(model_for(family, **head).train(), lengths)]
    assert [one.extras for one in seen] == [None, None]  # nobody asked; nobody has anything to say


def layers_of(model: nn.Module, stacks: list[str]) -> list[Any]:
    return [layer for stack in stacks for layer in getattr(model, stack).layers]


def test_what_one_layer_gives_is_summed_with_the_others() -> None:
    model = with_own_parts("decoder", feedforward=TellingConfig(width=6)).train()
    seen: list[Tensor] = []
    for layer in model.decoder.layers:
        layer.feedforward.register_forward_hook(lambda _, __, out: seen.append(out.square().sum()))
    loss, _ = run(model, None).extras.losses["size"]
    torch.testing.assert_close(loss, seen[0] + seen[1])


def test_a_bundle_of_another_kind_writes_as_before(tmp_path: Any) -> None:
    """Saved, loaded and decoded by whichever engine can: the fast ones pass it on."""
    config = ModelConfig.from_dict(
        {**PLAIN, "family": "decoder", "layer_pattern": [EVERY_SECOND[0].to_dict()]}
    )
    model = build(config).eval()
    clearhead.save(model, tmp_path / "bundle")
    again = clearhead.load(tmp_path / "bundle").model
    assert again.config == config
    assert torch.equal(again(ids(1, 4)).logits, model(ids(1, 4)).logits)
    assert native.why_not() is not None or supports(again) is not None
