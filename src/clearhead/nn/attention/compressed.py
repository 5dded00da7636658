"""Memory-compressed attention (Liu et al. 2018): a strided convolution shortens keys and values.

    k_j = W_K · [k_{(j+1)s−K} … k_{(j+1)s−1}]      block j of s tokens, by a kernel of K; likewise values

A block has the position of the last token that it reads. A causal mask therefore hides it from every query
that would see its own future in it, and positions and biases act on blocks as they do on tokens. The first
s − 1 queries of a causal text see no block and get 0 from the layer; layers of local attention next to it
(`layer_pattern`) see what is nearer than a block. Without a causal mask the last block may be short: missing
tokens, and padding, are read as 0. n tokens cost O(n² / s). Equals exact attention when the stride is 1
and the convolution the identity.

The decoding state holds the blocks, and the last K − 1 keys and values, which the next block needs.

Shapes: B rows, G key/value heads, T tokens, N blocks, K tokens that a block reads, D head size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.config import Count
from clearhead.base.errors import UserError
from clearhead.nn.attention.mask_rules import Causal, Everything, Mask, Padding
from clearhead.nn.attention.multihead import AttentionConfig, Given, MultiHeadAttention, split_heads
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.state import Growing
from clearhead.nn.positions.base import Position
from clearhead.nn.state import refuse_unknown_state
from clearhead.nn.tokens import Tokens

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class CompressedConfig(AttentionConfig):
    """Attention to blocks of tokens.

    >>> CompressedConfig(width=8, heads=2).reads
    3
    """

    kind: Literal["compressed"] = "compressed"
    stride: Count = 3  # tokens per block
    kernel_size: Count | None = None  # tokens that the convolution reads for a block; None: the stride

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reads < self.stride:
            raise UserError(
                f"kernel_size={self.kernel_size} and stride={self.stride} cannot work together: a kernel "
                "smaller than the stride skips tokens. Leave kernel_size out."
            )
        if self.kernel in ("short", "varlen"):
            raise UserError(
                f"Attention of the kind 'compressed' and the kernel '{self.kernel}' cannot work together: "
                "the kernel needs keys with the same spacing as the queries. Use kernel 'auto'."
            )

    @property
    def reads(self) -> int:
        """The number of tokens that a block is computed from."""
        return self.kernel_size or self.stride


class Convolution(nn.Module):
    """A convolution over the tokens of each head, with its taps side by side in one matrix per head."""

    def __init__(self, heads: int, reads: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, size, reads * size))
        for one in self.weight:
            nn.init.xavier_uniform_(one)

    def stacked_weights(self) -> list[Tensor]:
        """A matrix for each head."""
        return [self.weight]

    def forward(self, windows: Tensor) -> Tensor:
        """What each block reads, (B, G, N, K, D), to (B, G, N, D)."""
        flat = windows.transpose(0, 1).flatten(3).flatten(1, 2)  # (G, B·N, K·D)
        made: Tensor = torch.bmm(flat, self.weight.mT).unflatten(1, windows.shape[:3:2])
        return made.transpose(0, 1)


class Blocks(Growing):
    """Compressed keys and values so far, and the last tokens that the next block may read.

    It cannot be truncated: the tokens of earlier blocks are gone.
    """

    _slots: ClassVar = {"k": 2, "v": 2, "recent_k": 0, "recent_v": 0}

    def __init__(self) -> None:
        super().__init__()
        self.k: Tensor | None = None  # (B, G, capacity, D)
        self.v: Tensor | None = None
        self.recent_k: Tensor | None = None  # (B, G, K − 1, D), zeros before the first token
        self.recent_v: Tensor | None = None

    def read(self, name: str, x: Tensor, plan: Step) -> Tensor:
        """What each new block reads, (B, G, N, K, D), from new and recent tokens; keeps the last ones."""
        past: Tensor | None = getattr(self, name)
        if past is None:
            past = x.new_zeros(*x.shape[:2], plan.index.shape[-1] - 1, x.shape[3])
        both = torch.cat([past, x], 2)
        row = torch.arange(x.shape[0], device=x.device)[:, None]
        setattr(self, name, both[row, :, plan.kept].transpose(1, 2))
        return both[row.unsqueeze(2), :, plan.index].permute(0, 3, 1, 2, 4)

    def append(self, k: Tensor, v: Tensor, numbers: Tokens) -> tuple[Tensor, Tensor]:
        """Store new blocks at their numbers; return all of them, (B, G, S, ·)."""
        k, v = self._store(numbers, k=k, v=v)
        return k, v


@dataclass(frozen=True)
class Step:
    """Which blocks new tokens start, continue or complete; incomplete ones are recomputed later."""

    numbers: Tokens  # of the blocks
    places: Tokens  # their positions
    index: Tensor  # (1 or B, N, K) which of the recent and new tokens each reads
    kept: Tensor  # (1 or B, K − 1) which of them are the last

    @classmethod
    def of(cls, tokens: Tokens, reads: int, stride: int) -> Step:
        """For tokens that continue each row's past."""
        first, count, device = tokens.position[:, :1], tokens.count, tokens.position.device
        if tokens.start is not None:
            begin = tokens.start // stride
            many = (tokens.start + count - 1) // stride - begin + 1
            numbers = Tokens.padded(many, start=begin, device=device)
        else:
            many = (count + stride - 2) // stride + 1  # at most
            each = first // stride + torch.arange(many, device=device)
            numbers = Tokens(each, (tokens.extent - count) // stride + many)
        places = _at_ends(numbers, stride)
        index = (places.position - first).unsqueeze(-1) + torch.arange(reads, device=device)
        real = count if tokens.real is None else tokens.real.unsqueeze(1)
        kept = torch.arange(reads - 1, device=device).unsqueeze(0) + real
        return cls(numbers, places, index.clamp(max=count + reads - 2), kept)


@dataclass(frozen=True)
class Cut:
    """Whole texts in blocks: their positions, and for packed texts what each reads."""

    places: Tokens
    index: Tensor | None = None  # (N·K,) packed: tokens
    within: Tensor | None = None  # (N, K, 1) packed: whether they belong to the block's own text

    @classmethod
    def of(cls, tokens: Tokens, reads: int, stride: int) -> Cut:
        """Blocks of all texts, the last one of each padded."""
        device = tokens.position.device
        if not tokens.is_packed:
            numbers = Tokens.padded(-(-tokens.count // stride), device=device)
            return cls(tokens if stride == 1 else _at_ends(numbers, stride))
        lengths = tokens.offsets.diff().long()
        each = (lengths + stride - 1) // stride
        ends = each.cumsum(0)
        if tokens.lengths is not None:
            many = sum(-(-length // stride) for length in tokens.lengths)
        else:
            many = tokens.count // stride + len(lengths)  # at most
        number = torch.arange(many, device=device)
        found = torch.searchsorted(ends, number, right=True)
        text = found.clamp(max=len(lengths) - 1)
        position = (number - (ends - each)[text] + 1) * stride - 1
        reading = position.unsqueeze(1) + torch.arange(1 - reads, 1, device=device)
        within = (reading >= 0) & (reading < lengths[text].unsqueeze(1))
        index = (tokens.offsets[text].unsqueeze(1) + reading).clamp(0, tokens.count - 1)
        segment = torch.where(found < len(lengths), found, -1)  # filler belongs to no text
        places = Tokens(position[None], tokens.extent + stride, None, segment[None])
        return cls(places, index.flatten(), within.unsqueeze(-1))

    def windows(self, x: Tensor, reads: int, stride: int) -> Tensor:
        """(B, G, T, D) to what each block reads, (B, G, N, K, D)."""
        if self.index is not None and self.within is not None:
            found: Tensor = x.index_select(2, self.index).unflatten(2, (-1, reads)) * self.within
            return found
        if x.shape[2] == 0:
            return x.new_zeros(*x.shape[:2], 0, reads, x.shape[3])
        behind = -x.shape[2] % stride
        return F.pad(x, (0, 0, reads - stride, behind)).unfold(2, reads, stride).transpose(3, 4)


def _at_ends(numbers: Tokens, stride: int) -> Tokens:
    """Blocks, by number, as tokens at the position where each ends."""
    return Tokens(numbers.position * stride + stride - 1, numbers.extent * stride)


class CompressedAttention(MultiHeadAttention):
    """Self-attention to blocks of tokens.

    >>> attention = CompressedAttention(CompressedConfig(width=32, heads=4), Position())
    >>> attention(torch.randn(2, 7, 32), mask=Causal()).shape
    torch.Size([2, 7, 32])
    """

    config: CompressedConfig

    def __init__(self, config: CompressedConfig, position: Position | None = None) -> None:
        if position is None:
            raise UserError(
                "Attention of the kind 'compressed' cannot be used as cross-attention: set "
                "cross_attention to another kind in layer_pattern."
            )
        super().__init__(config, position)
        if position.has_bias and not position.elementwise_bias:
            raise UserError(
                f"Attention of the kind 'compressed' and the position scheme '{type(position).__name__}' "
                "cannot work together: blocks are spaced further apart than the scheme's vectors. Use "
                "'rotary', 'alibi', 't5' or one that acts on the embeddings."
            )
        self.compress_key = Convolution(config.groups, config.reads, config.key_size)
        self.compress_value = Convolution(config.groups, config.reads, config.value_size)

    def new_state(self) -> Any:
        """An empty decoding state."""
        return Blocks()

    def problem(self, x: Tensor, memory: Tensor | None = None, **given: Unpack[Given]) -> Problem:
        """As multi-head attention's, with blocks for keys."""
        mask, state, memo = given.get("mask"), given.get("state"), given.get("memo")
        memo = {} if memo is None else memo
        raw = super().problem(x, memory, queries=given.get("queries"), memo=memo)
        reads, stride, causal, padding = self.config.reads, self.config.stride, *_read(mask)
        made = (reads, stride, id(raw.queries), id(mask))

        def once(what: str, make: Callable[[], Made]) -> Made:
            if (what, *made) not in memo:
                memo[what, *made] = make(), (raw.queries, mask)  # kept alive, so ids stay unique
            found: Made = memo[what, *made][0]
            return found

        if state is not None:
            refuse_unknown_state(state, Blocks)
            if not causal:
                raise UserError(
                    "Attention of the kind 'compressed' can only continue a text with the mask Causal()."
                )
            assert isinstance(state, Blocks)
            step = once("step", lambda: Step.of(raw.queries, reads, stride))
            k = self._turned(self.compress_key(state.read("recent_k", raw.k, step)), step.places)
            v = self.compress_value(state.read("recent_v", raw.v, step))
            k, v = state.append(k, v, step.numbers)
            many = Tokens.padded(k.shape[2], device=k.device)
            places = once("all", lambda: _at_ends(many, stride))
        else:
            if padding is not None and raw.queries.segment is not None:
                raise UserError("Packed texts have no padding: leave Padding out.")
            cut = once("cut", lambda: Cut.of(raw.queries, reads, stride))
            sides = (raw.k, raw.v) if padding is None else (_real(one, padding) for one in (raw.k, raw.v))
            k, v = (cut.windows(one, reads, stride) for one in sides)
            k, v = self._turned(self.compress_key(k), cut.places), self.compress_value(v)
            places = cut.places
        seen = once("mask", lambda: _of_blocks(causal, padding, stride))
        return dataclasses.replace(raw, k=k, v=v, keys=places, mask=seen)

    def _keys_values(self, x: Tensor, tokens: Tokens, both: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Without rotation: blocks are rotated instead."""
        k, v = (split_heads(one, self.config.groups) for one in both or (self.key(x), self.value(x)))
        return k, v


def _read(mask: Mask | None) -> tuple[bool, Tensor | None]:
    """Whether a mask is causal, and if not, the lengths of rows; other masks are refused."""
    parts = () if mask is None else mask.parts
    lengths = None
    for part in parts:
        if isinstance(part, Padding) and part.lengths is not None:
            lengths = part.lengths
        elif not isinstance(part, Causal):
            raise UserError(
                f"Attention of the kind 'compressed' and the mask {part!r} cannot work together: a block is "
                f"seen whole or not at all. Use Causal() and Padding(lengths)."
            )
    causal = any(isinstance(part, Causal) for part in parts)
    return causal, None if causal else lengths  # real queries see nothing after them anyway


def _of_blocks(causal: bool, lengths: Tensor | None, stride: int) -> Mask:
    """The mask on blocks: complete ones, or those with a real token."""
    if causal:
        return Causal()
    return Everything() if lengths is None else Padding((lengths + stride - 1) // stride * stride)


def _real(x: Tensor, lengths: Tensor) -> Tensor:
    """(B, G, T, D) with zeros for padding."""
    places = torch.arange(x.shape[2], device=x.device)
    return x * (places < lengths.to(x.device).unsqueeze(-1))[:, None, :, None]
