"""The steps inside the sub-layers of a layer: attention, feed-forward, and the residual around each.

The layer's own modules compute every tensor that the model does not expose from those that it does expose,
so nothing is defined twice.

Shapes: S source tokens, T target tokens, H heads, G key/value heads, D head size, E model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clearhead.explorer.steps import Axis, Get, Step
from clearhead.models.config import ModelConfig
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.attention.compressed import CompressedAttention
from clearhead.nn.attention.latent import LatentAttention
from clearhead.nn.attention.masks import Mask
from clearhead.nn.attention.problem import NO_MASK, Problem
from clearhead.nn.attention.sparse import SparseAttention, WithGlobals
from clearhead.nn.layers import FeedForward, Residual
from clearhead.nn.tokens import Tokens

SIMILAR = {
    "dot": "QKᵀ",
    "scaled_dot": "QKᵀ / √d_k",
    "bilinear": "Q W Kᵀ",
    "reduced_rank": "(Q U)(K V)ᵀ",
    "additive": "bᵀ tanh(W₁ k + W₂ q)",
}
ACTIVATION = {"relu": "ReLU", "silu": "SiLU", "tanh": "tanh"}  # the others are kinds of GELU
CAUSAL = ("1 where j ≤ i, else 0", "1: may look. A token sees itself and the tokens before it.")
NORM = {
    "layer": "(x − μ) / √(σ² + ε) · γ + β",
    "rms": "x / √(mean(x²) + ε) · γ",
}
# With a residual connection, and without.
ADDED = {True: "What the sub-layer adds.", False: "It replaces x: there is no residual connection."}


@dataclass(frozen=True)
class Place:
    """A sub-layer's place in the model: its path, what it reads, and the names of its tokens."""

    path: str  # such as decoder.1.cross
    stream: str  # the name of x, its input
    tokens: Axis
    config: ModelConfig
    get: Get

    @property
    def first(self) -> bool:
        """Whether a norm comes before the sub-layer."""
        return self.config.norm.kind != "none" and self.config.norm.place == "pre"

    @property
    def last(self) -> bool:
        """Whether a norm comes after it."""
        return self.config.norm.kind != "none" and not self.first

    @property
    def read(self) -> str:
        """The name of what the sub-layer itself reads."""
        return f"{self.path}.normed" if self.first else self.stream

    @property
    def after(self) -> str:
        """The name of x when it leaves."""
        stack, number, part = self.path.split(".")
        if not self.config.residual and not self.last:
            return f"{self.path}.added"  # it does not change any more
        return f"{stack}.{number}.output" if part == "feedforward" else f"{self.path}.output"

    @property
    def wide(self) -> tuple[Axis, Axis]:
        """The axes of anything on the stream."""
        return self.tokens, ("feature", self.config.width)


def sublayer_formula(config: ModelConfig) -> str:
    """What a sub-layer f does to x, with the parts that this model has.

    >>> sublayer_formula(ModelConfig()), sublayer_formula(ModelConfig(residual=False))
    ('norm(x + f(x))', 'norm(f(x))')
    """
    normed, first = config.norm.kind != "none", config.norm.place == "pre"
    formula = ("x + " if config.residual else "") + ("f(norm(x))" if normed and first else "f(x)")
    return f"norm({formula})" if normed and not first else formula


def norm_steps(place: Place, residual: Residual) -> list[Step]:
    """Pre-norm: the sub-layer's input."""
    norm, formula = residual.norm, NORM[place.config.norm.kind]
    at, note = "The input of the sub-layer.", "Each token's features are normalised to one scale."
    if place.config.residual:
        at, note = "The residual stream at this point.", f"{note[:-1]}; the stream itself is left unchanged."
    return [
        Step(place.stream, "input", "x", place.wide, at),
        Step(place.read, "normed", formula, place.wide, note, lambda: batched(norm, place.get(place.stream))),
    ]


def closing_steps(place: Place, residual: Residual) -> list[Step]:
    """What the sub-layer adds to the stream, if it adds, and the norm after it if that comes last."""
    path, get, norm = place.path, place.get, residual.norm
    adds, formula, last = place.config.residual, sublayer_formula(place.config), f"{path}.added"
    offered = path.endswith(".feedforward")  # a layer's output has a name in the model itself
    steps = [Step(last, "sub-layer's output", "f(x)", place.wide, ADDED[adds])]
    if adds:

        def total() -> Tensor:
            return get(place.stream) + get(f"{path}.added")

        note = "The input, which bypasses the sub-layer unchanged."
        steps.insert(0, Step(place.stream, "input", "x", place.wide, note))
        if place.last:
            last = f"{path}.sum"
            steps.append(Step(last, "sum", "x + f(x)", place.wide, "", total))
        else:
            make = None if offered else total
            steps.append(Step(place.after, "sum", formula, place.wide, "The new stream.", make))
    if place.last:
        formula = f"{formula},  norm(x) = {NORM[place.config.norm.kind]}"
        made, note = None if offered else lambda: batched(norm, get(last)), "The new stream." if adds else ""
        steps.append(Step(place.after, "normed", formula, place.wide, note, made))
    return steps


def feedforward_steps(place: Place, net: FeedForward) -> list[Step]:
    """To the inner width and back, token by token."""
    path, get = place.path, place.get
    inner = (place.tokens, ("feature", net.inner.out_features))
    name = ACTIVATION.get(net.config.activation, "GELU")
    hidden, active = f"{path}.hidden", f"{path}.active"
    plain, gate = f"x W₁{' + b₁' if net.inner.bias is not None else ''}", net.gate
    note = "Each token by itself: no token sees another here."
    steps = [
        Step(place.read, "input", "x", place.wide, note),
        Step(hidden, "hidden", plain, inner, "", lambda: batched(net.inner, get(place.read))),
    ]
    if gate is None:
        formula = f"{name}({plain})"
        steps.append(Step(active, "activated", formula, inner, "", lambda: net.activation(get(hidden))))
    else:
        opened, formula = f"{path}.gate", f"{name}(x W_g) ∘ ({plain})"
        note = "The gate decides, feature by feature, how much passes through."
        steps += [
            Step(opened, "gate", "x W_g", inner, "", lambda: batched(gate, get(place.read))),
            Step(active, "gated", formula, inner, note, lambda: net.activation(get(opened)) * get(hidden)),
        ]
    out = " + b₂" if net.output.bias is not None else ""
    return [*steps, Step(f"{path}.added", "output", f"hidden · W₂{out}", place.wide)]


@dataclass(frozen=True)
class Looking:
    """What an attention attends to, and by which rules."""

    attention: MultiHeadAttention | LatentAttention
    keys: Axis  # the attended tokens
    memory: str | None = None  # the name of what keys and values are computed from; None: x itself
    mask: Mask | None = None  # the layer's mask
    rule: tuple[str, str] | None = None  # formula and note of what may be seen; None: everything


def attention_steps(place: Place, looking: Looking) -> list[Step]:
    """From x to Q, K, V, to scores, weights, weighted values, and through W_O."""
    return [
        *input_steps(place, looking),
        *projection_steps(place, looking),
        *score_steps(place, looking),
        *mixing_steps(place, looking),
    ]


def input_steps(place: Place, looking: Looking) -> list[Step]:
    """x, and what else keys and values are computed from."""
    note = "" if looking.memory else "The same vectors become queries, keys and values."
    steps = [Step(place.read, "input", "x", place.wide, note)]
    if looking.memory:
        width = looking.attention.key.in_features
        note = "Keys and values are computed from the encoder's output for the source."
        axes = (looking.keys, ("feature", width))
        steps.append(Step(looking.memory, "encoder's output", "m", axes, note))
    return steps


def projection_steps(place: Place, looking: Looking) -> list[Step]:
    """Queries, keys and values; also before rotation, if positions rotate them."""
    if isinstance(looking.attention, LatentAttention):
        return _latent_projections(place, looking.attention)
    path, config, get = place.path, looking.attention.config, place.get
    attention, source = looking.attention, looking.memory or place.read
    letter = "m" if looking.memory else "x"
    shared = config.groups != config.heads
    note = f"{config.heads // config.groups} query heads share one." if shared else ""
    queries = (("head", config.heads), place.tokens, ("feature", config.query_size))
    keys = (("group", config.groups), looking.keys, ("feature", config.key_size))
    values = (("group", config.groups), looking.keys, ("feature", config.value_size))
    bias = (" + b_Q", " + b_K", " + b_V") if attention.query.bias is not None else ("", "", "")
    of_query, of_key = f"x W_Q{bias[0]}", f"{letter} W_K{bias[1]}"
    if not attention.position.turns:
        first = [
            Step(f"{path}.q", "queries Q", of_query, queries),
            Step(f"{path}.k", "keys K", of_key, keys, note),
        ]
    else:
        turned = "Each pair of features is rotated by an angle that grows with the position."

        def plain_queries() -> Tensor:
            return in_heads(attention.query, get(place.read), config.heads)

        def plain_keys() -> Tensor:
            return in_heads(attention.key, get(source), config.groups)

        first = [
            Step(f"{path}.q_plain", "queries before rotation", of_query, queries, "", plain_queries),
            Step(f"{path}.k_plain", "keys before rotation", of_key, keys, note, plain_keys),
            Step(f"{path}.q", "queries Q, turned", "R(pos) q", queries, turned),
            Step(f"{path}.k", "keys K, turned", "R(pos) k", keys),
        ]
    return [*first, Step(f"{path}.v", "values V", f"{letter} W_V{bias[2]}", values, note)]


def _latent_projections(place: Place, attention: LatentAttention) -> list[Step]:
    """One latent for each token, and what every head computes from it."""
    path, config = place.path, attention.config
    size = config.latent_size + config.position_size
    axes = [("head", config.heads), place.tokens]
    keys, values = ((*axes, ("feature", one)) for one in (config.key_size, config.value_size))
    turns, shared = attention.position.turns, config.position_size > 0
    turned = "R(pos) " if turns else ""
    latent = "norm(x W_DKV)" + (f", {turned}x W_KR" if shared else "")
    note = "All that decoding remembers of a token" + (
        ": c, and a key r that all heads share." if shared else ": c."
    )
    given = "x" if attention.query_latent is None else "norm(x W_DQ)"
    part = f"The last {config.position_size} features are rotated by an angle that grows with the position."
    return [
        Step(f"{path}.latent", "latents", latent, (("group", 1), place.tokens, ("feature", size)), note),
        Step(f"{path}.q", "queries Q", f"{given} W_Q", keys, part if turns else ""),
        Step(f"{path}.k", "keys K", "(c W_UK, r)" if shared else "c W_UK", keys),
        Step(f"{path}.v", "values V", "c W_UV", values),
    ]


def score_steps(place: Place, looking: Looking) -> list[Step]:
    """How similar queries and keys are, and how much of it may be seen."""
    path, get = place.path, place.get
    attention, score = looking.attention, looking.attention.score
    square = (("head", attention.config.heads), place.tokens, looking.keys)
    problem = problem_of(place, looking)
    steps = []
    if score.is_product and score.scale != 1.0:
        note = "How similar each query is to each key."
        steps.append(Step(f"{path}.products", "scores", "QKᵀ", square, note, lambda: _products(problem())))
    name, scale = attention.config.score, attention.config.scale
    alike = SIMILAR[name] if scale is None else f"{scale:g} · {SIMILAR[name.removeprefix('scaled_')]}"
    changed = attention.position.has_bias or attention.config.softcap is not None
    label = "scaled scores" if score.scale != 1.0 else "scores"
    if changed:
        steps.append(Step(f"{path}.scaled", label, alike, square, "", lambda: _alike(problem())))
    if attention.position.has_bias:
        note = "What the position scheme adds, which depends on the distance between the two tokens."
        steps.append(
            Step(f"{path}.bias", "position bias", "b(i − j)", square, note, lambda: _bias(problem()))
        )
    whole = alike + (" + b" if attention.position.has_bias else "")
    if attention.config.softcap is not None:
        whole = f"c · tanh(({whole}) / c),  c = {attention.config.softcap:g}"
    final = "scores with bias" if attention.position.has_bias else "bent scores" if changed else label
    steps.append(Step(f"{path}.scores", final, whole, square))
    if looking.rule is not None:

        def masked() -> Tensor:
            return get(f"{path}.scores").masked_fill(~allowed(problem()), -torch.inf)

        steps += [
            allowed_step(place, looking),
            Step(f"{path}.masked", "masked scores", "score, or −∞ where the mask is 0", square, "", masked),
        ]
    return steps


def allowed_step(place: Place, looking: Looking) -> Step:
    """The mask."""
    assert looking.rule is not None
    formula, note = looking.rule
    rows, problem = (place.tokens, looking.keys), problem_of(place, looking)
    return Step(f"{place.path}.allowed", "mask", formula, rows, note, lambda: allowed(problem()).float())


def mixing_steps(
    place: Place, looking: Looking, formula: str = "A = softmax(scores)", note: str = "Each row sums to 1."
) -> list[Step]:
    """The weights, by this formula, and the values weighted by them."""
    path, get, config = place.path, place.get, looking.attention.config
    square = (("head", config.heads), place.tokens, looking.keys)
    mixed = (("head", config.heads), place.tokens, ("feature", config.value_size))
    joined = (place.tokens, ("feature", config.heads * config.value_size))
    bias = " + b_O" if looking.attention.output.bias is not None else ""

    def beside() -> Tensor:
        return get(f"{path}.mixed").transpose(0, 1).flatten(1)

    return [
        Step(f"{path}.weights", "weights", formula, square, note),
        Step(f"{path}.mixed", "weighted values", "A V", mixed, "Values averaged by the weights."),
        Step(f"{path}.concat", "heads concatenated", "concat(head₁, …, head_h)", joined, "", beside),
        Step(f"{path}.added", "output", f"concat · W_O{bias}", place.wide, ADDED[place.config.residual]),
    ]


# -- the model's own definition, applied to its own tensors ---------------------------------------------


def problem_of(place: Place, looking: Looking) -> Callable[[], Problem]:
    """The attention problem of this place, with a batch of one."""

    def made() -> Problem:
        if isinstance(looking.attention, (CompressedAttention, SparseAttention)):  # which change keys or mask
            return looking.attention.problem(place.get(place.read).unsqueeze(0), mask=looking.mask)
        q, k, v = (place.get(f"{place.path}.{name}").unsqueeze(0) for name in "qkv")
        queries = Tokens.padded(q.shape[2], device=q.device)
        keys = queries if looking.memory is None else Tokens.padded(k.shape[2], device=k.device)
        mask = NO_MASK if looking.mask is None else looking.mask
        attention, softcap = looking.attention, looking.attention.config.softcap
        score, position = attention.score, attention.position
        return Problem(q, k, v, queries, keys, mask, score=score, position=position, softcap=softcap)

    return made


def _with_globals(of: Callable[[Problem], Tensor]) -> Callable[[Problem], Tensor]:
    """The same if global tokens have their own projections, from which their rows come."""

    def found(problem: Problem) -> Tensor:
        if not isinstance(problem, WithGlobals):
            return of(problem)
        return of(problem).index_copy(-2, problem.places, of(problem.of_globals))

    return found


@_with_globals
def _products(problem: Problem) -> Tensor:
    score = problem.score
    return (score.queries(problem.q) @ score.keys(problem.spread(problem.k)).transpose(-2, -1))[0]


@_with_globals
def _alike(problem: Problem) -> Tensor:
    return problem.score.pairs(problem.q, problem.spread(problem.k))[0]


@_with_globals
def _bias(problem: Problem) -> Tensor:
    k = problem.spread(problem.k)
    every = slice(None)
    found = problem.position.bias(problem.q, k, problem.queries, problem.keys, problem.score.scale, every)
    assert found is not None
    return found.expand(1, problem.q.shape[1], problem.q.shape[2], k.shape[2])[0]


@_with_globals
def allowed(problem: Problem) -> Tensor:
    """(T, S): what may be seen."""
    shape = problem.q.shape[2], problem.k.shape[2]
    found = problem.allowed(problem.queries, problem.keys)
    if found is None:
        return torch.ones(shape, dtype=torch.bool, device=problem.q.device)
    return found[0, 0].expand(shape)


def in_heads(linear: nn.Linear, x: Tensor, heads: int) -> Tensor:
    """(T, E) to (heads, T, D)."""
    split: Tensor = batched(linear, x).unflatten(-1, (heads, -1)).transpose(0, 1)
    return split


def batched(module: nn.Module, x: Tensor) -> Tensor:
    """With a batch of one, as in the model's own pass: the same product, to the last bit."""
    out: Tensor = module(x.unsqueeze(0))
    return out[0]
