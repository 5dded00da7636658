"""All masks by name: rules (`mask_rules.py`), patterns (`mask_patterns.py`), tables, and conversions.

An explicit mask is a table, of booleans or of numbers, and must fit the queries
and keys it is used for. Convert other libraries' masks with `from_additive` and
`from_torch_mha`; every mask has methods for the reverse.

    >>> from clearhead import masks
    >>> print((masks.Window(0) | masks.Padding([1])).show(3))
      0 1 2
    0 █ · ·
    1 █ █ ·
    2 █ · █

Shapes: R rows, H heads, T queries, S keys.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.nn.attention.mask_patterns import Global, Local, Strided
from clearhead.nn.attention.mask_rules import (
    All,
    Causal,
    Either,
    Everything,
    Mask,
    Padding,
    of_sequence,
    row_of,
)
from clearhead.nn.tokens import Place, Tokens, can_be_checked

__all__ = [
    "All",
    "Bias",
    "Boolean",
    "Causal",
    "Document",
    "Either",
    "Everything",
    "Global",
    "Local",
    "Mask",
    "Padding",
    "Prefix",
    "Strided",
    "Window",
    "from_additive",
    "from_torch_mha",
]


class Window(Mask):
    """A neighbourhood: at most `before` positions back and `after` positions ahead.

    >>> print(Window(before=1).show(3))
      0 1 2
    0 █ · ·
    1 █ █ ·
    2 · █ █
    """

    by_position = sparse = True

    def __init__(self, before: int, after: int = 0) -> None:
        if before < 0 or after < 0:
            raise UserError(
                f"A window must reach 0 or more positions each way, not before={before}, after={after}."
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
        self.by_position = self.length.dim() == 0

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        length = of_sequence(self.length, key)
        return (key.position <= query.position) | (key.position < length)

    def __repr__(self) -> str:
        return f"Prefix({self.length.tolist() if self.length.is_cpu else '…'})"


class Document(Mask):
    """Several documents in one row: a query sees only keys with its own document number."""

    def __init__(self, documents: Sequence[Sequence[int]] | Tensor) -> None:
        self.documents = torch.atleast_2d(torch.as_tensor(documents))  # (R or 1, T)
        self.rows = len(self.documents)

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        documents = self.documents.to(key.index.device)
        row = row_of(key, len(documents))
        same: Tensor = documents[row, query.index] == documents[row, key.index]
        return same

    def __repr__(self) -> str:
        return f"Document({self.documents.tolist() if self.documents.is_cpu else '…'})"


class Boolean(Mask):
    """Any mask as a tensor: bool (T, S), (R, T, S) or (R, H, T, S), True = may attend.

    There is a row and a column for each position; a single row applies to all queries. With a past, a mask
    may have rows for the new queries only, and columns for all keys or only for the new ones, which leaves
    the past visible; the shape decides (`placed`).
    """

    has_table = True
    first_query: int | Tensor = 0  # the position of the first row; (R,) if rows differ
    first_key: int | Tensor = 0

    def __init__(self, visible: Sequence[Sequence[bool]] | Tensor) -> None:
        visible = torch.as_tensor(visible)
        if visible.dtype != torch.bool:
            raise UserError(
                "Boolean takes a bool tensor (True = may look); for −∞/0 masks use from_additive."
            )
        self._spell_out(visible)

    def _spell_out(self, table: Tensor) -> None:
        if not 2 <= table.dim() <= 4:
            raise UserError(
                "An explicit mask must have the shape (T, S), (R, T, S) or (R, H, T, S), not "
                f"{tuple(table.shape)}."
            )
        while table.dim() < 4:
            table = table.unsqueeze(0) if table.dim() != 3 else table.unsqueeze(1)
        self.table = table
        self.rows, self.heads = table.shape[:2]
        self.depends_on_query = table.shape[2] > 1

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return self._read(self.table, query, key, head, True)

    def placed(self, queries: Tokens, keys: Tokens) -> Mask:
        rows, columns = self.table.shape[2:]
        packed, ragged = queries.segment is not None, queries.segment is None and queries.start is None
        last_query = queries.count if packed else queries.extent
        last_key = keys.count if packed else keys.extent
        every, new = columns == last_key, columns == queries.count and last_query == last_key
        local = rows in (1, queries.count) and (every or new) and not packed
        if columns >= last_key and (rows == 1 or rows >= last_query) and not (local and ragged):
            return self
        if not local:
            raise UserError(
                f"A mask of {rows} × {columns} does not fit {queries.count} queries up to position "
                f"{last_query - 1} and {last_key} keys: give it a column for each key (with a past, for each "
                f"new key) and a row for each query."
            )
        moved = copy.copy(self)
        moved.first_query = queries.position[:, 0] if queries.start is None else queries.start
        moved.first_key = 0 if every else moved.first_query
        return moved

    def _read(self, table: Tensor, query: Place, key: Place, head: Tensor, past: bool | float) -> Tensor:
        """The table's entries for these queries and keys; `past` for keys before its first column."""
        table = table.to(key.index.device)
        first_query, first_key, one = self.first_query, self.first_key, table.shape[2] == 1
        if query.run and key.run and isinstance(first_query, int) and isinstance(first_key, int):
            # Slices where possible: indexing takes longer, and its gradient much longer.
            asked = slice(0, 1) if one else slice(query.run.start - first_query, query.run.stop - first_query)
            begin, end = key.run.start - first_key, key.run.stop - first_key
            if asked.stop > table.shape[2] or end > table.shape[3]:
                raise UserError(
                    f"A mask of {table.shape[2]} × {table.shape[3]} does not cover query "
                    f"{query.run.stop - 1} and key {key.run.stop - 1}: give it a row for each query and a "
                    "column for each key."
                )
            if (asked.start, asked.stop) != (0, table.shape[2]) or begin > 0 or end < table.shape[3]:
                table = table[:, :, asked, max(begin, 0) : max(end, 0)]
            found = table if table.shape[1] == 1 else table[:, head.flatten()]
            return F.pad(found, (min(-begin, end - begin), 0), value=past) if begin < 0 else found
        i, j = query.index - of_sequence(first_query, query), key.index - of_sequence(first_key, key)
        i = torch.zeros_like(i) if one else i
        head = head if table.shape[1] > 1 else torch.zeros_like(head)
        found = table[row_of(key, len(table)), head, i, j.clamp(0, table.shape[3] - 1)]
        if isinstance(first_key, int) and first_key == 0:
            return found
        # After a row's last column come slots that other rows have filled but this one has not.
        hidden = False if table.dtype == torch.bool else -torch.inf
        return torch.where(j < 0, past, torch.where(j < table.shape[3], found, hidden))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({tuple(self.table.shape)})"


class Bias(Boolean):
    """Numbers that are added to the scores after the soft cap; −∞ hides a key. Shapes as for `Boolean`.

    A bias that requires a gradient gets one.

    >>> Bias(torch.tensor([[0.0, -torch.inf], [0.5, 0.0]])).show(2)
    '  0 1\\n0 █ ·\\n1 █ █'
    """

    has_bias = True

    def __init__(self, numbers: Sequence[Sequence[float]] | Tensor) -> None:
        numbers = torch.as_tensor(numbers)
        if not numbers.is_floating_point():
            raise UserError("Bias takes numbers to add to the scores; for True and False use Boolean.")
        if can_be_checked(numbers) and not bool((numbers < torch.inf).all()):
            raise UserError("A mask cannot hold NaN or +∞: give finite numbers, and −∞ to hide a key.")
        self._spell_out(numbers)

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return self._read(self.table, query, key, head, 0.0) > -torch.inf

    def number(self, query: Place, key: Place, head: Tensor) -> Tensor:
        # Hidden pairs get 0, so no kernel computes −∞ − (−∞), whose result and gradient are NaN.
        found = self._read(self.table, query, key, head, 0.0)
        return found.masked_fill(found == -torch.inf, 0.0)


def from_additive(mask: Tensor) -> Boolean:
    """From the lectures' form: 0 = may attend, −∞ (or the dtype's lowest number) = hidden.

    Any other finite number is kept, as a `Bias`.
    """
    mask = mask if mask.is_floating_point() else mask.to(torch.get_default_dtype())
    if not bool((mask < torch.inf).all()):
        raise UserError("A mask cannot hold NaN or +∞: give finite numbers, and −∞ to hide a key.")
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    if mask.requires_grad or bool((mask[~hidden] != 0).any()):
        return Bias(mask.masked_fill(hidden, -torch.inf))
    return Boolean(~hidden)


def from_torch_mha(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, heads: int = 1
) -> Mask:
    """From `nn.MultiheadAttention`'s masks, where True (or −∞) means hidden and numbers are added.

    >>> from_torch_mha(key_padding_mask=torch.tensor([[False, True]])).matrix(1, 2)
    tensor([[[[ True, False]]]])
    """
    mask: Mask = Everything()
    if attn_mask is not None:
        theirs = attn_mask if attn_mask.dim() != 3 else attn_mask.unflatten(0, (-1, heads))
        mask = mask & (Boolean(~theirs) if theirs.dtype == torch.bool else from_additive(theirs))
    if key_padding_mask is not None:
        if key_padding_mask.dtype == torch.bool:
            return mask & Padding(keep=~key_padding_mask)
        mask = mask & from_additive(key_padding_mask[:, None, None])
    return mask
