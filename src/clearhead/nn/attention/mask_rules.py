"""Which queries may attend to which keys: masks as named objects. True = may attend, everywhere.

A mask is a rule on one query and one key: given the positions of both it says
whether the query may attend. The same rule gives the whole matrix, one block of
it, or runs inside a fused kernel. Masks combine: with `&` a key is visible if
every mask allows it, with `|` if one of them does. A `Bias` holds numbers that
are added to the scores. Knows nothing about scores or kernels.

    >>> from clearhead import masks
    >>> print((masks.Causal() & masks.Padding([2])).show(3))
      0 1 2
    0 █ · ·
    1 █ █ ·
    2 █ █ ·

Shapes: R rows, H heads, T queries, S keys.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import reduce
from operator import add, and_, or_
from pathlib import Path

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention import picture
from clearhead.nn.tokens import Place, Tokens, places


class Mask:
    """Base of all masks. A subclass states its `rule`; everything else follows from it."""

    depends_on_query = True  # False: a key is hidden from all queries or from none
    by_position = False  # True: the rule compares positions and reads nothing else
    sparse = False  # True: it knows which spans of keys a run of queries cannot see (`spans.py`)
    has_table = False  # True: it is an explicit table of queries and keys (contains a `Boolean` or `Bias`)
    has_bias = False  # True: it adds numbers to the scores
    heads = 1  # how many heads the mask distinguishes; 1: all see the same
    rows = 1  # and how many rows

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        """True where the query may attend to the key; broadcasts to (R, H, T, S)."""
        raise UserError(f"The mask {type(self).__name__} has no rule: define rule(query, key, head).")

    def number(self, query: Place, key: Place, head: Tensor) -> Tensor:
        """The finite number added to the score of a pair; only called if `has_bias`."""
        return torch.zeros_like(query.position)

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The masks that must all allow a key; none: everything is visible."""
        return self.of if isinstance(self, All) else (self,)

    def __and__(self, other: Mask) -> Mask:
        parts = (*self.parts, *other.parts)
        return parts[0] if len(parts) == 1 else All(parts) if parts else Everything()

    def __or__(self, other: Mask) -> Mask:
        if self.has_bias or other.has_bias:
            raise UserError("An additive mask adds to the scores: combine it with '&', not with '|'.")
        if not self.parts or not other.parts:
            return Everything()
        sides = [side.of if isinstance(side, Either) else (side,) for side in (self, other)]
        return Either([*sides[0], *sides[1]])

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def allowed(self, queries: Tokens, keys: Tokens, heads: Tensor | None = None) -> Tensor | None:
        """The rule for all queries and keys, as bool broadcastable to (R, H, T, S); None if all is visible.

        Packed tokens only see their own segment, whatever the mask.
        """
        query, key = places(queries, keys)
        visible = self.rule(query, key, _heads(heads, query)) if self.parts else None
        if query.segment is not None and key.segment is not None:
            same = query.segment == key.segment
            visible = same if visible is None else visible & same
        return visible

    def bias(self, queries: Tokens, keys: Tokens, heads: Tensor | None = None) -> Tensor | None:
        """The numbers added to the scores, broadcastable to (R, H, T, S); None if there are none."""
        if not self.has_bias:
            return None
        query, key = places(queries, keys)
        return self.number(query, key, _heads(heads, query))

    def placed(self, queries: Tokens, keys: Tokens) -> Mask:
        """The mask for these queries and keys; an explicit table that does not fit them is refused."""
        return self

    def matrix(self, queries: int, keys: int | None = None, *, start: int | None = None) -> Tensor:
        """The mask as a bool tensor (R, H, T, S); R and H are 1 if the rule does not depend on them.

        With fewer queries than keys the queries are the last ones, as in step-by-step decoding,
        unless `start` says where they start (a `Boolean` has explicit rows and starts at 0).

        >>> Causal().matrix(2, 3)[0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        """
        sides = self._sides(queries, keys, start)
        visible = self.allowed(*sides)
        if visible is None:
            return torch.ones(1, 1, queries, sides[1].count, dtype=torch.bool)
        return visible.expand(visible.shape[0], visible.shape[1], queries, sides[1].count)

    def _sides(self, queries: int, keys: int | None, start: int | None) -> tuple[Tokens, Tokens, Tensor]:
        keys = queries if keys is None else keys
        if start is None:
            start = 0 if self.has_table else max(keys - queries, 0)
        device = self._device() or torch.device("cpu")
        sides = Tokens.padded(queries, start=start, device=device), Tokens.padded(keys, device=device)
        return *sides, torch.arange(self.heads, device=device)

    def to(self, device: torch.device | str, detached: bool = False) -> Mask:
        """The same mask with its data on a device; needed only if a kernel reads the data itself."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, (value.detach() if detached else value).to(device))
        return moved

    def tensors(self) -> list[Tensor]:
        """The mask's data."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]

    def _device(self) -> torch.device | None:
        return next((tensor.device for tensor in self.tensors()), None)

    # --- other libraries' conventions ---------------------------------------------------------

    def to_sdpa(self, queries: int, keys: int | None = None) -> Tensor:
        """`attn_mask` for `scaled_dot_product_attention`: bool, True = may attend, like ours; or numbers."""
        return self.to_additive(queries, keys) if self.has_bias else self.matrix(queries, keys)

    def to_additive(
        self, queries: int, keys: int | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """0 (or a `Bias`'s number) where a query may attend and −∞ where it may not: the lectures' form."""
        matrix, numbers = self.matrix(queries, keys), self.bias(*self._sides(queries, keys, None))
        added = torch.zeros((), device=matrix.device) if numbers is None else numbers
        return torch.where(matrix, added, -torch.inf).to(dtype)

    def to_torch_mha(self, heads: int, queries: int, keys: int | None = None) -> Tensor:
        """`attn_mask` for `nn.MultiheadAttention`, whose polarity is the opposite: True = hidden; or numbers.

        (T, S) if all rows and heads agree, else (rows · heads, T, S).
        """
        hidden = self.to_additive(queries, keys) if self.has_bias else ~self.matrix(queries, keys)
        rows, own_heads = hidden.shape[:2]
        if rows == 1 and own_heads == 1:
            return hidden[0, 0]
        return hidden.expand(rows, heads, *hidden.shape[2:]).flatten(0, 1)

    # --- pictures -----------------------------------------------------------------------------

    def show(
        self,
        queries: int = 8,
        keys: int | None = None,
        *,
        row: int = 0,
        head: int = 0,
        file: str | Path | None = None,
    ) -> str:
        """Draw the mask: text by default, or an `.svg` or `.png` file.

        >>> print(Causal().show(3))
          0 1 2
        0 █ · ·
        1 █ █ ·
        2 █ █ █
        """
        matrix = self.matrix(queries, keys)
        chosen = matrix[min(row, matrix.shape[0] - 1), min(head, matrix.shape[1] - 1)].cpu().numpy()
        return picture.draw(chosen, repr(self), file)


class Several(Mask):
    """Masks made of others: base of `All` and `Either`."""

    def __init__(self, of: Sequence[Mask]) -> None:
        self.of = tuple(of)
        self.heads = max([1, *[part.heads for part in self.of]])
        self.rows = max([1, *[part.rows for part in self.of]])
        self.depends_on_query = any(part.depends_on_query for part in self.of)
        self.by_position = all(part.by_position for part in self.of)
        self.has_table = any(part.has_table for part in self.of)
        self.has_bias = any(part.has_bias for part in self.of)
        self.sparse = any(part.sparse for part in self.of)

    def placed(self, queries: Tokens, keys: Tokens) -> Mask:
        return type(self)([part.placed(queries, keys) for part in self.of]) if self.has_table else self

    def to(self, device: torch.device | str, detached: bool = False) -> Mask:
        return type(self)([part.to(device, detached) for part in self.of])

    def tensors(self) -> list[Tensor]:
        return [tensor for part in self.of for tensor in part.tensors()]


class All(Several):
    """Several masks combined by `&`: visible only if all of them allow it; with none, everything is."""

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return reduce(and_, [part.rule(query, key, head) for part in self.of])

    def number(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return reduce(add, [part.number(query, key, head) for part in self.of if part.has_bias])

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" if isinstance(part, Either) else repr(part) for part in self.of)


class Everything(All):
    """Every query may attend to every key."""

    def __init__(self, of: Sequence[Mask] = ()) -> None:
        super().__init__(of)

    def __repr__(self) -> str:
        return "Everything()"


class Either(Several):
    """Several masks combined by `|`: visible if at least one of them allows it.

    >>> from clearhead.nn.attention.masks import Prefix, Window
    >>> print((Window(before=0) | Prefix(1) & Window(before=2)).show(4))
      0 1 2 3
    0 █ · · ·
    1 █ █ · ·
    2 █ █ █ ·
    3 · █ █ █
    """

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return reduce(or_, [part.rule(query, key, head) for part in self.of])

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.of))


class Causal(Mask):
    """No look-ahead: a query sees its own position and those before it."""

    by_position = True

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return key.position <= query.position


class Padding(Mask):
    """Hides positions past the end of each row.

    Takes `lengths` (one per row), or `keep`, a bool (rows, keys) tensor with True at the real tokens.

    >>> print(Padding([2]).show(2, 3))
      0 1 2
    0 █ █ ·
    1 █ █ ·
    """

    depends_on_query = False

    def __init__(self, lengths: Sequence[int] | Tensor | None = None, *, keep: Tensor | None = None) -> None:
        if (lengths is None) == (keep is None):
            raise UserError("Padding takes either lengths or keep, not both.")
        # a tensor stays the same object, by which kernels identify the padding
        given = lengths is None or isinstance(lengths, Tensor)
        self.lengths: Tensor | None = lengths if given else torch.as_tensor(lengths)  # type: ignore[assignment]
        self.keep = None if keep is None else keep.bool()
        own = self.keep if self.lengths is None else self.lengths
        self.rows = own.shape[0] if own is not None and own.dim() else 1

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        if self.lengths is not None:
            return key.position < of_sequence(self.lengths, key)
        assert self.keep is not None
        return self.keep.to(key.index.device)[row_of(key, len(self.keep)), key.index]

    def __repr__(self) -> str:
        known = self.lengths if self.lengths is not None and self.lengths.is_cpu else None
        return f"Padding({'…' if known is None else known.tolist()})"  # reading them would wait for a GPU


def _heads(heads: Tensor | None, query: Place) -> Tensor:
    """Head numbers, shaped (1, H, 1, 1); only the first if no head differs."""
    if heads is None:
        heads = torch.zeros(1, dtype=torch.long, device=query.position.device)
    return heads[None, :, None, None]


def row_of(place: Place, rows: int) -> Tensor:
    """Which row of a mask's own data (it has `rows` of them) to read: a single row serves all."""
    if place.row is None:
        return torch.arange(rows, device=place.index.device)[:, None, None, None]
    return place.row if rows > 1 else torch.zeros_like(place.row)


def of_sequence(values: int | Tensor, place: Place) -> int | Tensor:
    """One number for all, or one for each sequence: a row when padded, a segment when packed."""
    if isinstance(values, int):
        return values
    values = values.to(place.position.device)
    if values.dim() == 0:
        return values
    return values[row_of(place, len(values)) if place.segment is None else place.segment]
