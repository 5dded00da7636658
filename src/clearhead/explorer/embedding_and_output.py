"""The steps below the first layer and above the last: tokens to vectors, and vectors to words or classes.

Shapes: S source tokens, T target tokens, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.explorer.steps import Axis, Box, Get, Step
from clearhead.explorer.sublayers import NORM, batched
from clearhead.explorer.tags import side_by_side
from clearhead.models.config import ModelConfig
from clearhead.models.heads import Head
from clearhead.nn.layers import InputEmbedding, Output
from clearhead.nn.tokens import Tokens

# Scheme → what it adds at each position.
_POSITIONS = {
    "sinusoidal": "PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(…)",
    "learned": "P[pos]",
}
# Pooling → its formula, and the same in words.
_POOLED = {
    "first": ("x₁", "Its first token's."),
    "mean": ("mean(x₁ … x_n)", "The mean of all its tokens'."),
    "last": ("x_n", "Its last token's, which has read all of it."),
}


def embedding_boxes(
    stack: str, embedding: InputEmbedding, ids: Tensor, tokens: Axis, config: ModelConfig, get: Get
) -> list[Box]:
    """Tokens, their ids, the rows of the table, and what is added to them; `ids` is (1, T)."""
    wide = (tokens, ("feature", config.width))
    table, where = embedding.table, Tokens.padded(ids.shape[1], device=ids.device)
    number = Step(f"{stack}.ids", "ids", "id of each token", (tokens,), "", lambda: ids[0])
    note, last = "One row of the table for each token.", f"{stack}.rows"
    found = Step(last, "embedding", "E[id]", wide, note, lambda: F.embedding(ids, table.weight)[0])
    inside = [number, found]
    if table.factor != 1.0:
        last = f"{stack}.scaled"
        note = f"√d = √{config.width} = {table.factor:g}, so positions do not drown out the words."
        inside.append(Step(last, "embedding × √d", "E[id] · √d", wide, note, lambda: table(ids)[0]))
    boxes = [
        Box(f"{stack}.tokens", "Tokens", "tokens", stack, None, [number]),
        Box(f"{stack}.table", "Embedding", "embedding", stack, None, inside),
    ]
    position = embedding.position
    if position.in_embedding:
        nothing = torch.zeros(1, ids.shape[1], config.width, device=ids.device)

        def placed(x: Tensor) -> Tensor:
            return position.embed(x, where)[0]

        formula = _POSITIONS.get(config.position.name, "p(pos)").replace("10000", f"{config.position.base:g}")
        note = "What is added at each position, whatever the word."
        steps = [
            Step(last, "words", inside[-1].formula, wide),
            Step(f"{stack}.positions", "positions", formula, wide, note, lambda: placed(nothing)),
            Step(f"{stack}.placed", "sum", "words + positions", wide, "", lambda: placed(table(ids))),
        ]
        boxes.append(Box(f"{stack}.position", "Positions", "position", stack, None, steps))
        last = f"{stack}.placed"
    return [*boxes, *_rest_of_embedding(stack, embedding, last, wide, get)]


def _rest_of_embedding(
    stack: str, embedding: InputEmbedding, last: str, wide: tuple[Axis, Axis], get: Get
) -> list[Box]:
    """Token types and the norm on the sum, as in BERT."""
    boxes, types, norm = [], embedding.types, embedding.norm
    if types is not None:
        note, first = "The whole text has the first type.", torch.zeros(1, wide[0][1], dtype=torch.long)
        kind = Step(
            f"{stack}.types",
            "token type",
            "T[0]",
            wide,
            note,
            lambda: types(first.to(types.weight.device))[0],
        )
        plain, last = last, f"{stack}.typed"
        typed = Step(last, "sum", "x + type", wide, "", lambda: get(plain) + get(kind.name))
        boxes.append(Box(f"{stack}.type", "Token types", "embedding", stack, None, [kind, typed]))
    if norm is not None and not isinstance(norm, nn.Identity):
        formula = NORM["layer" if isinstance(norm, nn.LayerNorm) else "rms"]
        normed = Step(f"{stack}.embedding", "normed", formula, wide, "What the first layer reads.")
        steps = [Step(last, "sum", "x", wide), normed]
        boxes.append(Box(f"{stack}.embedding_norm", "Norm", "norm", stack, None, steps))
    return boxes


def final_norm(stack: str, last: str, wide: tuple[Axis, Axis], config: ModelConfig) -> Box:
    """The norm after the last layer."""
    steps = [
        Step(last, "input", "x", wide, "The last layer's output."),
        Step(f"{stack}.output", "normed", NORM[config.norm.kind], wide),
    ]
    return Box(f"{stack}.norm", "Norm", "norm", stack, None, steps)


def word_boxes(output: Output, hidden: Step, get: Get) -> list[Box]:
    """From the last vectors to scores over the vocabulary, and to probabilities."""
    axes = (hidden.axes[0], ("vocabulary", output.weight.shape[0]))
    formula = "x Wᵀ" + (" + b" if output.bias is not None else "")
    if output.factor != 1.0:
        formula = formula.replace("x", f"({output.factor:g} · x)")
    logits = Step("logits", "scores", formula, axes, "One score for each word of the vocabulary.")
    return _linear_and_softmax(hidden, logits, "Each row sums to 1.", get)


def _linear_and_softmax(
    read: Step, logits: Step, note: str, get: Get, columns: Sequence[int] = ()
) -> list[Box]:
    name, formula = "probabilities", "exp(sᵢ) / Σⱼ exp(sⱼ)"
    shares = Step(
        name, name, formula, logits.axes, note, lambda: side_by_side(get("logits").softmax(-1), columns)
    )
    return [
        Box("output", "Linear", "output", "top", None, [read, logits]),
        Box("softmax", "Softmax", "softmax", "top", None, [logits, shares]),
    ]


def head_boxes(head: Head, hidden: Step, config: ModelConfig, get: Get) -> list[Box]:
    """What is on top of an encoder: a class for the text, a tag or a word per token, or just a vector."""
    if head.words is not None:
        if head.transform is None:
            return word_boxes(head.words, hidden, get)
        name, formula, transform = "transformed", "activation(x W + b)", head.transform
        formula = formula if config.norm.kind == "none" else f"norm({formula})"
        changed = Step(name, name, formula, hidden.axes, "", lambda: batched(transform, get(hidden.name)))
        box = Box("transform", "Transform", "feedforward", "top", None, [hidden, changed])
        return [box, *word_boxes(head.words, changed, get)]
    classes: tuple[Axis, ...] = (("class", config.head.classes),)
    if config.head.kind == "tag":
        boxes, read, classes = [], hidden, (hidden.axes[0], *classes)
    else:
        tokens = Tokens.padded(hidden.axes[0][1])
        formula, note = _POOLED[config.head.pooling]
        formula = f"tanh({formula} W + b)" if head.pooler is not None else formula
        axes = (("feature", config.width),)

        def pooled() -> Tensor:
            return head.pooled(get(hidden.name).unsqueeze(0), tokens)[0]

        read = Step("pooled", "the text's vector", formula, axes, note, pooled)
        boxes = [Box("pool", "Pool", "pool", "top", None, [hidden, read])]
    if head.classifier is None:
        return boxes
    if config.head.kind == "number":
        number = Step("logits", "number", "x · w + b", (("number", 1),), "The model's output for the text.")
        return [*boxes, Box("output", "Linear", "output", "top", None, [read, number])]
    columns = config.head.columns
    if not columns:
        logits = Step("logits", "scores", "x Wᵀ + b", classes, "One score for each class.")
        return [*boxes, *_linear_and_softmax(read, logits, "They sum to 1.", get)]
    note = "One score for each tag, the columns side by side."
    scores = Step("scores", "scores", "x Wᵀ + b", classes, note, lambda: side_by_side(get("logits"), columns))
    return [*boxes, *_linear_and_softmax(read, scores, "Those of each column sum to 1.", get, columns)]
