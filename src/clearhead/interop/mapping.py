"""Tables of name pairs, and the engine that converts tensors with them in either direction.

A family lists rows: the name of a tensor there, its name here, and how its shape
changes on the way. `{i}` in both names is the number of a layer. The engine never
guesses: a tensor without a row, or a row without its tensor, is an error that names
it. Knows nothing about files, configs of other toolkits or any one family.

Shapes: I inputs, O outputs of a linear layer, H heads, D size of one head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.bundle.weights import fill_with, shapes_of
from clearhead.models.config import ModelConfig


@dataclass(frozen=True)
class Change:
    """What happens to a tensor on import, and the inverse for export.

    One of their tensors may hold several of ours (fused projections); never the other way round.
    """

    to_ours: Callable[[Tensor], tuple[Tensor, ...]]
    to_theirs: Callable[..., Tensor]


SAME = Change(lambda t: (t,), lambda t: t)
TRANSPOSED = Change(lambda t: (t.t(),), lambda t: t.t())  # weights stored (I, O), as in GPT-2; biases stay
SPLIT_IN_3 = Change(lambda t: t.chunk(3), lambda q, k, v: torch.cat([q, k, v]))
SPLIT_IN_3_TRANSPOSED = Change(
    lambda t: tuple(part.t() for part in t.chunk(3, dim=1)),
    lambda q, k, v: torch.cat([q.t(), k.t(), v.t()], dim=1),
)
ONE_AXIS_MORE = Change(lambda t: (t.squeeze(0),), lambda t: t.unsqueeze(0))
TWO_AXES_MORE = Change(lambda t: (t.squeeze(0).squeeze(0),), lambda t: t[None, None])


def without_first_rows(count: int) -> Change:
    """Theirs begins with rows that are never read; they are exported as zeros."""
    return Change(lambda t: (t[count:],), lambda t: torch.cat([t.new_zeros(count, *t.shape[1:]), t]))


def rotary_halves(heads: int) -> Change:
    """Rotary features of each head are in halves there and in neighbouring pairs here.

    Both layouts rotate the same pairs by the same angles, so reordering the rows of the query and key
    projections converts a model exactly.
    """

    def to_ours(t: Tensor) -> tuple[Tensor, ...]:
        return (t.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2),)

    def to_theirs(t: Tensor) -> Tensor:
        reordered: Tensor = t.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        return reordered

    return Change(to_ours, to_theirs)


def several(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """One name or several, always as a tuple."""
    return (names,) if isinstance(names, str) else names


@dataclass(frozen=True)
class Row:
    """One line of a table: their name, our name or names, and the change of shape.

    `{e}` in their name is the number of an expert: theirs are `experts` tensors, ours is a single one. A row
    without a name of theirs is for a tensor that only we have, and that must be 0.
    """

    theirs: str
    ours: str | tuple[str, ...]
    change: Change = SAME
    experts: int = 0
    layers: tuple[int, int | None] = (0, None)  # the range of `{i}`, excluding the second

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of their tensors."""
        if self.experts:
            return tuple(self.theirs.replace("{e}", str(e)) for e in range(self.experts))
        return (self.theirs,) if self.theirs else ()

    @property
    def names(self) -> tuple[str, ...]:
        """Our names, always as a tuple."""
        return several(self.ours)


@dataclass(frozen=True)
class Copy:
    """A tensor that other toolkits may store twice: checked if it is found, written if needed."""

    name: str
    of: str
    written: bool = False
    why: str = "but the config makes them one: the checkpoint and its config do not belong together"


Table = list[Row | Copy]


def linear(theirs: str, ours: str, bias: bool = True, change: Change = SAME) -> Table:
    """The rows of a linear layer or a norm: its weight, and its bias if it has one."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Row(f"{theirs}.{kind}", f"{ours}.{kind}", change) for kind in kinds]


def linears(
    there: str, here: str, names: Mapping[str, str], bias: bool = True, change: Change = SAME
) -> Table:
    """The rows of several: their names and ours within `there` and `here`."""
    pairs = names.items()
    return [row for a, b in pairs for row in linear(f"{there}.{a}", f"{here}.{b}", bias, change)]


def output(
    config: ModelConfig,
    embedding: str,
    theirs: str = "lm_head.weight",
    ours: str = "output.weight",
    written: bool = False,
) -> Row | Copy:
    """The projection to the vocabulary: a separate tensor, or the embedding, which may be stored again."""
    return Copy(theirs, embedding, written) if config.embedding.tie_output else Row(theirs, ours)


def expand(rows: Iterable[Row], config: ModelConfig) -> Iterator[Row]:
    """The rows with `{i}` expanded over the layers of the stack that our name begins with.

    A generator, so that a config which claims a million layers fails at the first one missing.
    """
    depths = {
        "encoder": config.layers,
        "decoder": config.layers if config.family == "decoder" else config.depth_of_decoder,
    }
    for row in rows:
        if "{i}" not in row.names[0]:
            yield row
            continue
        for layer in range(depths[row.names[0].split(".")[0]])[slice(*row.layers)]:
            theirs, *ours = (name.replace("{i}", str(layer)) for name in (row.theirs, *row.names))
            yield replace(row, theirs=theirs, ours=tuple(ours))


class Names:
    """Where a table's names are found in a checkpoint, whose own names may be older or shorter.

    `prefix` precedes every name of the model's body and is missing in checkpoints of the body alone;
    `older` are suffixes that old checkpoints use instead of the current ones.
    """

    def __init__(
        self, found: Collection[str], prefix: str = "", older: Mapping[str, str] | None = None
    ) -> None:
        self.found = frozenset(found)
        self.prefix = prefix
        newer = {
            name.removesuffix(old) + new: name
            for name in found
            for new, old in (older or {}).items()
            if name.endswith(old)
        } | {name: name for name in found}
        self._actual = {prefix + name: actual for name, actual in newer.items()} | newer

    def allow(self, copies: Iterable[Copy]) -> None:
        """Let a tensor be found by the name of a copy, if a checkpoint stores only that one."""
        for copy in copies:
            if copy.of not in self and copy.name in self:
                self._actual[copy.of] = self._actual[copy.name]

    def __contains__(self, name: str) -> bool:
        return name in self._actual

    def find(self, name: str) -> str | None:
        """The checkpoint's name for a name of the table; None if it is missing."""
        return self._actual.get(name)

    def get(self, name: str) -> str:
        """Like `find`, but a missing name is an error."""
        actual = self.find(name)
        if actual is None:
            raise UserError(
                f"The tensor '{name}' is missing from the checkpoint: it is incomplete, or its config "
                f"describes another model."
            )
        return actual


def check_names(
    rows: Iterable[Row], config: ModelConfig, names: Names, copies: Iterable[Copy], ignored: Iterable[str]
) -> None:
    """Check that every row has its tensor and every tensor its row; an error names the tensor."""
    used = {names.get(name) for row in expand(rows, config) for name in row.stored}
    used |= {actual for copy in copies if (actual := names.find(copy.name)) is not None}
    patterns = tuple(ignored)
    left = sorted(
        name
        for name in names.found - used
        if not any(fnmatchcase(full, p) for p in patterns for full in (name, names.prefix + name))
    )
    if left:
        others = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        raise UserError(
            f"The checkpoint holds a tensor '{left[0]}'{others} that the model described by its config "
            "does not have: importing without it would give a different model."
        )


def fill(
    model: nn.Module, rows: Iterable[Row], config: ModelConfig, names: Names, theirs: Mapping[str, Tensor]
) -> None:
    """Fill a model built on "meta" with their tensors, one after another, so that memory holds one copy."""
    places = {ours: (row, at) for row in expand(rows, config) for at, ours in enumerate(row.names)}
    shapes = shapes_of(model)

    def weights(name: str) -> Tensor:
        if name not in places:
            raise UserError(
                f"The checkpoint has no weights for this model's '{name}': it is incomplete, or its "
                "config describes another model."
            )
        row, at = places[name]
        if not row.stored:
            return torch.zeros(shapes[name])
        actual = names.get(row.stored[0])
        tensor = theirs[actual]
        try:
            if row.experts:
                tensor = torch.stack([theirs[names.get(one)] for one in row.stored])
            part = row.change.to_ours(tensor)[at]
        except (RuntimeError, IndexError, ValueError) as error:
            raise _misshapen(actual, tensor) from error
        if part.shape != shapes[name]:
            raise _misshapen(actual, part, shapes[name])
        if not part.is_floating_point():
            raise UserError(
                f"The tensor '{actual}' holds {part.dtype} numbers: quantised weights cannot be imported. "
                "Use the checkpoint in float32, float16 or bfloat16."
            )
        return part.clone(memory_format=torch.contiguous_format)

    fill_with(model, weights)


def to_theirs(rows: Iterable[Row], config: ModelConfig, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors (weights, or anything of their shapes) under their names and in their shapes."""
    result: dict[str, Tensor] = {}
    for row in expand(rows, config):
        if not row.stored:
            if row.names[0] in ours and bool(ours[row.names[0]].any()):
                raise UserError(f"This model cannot be exported: the target family has no '{row.names[0]}'.")
            continue
        for name in row.names:
            if name not in ours:
                raise UserError(f"This model has no '{name}', which an export of its kind needs.")
        whole = row.change.to_theirs(*(ours[name] for name in row.names))
        result |= dict(zip(row.stored, whole if row.experts else (whole,), strict=True))
    return result


def check_copies(copies: Iterable[Copy], names: Names, theirs: Mapping[str, Tensor]) -> None:
    """A tensor that is stored twice must be the same both times."""
    for copy in copies:
        actual = names.find(copy.name)
        if actual is None:
            continue
        original = names.get(copy.of)
        if not torch.equal(theirs[actual], theirs[original]):
            raise UserError(f"The tensors '{actual}' and '{original}' differ, {copy.why}.")


def _misshapen(name: str, tensor: Tensor, wanted: tuple[int, ...] | None = None) -> UserError:
    needs = "" if wanted is None else f", where the config asks for {wanted}"
    return UserError(
        f"The tensor '{name}' has the shape {tuple(tensor.shape)}{needs}: the checkpoint and its config do "
        f"not belong together."
    )
