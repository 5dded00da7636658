"""Checks that a bundle's metadata fits its model, when one is written, read or imported.

Metadata belongs to the user, except the entries below, which other packages rely on. Each is checked once
here, so code that reads it can trust it. Knows nothing about files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from clearhead.base.errors import UserError, shown
from clearhead.models.config import ModelConfig
from clearhead.text.framing import Framings
from clearhead.text.tokenizer import Tokenizer

LARGEST = 2**31  # of any count


def check(
    config: ModelConfig,
    metadata: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    source_tokenizer: Tokenizer | None,
) -> None:
    """Refuse what would fail in use, with a message about "this bundle"."""
    for name, (demand, is_met) in _DEMANDS:
        value = metadata.get(name)
        if value is not None and not is_met(value):
            raise UserError(
                f"The metadata entry '{name}' of this bundle must be {demand}, not {shown(value)}."
            )
    if config.family == "vision":  # it has no vocabulary
        return
    sizes = (config.vocabulary, config.source_vocabulary or config.vocabulary)
    for known, size in zip((tokenizer, source_tokenizer or tokenizer), sizes, strict=True):
        if known is not None and known.vocabulary_size > size:
            raise UserError(
                f"The tokenizer of this bundle has ids up to {known.vocabulary_size - 1:,}, but its model "
                f"has a vocabulary of {size:,}: they do not belong together."
            )
    _check_ids(metadata, max(sizes))
    if metadata.get("framing") is not None:
        Framings.stored(metadata["framing"], sizes[1], sizes[0])


def _check_ids(metadata: Mapping[str, Any], vocabulary: int) -> None:
    """Every id that controls decoding must be in the model's vocabulary."""
    generation = metadata.get("generation") or {}
    named = {f"special.{role}": value for role, value in (metadata.get("special") or {}).items()}
    named |= {f"generation.{name}": value for name, value in generation.items() if name.endswith("_token_id")}
    for name, value in named.items():
        for id in value if isinstance(value, list) else [value]:
            if id is not None and not (_is_count(id, 0) and id < vocabulary):
                raise UserError(
                    f"The metadata entry '{name}' of this bundle must be a token id below {vocabulary:,}, "
                    f"not {shown(id)}."
                )


def _is_count(value: Any, least: int = 1) -> bool:
    return type(value) is int and least <= value < LARGEST


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_numbers(value: Any) -> bool:
    found: list[Any] = [value.get(one) for one in ("mean", "deviation")] if isinstance(value, dict) else [""]
    return all(isinstance(one, int | float) and math.isfinite(one) for one in found) and found[1] > 0


def _is_adapter(value: Any) -> bool:
    if not isinstance(value, dict) or not all(isinstance(value.get(one), str) for one in ("base", "sha256")):
        return False
    scale = value.get("scale")
    return isinstance(scale, int | float) and not isinstance(scale, bool) and math.isfinite(scale)


def _is_reach(value: Any) -> bool:
    pairs = isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value)
    if not pairs or not value or not all(_is_count(number) for one in value for number in one):
        return False
    sizes = [one[0] for one in value]
    return sorted(set(sizes)) == sizes


Demand = tuple[str, Callable[[Any], bool]]  # what an entry must be, and a test of it
_COUNT: Demand = ("a whole number from 1 up to 2 billion", _is_count)
_TABLE: Demand = ("a table", _is_table)
_DEMANDS: tuple[tuple[str, Demand], ...] = (
    ("labels", ("a list of names", _are_names)),
    ("labels", ("a list of different names", lambda value: len(set(value)) == len(value))),
    ("numbers", ("a table with a mean and a deviation above 0", _are_numbers)),
    ("documents", ("true or false", lambda value: isinstance(value, bool))),
    ("context", _COUNT),
    ("source_limit", _COUNT),
    (
        "reach",
        ("pairs of a source length and a text length, with the source lengths in ascending order", _is_reach),
    ),
    ("special", _TABLE),
    ("generation", _TABLE),
    ("source", _TABLE),
    ("adapter", ("a table with a base, its sha256 and a scale", _is_adapter)),
)
