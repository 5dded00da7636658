"""The steps inside attentions that are cheaper than exact ones: everything between x and the weights.

Whatever an attention does, its last steps are those of the exact one: `weights` are the numbers by which the
layer mixes its values, even if it never computes them itself. The layer's own functions compute the other
tensors.

Shapes: T tokens, H heads, G key/value heads, D head size, F features, r mixtures, m landmarks, N blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from clearhead.explorer.steps import Axis, Step
from clearhead.explorer.sublayers import (
    Looking,
    Place,
    allowed_step,
    attention_steps,
    in_heads,
    input_steps,
    mixing_steps,
    problem_of,
    projection_steps,
    score_steps,
)
from clearhead.nn.attention.approximate import spread
from clearhead.nn.attention.compressed import CompressedAttention
from clearhead.nn.attention.linear import LinearAttention
from clearhead.nn.attention.linformer import LinformerAttention
from clearhead.nn.attention.nystrom import NystromAttention
from clearhead.nn.attention.performer import PerformerAttention
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.reformer import ReformerAttention
from clearhead.nn.attention.sparse import SparseAttention, WithGlobals

NEVER_MADE = "The layer never computes these numbers, but it mixes the values as if by them. "


def any_attention_steps(place: Place, looking: Looking) -> list[Step]:
    """From x to weights, weighted values and the output, for every kind of attention."""
    known: dict[type, Callable[[Place, Looking, Any], list[Step]]] = {
        LinearAttention: _linear,
        PerformerAttention: _linear,
        LinformerAttention: _linformer,
        NystromAttention: _nystrom,
        ReformerAttention: _reformer,
        CompressedAttention: _compressed,
        SparseAttention: _sparse,
    }
    make = known.get(type(looking.attention))
    return attention_steps(place, looking) if make is None else make(place, looking, looking.attention)


def _linear(place: Place, looking: Looking, attention: LinearAttention) -> list[Step]:
    path, get, config = place.path, place.get, attention.config
    features: Any = config
    size = ("feature", int(features.features_size))
    square = (("head", config.heads), place.tokens, looking.keys)
    formula, note = "φ(x) = elu(x) + 1", ""
    if isinstance(attention, PerformerAttention):
        formula = "φ(x) = exp(ω x − |x|²/2)"
        note = (
            "ω: random directions, drawn when the layer was made. They are divided by the largest, which "
            "leaves their ratios unchanged."
        )

    def products() -> Tensor:
        q, k = (get(f"{path}.{name}_features") for name in "qk")
        found: Tensor = q @ spread(k.unsqueeze(0), config.heads)[0].mT
        return found

    steps = [
        *input_steps(place, looking),
        *projection_steps(place, looking),
        Step(
            f"{path}.q_features",
            "features of queries",
            formula,
            (("head", config.heads), place.tokens, size),
            note,
            lambda: attention.score.queries(get(f"{path}.q").unsqueeze(0))[0],
        ),
        Step(
            f"{path}.k_features",
            "features of keys",
            formula,
            (("group", config.groups), looking.keys, size),
            "",
            lambda: attention.score.keys(get(f"{path}.k").unsqueeze(0))[0],
        ),
        Step(f"{path}.products", "similarities", "φ(Q) φ(K)ᵀ", square, "Never below 0.", products),
    ]
    if looking.rule is not None:
        steps.append(allowed_step(place, looking))
    weights = "A = φ(Q) φ(K)ᵀ / sum of the row" + (" over what may be seen" if looking.rule else "")
    return [*steps, *mixing_steps(place, looking, weights, f"{NEVER_MADE}Each row sums to 1.")]


def _linformer(place: Place, looking: Looking, attention: LinformerAttention) -> list[Step]:
    path, get, config = place.path, place.get, attention.config
    mixtures = ("mixture", config.projected)
    heads, groups = ("head", config.heads), ("group", config.groups)
    of_keys, of_values = attention.projections

    def problem() -> Problem:
        return attention.to_mixtures(*(get(f"{path}.{name}").unsqueeze(0) for name in "qkv"))

    def projection(name: str, label: str, weight: Tensor) -> Step:
        axes = (("group", len(weight)), place.tokens, mixtures)
        note = "Learned: how much of each position a mixture contains."
        return Step(f"{path}.{name}", label, label[-1], axes, note, lambda: weight[:, : place.tokens[1]])

    keys = (groups, mixtures, ("feature", config.key_size))
    values = (groups, mixtures, ("feature", config.value_size))
    across = (heads, place.tokens, mixtures)
    return [
        *input_steps(place, looking),
        *projection_steps(place, looking),
        projection("project_keys", "projection E", of_keys),
        projection("project_values", "projection F", of_values),
        Step(f"{path}.mixed_keys", "mixtures of keys", "Eᵀ K", keys, "", lambda: problem().k[0]),
        Step(f"{path}.mixed_values", "mixtures of values", "Fᵀ V", values, "", lambda: problem().v[0]),
        Step(
            f"{path}.mixture_weights",
            "weights of the mixtures",
            "P = softmax(Q (Eᵀ K)ᵀ / √d_k)",
            across,
            "Each row sums to 1.",
            lambda: problem().weights()[0],
        ),
        *mixing_steps(
            place,
            looking,
            "A = P Fᵀ",
            f"{NEVER_MADE}A mixture may contain a token with a negative sign, so weights may be negative, "
            "and rows need not sum to 1.",
        ),
    ]


def _nystrom(place: Place, looking: Looking, attention: NystromAttention) -> list[Step]:
    path, get, config = place.path, place.get, attention.config
    heads, marks = ("head", config.heads), ("landmark", config.landmarks)

    def factor(which: int) -> Callable[[], Tensor]:
        def made() -> Tensor:
            q, k = (get(f"{path}.{name}").unsqueeze(0) for name in "qk")
            return attention.factors(q * config.factor, spread(k, config.heads))[which][0]

        return made

    beside = attention.convolution is not None
    return [
        *input_steps(place, looking),
        *projection_steps(place, looking),
        Step(
            f"{path}.to_landmarks",
            "from tokens to landmarks",
            "softmax(Q K̃ᵀ / √d_k)",
            (heads, place.tokens, marks),
            "Landmarks are the means of the text's segments.",
            factor(0),
        ),
        Step(
            f"{path}.inverse",
            "pseudo-inverse between landmarks",
            "softmax(Q̃ K̃ᵀ / √d_k)⁺",
            (heads, marks, marks),
            f"Computed in {config.iterations} iterations.",
            factor(1),
        ),
        Step(
            f"{path}.from_landmarks",
            "from landmarks to tokens",
            "softmax(Q̃ Kᵀ / √d_k)",
            (heads, marks, place.tokens),
            "",
            factor(2),
        ),
        *mixing_steps(
            place,
            looking,
            "A = the product of the three" + (" + convolution" if beside else ""),
            f"{NEVER_MADE}An inverse has negative numbers, so weights may be negative"
            + ("; the convolution over neighbouring values is in them." if beside else "."),
        ),
    ]


def _reformer(place: Place, looking: Looking, attention: ReformerAttention) -> list[Step]:
    path, get, config = place.path, place.get, attention.config
    heads = ("head", config.heads)
    vectors = (heads, place.tokens, ("feature", config.key_size))
    turned = "R(pos) " if attention.position.turns else ""
    hashed = place.tokens[1] > config.chunk
    steps = [
        *input_steps(place, looking),
        Step(f"{path}.q", "queries Q", f"{turned}x W_QK", vectors),
        Step(f"{path}.k", "keys K", "q / rms(q)", vectors, "The same vectors, normalised to one length."),
        Step(f"{path}.v", "values V", "x W_V", (heads, looking.keys, ("feature", config.value_size))),
    ]
    formula, note = (
        "A = softmax(Q Kᵀ / √d_k) without oneself",
        "The text fits into one chunk: nothing is hashed. ",
    )
    if hashed:
        chunks = f"{config.before} before and {config.after} after it"
        note = f"Tokens are sorted by their buckets. A chunk of {config.chunk} sees itself and {chunks}. "
        formula = "A = Σ over rounds of share · softmax within chunks"
        axes = (heads, ("round", config.rounds), place.tokens)
        alike = "Vectors that point in similar directions share a bucket."

        def buckets() -> Tensor:
            return attention.buckets(get(f"{path}.q").unsqueeze(0))[0][0].float()

        steps.append(Step(f"{path}.buckets", "buckets", "argmax [q R, −q R]", axes, alike, buckets))
    if looking.rule is not None:
        steps.append(allowed_step(place, looking))
    return [*steps, *mixing_steps(place, looking, formula, f"{note}Each row sums to 1.")]


def _compressed(place: Place, looking: Looking, attention: CompressedAttention) -> list[Step]:
    path, get, config = place.path, place.get, attention.config
    blocks: Axis = ("block", -(-place.tokens[1] // config.stride))
    if looking.rule is not None:
        rule = (
            "1 where block j ends at i or before, else 0",
            "1: may look. A block is seen when it has ended.",
        )
        looking = replace(looking, rule=rule)
    before = projection_steps(place, looking)
    query = [step for step in before if step.name.rpartition(".")[2] in ("q_plain", "q")]
    groups = ("group", config.groups)

    def raw(part: Any) -> Callable[[], Tensor]:
        return lambda: in_heads(part, get(place.read), config.groups)

    steps = [*input_steps(place, looking), *query]
    for letter, name, part, size in (
        ("K", "key", attention.key, config.key_size),
        ("V", "value", attention.value, config.value_size),
    ):
        long = (groups, place.tokens, ("feature", size))
        short = (groups, blocks, ("feature", size))
        turned = "R(pos) " if letter == "K" and attention.position.turns else ""
        note = (
            f"A convolution turns {config.reads} tokens into one; a block has the position of its last token."
        )
        steps += [
            Step(f"{path}.{name}s", f"{name}s of tokens", f"x W_{letter}", long, "", raw(part)),
            Step(
                f"{path}.{letter.lower()}",
                f"{name}s of blocks {letter}",
                f"{turned}conv(x W_{letter})",
                short,
                note,
            ),
        ]
    looking = replace(looking, keys=blocks)
    note = "Each row sums to 1" + (
        ", but for those that see no block yet: they are 0." if looking.rule else "."
    )
    return [*steps, *score_steps(place, looking), *mixing_steps(place, looking, note=note)]


def _sparse(place: Place, looking: Looking, attention: SparseAttention) -> list[Step]:
    ahead = " and j ≤ i" if looking.rule is not None else ""
    rule = (
        f"1 where the pattern shows j{ahead}, else 0",
        f"1: may look. The pattern is {attention.pattern!r}.",
    )
    given, looking = looking, replace(looking, rule=rule)
    steps = [*input_steps(place, looking), *projection_steps(place, looking)]
    if attention.config.global_projections:
        steps += _global_projections(place, given)
    note = "Each row sums to 1; weights outside the pattern are 0."
    return [*steps, *score_steps(place, looking), *mixing_steps(place, looking, note=note)]


def _global_projections(place: Place, looking: Looking) -> list[Step]:
    path, config = place.path, looking.attention.config
    problem = problem_of(place, looking)
    count = min(int(getattr(config, "global_tokens", 0)), place.tokens[1])

    def of_globals(name: str) -> Callable[[], Tensor]:
        def made() -> Tensor:
            found = problem()
            assert isinstance(found, WithGlobals)
            tensor: Tensor = getattr(found.of_globals, name)[0]
            return tensor

        return made

    note = "Of the global tokens, which look at all others with these."
    queries = (("head", config.heads), ("global token", count), ("feature", config.query_size))
    keys = (("group", config.groups), looking.keys, ("feature", config.key_size))
    values = (("group", config.groups), looking.keys, ("feature", config.value_size))
    return [
        Step(f"{path}.global_q", "global queries", "x W_GQ", queries, note, of_globals("q")),
        Step(f"{path}.global_k", "global keys", "x W_GK", keys, "", of_globals("k")),
        Step(f"{path}.global_v", "global values", "x W_GV", values, "", of_globals("v")),
    ]
