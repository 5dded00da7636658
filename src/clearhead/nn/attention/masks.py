"""Who may look at whom: masks as named objects. True = may look, everywhere.

A mask is a rule on one query and one key: given where both stand it says
whether the query may look. The same rule makes the whole matrix, one block of
it, or runs inside a fused kernel. Masks combine with `&`: a key is visible only
if every mask allows it. Knows nothing about scores or kernels.

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
from pathlib import Path

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention import picture
from clearhead.nn.tokens import Place, Tokens


class Mask:
    """Base of all masks. A subclass states its `rule`; everything else follows from it."""

    depends_on_query = True  # False: a key is hidden from all queries or from none
    heads = 1  # how many heads the mask tells apart; 1: all see the same
    rows = 1  # and how many rows

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        """True where the query may look at the key; broadcasts to (R, H, T, S)."""
        raise UserError(f"The mask {type(self).__name__} has no rule: define rule(query, key, head).")

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The named masks this one is made of."""
        return (self,)

    def __and__(self, other: Mask) -> Mask:
        parts = tuple(part for part in (*self.parts, *other.parts))
        return parts[0] if len(parts) == 1 else All(parts) if parts else Everything()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def allowed(self, queries: Tokens, keys: Tokens, heads: Tensor | None = None) -> Tensor | None:
        """The rule over whole sides, as bool broadcastable to (R, H, T, S); None if all is visible.

        Packed tokens see their own segment only, whatever the mask says.
        """
        query, key = queries.as_queries(), keys.as_keys()
        if heads is None:
            heads = torch.zeros(1, dtype=torch.long, device=queries.position.device)
        visible = None
        for part in self.parts:
            seen = part.rule(query, key, heads[None, :, None, None])
            visible = seen if visible is None else visible & seen
        if query.segment is not None and key.segment is not None:
            same = query.segment == key.segment
            visible = same if visible is None else visible & same
        return visible

    def matrix(self, queries: int, keys: int | None = None, *, start: int | None = None) -> Tensor:
        """The mask as a bool tensor (R, H, T, S), R and H being 1 where the rule does not depend on them.

        With fewer queries than keys the queries are the last ones, as in step-by-step decoding,
        unless `start` says where they begin (a `Boolean` spells its rows out and begins at 0).

        >>> Causal().matrix(2, 3)[0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
        """
        keys = queries if keys is None else keys
        device = self._device()
        if start is None:
            start = 0 if any(isinstance(part, Boolean) for part in self.parts) else max(keys - queries, 0)
        asking = Tokens.padded(queries, start=start, device=device)
        heads = torch.arange(self.heads, device=device)
        visible = self.allowed(asking, Tokens.padded(keys, device=device), heads)
        if visible is None:
            return torch.ones(1, 1, queries, keys, dtype=torch.bool)
        return visible.expand(visible.shape[0], visible.shape[1], queries, keys)

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its data on a device; needed only where a kernel reads the data itself."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved

    def _device(self) -> torch.device:
        return next((t.device for p in self.parts for t in vars(p).values() if isinstance(t, Tensor)),
                    torch.device("cpu"))  # fmt: skip

    # --- other libraries' conventions ---------------------------------------------------------

    def to_sdpa(self, queries: int, keys: int | None = None) -> Tensor:
        """`attn_mask` for `scaled_dot_product_attention`: bool, True = may look, as ours."""
        return self.matrix(queries, keys)

    def to_additive(
        self, queries: int, keys: int | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """0 where a query may look and −∞ where it may not: the lectures' form."""
        matrix = self.matrix(queries, keys)
        return torch.zeros(matrix.shape, dtype=dtype, device=matrix.device).masked_fill(~matrix, -torch.inf)

    def to_torch_mha(self, heads: int, queries: int, keys: int | None = None) -> Tensor:
        """`attn_mask` for `nn.MultiheadAttention`, whose polarity is the opposite: True = hidden.

        (T, S) when rows and heads agree, else (rows · heads, T, S).
        """
        hidden = ~self.matrix(queries, keys)
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
        if file is None:
            return picture.text(chosen)
        path = Path(file)
        if path.suffix == ".svg":
            path.write_text(picture.svg(chosen, title=repr(self)), encoding="utf-8")
        elif path.suffix == ".png":
            path.write_bytes(picture.png(chosen))
        else:
            raise UserError(f"A mask is drawn as .svg or .png, not '{path.name}'.")
        return str(path)


class Everything(Mask):
    """Every query may look at every key."""

    @property
    def parts(self) -> tuple[Mask, ...]:
        return ()


class All(Mask):
    """Several masks at once: visible only where each of them allows it. Made by `&`."""

    def __init__(self, parts: Sequence[Mask]) -> None:
        self._parts = tuple(parts)
        self.heads = max([1, *[part.heads for part in self._parts]])
        self.rows = max([1, *[part.rows for part in self._parts]])

    @property
    def parts(self) -> tuple[Mask, ...]:
        return self._parts

    def __repr__(self) -> str:
        return " & ".join(map(repr, self._parts))


class Causal(Mask):
    """No looking ahead: a query sees its own position and those before it."""

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return key.position <= query.position


class Window(Mask):
    """Only the neighbourhood: at most `before` positions back and `after` positions ahead.

    >>> print(Window(before=1).show(3))
      0 1 2
    0 █ · ·
    1 █ █ ·
    2 · █ █
    """

    def __init__(self, before: int, after: int = 0) -> None:
        if before < 0 or after < 0:
            raise UserError(
                f"A window reaches 0 or more positions each way, not before={before}, after={after}."
            )
        self.before, self.after = before, after

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        ahead = key.position - query.position
        return (ahead >= -self.before) & (ahead <= self.after)

    def __repr__(self) -> str:
        return f"Window(before={self.before}, after={self.after})"


class Prefix(Mask):
    """Causal, but the first `length` positions are visible to all; one length, or one for each row."""

    def __init__(self, length: int | Sequence[int] | Tensor) -> None:
        self.length = torch.as_tensor(length)
        self.rows = self.length.numel()

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        length = _of_sequence(self.length, key)
        return (key.position <= query.position) | (key.position < length)

    def __repr__(self) -> str:
        return f"Prefix({self.length.tolist()})"


class Padding(Mask):
    """Hides what lies past the end of each row.

    Given `lengths` (one a row), or `keep`, a bool (rows, keys) tensor with True at the real tokens.

    >>> print(Padding([2]).show(2, 3))
      0 1 2
    0 █ █ ·
    1 █ █ ·
    """

    depends_on_query = False

    def __init__(self, lengths: Sequence[int] | Tensor | None = None, *, keep: Tensor | None = None) -> None:
        if (lengths is None) == (keep is None):
            raise UserError("Padding takes either lengths or keep, one of them.")
        self.lengths = None if lengths is None else torch.as_tensor(lengths)
        self.keep = None if keep is None else keep.bool()
        own = self.keep if self.lengths is None else self.lengths
        self.rows = own.shape[0] if own is not None and own.dim() else 1

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        if self.lengths is not None:
            return key.position < _of_sequence(self.lengths, key)
        assert self.keep is not None
        return self.keep.to(key.index.device)[_row(key, len(self.keep)), key.index]

    def __repr__(self) -> str:
        return "Padding(keep=…)" if self.lengths is None else f"Padding({self.lengths.tolist()})"


class Document(Mask):
    """Several documents in one row: a query sees only keys with its own document number."""

    def __init__(self, documents: Sequence[Sequence[int]] | Tensor) -> None:
        self.documents = torch.atleast_2d(torch.as_tensor(documents))  # (R or 1, T)
        self.rows = len(self.documents)

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        documents = self.documents.to(key.index.device)
        row = _row(key, len(documents))
        same: Tensor = documents[row, query.index] == documents[row, key.index]
        return same

    def __repr__(self) -> str:
        return f"Document({self.documents.tolist()})"


class Boolean(Mask):
    """Any mask at all, spelt out: bool (T, S), (R, T, S) or (R, H, T, S), True = may look."""

    def __init__(self, visible: Sequence[Sequence[bool]] | Tensor) -> None:
        visible = torch.as_tensor(visible)
        if visible.dtype != torch.bool:
            raise UserError(
                "Boolean takes a bool tensor (True = may look); for −∞/0 masks use from_additive."
            )
        while visible.dim() < 4:
            visible = visible.unsqueeze(0) if visible.dim() != 3 else visible.unsqueeze(1)
        self.visible = visible
        self.rows, self.heads = visible.shape[:2]

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        visible = self.visible.to(key.index.device)
        row = _row(key, len(visible))
        head = head if visible.shape[1] > 1 else torch.zeros_like(head)
        return visible[row, head, query.index, key.index]

    def __repr__(self) -> str:
        return f"Boolean({tuple(self.visible.shape)})"


def from_additive(mask: Tensor) -> Boolean:
    """From the lectures' form: 0 = may look, −∞ (or any very negative number) = hidden."""
    return Boolean(mask > -1e4)


def from_torch_mha(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, heads: int = 1
) -> Mask:
    """From `nn.MultiheadAttention`'s masks, where True (or −∞) means hidden.

    >>> from_torch_mha(key_padding_mask=torch.tensor([[False, True]])).matrix(1, 2)
    tensor([[[[ True, False]]]])
    """
    mask: Mask = Everything()
    if attn_mask is not None:
        visible = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask > -1e4
        if visible.dim() == 3:
            visible = visible.unflatten(0, (-1, heads))
        mask = mask & Boolean(visible)
    if key_padding_mask is not None:
        hidden = key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask < -1e4
        mask = mask & Padding(keep=~hidden)
    return mask


def _row(place: Place, rows: int) -> Tensor:
    """Which row of a mask's own data (it has `rows` of them) to read: one row of data serves all."""
    if place.row is None:
        return torch.arange(rows, device=place.index.device)[:, None, None, None]
    return place.row if rows > 1 else torch.zeros_like(place.row)


def _of_sequence(values: Tensor, place: Place) -> Tensor:
    """One number for all, or one for each sequence: a row when padded, a segment when packed."""
    values = values.to(place.position.device)
    if values.dim() == 0:
        return values
    return values[_row(place, len(values)) if place.segment is None else place.segment]
