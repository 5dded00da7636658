"""Our models as pure functions of tensors, as ONNX graphs need them: all state is passed in and out.

A graph keeps no state, so a decoder's state goes in as `past` and comes out
longer. The reference kernel computes attention, with a few operations that any
runtime has. Masks say which tokens are real, 1 for real and 0 for padding: a text
may be padded on either side, and its positions count its real tokens.

Shapes: B rows, S source tokens, P past tokens, T new tokens, E model width, G
key/value heads, K and V sizes of one head, W vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.models.stack import Surroundings
from clearhead.models.state import DecoderState
from clearhead.nn.attention import KeyValues, Memory, MultiHeadAttention
from clearhead.nn.attention.masks import Mask
from clearhead.nn.layers import RMSNorm
from clearhead.nn.positions.absolute import Learned
from clearhead.nn.tokens import Place, Tokens


class Given(Mask):
    """A mask that is given, (B or 1, 1, T or 1, S)."""

    def __init__(self, visible: Tensor) -> None:
        self.visible = visible

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return self.visible


class Past(KeyValues):
    """Self-attention's keys and values so far, passed in: new ones are appended."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        super().__init__()
        self.k, self.v = k, v

    def append(self, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        assert self.k is not None
        assert self.v is not None
        self.k, self.v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        return self.k, self.v


class EncoderGraph(nn.Module):
    """`source` and `source_mask` (B, S) to the keys and values of each decoder layer's cross-attention."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embedding, self.encoder, self.decoder = model.source_embedding, model.encoder, model.decoder

    def forward(self, source: Tensor, source_mask: Tensor) -> list[Tensor]:
        """key 0, value 0, key 1, … of (B, G, S, ·)."""
        tokens = _standing(_positions(source_mask), self.embedding)
        around = Surroundings(tokens, _shown(source_mask))
        memory = self.encoder(self.embedding(source, tokens), around)
        made: list[Tensor] = []
        for layer in self.decoder.layers:
            problem = layer.cross_attention.problem(memory, memory, queries=tokens, keys=tokens)
            made += [problem.k, problem.v]
        return made


class DecoderGraph(nn.Module):
    """New tokens (B, T) after those of the past, in a decoder-only model or with a source.

    `mask` says which tokens are real: a decoder's own, past and new (B, P+T), or else the source's (B, S),
    whose keys and values are `cross`; with a source all rows are equally long.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embedding = model.embedding if hasattr(model, "embedding") else model.target_embedding
        self.decoder, self.output = model.decoder, model.output

    def forward(
        self, tokens: Tensor, mask: Tensor, past: list[Tensor], cross: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Scores (B, T, W), then key 0, value 0, … of (B, G, P+T, ·)."""
        before, new = past[0].shape[2], tokens.shape[1]
        slots = torch.arange(before + new).unsqueeze(0)
        visible = slots[:, None, None, :] <= slots[:, None, before:, None]  # (1, 1, T, P+T): not ahead
        places = slots
        memory: dict[str, Any] = {}
        if cross is None:
            places, visible = _positions(mask), visible & (mask[:, None, None, :] > 0)
        else:
            source = _standing(_positions(mask), self.embedding)
            memory = {"memory_tokens": source, "memory_mask": _shown(mask)}
        queries, keys = _standing(places[:, before:], self.embedding), _standing(places, self.embedding)
        around = Surroundings(queries, Given(visible), keys, **memory)
        state = _state(past, cross or [])
        x = self.decoder(self.embedding(tokens, queries), around, state)
        return [self.output(x), *_remembered(state)]


class SpelledOutRMSNorm(nn.Module):
    """`RMSNorm` in single operations: this opset does not have torch's fused one."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """x / √(mean(x²) + ε) · γ."""
        return x / ((x * x).mean(dim=-1, keepdim=True) + self.eps).sqrt() * self.weight


def plain(model: nn.Module) -> nn.Module:
    """Prepare a model in place: float32 on the host, and only operations that the opset has."""
    model = model.to("cpu", torch.float32).eval()
    for module in list(model.modules()):
        if isinstance(module, MultiHeadAttention):
            module.kernel = "reference"
        for name, child in list(module.named_children()):
            if isinstance(child, RMSNorm):
                setattr(module, name, SpelledOutRMSNorm(child))
    return model


def _positions(mask: Tensor) -> Tensor:
    """How many real tokens precede each, (B, S); padding may have any position, since it is never seen."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def _standing(position: Tensor, embedding: Any) -> Tokens:
    """Tokens at these positions. A learned table would check their bound, which a graph cannot."""
    return Tokens(position, 0 if isinstance(embedding.position, Learned) else position.shape[1])


def _shown(mask: Tensor) -> Mask:
    return Given(mask[:, None, None, :] > 0)


def _state(past: list[Tensor], cross: list[Tensor]) -> DecoderState:
    memories = [Memory() for _ in cross[::2]]  # empty in a decoder-only model
    for memory, (k, v) in zip(memories, _pairs(cross), strict=True):
        memory.k, memory.v = k, v
    return DecoderState([Past(k, v) for k, v in _pairs(past)], memories)


def _pairs(tensors: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(tensors[0::2], tensors[1::2], strict=True)


def _remembered(state: DecoderState) -> list[Tensor]:
    found = [tensor for own in state.own if isinstance(own, Past) for tensor in (own.k, own.v)]
    return [tensor for tensor in found if tensor is not None]
