"""The attention examples, recomputed with the library's attention.

Each function takes the example from the slide and returns its steps, all
in float64. Shapes: T queries, S keys, E model width; one row, one head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead.lectures.step import Source, Step
from clearhead.nn.attention import (
    AttentionConfig,
    MultiHeadAttention,
    Problem,
    Score,
    attend,
    build_score,
    masks,
)
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens


def tensor(values: object) -> Tensor:
    """Slide numbers as float64."""
    return torch.tensor(values, dtype=torch.float64)


def one_head(width: int, score: str = "scaled_dot", position: Position | None = None) -> MultiHeadAttention:
    """One head without biases whose four matrices are the identity."""
    config = AttentionConfig.from_dict({"width": width, "heads": 1, "bias": False, "score": score})
    attention = MultiHeadAttention(config, position).double()
    for linear in (attention.query, attention.key, attention.value, attention.output):
        set_weight(linear, torch.eye(width))
    return attention.requires_grad_(False)


def set_weight(linear: nn.Linear, weight: Tensor) -> None:
    """Set a projection to the slide's matrix, as `x @ weight.T`."""
    with torch.no_grad():
        linear.weight.copy_(weight)


def scores_of(problem: Problem) -> Tensor:
    """The scores (T, S) of one row and one head, before any mask."""
    return problem.block(problem.q, problem.k, problem.queries, problem.keys)[0][0, 0]


def problem_of(q: Tensor, k: Tensor, v: Tensor, score: Score, mask: masks.Mask | None = None) -> Problem:
    """An attention problem from given queries, keys and values (T, ·)."""
    queries, keys = Tokens.padded(len(q)), Tokens.padded(len(k))
    q, k, v = (x[None, None] for x in (q, k, v))
    return Problem(q, k, v, queries, keys, mask or masks.Everything(), score=score, position=Position())


def given_scores(scores: Tensor, mask: masks.Mask, values: Tensor | None = None) -> Problem:
    """A problem with given scores: with the identity as keys, a query is its own row of scores."""
    keys = torch.eye(scores.shape[1], dtype=scores.dtype)
    score = build_score("dot", 1, scores.shape[1], scores.shape[1], 1)
    return problem_of(scores, keys, keys if values is None else values, score, mask)


def _projecting(source: Source, transposed: bool) -> MultiHeadAttention:
    """One head with the three matrices of a slide: W x of a column x is x Wᵀ of a row."""
    matrices = [tensor(source.inputs[name]) for name in ("W_Q", "W_K", "W_V")]
    attention = one_head(len(matrices[0]))
    for linear, weight in zip((attention.query, attention.key, attention.value), matrices, strict=True):
        set_weight(linear, weight.T if transposed else weight)
    return attention


def tutorial_self_attention(source: Source) -> list[Step]:
    """On the slide columns are tokens, here rows are, so inputs and outputs are transposed."""
    x = tensor(source.inputs["X"]).T[None]  # (1, T, E)
    attention = _projecting(source, transposed=False)
    problem = attention.problem(x)
    rounded = "1.502 and 0.751 were added up from weights that had already been rounded."
    return [
        source.step("Q", "W_Q X", problem.q[0, 0].T),
        source.step("K", "W_K X", problem.k[0, 0].T),
        source.step("V", "W_V X", problem.v[0, 0].T),
        source.step("S", "softmax of each column of Kᵀ Q / √2", problem.weights()[0, 0].T),
        source.step("H", "V S", attention(x)[0].T, rounded),
    ]


def projection_parameters(source: Source) -> list[Step]:
    """Counted on a real layer of that size."""
    width, size = source.inputs["d_in"], source.inputs["d_k"]
    attention = MultiHeadAttention(AttentionConfig(width=width, heads=1, key_dim=size, bias=False))
    count = sum(layer.weight.numel() for layer in (attention.query, attention.key, attention.value))
    return [source.step("parameters", f"3 · {width} · {size}", count)]


def projections(source: Source) -> list[Step]:
    """`X W` for the three matrices."""
    problem = _projecting(source, transposed=True).problem(tensor(source.inputs["X"])[None])
    found = {"Q": problem.q, "K": problem.k, "V": problem.v}
    return [source.step(name, f"X W_{name}", value[0, 0]) for name, value in found.items()]


def self_attention_steps(source: Source) -> list[Step]:
    """The whole of self-attention with identity projections."""
    x = tensor(source.inputs["X"])[None]
    attention = one_head(x.shape[2])
    problem = attention.problem(x)
    return [
        source.step("scores", "X Xᵀ", scores_of(one_head(x.shape[2], "dot").problem(x))),
        source.step("scaled", "X Xᵀ / √3", scores_of(problem)),
        _weights(source, "softmax of each row", problem),
        source.step("output", "weights · X", attention(x)[0]),
    ]


def attention_matrix_operations(source: Source) -> list[Step]:
    """From Q, K and V to the output."""
    q, k, v = (tensor(source.inputs[name]) for name in ("Q", "K", "V"))
    size = q.shape[1]
    plain = problem_of(q, k, v, build_score("dot", 1, size, size, 1))
    problem = problem_of(q, k, v, build_score("scaled_dot", 1, size, size, 1))
    return [
        source.step("scores", "Q Kᵀ", scores_of(plain)),
        _weights(source, "softmax of each row of Q Kᵀ / √3", problem),
        source.step("output", "weights · V", attend(problem, "reference")[0, 0]),
    ]


def _weights(source: Source, formula: str, problem: Problem) -> Step:
    """Weights next to the printed ones, with a note on whether those sum to 1."""
    sums = ", ".join(f"{sum(row):.3f}" for row in source.printed["weights"])
    return source.step("weights", formula, problem.weights()[0, 0], f"The printed rows add up to {sums}.")


def masked_attention_quiz(source: Source) -> list[Step]:
    """The causal mask on given scores."""
    scores = tensor(source.inputs["scores"])
    problem = given_scores(scores, masks.Causal())
    weights = problem.weights()[0, 0]
    unmasked = float(given_scores(scores, masks.Everything()).weights()[0, 0, 1, 1])
    note = (
        "Answer B: with the mask, token 2 only sees tokens 1 and 2, with equal scores. "
        f"Without the mask it would be answer C, {unmasked:.4f}."
    )
    return [
        _masked_scores(source, problem),
        source.step("weights", "softmax of each row", weights),
        source.step("alpha_2_2", "weights[2, 2]", float(weights[1, 1]), note),
    ]


def masked_self_attention(source: Source) -> list[Step]:
    """The same mask on four words."""
    words = tuple(source.inputs["words"])
    problem = given_scores(tensor(source.inputs["scores"]), masks.Causal())
    return [
        _masked_scores(source, problem, words),
        source.step("weights", "softmax of each row", problem.weights()[0, 0], rows=words, columns=words),
    ]


def _masked_scores(source: Source, problem: Problem, words: tuple[str, ...] = ()) -> Step:
    hidden = problem.mask.to_additive(problem.queries.count, dtype=torch.float64)[0, 0]  # 0 or −∞
    masked = scores_of(problem) + hidden
    return source.step("masked", "scores + look-ahead mask", masked, rows=words, columns=words)


def contextual_apple(source: Source) -> list[Step]:
    """Rows divided by their sum, as the slide computes, and a softmax, as it says."""
    fruit, brand = (_apple_by_row_sum(source, word) for word in ("fruit", "brand"))
    row, words, values = _apple_row(source, "fruit")
    whole = given_scores(row, masks.Everything(), values)
    of_two = given_scores(row, masks.Boolean(row > 0), values)
    softmax = [
        source.step(
            "softmax_fruit",
            "softmax of the row",
            whole.weights()[0, 0],
            "Words with similarity 0 get weight as well, because exp(0) = 1.",
            columns=words,
        ),
        source.step(
            "softmax_apple_fruit",
            "mix by a softmax over fruit and apple alone",
            attend(of_two, "reference")[0, 0],
            "The other words are masked: the slide gives no vectors for them.",
        ),
    ]
    return [*fruit, *softmax, *brand]


def _apple_row(source: Source, word: str) -> tuple[Tensor, tuple[str, ...], Tensor]:
    """Apple's similarities (1, S), their words, and the words' vectors if known, else 0."""
    words = tuple(source.inputs["words"][word])
    known = {name: source.inputs[name] for name in ("apple", word)}
    values = tensor([known.get(name, [0, 0]) for name in words])
    return tensor([source.inputs["similarity"][word]]), words, values


def apple_sentence_two(source: Source) -> list[Step]:
    """The second sentence alone, by row sums and by a softmax."""
    row, words, values = _apple_row(source, "brand")
    of_two = given_scores(row, masks.Boolean(row > 0), values)
    whole = given_scores(row, masks.Everything()).weights()[0, 0]
    mix = "mix by a softmax over brand and apple alone"
    return [
        *_apple_by_row_sum(source, "brand"),
        source.step("softmax_row", "softmax of the row", whole, columns=words),
        source.step("softmax_apple", mix, attend(of_two, "reference")[0, 0]),
    ]


def _apple_by_row_sum(source: Source, word: str) -> list[Step]:
    """x / Σx is the softmax of log x; a similarity of 0 has log 0 = −∞ and is masked instead."""
    row, words, values = _apple_row(source, word)
    problem = given_scores(row.clamp(min=1e-30).log(), masks.Boolean(row > 0), values)
    apple, other = source.inputs["apple"], source.inputs[word]
    mix = f"the mix of apple = {apple} and {word} = {other} by these weights"
    return [
        source.step(f"weights_{word}", "row / sum of the row", problem.weights()[0, 0], columns=words),
        source.step(f"apple_{word}", mix, attend(problem, "reference")[0, 0]),
    ]


def dot_product_growth(source: Source) -> list[Step]:
    """The dot product and the scaled one, side by side."""
    pairs = source.inputs["pairs"]
    dots, scaled = (
        [
            float(build_score(name, 1, len(q), len(k), 1).pairs(tensor([[[q]]]), tensor([[[k]]])))
            for q, k in pairs
        ]
        for name in ("dot", "scaled_dot")
    )
    columns = tuple(f"{q} · {k}" for q, k in pairs)
    return [
        source.step("dots", "q · k", dots, columns=columns),
        source.step("scaled", "q · k / √d", scaled, "Divided by √d they grow more slowly.", columns=columns),
    ]
