"""The lectures' examples of whole layers and of the whole model, recomputed with the library's layers.

Shapes: T tokens, S keys, E model width; one row, float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from clearhead.lectures.attention import given_scores, one_head, set_weight, tensor
from clearhead.lectures.step import Source, Step
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, attend, masks
from clearhead.nn.layers import NormConfig, build_norm
from clearhead.nn.positions import Sinusoidal
from clearhead.nn.tokens import Tokens

HALF = 0.005  # of a unit of the second decimal: how far off a printed weight may be
ROUNDED = 0.05  # the same for a score printed to one decimal


def identity_heads(width: int, heads: int) -> MultiHeadAttention:
    """Heads side by side whose four matrices are the identity."""
    attention = MultiHeadAttention(AttentionConfig(width=width, heads=heads, bias=False)).double()
    for linear in (attention.query, attention.key, attention.value, attention.output):
        set_weight(linear, torch.eye(width))
    return attention.requires_grad_(False)


def whole_model(source: Source) -> list[Step]:
    """Positions and their sum with the words; then whether the printed weights can be a softmax at all."""
    x, words = tensor(source.inputs["X"])[None], tuple(source.inputs["words"])
    scheme, tokens = Sinusoidal(), Tokens.padded(x.shape[1])
    block = tensor(source.inputs["scores"])[:3]
    printed = tensor([[float(cell) for cell in row] for row in source.printed["weights_block"]])
    shares = given_scores(block, masks.Everything()).weights()[0, 0] * printed.sum(1, keepdim=True)
    shape = identity_heads(x.shape[2], source.inputs["heads"]).weights(x).shape[1:]
    few = words[:3]
    impossible = [
        [_impossible(s, w, off) for s, w in zip(block, printed, strict=True)] for off in (0, ROUNDED)
    ]
    return [
        source.step(
            "PE", "sin or cos of pos / 10000^(2i/4)", scheme.embed(torch.zeros_like(x), tokens)[0], rows=words
        ),
        source.step("X_input", "X + PE", scheme.embed(x, tokens)[0], rows=words),
        source.step(
            "scores_shape",
            "shape of the scores of two heads",
            [list(shape)],
            columns=("heads", "queries", "keys"),
        ),
        source.step(
            "weights_block",
            "each printed row's total, shared out by a softmax of the printed scores",
            shares,
            "A softmax keeps ratios, whatever is in the columns that the slide leaves out.",
            rows=few,
            columns=words[:4],
        ),
        source.step(
            "impossible",
            "ratios of printed weights, of six in a row, that no rounding can explain",
            impossible,
            rows=("scores exact", "scores rounded"),
            columns=few,
        ),
    ]


def _impossible(scores: Tensor, weights: Tensor, off: float) -> int:
    """How many ratios of two weights cannot be exp(difference of their scores), each rounded as printed."""
    count = 0
    for i in range(len(scores)):
        for j in range(i + 1, len(scores)):
            least = math.log((weights[i] - HALF) / (weights[j] + HALF))
            most = math.log((weights[i] + HALF) / (weights[j] - HALF))
            apart = float(scores[i] - scores[j])
            count += not least <= apart + 2 * off + 1e-9 or not apart - 2 * off - 1e-9 <= most
    return count


def multi_head_split(source: Source) -> list[Step]:
    """Two heads of size 2, one of size 4, and the parameter count of each interpretation."""
    x, heads = tensor(source.inputs["X"])[None], source.inputs["heads"]
    width = x.shape[2]
    several, single = identity_heads(width, heads), identity_heads(width, 1)
    weights, size = several.weights(x)[0], width // heads
    whole = sum(parameter.numel() for parameter in several.parameters())
    sliced = 3 * heads * size * size + width * width
    one = sum(parameter.numel() for parameter in single.parameters())
    shapes = [
        [*x.shape[1:]],
        [*several.problem(x).q.shape[2:]],
        [*weights.shape[1:]],
        [*several(x).shape[1:]],
    ]
    return [
        source.step(
            "shapes",
            "of what passes through",
            shapes,
            rows=("X", "q of a head", "scores of a head", "output"),
        ),
        source.step("weights_head1", "softmax(q kᵀ / √2) of columns 1 and 2", weights[0]),
        source.step("weights_head2", "softmax(q kᵀ / √2) of columns 3 and 4", weights[1]),
        source.step("output", "both heads concatenated, times W_O", several(x)[0]),
        source.step(
            "one_head_of_size_4",
            "softmax(X Xᵀ / √4) X",
            single(x)[0],
            "One head mixes differently: it has one table of weights for all features.",
        ),
        source.step(
            "parameters",
            "of W_Q, W_K, W_V and W_O",
            [whole, sliced, one],
            columns=("projected", "sliced", "one head"),
        ),
    ]


def training_and_inference(source: Source) -> list[Step]:
    """All states in one masked pass, and the last state of each prefix by itself."""
    x, prefixes = tensor(source.inputs["X"])[None], source.inputs["prefixes"]
    attention, causal, words = one_head(x.shape[2]), masks.Causal(), tuple(source.inputs["words"])
    whole, open_whole = attention(x, mask=causal)[0], attention(x)[0]
    hidden = [attention(x[:, :n], mask=causal)[0, -1] - whole[n - 1] for n in prefixes]
    seen = [attention(x[:, :n])[0, -1] - open_whole[n - 1] for n in prefixes]
    columns = tuple(f"h_{n}" for n in prefixes)
    counts = [x.shape[1], sum(prefixes), prefixes[0] + len(prefixes) - 1]
    return [
        source.step("h", "softmax(X Xᵀ / 2 with the causal mask) X", whole, rows=words),
        source.step(
            "masked",
            "largest difference of a prefix's last state from h",
            [float(d.abs().max().round(decimals=12)) for d in hidden],
            "The mask makes training and generation agree.",
            columns=columns,
        ),
        source.step(
            "unmasked",
            "the same without the mask",
            [float(d.abs().max()) for d in seen],
            "Without it they do not.",
            columns=columns,
        ),
        source.step(
            "positions",
            "positions computed for eight tokens, or for three new ones",
            counts,
            columns=("training", "inference", "with a cache"),
        ),
    ]


def cross_attention_student(source: Source) -> list[Step]:
    """Scores that give the printed weights, and the values averaged with them."""
    weights, vectors = tensor([source.inputs["weights"]]), tensor(source.inputs["vectors"])
    scores = (weights / weights.min()).log()
    problem = given_scores(scores, masks.Everything(), vectors)
    words, asking = tuple(source.inputs["source"]), len(source.inputs["target"])
    table = identity_heads(2, 1).weights(torch.zeros(1, asking, 2).double(), vectors[None])
    return [
        source.step("sum_of_weights", "0.15 + 0.05 + 0.8", float(weights.sum())),
        source.step("scores", "log(weight / 0.05): the scores up to a constant", scores, columns=words),
        source.step("weights", "softmax of the scores", problem.weights()[0, 0], columns=words),
        source.step("student", "weights · values", attend(problem, "reference")[0, 0]),
        source.step(
            "weights_shape",
            "shape of all weights",
            [list(table.shape[2:])],
            columns=("target words", "source words"),
        ),
    ]


def keras_sizes(source: Source) -> list[Step]:
    """Our weights, which are matrices, in Keras's shapes, for three sizes."""
    width, tokens = source.inputs["width"], source.inputs["tokens"]
    parts = ("query", "key", "value", "output")
    names = tuple(f"{part} {kind}" for part in parts for kind in ("weight", "bias"))
    steps, counts, tables, cases = [], [], [], source.inputs["cases"]
    for heads, size in cases:
        attention = MultiHeadAttention(AttentionConfig(width=width, heads=heads, key_dim=size))
        shapes: list[tuple[int, ...]] = []
        for linear in (attention.query, attention.key, attention.value):
            shapes.append(tuple(linear.weight.T.unflatten(1, (heads, size)).shape))
            shapes.append(tuple(linear.bias.unflatten(0, (heads, size)).shape))
        shapes.append(tuple(attention.output.weight.T.unflatten(0, (heads, size)).shape))
        shapes.append(tuple(attention.output.bias.shape))
        named = "shapes" if (heads, size) == (3, 2) else f"shapes_h{heads}_k{size}"
        steps.append(
            source.step(named, f"shape of each parameter: heads {heads}, key_dim {size}", shapes, rows=names)
        )
        counts.append(sum(parameter.numel() for parameter in attention.parameters()))
        x = torch.zeros(1, tokens, width)
        tables.append([*attention.weights(x).shape[1:], *attention(x).shape[1:]])
    labels = tuple(f"heads {heads}, key_dim {size}" for heads, size in cases)
    axes = ("heads", "queries", "keys", "tokens out", "width out")
    return [
        *steps,
        source.step("parameters", "3 · (16·h·k + h·k) + h·k·16 + 16", counts, columns=labels),
        source.step(
            "weights", "shape of the attention weights and of the output", tables, rows=labels, columns=axes
        ),
    ]


def layer_norm(source: Source) -> list[Step]:
    """By the correct formula, by ours with its epsilon, and by the one on the slide."""
    x = tensor(source.inputs["x"])  # (1, E)
    mean, deviation = x.mean(), x.std(correction=0)
    own = build_norm(NormConfig(eps=1e-5), x.shape[1]).double()
    total = x.sum()
    spread = (x - total).square().mean().sqrt()
    printed, root = (x - total) / spread.sqrt(), (x - mean) / deviation.sqrt()
    figures = [
        float(total),
        float(spread),
        float(spread.sqrt()),
        float(printed.mean()),
        float(printed.std(correction=0)),
    ]
    names = ("mean", "deviation", "√ deviation", "mean of output", "deviation of output")
    return [
        source.step(
            "mean and deviation",
            "over the four features",
            [float(mean), float(deviation)],
            columns=("mean", "deviation"),
        ),
        source.step("output", "(x − mean) / deviation", (x - mean) / deviation),
        source.step(
            "output_epsilon",
            "the library's layer: (x − mean) / √(variance + 10⁻⁵)",
            own(x).detach(),
            "The epsilon moves the sixth digit.",
        ),
        source.step("as_printed", "(x − Σx) / √σ, as the slide has it", printed),
        source.step("as_printed_figures", "what that formula does", figures, columns=names),
        source.step(
            "only_the_root",
            "with the right mean, and √σ",
            root,
            f"Its deviation is {float(root.std(correction=0)):.6f}, not 1.",
        ),
    ]
