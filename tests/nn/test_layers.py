"""Norms, feed-forward nets, embeddings, residuals and initial weights against their formulas.

Shapes: B rows, T tokens, E model width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.models import ModelConfig, build
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.initialise import initialise
from clearhead.nn.layers import (
    ACTIVATIONS,
    EmbeddingConfig,
    FeedForward,
    FeedForwardConfig,
    InputEmbedding,
    NormConfig,
    Output,
    Residual,
    TokenEmbedding,
    build_norm,
)
from clearhead.nn.look import Look
from clearhead.nn.positions import Learned, Position, Sinusoidal
from clearhead.nn.tokens import Tokens

E = 8


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def stir(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))


# --- norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_layer_norm(eps: float) -> None:
    norm = build_norm(NormConfig(kind="layer", eps=eps), E).double()
    stir(norm)
    x = torch.randn(2, 3, E).double() * 3 + 1
    for row in range(2):
        for token in range(3):
            numbers = x[row, token].tolist()
            mean = sum(numbers) / E
            variance = sum((number - mean) ** 2 for number in numbers) / E
            wanted = [
                (number - mean) / math.sqrt(variance + eps) * g + b
                for number, g, b in zip(numbers, norm.weight.tolist(), norm.bias.tolist(), strict=True)
            ]
            assert torch.allclose(norm(x)[row, token], torch.tensor(wanted).double(), atol=1e-12)


@pytest.mark.parametrize("eps", [1e-6, 0.1])
def test_rms_norm(eps: float) -> None:
    norm = build_norm(NormConfig(kind="rms", eps=eps), E).double()
    stir(norm)
    x = torch.randn(4, E).double() * 3 + 1
    wanted = x / (x.pow(2).sum(-1, keepdim=True) / E + eps).sqrt() * norm.weight
    assert torch.allclose(norm(x), wanted, atol=1e-12)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    half = norm.to(torch.bfloat16)(x.to(torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.double(), wanted, rtol=0.02, atol=0.02)


def test_norms_begin_as_plain_normalisation() -> None:
    x = torch.randn(5, E) * 4 + 2
    layered, rms = build_norm(NormConfig(), E)(x), build_norm(NormConfig(kind="rms"), E)(x)
    assert torch.allclose(layered.mean(-1), torch.zeros(5), atol=1e-6)
    assert torch.allclose(layered.var(-1, unbiased=False), torch.ones(5), atol=1e-4)
    assert torch.allclose(rms.pow(2).mean(-1), torch.ones(5), atol=1e-4)


# --- feed-forward -------------------------------------------------------------------------------

FORMULAS: dict[str, Any] = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


def test_every_activation_has_its_formula() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("activation", FORMULAS)
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward(activation: str, gated: bool) -> None:
    config = FeedForwardConfig.from_dict({"width": 5, "activation": activation, "gated": gated})
    layer = FeedForward(E, config).double()
    stir(layer)
    x = torch.randn(2, 3, E).double()
    formula = FORMULAS[activation]

    def bent(h: Tensor) -> Tensor:
        return torch.tensor([formula(value) for value in h.flatten().tolist()]).double().view_as(h)

    inner = x @ layer.inner.weight.T + layer.inner.bias
    if gated:
        assert layer.gate is not None
        hidden = bent(x @ layer.gate.weight.T + layer.gate.bias) * inner
    else:
        hidden = bent(inner)
    wanted = hidden @ layer.output.weight.T + layer.output.bias
    assert torch.allclose(layer(x), wanted, atol=1e-10)
    assert torch.allclose(layer(x.flatten(0, 1)), wanted.flatten(0, 1), atol=1e-10)  # position-wise


def test_feed_forward_sizes() -> None:
    assert FeedForward(E, FeedForwardConfig()).inner.weight.shape == (4 * E, E)
    plain = FeedForward(E, FeedForwardConfig(bias=False, gated=True, width=6))
    assert {name for name, _ in plain.named_parameters()} == {"gate.weight", "inner.weight", "output.weight"}


# --- embeddings ---------------------------------------------------------------------------------


def embedding(**settings: Any) -> tuple[InputEmbedding, EmbeddingConfig]:
    config = EmbeddingConfig.from_dict(settings)
    return InputEmbedding(TokenEmbedding(11, E, config.scale), Position(), config, NormConfig()), config


def test_scaling_by_the_root_of_the_width() -> None:
    ids = torch.tensor([[3, 0, 10]])
    scaled, _ = embedding(scale=True)
    assert torch.allclose(scaled(ids, Tokens.padded(3)), scaled.table.weight[ids] * math.sqrt(E))
    plain, _ = embedding(scale=False)
    assert torch.equal(plain(ids, Tokens.padded(3)), plain.table.weight[ids])


def test_scaled_words_are_about_as_large_as_positions() -> None:
    table = TokenEmbedding(2000, 256, scale=True)
    assert abs(table(torch.arange(2000)).std().item() - 1.0) < 0.01


def test_the_sum_of_words_positions_and_types_then_norm() -> None:
    config = EmbeddingConfig(token_types=2, norm=True)
    position = Learned(5, E)
    layer = InputEmbedding(TokenEmbedding(11, E, True), position, config, NormConfig(eps=1e-3))
    stir(layer)
    ids, types = torch.tensor([[3, 4, 5]]), torch.tensor([[0, 1, 1]])
    total = layer.table.weight[ids] * math.sqrt(E) + position.table[:3] + layer.types.weight[types]
    assert torch.allclose(layer(ids, Tokens.padded(3), types), layer.norm(total), atol=1e-6)
    zeros = layer(ids, Tokens.padded(3), torch.zeros_like(ids))
    assert torch.equal(layer(ids, Tokens.padded(3)), zeros)  # without types, all are of the first
    late = layer(ids[:, :1], Tokens.padded(1, start=4))
    wanted = layer.norm(layer.table.weight[3] * math.sqrt(E) + position.table[4] + layer.types.weight[0])
    assert torch.allclose(late[0, 0], wanted, atol=1e-6)


def test_sinusoids_are_added_after_the_scaling() -> None:
    layer = InputEmbedding(TokenEmbedding(11, E, True), Sinusoidal(), EmbeddingConfig(), NormConfig())
    ids = torch.tensor([[3, 4, 5]])
    waves = Sinusoidal().embed(torch.zeros(1, 3, E), Tokens.padded(3))
    assert torch.allclose(layer(ids, Tokens.padded(3)), layer.table(ids) + waves, atol=1e-6)


def test_wrong_ids_are_told_in_a_sentence() -> None:
    layer, _ = embedding()
    for ids, sentence in [
        (torch.tensor([[11]]), "Token id 11 is outside the vocabulary of 11 tokens"),
        (torch.tensor([[-1]]), "Token id -1 is outside"),
        (torch.tensor([[1.0]]), "whole numbers, not torch.float32"),
    ]:
        with pytest.raises(UserError, match=sentence):
            layer(ids, Tokens.padded(1))
    with pytest.raises(UserError, match="no token types"):
        layer(torch.tensor([[1]]), Tokens.padded(1), torch.tensor([[0]]))
    typed, _ = embedding(token_types=2)
    with pytest.raises(UserError, match="Token type 2 is outside the 2 kinds"):
        typed(torch.tensor([[1]]), Tokens.padded(1), torch.tensor([[2]]))


def test_output_tied_and_untied() -> None:
    table = TokenEmbedding(11, E, True)
    x = torch.randn(2, 3, E)
    tied = Output(table, EmbeddingConfig(tie_output=True))
    assert tied.weight is table.weight
    assert torch.allclose(tied(x), x @ table.weight.T, atol=1e-6)
    untied = Output(table, EmbeddingConfig(tie_output=False, output_bias=True))
    assert untied.weight.data_ptr() != table.weight.data_ptr()
    stir(untied)
    assert torch.allclose(untied(x), x @ untied.weight.T + untied.bias, atol=1e-5)
    scaled = Output(table, EmbeddingConfig(output_scale=0.5))
    assert torch.allclose(scaled(x), 0.5 * x @ table.weight.T, atol=1e-6)


def tied_model(**settings: Any) -> nn.Module:
    return build("tiny", layers=1, **settings)


def test_shared_storage() -> None:
    """One table for source, target and output by default; what is apart is apart in memory too."""
    model = tied_model()
    tables = [model.source_embedding.table.weight, model.target_embedding.table.weight, model.output.weight]
    assert len({table.data_ptr() for table in tables}) == 1
    assert sum(parameter is tables[0] for parameter in model.parameters()) == 1
    apart = tied_model(source_vocabulary=50)
    assert apart.source_embedding.table.weight.shape == (50, 32)
    assert apart.target_embedding.table.weight is apart.output.weight
    untied = tied_model(embedding__tie_output=False)
    assert untied.source_embedding.table.weight is untied.target_embedding.table.weight
    assert untied.output.weight.data_ptr() != untied.target_embedding.table.weight.data_ptr()
    model(torch.tensor([[1, 2]]), torch.tensor([[3]])).logits.sum().backward()
    assert tables[0].grad is not None
    assert (tables[0].grad[[1, 2, 3, 50]] != 0).any(-1).all()  # read, written, and scored


# --- residuals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_residual_equations(kind: str) -> None:
    x = torch.randn(2, 3, E)
    f = nn.Linear(E, E)
    post = Residual(E, NormConfig.from_dict({"kind": kind, "place": "post"}), 0.0)
    pre = Residual(E, NormConfig.from_dict({"kind": kind, "place": "pre"}), 0.0)
    stir(post)
    stir(pre)
    assert torch.equal(post(x, f), post.norm(x + f(x)))
    assert torch.equal(pre(x, f), x + f(pre.norm(x)))
    look = Look("added")
    assert torch.equal(pre(x, f, look), pre(x, f))
    assert torch.equal(look["added"], f(pre.norm(x)))


def test_dropout_of_a_residual_is_on_what_is_added() -> None:
    x = torch.randn(2, 500, E)
    residual = Residual(E, NormConfig(place="pre"), 0.4).train()
    added = residual(x, torch.ones_like) - x
    gone = torch.isclose(added, torch.zeros(()), atol=1e-6)
    assert abs(gone.float().mean().item() - 0.4) < 0.02
    assert torch.allclose(added[~gone], torch.tensor(1 / 0.6), atol=1e-5)
    assert torch.equal(residual.eval()(x, torch.ones_like), x + 1)


def test_dropout_of_the_embedding_and_of_the_activations() -> None:
    layer, _ = embedding(dropout=0.4)
    ids = torch.randint(11, (1, 500))
    whole = layer.eval()(ids, Tokens.padded(500))
    dropped = layer.train()(ids, Tokens.padded(500))
    gone = dropped == 0
    assert abs(gone.float().mean().item() - 0.4) < 0.03
    assert torch.allclose(dropped[~gone], whole[~gone] / 0.6, atol=1e-5)

    net = FeedForward(E, FeedForwardConfig(width=2000, dropout=0.4, bias=False)).train()
    with torch.no_grad():
        net.inner.weight.fill_(1.0)
        net.output.weight.fill_(1.0)
    seen = net(torch.full((50, E), 1 / E))  # every activation is 1: the sum counts those kept
    kept = seen * 0.6 / 2000
    assert abs(kept.mean().item() - 0.6) < 0.01
    assert (seen.std() > 0).item()
    assert torch.allclose(net.eval()(torch.full((50, E), 1 / E)), torch.full((50, E), 2000.0))


PLACES = ["dropout", "attention__dropout", "feedforward__dropout", "embedding__dropout"]


@pytest.mark.parametrize("family", ["encoder-decoder", "encoder", "decoder"])
@pytest.mark.parametrize("place", PLACES)
def test_each_dropout_of_a_model_works_in_training_alone(family: str, place: str) -> None:
    settings = {name: (0.5 if name == place else 0.0) for name in PLACES}
    model = build("tiny", family=family, layers=1, **settings)
    ids = torch.randint(100, (2, 6))
    inputs = (ids, ids) if family == "encoder-decoder" else (ids,)
    model.train()
    assert not torch.equal(model(*inputs).hidden, model(*inputs).hidden)
    model.eval()
    assert torch.equal(model(*inputs).hidden, model(*inputs).hidden)
    model.train()
    for name in ("dropout", "attention__dropout", "feedforward__dropout", "embedding__dropout"):
        settings[name] = 0.0
    still = build("tiny", family=family, layers=1, **settings).train()
    assert torch.equal(still(*inputs).hidden, still(*inputs).hidden)


def test_a_head_drops_before_its_classifier() -> None:
    changes = {"head__kind": "classify", "head__dropout": 0.5, "dropout": 0.0}
    model = build("tiny", family="encoder", layers=1, **changes).train()
    ids = torch.randint(100, (2, 6))
    first, second = model(ids), model(ids)
    assert torch.equal(first.pooled, second.pooled)
    assert not torch.equal(first.logits, second.logits)


# --- initial weights ----------------------------------------------------------------------------

LAYERS = 8


def initialised(kind: str, **changes: Any) -> nn.Module:
    plain = {
        "family": "decoder",
        "width": 128,
        "layers": LAYERS,
        "vocabulary": 500,
        "attention": {"heads": 4, "value_dim": 64},
        "initialisation": kind,
    }
    return build(ModelConfig.from_dict(plain), **changes)


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def spread(weights: list[Tensor]) -> float:
    together = torch.cat([weight.flatten() for weight in weights])
    assert abs(together.mean().item()) < 4 * together.std().item() / math.sqrt(together.numel())
    return together.var().item()


@pytest.mark.parametrize("kind", ["xavier", "he", "scaled"])
def test_variance(kind: str) -> None:
    model = initialised(kind)
    by_shape: dict[tuple[int, ...], list[Tensor]] = {}
    for name, linear in linears(model).items():
        assert (linear.bias == 0).all(), name
        writes = name.endswith(".output")  # to the residual stream
        by_shape.setdefault((*linear.weight.shape, writes), []).append(linear.weight.detach())
    assert len(by_shape) == 5  # query and key, value, attention's output, inner, output
    for (outputs, inputs, writes), weights in by_shape.items():
        wanted = {
            "xavier": 2 / (inputs + outputs),
            "he": 2 / inputs,
            "scaled": 0.02**2 / (2 * LAYERS) if writes else 0.02**2,
        }[kind]
        assert abs(spread(weights) / wanted - 1) < 0.03, (kind, outputs, inputs)
        if kind == "xavier":  # uniform, so nothing lies outside ±√(3 · variance)
            assert max(weight.abs().max().item() for weight in weights) <= math.sqrt(3 * wanted) + 1e-6


@pytest.mark.parametrize("kind, wanted", [("xavier", 1 / 128), ("he", 1 / 128), ("scaled", 0.02**2)])
def test_variance_of_embeddings(kind: str, wanted: float) -> None:
    tied = initialised(kind, layers=1)
    assert abs(spread([tied.embedding.table.weight.detach()]) / wanted - 1) < 0.03
    untied = initialised(kind, layers=1, embedding__tie_output=False)
    assert abs(spread([untied.output.weight.detach()]) / wanted - 1) < 0.03


def test_shared_and_other_parts_keep_theirs() -> None:
    model = initialised("scaled", position__name="rotary", norm__place="pre")
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * LAYERS + 1
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


@pytest.mark.parametrize("kind", ["xavier", "he", "scaled"])
def test_convolutions_count_their_whole_patch(kind: str) -> None:
    model = build(
        "vit-b16", layers=1, width=96, attention__heads=4, initialisation=kind, position__name="learned"
    )
    weight = model.patches.weight.detach()  # (96, 3, 16, 16)
    inputs = 3 * 16 * 16
    wanted = {"xavier": 2 / (inputs + 96), "he": 2 / inputs, "scaled": 0.02**2}[kind]
    assert abs(spread([weight]) / wanted - 1) < 0.03
    assert (model.patches.bias == 0).all()


def test_initialise_can_be_called_again() -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(build("tiny").encoder.layers[0].attention.config)
    before = attention.query.weight.detach().clone()
    initialise(attention, "scaled", layers=2)
    assert not torch.equal(before, attention.query.weight)
    assert attention.query.weight.std() < 0.03
