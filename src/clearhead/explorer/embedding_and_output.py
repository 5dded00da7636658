"""The steps below the first layer and above the last: tokens to vectors, and vectors to words or classes.

Shapes: S source tokens, T target tokens, E model width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.explorer.steps import Axis, Box, Get, Step
from clearhead.explorer.sublayers import NORM
from clearhead.models.config import ModelConfig
from clearhead.models.heads import Head
from clearhead.nn.layers import InputEmbedding, Output
from clearhead.nn.tokens import Tokens


def embedding_boxes(
    stack: str, embedding: InputEmbedding, ids: Tensor, tokens: Axis, config: ModelConfig, get: Get
) -> list[Box]:
    """Tokens, their ids, the rows of the table, and what is added to them; `ids` is (1, T)."""
    wide = (tokens, ("feature", config.width))
    table, where = embedding.table, Tokens.padded(ids.shape[1], device=ids.device)
    scaled = table.factor != 1.0
    words = f"{stack}.scaled" if scaled else f"{stack}.rows"
    number = Step(f"{stack}.ids", "ids", "id of each token", (tokens,), "", lambda: ids[0])
    rows = Step(
        f"{stack}.rows",
        "embedding",
        "E[id]",
        wide,
        "One row of the table for each token.",
        lambda: F.embedding(ids, table.weight)[0],
    )
    inside = [number, rows]
    if scaled:
        note = f"√d = √{config.width} = {table.factor:g}, so that positions do not drown the words."
        inside.append(Step(words, "embedding × √d", "E[id] · √d", wide, note, lambda: table(ids)[0]))
    boxes = [
        Box(f"{stack}.tokens", "Tokens", "tokens", stack, None, (number,)),
        Box(f"{stack}.table", "Embedding", "embedding", stack, None, tuple(inside)),
    ]
    last, position = words, embedding.position
    if position.in_embedding:
        placed, nothing = f"{stack}.placed", torch.zeros(1, ids.shape[1], config.width, device=ids.device)
        formula = {
            "sinusoidal": "PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(…)",
            "learned": "P[pos]",
        }.get(config.position.name, "p(pos)")
        formula = formula.replace("10000", f"{config.position.base:g}")
        steps = (
            Step(words, "words", "E[id] · √d" if scaled else "E[id]", wide),
            Step(
                f"{stack}.positions",
                "positions",
                formula,
                wide,
                "What is added at each place, whatever the word.",
                lambda: position.embed(nothing, where)[0],
            ),
            Step(placed, "sum", "words + positions", wide, "", lambda: position.embed(table(ids), where)[0]),
        )
        boxes.append(Box(f"{stack}.position", "Positions", "position", stack, None, steps))
        last = placed
    return [*boxes, *_rest_of_embedding(stack, embedding, last, wide, get)]


def _rest_of_embedding(
    stack: str, embedding: InputEmbedding, last: str, wide: tuple[Axis, Axis], get: Get
) -> list[Box]:
    """Token types and the norm on the sum, as BERT has them."""
    boxes, types, norm = [], embedding.types, embedding.norm
    final = Step(f"{stack}.embedding", "sum", "x", wide, "What the first layer reads.")
    if types is not None:
        kind = Step(
            f"{stack}.types",
            "token type",
            "T[0]",
            wide,
            "The whole text is of the first kind.",
            lambda: types(torch.zeros(1, wide[0][1], dtype=torch.long, device=types.weight.device))[0],
        )
        plain = last  # as it is now: the name moves on below
        typed = Step(
            f"{stack}.typed", "sum", "x + type", wide, "", lambda: get(plain) + get(f"{stack}.types")
        )
        boxes.append(Box(f"{stack}.type", "Token types", "embedding", stack, None, (kind, typed)))
        last = typed.name
    if norm is not None:
        formula = NORM["rms" if not isinstance(norm, nn.LayerNorm) else "layer"]
        steps = (Step(last, "sum", "x", wide), Step(final.name, "normed", formula, wide, final.note))
        boxes.append(Box(f"{stack}.embedding_norm", "Norm", "norm", stack, None, steps))
    return boxes


def final_norm(stack: str, last: str, wide: tuple[Axis, Axis], config: ModelConfig) -> Box:
    """The norm after the last layer."""
    steps = (
        Step(last, "input", "x", wide, "What the last layer left on the stream."),
        Step(f"{stack}.output", "normed", NORM[config.norm.kind], wide),
    )
    return Box(f"{stack}.norm", "Norm", "norm", stack, None, steps)


def word_boxes(output: Output, hidden: Step, get: Get) -> list[Box]:
    """From the last vectors to scores over the vocabulary, and to probabilities."""
    vocabulary = (hidden.axes[0], ("vocabulary", output.weight.shape[0]))
    formula = "x Wᵀ" + (" + b" if output.bias is not None else "")
    if output.factor != 1.0:
        formula = formula.replace("x", f"({output.factor:g} · x)")
    logits = Step("logits", "scores", formula, vocabulary, "One score for each word of the vocabulary.")
    shares = Step(
        "probabilities",
        "probabilities",
        "exp(sᵢ) / Σⱼ exp(sⱼ)",
        vocabulary,
        "Each row adds up to 1.",
        lambda: get("logits").softmax(-1),
    )
    return [
        Box("output", "Linear", "output", "top", None, (hidden, logits)),
        Box("softmax", "Softmax", "softmax", "top", None, (logits, shares)),
    ]


# Pooling → its formula, and the same in words.
_POOLED = {
    "first": ("x₁", "Its first token's."),
    "mean": ("mean(x₁ … x_n)", "The mean of all its tokens'."),
    "last": ("x_n", "Its last token's, which has read all of it."),
}


def head_boxes(head: Head, hidden: Step, config: ModelConfig, get: Get) -> list[Box]:
    """What stands on an encoder: a class for the text, a tag or a word for each token, or just a vector."""
    if head.words is not None:
        if head.transform is None:
            return word_boxes(head.words, hidden, get)
        transform = head.transform
        changed = Step(
            "transformed",
            "transformed",
            "norm(activation(x W + b))",
            hidden.axes,
            "",
            lambda: transform(get(hidden.name).unsqueeze(0))[0],
        )
        box = Box("transform", "Transform", "feedforward", "top", None, (hidden, changed))
        return [box, *word_boxes(head.words, changed, get)]
    tagging = config.head.kind == "tag"
    boxes, read = [], hidden
    if not tagging:
        tokens = Tokens.padded(hidden.axes[0][1])
        formula, said = _POOLED[config.head.pooling]
        formula = f"tanh({formula} W + b)" if head.pooler is not None else formula
        read = Step(
            "pooled",
            "the text's vector",
            formula,
            (("feature", config.width),),
            said,
            lambda: head.pooled(get(hidden.name).unsqueeze(0), tokens)[0],
        )
        boxes.append(Box("pool", "Pool", "pool", "top", None, (hidden, read)))
    if head.classifier is None:
        return boxes
    if config.head.kind == "number":
        number = Step("logits", "number", "x · w + b", (("number", 1),), "What the model says of the text.")
        return [*boxes, Box("output", "Linear", "output", "top", None, (read, number))]
    axes = (
        (*hidden.axes[:1], ("class", config.head.classes)) if tagging else (("class", config.head.classes),)
    )
    logits = Step("logits", "scores", "x Wᵀ + b", axes, "One score for each class.")
    shares = Step(
        "probabilities",
        "probabilities",
        "exp(sᵢ) / Σⱼ exp(sⱼ)",
        axes,
        "They add up to 1.",
        lambda: get("logits").softmax(-1),
    )
    return [
        *boxes,
        Box("output", "Linear", "output", "top", None, (read, logits)),
        Box("softmax", "Softmax", "softmax", "top", None, (logits, shares)),
    ]
