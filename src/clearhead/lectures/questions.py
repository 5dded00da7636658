"""The lectures' questions about similarity, scale, cost, positions and architectures, recomputed.

Shapes: T queries, S keys, E model width; one row, one head, float64.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from clearhead.lectures.attention import given_scores, problem_of, scores_of, tensor
from clearhead.lectures.step import Source, Step
from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, attend, build_score, masks
from clearhead.nn.costs import Sight, attention_products, feedforward_products
from clearhead.nn.layers import FeedForward, FeedForwardConfig
from clearhead.nn.positions import Sinusoidal
from clearhead.nn.positions.check import CANDIDATES, check_position, slow_cosines
from clearhead.nn.tokens import Tokens

BLOCK = 20  # draws at a time


def row_sum_weights(rows: Tensor) -> Tensor:
    """Rows divided by their sum: x / Σx is the softmax of log x, with log 0 masked."""
    return given_scores(rows.clamp(min=1e-30).log(), masks.Boolean(rows > 0)).weights()[0, 0]


def basic_self_attention(source: Source) -> list[Step]:
    """The table, the formula, and the formula on the printed vectors."""
    words, alike = tuple(source.inputs["words"]), tensor(source.inputs["similarity"])
    vectors = {name: tensor(source.inputs[name]) for name in ("apple", "fruit", "brand")}
    pairs = (("apple", "fruit"), ("apple", "brand"), ("apple", "apple"), ("fruit", "fruit"))
    dots = [float(vectors[a] @ vectors[b]) for a, b in pairs]
    cosines = [
        float(torch.cosine_similarity(vectors["apple"], vectors[other], dim=0))
        for other in ("fruit", "brand")
    ]
    two = torch.stack([vectors["fruit"], vectors["apple"]])
    layer = problem_of(two, two, two, build_score("dot", 1, 2, 2, 1))
    names = ("fruit", "apple")
    both = (words, words)
    return [
        source.step("weights_row_sum", "each row / its sum", row_sum_weights(alike), "", *both),
        source.step(
            "weights_softmax",
            "softmax of each row",
            given_scores(alike, masks.Everything()).weights()[0, 0],
            "",
            *both,
        ),
        source.step("parameters", "what is learned", sum(one.numel() for one in layer.score.parameters())),
        source.step(
            "dots", "x_i · x_j of the printed vectors", dots, columns=tuple(f"{a} · {b}" for a, b in pairs)
        ),
        source.step(
            "cosines", "the same over both lengths", cosines, columns=("apple, fruit", "apple, brand")
        ),
        source.step(
            "layer_weights", "softmax(X Xᵀ) of fruit and apple", layer.weights()[0, 0], "", names, names
        ),
        source.step("z", "weights · X", attend(layer, "reference")[0, 0], rows=names),
    ]


def look_up_table(source: Source) -> list[Step]:
    """A query that grows sharper until the mixture is one row of the table."""
    keys, query = tensor(source.inputs["keys"]), tensor([source.inputs["query"]])
    values = tensor(source.inputs["values"])[:, None]
    score = build_score("dot", 1, 2, 2, 1)
    sharp = source.inputs["sharpness"]
    problems = [problem_of(one * query, keys, values, score) for one in sharp]
    scores = scores_of(problem_of(query, keys, values, score))
    rows = tuple(f"sharpness {one}" for one in sharp)
    weights = torch.cat([one.weights()[0, 0] for one in problems])
    soft = torch.cat([attend(one, "reference")[0, 0] for one in problems])
    return [
        source.step("scores", "K q", scores),
        source.step("hard", "the value of the nearest key", float(values[scores.argmax(), 0])),
        source.step("weights", "softmax(sharpness · K q)", weights, rows=rows),
        source.step(
            "soft", "weights · values", soft, "0 is the plain mean, and the limit is the table.", rows=rows
        ),
    ]


def softmax_gradient(source: Source) -> list[Step]:
    """One score versus 0, the slide's products before and after scaling, and random products by width."""
    given = source.inputs
    scaled = [dot / math.sqrt(size) for dot, size in zip(given["dots"], given["dimensions"], strict=True)]
    spread, plain, divided = random_scores(tuple(given["widths"]), given["draws"], given["keys"])
    columns = tuple(f"d = {width}" for width in given["widths"])
    rows = ("gradient norm", "largest weight")
    return [
        source.step(
            "slope_e6",
            "10⁶ p(1 − p), the derivative of a softmax over a score and 0",
            [1e6 * _slope(x) for x in given["scores"]],
            columns=tuple(f"score {x}" for x in given["scores"]),
        ),
        source.step(
            "slope_scaled_e6",
            "the same for the products over √d",
            [1e6 * _slope(x) for x in scaled],
            columns=tuple(f"{x:.6g}" for x in scaled),
        ),
        source.step("deviation", "deviation of q · k", spread, columns=columns),
        source.step(
            "random_unscaled",
            "softmax(K q): Frobenius norm of its Jacobian, and its largest weight",
            plain,
            rows=rows,
            columns=columns,
        ),
        source.step("random_scaled", "softmax(K q / √d): the same", divided, rows=rows, columns=columns),
    ]


def _slope(score: float) -> float:
    """An entry of the softmax's Jacobian, by autograd through the library's attention."""
    scores = tensor([[score, 0.0]]).requires_grad_()
    weight = given_scores(scores, masks.Everything()).weights()[0, 0, 0, 0]
    [gradient] = torch.autograd.grad(weight, scores)
    return float(gradient[0, 0])


@functools.cache
def random_scores(
    widths: tuple[int, ...], draws: int, keys: int
) -> tuple[list[float], list[list[float]], list[list[float]]]:
    """The deviation of q · k, and the Jacobian's norm and the largest weight without and with scaling."""
    rng = np.random.default_rng(0)
    spread: list[float] = []
    found: tuple[list[list[float]], list[list[float]]] = ([[], []], [[], []])
    for width in widths:
        q = rng.standard_normal((draws, width))
        # in blocks, which draw the same numbers as all at once and fit into the processor's cache
        blocks = [
            np.einsum(
                "nd,nkd->nk", q[n : n + BLOCK], rng.standard_normal((len(q[n : n + BLOCK]), keys, width))
            )
            for n in range(0, draws, BLOCK)
        ]
        dots = torch.from_numpy(np.concatenate(blocks))
        spread.append(float(dots.std(correction=0)))
        for rows, scores in zip(found, (dots, dots / math.sqrt(width)), strict=True):
            p = given_scores(scores, masks.Everything()).weights()[0, 0]  # (draws, keys)
            jacobian = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
            rows[0].append(float(jacobian.flatten(1).norm(dim=1).mean()))
            rows[1].append(float(p.amax(1).mean()))
    return spread, *found


def which_is_correct(source: Source) -> list[Step]:
    """FLOPs of real layers, as the planner counts them."""
    width, lengths = source.inputs["width"], source.inputs["lengths"]
    feed = FeedForward(width, FeedForwardConfig(width=source.inputs["inner"]))
    layers = [
        MultiHeadAttention(AttentionConfig(width=width, heads=heads)) for heads in source.inputs["heads"]
    ]
    sights = [Sight(1, n, n) for n in lengths]
    attention = [
        [sum(one.forward for one in attention_products("", layer, sight)) for sight in sights]
        for layer in layers
    ]
    forward = [sum(one.forward for one in feedforward_products("", feed, sight)) for sight in sights]
    columns = tuple(f"n = {n}" for n in lengths)
    rows = (
        *(f"attention, {heads} head{'s' if heads > 1 else ''}" for heads in source.inputs["heads"]),
        "feed-forward",
    )
    scores = [[heads * n * n for n in lengths] for heads in source.inputs["heads"]]
    return [
        source.step(
            "flops",
            "8nd² + 4n²d, and 16nd²",
            [*attention, forward],
            "The cost does not depend on the number of heads.",
            rows=rows,
            columns=columns,
        ),
        source.step("crossing", "attention costs more beyond n = 2d", 2 * width),
        source.step("stored", "entries of the tables of scores", scores, rows=rows[:2], columns=columns),
    ]


def cat_monkey_dog(source: Source) -> list[Step]:
    """The tutorial's products by word."""
    words, products = tuple(source.inputs["words"]), tensor(source.inputs["products"])
    weights = given_scores(products.T / math.sqrt(2), masks.Everything()).weights()[0, 0]  # (asks, is asked)
    most = [float(row.argmax()) + 1 for row in weights.round(decimals=9)]
    return [
        source.step("S", "softmax of each column of Kᵀ Q / √2", weights.T, "", words, words),
        source.step(
            "most",
            "who gets most: 1 cat, 2 monkey, 3 dog (the first of equals)",
            most,
            "Monkey looks at itself and at dog alike.",
            columns=words,
        ),
    ]


def cross_attention_questions(source: Source) -> list[Step]:
    """The entropies of the artificial language: the lower bound for any model."""
    words, length = source.inputs["words"], source.inputs["length"]
    register = math.log(source.inputs["registers"])
    everything = register / (length + 1)
    blind = (register + length * math.log(words)) / (length + 1)
    note = "A loss below the last floor is a model that reads the answer in its input."
    return [
        source.step("floor", "ln 2 / 9: only the register is free", everything),
        source.step("floor_without_source", "(ln 2 + 8 ln 16) / 9", blind),
        source.step(
            "floor_of_stories", "ln 2: two words may follow each", math.log(source.inputs["successors"]), note
        ),
        source.step("chance", "1 / 16", 1 / words),
    ]


def position_guidelines(source: Source) -> list[Step]:
    """The library's own check, and the third candidate in numbers."""
    names = list(CANDIDATES)
    reports = [check_position(name) for name in names]
    rules = ("unique", "consistent", "bounded")
    kept = [[int(bool(getattr(report, rule))) for rule in rules] for report in reports]
    sizes = source.inputs["sizes"]
    columns = tuple(f"T_max {t}, d {d}" for t, d in sizes)
    tables = [slow_cosines(t, d)(t + 1) for t, d in sizes]
    gaps = [float((table[1:] - table[:-1]).abs().amax(1).min()) for table in tables]
    span = [[float(table.min()), float(table.max())] for table in tables]
    formats = (torch.float32, torch.float16, torch.bfloat16)
    different = [[len(table.to(kind).double().unique(dim=0)) for table in tables] for kind in formats]
    return [
        source.step("rules", "1 where the rule is kept", kept, rows=("PE1", "PE2", "PE3"), columns=rules),
        source.step(
            "gap_e6",
            "10⁶ × smallest gap between neighbours of PE3",
            [1e6 * gap for gap in gaps],
            columns=columns,
        ),
        source.step(
            "first_gap_e6",
            "10⁶ × (1 − cos(1/T_max)), between 0 and 1",
            [1e6 * (1 - math.cos(1 / t)) for t, _ in sizes],
            "The cosine falls strictly up to T_max, so neighbours are the nearest.",
            columns=columns,
        ),
        source.step("range", "least and greatest feature", span, rows=columns),
        source.step(
            "different",
            "different rows, of T_max + 1",
            different,
            "Low precision calls some of them equal.",
            rows=("float32", "float16", "bfloat16"),
            columns=columns,
        ),
        source.step(
            "sinusoids",
            "smallest gap of the sinusoids at these sizes",
            [_sinusoid_gap(t, d) for t, d in sizes],
            columns=columns,
        ),
    ]


@functools.cache
def _sinusoid_gap(longest: int, features: int) -> float:
    """The minimum over all pairs of rows of their largest difference."""
    rows = Sinusoidal().embed(torch.zeros(1, longest + 1, features).double(), Tokens.padded(longest + 1))[0]
    apart = torch.cdist(rows, rows, p=float("inf"))
    apart.fill_diagonal_(float("inf"))
    return float(apart.min())


def which_architecture(source: Source) -> list[Step]:
    """Parameters of the three, and which words each lets a word see."""
    given = source.inputs
    plain = {"width": given["width"], "layers": given["layers"], "vocabulary": given["vocabulary"]}
    plain |= {"attention": {"heads": given["heads"]}}
    families = ("encoder", "decoder", "encoder-decoder")
    models = [build(ModelConfig.from_dict({**plain, "family": family}), device="meta") for family in families]
    counts = [sum(one.numel() for one in model.parameters()) for model in models]
    size = 5
    seen = [masks.Everything(), masks.Causal()]
    share = [float(mask.matrix(size).double().mean()) for mask in seen]
    return [
        source.step("parameters", "of each model", counts, "Two stacks cost two stacks.", columns=families),
        source.step(
            "seen",
            "share of a text of five words that its words see",
            share,
            "What follows a word is hidden from a decoder.",
            columns=families[:2],
        ),
    ]


def reading_range(source: Source) -> list[Step]:
    """Scores and cache in numbers."""
    given = source.inputs
    tokens, layers, heads = given["tokens"], given["layers"], given["heads"]
    pairs, cache = tokens**2, 2 * layers * given["width"] * given["bytes"]
    return [
        source.step("words per token", "3000 / 4000", given["words"] / tokens),
        source.step("scores", "n², of one head and layer", pairs),
        source.step("all_scores", "n² · 96 · 96", pairs * layers * heads),
        source.step("stored_GB", "the same at two bytes each", pairs * layers * heads * given["bytes"] / 1e9),
        source.step("cache_MB", "keys and values of one token", cache / 1e6),
        source.step("cache_GB", "keys and values of 4,000 tokens", cache * tokens / 1e9),
    ]
