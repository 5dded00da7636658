"""The attention examples, recomputed through the library's own attention.

Each function takes the example as the slide gives it and returns its steps. All
is done in float64. Shapes: T queries, S keys, E model width; one row, one head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead.lectures.step import Source, Step, as_table
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
    """Give a projection the matrix that stands on the slide, as `x @ weight.T`."""
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
    """A problem whose scores are given: with the identity as keys, a query is its own row of scores."""
    keys = torch.eye(scores.shape[1], dtype=scores.dtype)
    score = build_score("dot", 1, scores.shape[1], scores.shape[1], 1)
    return problem_of(scores, keys, keys if values is None else values, score, mask)


def tutorial_self_attention(source: Source) -> list[Step]:
    """Columns are tokens on the slide and rows are tokens here, so everything is transposed at the border."""
    printed, x = source.printed, tensor(source.inputs["X"]).T[None]  # (1, T, E)
    attention = one_head(x.shape[2])
    for linear, name in ((attention.query, "W_Q"), (attention.key, "W_K"), (attention.value, "W_V")):
        set_weight(linear, tensor(source.inputs[name]))  # W x as a column is x Wᵀ as a row
    problem = attention.problem(x)
    found = {
        "Q": ("W_Q X", problem.q[0, 0].T),
        "K": ("W_K X", problem.k[0, 0].T),
        "V": ("W_V X", problem.v[0, 0].T),
        "S": ("softmax of each column of Kᵀ Q / √2", problem.weights()[0, 0].T),
        "H": ("V S", attention(x)[0].T),
    }
    notes = {"H": "1.502 and 0.751 were added up from weights that had already been rounded."}
    return [
        Step(name, formula, as_table(value), as_table(printed[name]), notes.get(name, ""))
        for name, (formula, value) in found.items()
    ]


def projection_parameters(source: Source) -> list[Step]:
    """Counted on a real layer of that size."""
    width, size = source.inputs["d_in"], source.inputs["d_k"]
    attention = MultiHeadAttention(AttentionConfig(width=width, heads=1, key_dim=size, bias=False))
    count = sum(layer.weight.numel() for layer in (attention.query, attention.key, attention.value))
    return [
        Step("parameters", f"3 · {width} · {size}", as_table(count), as_table(source.printed["parameters"]))
    ]


def projections(source: Source) -> list[Step]:
    """`X W` for the three matrices."""
    x = tensor(source.inputs["X"])[None]
    attention = one_head(x.shape[2])
    for linear, name in ((attention.query, "W_Q"), (attention.key, "W_K"), (attention.value, "W_V")):
        set_weight(linear, tensor(source.inputs[name]).T)
    problem = attention.problem(x)
    return [
        Step(name, f"X W_{name}", as_table(value[0, 0]), as_table(source.printed[name]))
        for name, value in (("Q", problem.q), ("K", problem.k), ("V", problem.v))
    ]


def self_attention_steps(source: Source) -> list[Step]:
    """The whole of self-attention with identity projections."""
    x = tensor(source.inputs["X"])[None]
    attention = one_head(x.shape[2])
    problem = attention.problem(x)
    found = {
        "scores": ("X Xᵀ", scores_of(one_head(x.shape[2], "dot").problem(x))),
        "scaled": ("X Xᵀ / √3", scores_of(problem)),
        "weights": ("softmax of each row", problem.weights()[0, 0]),
        "output": ("weights · X", attention(x)[0]),
    }
    return _against_print(source, found)


def attention_matrix_operations(source: Source) -> list[Step]:
    """From Q, K and V to the output."""
    q, k, v = (tensor(source.inputs[name]) for name in ("Q", "K", "V"))
    size = q.shape[1]
    plain = problem_of(q, k, v, build_score("dot", 1, size, size, 1))
    problem = problem_of(q, k, v, build_score("scaled_dot", 1, size, size, 1))
    found = {
        "scores": ("Q Kᵀ", scores_of(plain)),
        "weights": ("softmax of each row of Q Kᵀ / √3", problem.weights()[0, 0]),
        "output": ("weights · V", attend(problem, "reference")[0, 0]),
    }
    return _against_print(source, found)


def _against_print(source: Source, found: dict[str, tuple[str, Tensor]]) -> list[Step]:
    """Steps that all have a printed table; printed weights are checked to add up to 1, too."""
    steps = []
    for name, (formula, value) in found.items():
        note = ""
        if name == "weights":
            sums = ", ".join(f"{sum(row):.3f}" for row in source.printed[name])
            note = f"The printed rows add up to {sums}."
        steps.append(Step(name, formula, as_table(value), as_table(source.printed[name]), note))
    return steps


def masked_attention_quiz(source: Source) -> list[Step]:
    """The causal mask on given scores."""
    scores = tensor(source.inputs["scores"])
    problem = given_scores(scores, masks.Causal())
    weights = problem.weights()[0, 0]
    unmasked = float(given_scores(scores, masks.Everything()).weights()[0, 0, 1, 1])
    return [
        _masked_scores(problem),
        Step("weights", "softmax of each row", as_table(weights)),
        Step(
            "alpha_2_2",
            "weights[2, 2]",
            as_table(float(weights[1, 1])),
            as_table(source.printed["alpha_2_2"]),
            note="Answer B: behind the mask token 2 sees tokens 1 and 2 alone, with equal scores. "
            f"Without the mask it would be answer C, {unmasked:.4f}.",
        ),
    ]


def masked_self_attention(source: Source) -> list[Step]:
    """The same mask on four words."""
    words = tuple(source.inputs["words"])
    problem = given_scores(tensor(source.inputs["scores"]), masks.Causal())
    weights = as_table(problem.weights()[0, 0])
    return [
        _masked_scores(problem, words),
        Step(
            "weights",
            "softmax of each row",
            weights,
            as_table(source.printed["weights"]),
            rows=words,
            columns=words,
        ),
    ]


def _masked_scores(problem: Problem, words: tuple[str, ...] = ()) -> Step:
    hidden = problem.mask.to_additive(problem.queries.count, dtype=torch.float64)[0, 0]  # 0 or −∞
    return Step(
        "masked", "scores + look-ahead mask", as_table(scores_of(problem) + hidden), rows=words, columns=words
    )


def contextual_apple(source: Source) -> list[Step]:
    """Rows divided by their sum, as the slide does, and a softmax, as it says."""
    fruit, brand = (_apple_by_row_sum(source, word) for word in ("fruit", "brand"))
    row, words, values = _apple_row(source, "fruit")
    whole = given_scores(row, masks.Everything(), values)
    of_two = given_scores(row, masks.Boolean(row > 0), values)
    softmax = [
        Step(
            "softmax_fruit",
            "softmax of the row",
            as_table(whole.weights()[0, 0]),
            note="Words with similarity 0 get weight as well, because exp(0) = 1.",
            columns=words,
        ),
        Step(
            "softmax_apple_fruit",
            "mix by a softmax over fruit and apple alone",
            as_table(attend(of_two, "reference")[0, 0]),
            note="The other words are masked: the slide gives no vectors for them.",
        ),
    ]
    return [*fruit, *softmax, *brand]


def _apple_row(source: Source, word: str) -> tuple[Tensor, tuple[str, ...], Tensor]:
    """Apple's similarities (1, S), the words they belong to, and the words' vectors where known, else 0."""
    words = tuple(source.inputs["words"][word])
    known = {name: source.inputs[name] for name in ("apple", word)}
    values = tensor([known.get(name, [0, 0]) for name in words])
    return tensor([source.inputs["similarity"][word]]), words, values


def _apple_by_row_sum(source: Source, word: str) -> list[Step]:
    """x / Σx is the softmax of log x; what is not alike at all has log 0 = −∞ and is hidden instead."""
    row, words, values = _apple_row(source, word)
    problem = given_scores(row.clamp(min=1e-30).log(), masks.Boolean(row > 0), values)
    name, apple, other = f"apple_{word}", source.inputs["apple"], source.inputs[word]
    return [
        Step(f"weights_{word}", "row / sum of the row", as_table(problem.weights()[0, 0]), columns=words),
        Step(
            name,
            f"the mix of apple = {apple} and {word} = {other} by these weights",
            as_table(attend(problem, "reference")[0, 0]),
            as_table(source.printed[name]),
        ),
    ]


def dot_product_growth(source: Source) -> list[Step]:
    """The dot product and the scaled one, side by side."""
    dots: list[float] = []
    scaled: list[float] = []
    for q, k in source.inputs["pairs"]:
        for name, found in (("dot", dots), ("scaled_dot", scaled)):
            score = build_score(name, 1, len(q), len(k), 1)
            found.append(float(score.pairs(tensor([[[q]]]), tensor([[[k]]]))))
    pairs = tuple(f"{q} · {k}" for q, k in source.inputs["pairs"])
    return [
        Step("dots", "q · k", as_table(dots), as_table(source.printed["dots"]), columns=pairs),
        Step(
            "scaled",
            "q · k / √d",
            as_table(scaled),
            note="Divided by √d they grow more slowly.",
            columns=pairs,
        ),
    ]


def keras_layer(source: Source) -> list[Step]:
    """Our weights, which are matrices, seen in the shapes Keras gives them."""
    width, heads, size = (source.inputs[name] for name in ("width", "heads", "key_dim"))
    attention = MultiHeadAttention(AttentionConfig(width=width, heads=heads, key_dim=size))
    shapes: list[tuple[int, ...]] = []
    for linear in (attention.query, attention.key, attention.value):
        shapes.append(tuple(linear.weight.T.unflatten(1, (heads, size)).shape))
        shapes.append(tuple(linear.bias.unflatten(0, (heads, size)).shape))
    shapes.append(tuple(attention.output.weight.T.unflatten(0, (heads, size)).shape))
    shapes.append(tuple(attention.output.bias.shape))
    names = [f"{part} {kind}" for part in ("query", "key", "value", "output") for kind in ("weight", "bias")]
    count = sum(parameter.numel() for parameter in attention.parameters())
    weights = attention.weights(torch.zeros(1, source.inputs["tokens"], width))
    return [
        Step(
            "shapes",
            "shape of each parameter",
            as_table(shapes),
            as_table(source.printed["shapes"]),
            rows=tuple(names),
        ),
        Step("parameters", "3 · (16·3·2 + 3·2) + 3·2·16 + 16", as_table(count)),
        Step(
            "weights",
            "shape of the attention weights of six tokens, returned on request",
            as_table([tuple(weights.shape)]),
            columns=("batch", "heads", "queries", "keys"),
        ),
    ]
