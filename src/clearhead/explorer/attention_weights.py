"""What the weights of each kind of attention mean, in words, and as weights of single tokens.

Most attentions weigh tokens, and a row of weights sums to 1. For the others, this says what is drawn.

Shapes: T queries, S keys, N blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clearhead.models.stack import Stack
from clearhead.nn.attention.compressed import CompressedAttention
from clearhead.nn.attention.latent import LatentAttention
from clearhead.nn.attention.linear import LinearAttention
from clearhead.nn.attention.linformer import LinformerAttention
from clearhead.nn.attention.multihead import MultiHeadAttention
from clearhead.nn.attention.nystrom import NystromAttention
from clearhead.nn.attention.performer import PerformerAttention
from clearhead.nn.attention.reformer import ReformerAttention
from clearhead.nn.attention.sparse import SparseAttention

SHARES = (
    "Negative weights count with their absolute value, rows are scaled to sum to 1, and a token that "
    "sees nothing keeps its own vector."
)
_NEAR = 1e-3  # of a sum: float32's rounding, and that of an inverse found by iteration


def attention_of(model: nn.Module, kind: str, layer: int) -> Any:
    """The module that computes the weights of a kind such as `decoder.cross`; None in a recurrent model."""
    stack, part = kind.split(".")
    found = getattr(model, stack, None)
    if not isinstance(found, Stack):
        return None
    return getattr(found.layers[layer], "attention" if part == "self" else "cross_attention")


def is_exact(attention: Any) -> bool:
    """Whether it compares every query with every key, in decoding as in training."""
    return type(attention) in (MultiHeadAttention, LatentAttention, type(None))


def counted_as_exact(model: nn.Module, kind: str, layers: int) -> str:
    """A sentence if counts of pairs and cached keys are those of exact attention; else empty."""
    parts = [attention_of(model, kind, layer) for layer in range(layers)]
    others = list(dict.fromkeys(part.config.kind for part in parts if not is_exact(part)))
    if not others:
        return ""
    named = " and ".join(f"'{one}'" for one in others)
    return (
        f"Pairs and cached keys are those of exact attention. Attention of the kind {named} compares fewer "
        f"pairs, or remembers less than all keys."
    )


def chooses_keys(attention: Any) -> bool:
    """Whether a query attends to some keys only, which may not follow from positions."""
    return isinstance(attention, (ReformerAttention, SparseAttention))


def about_weights(model: nn.Module, kind: str, layers: int) -> str:
    """What the drawn weights are, if they are not the softmax of scores; else empty."""
    found = [attention_of(model, kind, layer) for layer in range(layers)]
    heads = [str(part.config.heads) for part in found if part is not None]
    apart = ""
    if len(set(heads)) > 1:
        apart = f"Layers have {', '.join(heads)} heads: the maps of those that a layer lacks are empty."
    return " ".join(one for one in (_of_layers(found), apart) if one)


def _of_layers(attentions: list[Any]) -> str:
    """What the weights of several layers are, each said once."""
    said: dict[str, list[int]] = {}
    for number, attention in enumerate(attentions, start=1):
        said.setdefault(_about(attention), []).append(number)
    if len(said) == 1:
        return next(iter(said))
    parts = []
    for sentence, found in said.items():
        numbers = ", ".join(str(one) for one in found)
        named = f"Layers {numbers}" if len(found) > 1 else f"Layer {numbers}"
        parts.append(f"{named}: {sentence or 'softmax of scores.'}")
    return " ".join(parts)


def _about(attention: Any) -> str:
    config: Any = getattr(attention, "config", None)
    if isinstance(attention, (LinearAttention, PerformerAttention)):
        which = "random features" if isinstance(attention, PerformerAttention) else "elu(x) + 1"
        return f"A weight is φ(q)·φ(k), φ being {which}, divided by the sum of its row."
    if isinstance(attention, LinformerAttention):
        return (
            f"Tokens look at {config.projected} learned mixtures of the text. The map shows the resulting "
            "weight of each token: the weights of the mixtures times how much of the token each "
            "contains. Weights may be negative, and rows need not sum to 1."
        )
    if isinstance(attention, NystromAttention):
        beside = ", with the convolution over neighbouring values in it" if config.convolution else ""
        return (
            f"The map shows the product of three matrices through {config.landmarks} landmarks{beside}. "
            "Weights may be negative, and rows need not sum to 1."
        )
    if isinstance(attention, ReformerAttention):
        return (
            "A token looks at tokens with the same hash, but not at itself; rounds are combined as in "
            "the layer. When decoding, it looks at all earlier tokens exactly."
        )
    if isinstance(attention, CompressedAttention):
        return (
            f"Tokens look at blocks made from {config.reads} tokens. The map spreads a block's weight "
            "evenly over its tokens, although the convolution may use some more than others; the Inside "
            "view has the weights of the blocks."
        )
    if isinstance(attention, SparseAttention):
        return f"Softmax of scores within the pattern {attention.pattern!r}; weights outside it are 0."
    return ""


def tokens_of_blocks(attention: CompressedAttention, tokens: int) -> list[range]:
    """The tokens that each block of a text is computed from."""
    stride, reads = attention.config.stride, attention.config.reads
    ends = range(stride, tokens + stride, stride)
    return [range(max(0, end - reads), min(end, tokens)) for end in ends]


def by_token(attention: Any, weights: Tensor, tokens: int) -> Tensor:
    """Weights of blocks (…, T, N) divided evenly among their tokens, (…, T, S); others unchanged."""
    if not isinstance(attention, CompressedAttention):
        return weights
    blocks = tokens_of_blocks(attention, tokens)
    each = torch.zeros(len(blocks), tokens, dtype=weights.dtype, device=weights.device)
    for number, read in enumerate(blocks):
        each[number, list(read)] = 1 / len(read)
    return weights @ each


def are_shares(weights: Tensor) -> bool:
    """Whether no weight is negative and each row sums to 1."""
    return bool((weights >= 0).all()) and bool(((weights.sum(-1) - 1).abs() < _NEAR).all())


def as_shares(weights: Tensor) -> Tensor:
    """Rows (…, T, S) that sum to 1, by the size of each weight; a row of 0 becomes the token itself.

    >>> as_shares(torch.tensor([[0.0, 0.0], [0.5, -1.5]]))
    tensor([[1.0000, 0.0000],
            [0.2500, 0.7500]])
    """
    if are_shares(weights):
        return weights
    sizes = weights.abs()
    sums = sizes.sum(-1, keepdim=True)
    own = torch.eye(*weights.shape[-2:], dtype=weights.dtype, device=weights.device).expand_as(weights)
    return torch.where(sums > 0, sizes / sums.masked_fill(sums == 0, 1.0), own)
