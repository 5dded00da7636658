"""Packed tokens in models that work row by row: unpacked into rows, computed, and packed again."""

from __future__ import annotations

from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.models.stack import ModelOutput, as_rows, refuse_unlike
from clearhead.nn.look import Look
from clearhead.nn.tokens import Boundaries, Lengths, pack, unpack


def row_by_row(
    model: nn.Module,
    source: Tensor | None,
    target: Tensor,
    source_lengths: Lengths | None,
    target_lengths: Lengths | None,
    state: object,
    look: Look | None,
) -> ModelOutput:
    """Run a model with a source and a target on packed ids, whose lengths the host must know."""
    if state is not None:
        raise UserError("Decoding with a state takes rows of tokens (two dimensions).")
    source = needed_source(source, target, source_lengths, target_lengths)
    as_rows(source, source_lengths, "source tokens")  # refuses impossible lengths
    as_rows(target, target_lengths, "target tokens")
    sizes = {"memory": source_lengths, "target": target_lengths}
    plain = {
        name: one.offsets.diff() if isinstance(one, Boundaries) else one
        for name, one in sizes.items()
        if one is not None
    }
    result: ModelOutput = model(
        unpack(source, plain["memory"]),
        unpack(target, plain["target"]),
        source_lengths=plain["memory"],
        target_lengths=plain["target"],
        look=look,
    )
    for name in ("logits", "hidden", "memory"):
        lengths = plain["memory" if name == "memory" else "target"]
        setattr(result, name, pack(getattr(result, name), lengths))
    return result


def needed_source(
    source: Tensor | None, target: Tensor, source_lengths: Lengths | None, target_lengths: Lengths | None
) -> Tensor:
    """The source of a pass without a state; refused if it is missing or does not fit."""
    if source is None:
        raise UserError("Without a state, the model needs a source.")
    refuse_unlike(source, target, source_lengths, target_lengths)
    return source


def refuse_second_source(source: Tensor | None) -> None:
    """Refuse a source in a pass with a state, which already has one."""
    if source is not None:
        raise UserError("The state already holds the source: give source=None together with a state.")
