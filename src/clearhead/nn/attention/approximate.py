"""What cheaper attentions share: whole texts in rows, masks that hide keys, and the input and output paths.

Exact attention mixes the values of a text by softmax(q kᵀ), an approximation by something that costs less
than n² and is still linear in the values. A subclass of `ApproximateAttention` defines how, for rows of whole
texts. This file has the projections before it, the unpacking of packed tokens, checks of what cannot work
together, and inspection: the weights shown are those of the approximation itself, for every query and key.

Shapes: B rows, H heads, G key/value heads, T queries, S keys, N packed tokens, V value size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention.mask_rules import Causal, Mask
from clearhead.nn.attention.multihead import AttentionConfig, Given, Mixed, MultiHeadAttention
from clearhead.nn.look import Look
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens, places

Mix = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


class ApproximateAttention(MultiHeadAttention, ABC):
    """Self-attention over whole texts, by other means than a softmax over all pairs."""

    may_be_causal = True  # whether it can hide the future

    def __init__(self, config: AttentionConfig, position: Position | None = None) -> None:
        if position is None:
            raise UserError(
                f"Attention of the kind '{config.kind}' cannot be used as cross-attention: set "
                "cross_attention to another kind in layer_pattern."
            )
        super().__init__(config, position)
        refuse_biases(config, self.position)

    @abstractmethod
    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool) -> Tensor:
        """(B, H, T, V) of whole texts; q (B, H, T, ·), k and v (B, G, T, ·), `seen` (B, 1, T, 1)."""

    def _attended(self, x: Tensor, memory: Tensor | None, look: Look | None, given: Given) -> Mixed:
        if given["state"] is not None or memory is not None:
            raise UserError(
                f"Attention of the kind '{self.config.kind}' reads whole sequences, and takes neither a "
                "state nor a source."
            )
        q, k, v, mix = self._read(x, given["mask"], given["queries"])
        mixed = mix(v)
        if look is not None:
            for name, tensor in (("q", q), ("k", k), ("v", v)):
                look.give(name, tensor)
            if look.wants("weights"):
                look.give("weights", _of_heads(mix(_units(v)), look.heads("weights")))
        return mixed, None

    def weights(
        self, x: Tensor, memory: Tensor | None = None, heads: list[int] | None = None, **given: Unpack[Given]
    ) -> Tensor:
        """(B, heads, T, S): what the values are mixed by. Its rows need not add up to 1."""
        _, _, v, mix = self._read(x, given.get("mask"), given.get("queries"))
        return _of_heads(mix(_units(v)), heads)

    def _read(
        self, x: Tensor, mask: Mask | None, queries: Tokens | None
    ) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]]:
        """q, k and v (1 or B, ·, T or N, ·), and the function that mixes such values."""
        why = "it compares queries with summaries of many keys"
        causal, rest = hidden_keys(self.config, mask, why)
        if causal and not self.may_be_causal:
            raise UserError(
                f"Attention of the kind '{self.config.kind}' and the mask Causal() cannot work together: "
                "each key summarises the whole text, later tokens included. Use it in an encoder."
            )
        q, k, v, tokens = self._projected(x, queries)
        seen = seen_keys(rest, tokens, tokens)

        def mix(values: Tensor) -> Tensor:
            def rows(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
                return self._mixed(q, k, v, seen, causal)

            return by_rows(rows, q, k, values, seen, tokens, tokens)

        return q, k, v, mix

    def _projected(self, x: Tensor, queries: Tokens | None) -> tuple[Tensor, Tensor, Tensor, Tokens]:
        """q, k and v, rotated by their positions, and the tokens."""
        problem = self.problem(x, queries=queries)
        return problem.q, problem.k, problem.v, problem.queries


def _units(v: Tensor) -> Tensor:
    """Values that identify keys: for key s, the s-th unit vector."""
    return torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:3], -1)


def _of_heads(mixed: Tensor, heads: Any) -> Tensor:
    return mixed if heads is None else mixed[:, list(heads)]


def refuse_biases(config: AttentionConfig, position: Position) -> None:
    """Refuse a position scheme that needs scores of single pairs, which are never computed."""
    if position.has_bias or position.adds_values:
        raise UserError(
            f"Attention of the kind '{config.kind}' and the position scheme '{type(position).__name__}' "
            "cannot work together: the scheme adds to scores or weights, which this kind never computes. "
            "Use 'sinusoidal', 'learned', 'rotary' or 'none'."
        )


def refuse_settings(config: AttentionConfig, names: tuple[str, ...], why: str) -> None:
    """Refuse a setting of exact attention that has no meaning here."""
    usual = AttentionConfig()
    for name in names:
        if getattr(config, name) != getattr(usual, name):
            raise UserError(
                f"Attention of the kind '{config.kind}' and {name}={getattr(config, name)} cannot work "
                f"together: {why}. Leave {name} out."
            )


def hidden_keys(config: AttentionConfig, mask: Mask | None, why: str) -> tuple[bool, list[Mask]]:
    """Whether the mask is causal, and its parts that hide some keys from all queries."""
    parts = () if mask is None else mask.parts
    rest = [part for part in parts if not isinstance(part, Causal)]
    for part in rest:
        if part.depends_on_query or part.has_bias or part.heads > 1:
            raise UserError(
                f"Attention of the kind '{config.kind}' and the mask {part!r} cannot work together: {why}. "
                f"Use Causal and Padding."
            )
    return len(rest) < len(parts), rest


def seen_keys(parts: list[Mask], queries: Tokens, keys: Tokens) -> Tensor | None:
    """(B, 1, S, 1): keys that are real and not masked; None: all."""
    query, key = places(queries, keys)
    head = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=keys.position.device)
    found = None
    for part in parts:
        visible = part.rule(query, key, head)
        found = visible if found is None else found & visible
    if keys.real is not None:
        real = (torch.arange(keys.count, device=keys.real.device) < keys.real.unsqueeze(1))[:, None, None]
        found = real if found is None else found & real
    return None if found is None else found.mT


def by_rows(
    mix: Mix, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, queries: Tokens, keys: Tokens
) -> Tensor:
    """Mix rows of whole texts: padded ones as they are, packed ones unpacked into rows and packed again."""
    if 0 in (q.shape[2], k.shape[2]):  # nothing to mix, or nothing to mix it by
        return v.new_zeros(*q.shape[:3], v.shape[3])
    if not queries.is_packed or queries.segment is None:
        return mix(q, k, v, seen)
    seen = torch.ones_like(k[:, :1, :, :1], dtype=torch.bool) if seen is None else seen
    rows = mix(_in_rows(q, queries), _in_rows(k, keys), _in_rows(v, keys), _in_rows(seen, keys))
    return rows[queries.segment[0], :, queries.position[0]].transpose(0, 1).unsqueeze(0)


def _in_rows(x: Tensor, tokens: Tokens) -> Tensor:
    """Packed (1, H, N, D) as one row for each sequence; zeros after its end."""
    assert tokens.sequences is not None
    assert tokens.segment is not None
    rows = x.new_zeros(len(tokens.sequences), tokens.longest_segment(), x.shape[1], x.shape[3])
    rows[tokens.segment[0], tokens.position[0]] = x[0].transpose(0, 1)
    return rows.transpose(1, 2)


def spread(x: Tensor, heads: int) -> Tensor:
    """Grouped heads (B, G, S, ·) repeated to the query heads that share them."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def exact(x: Tensor) -> Tensor:
    """x in float32 at least."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
