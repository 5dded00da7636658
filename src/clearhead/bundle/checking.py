"""Does what a bundle says about itself fit its model? Checked when one is written, read or imported.

Metadata is the user's own but for the entries below, which other rooms rely on. Each is checked here once, so
that nobody who reads one need wonder. Knows nothing about files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.text.framing import Framings
from clearhead.text.tokenizer import Tokenizer

LARGEST = 2**31  # of any count
_NO_VOCABULARY = "vision"

Fault = str | None  # what an entry must be, where it is not


def check(
    config: ModelConfig,
    metadata: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    source_tokenizer: Tokenizer | None,
) -> None:
    """Refuse, in a sentence about "this bundle", what would go wrong when it is used."""
    for name, fault_of in _ENTRIES.items():
        value = metadata.get(name)
        fault = None if value is None else fault_of(value)
        if fault is not None:
            raise UserError(
                f"The metadata entry '{name}' of this bundle must be {fault}, not {_shown(value)}."
            )
    if config.family == _NO_VOCABULARY:
        return
    sizes = (config.vocabulary, config.source_vocabulary or config.vocabulary)
    for known, size in zip((tokenizer, source_tokenizer or tokenizer), sizes, strict=True):
        if known is not None and known.vocabulary_size > size:
            raise UserError(
                f"The tokenizer of this bundle has ids up to {known.vocabulary_size - 1:,}, and its model "
                f"has a vocabulary of {size:,}: they do not belong together."
            )
    _check_ids(metadata, max(sizes))
    if metadata.get("framing") is not None:
        Framings.stored(metadata["framing"], sizes[1], sizes[0])


def _check_ids(metadata: Mapping[str, Any], vocabulary: int) -> None:
    """Every id that steers decoding must be one of the model's."""
    generation = metadata.get("generation") or {}
    named = {f"special.{role}": value for role, value in (metadata.get("special") or {}).items()}
    named |= {f"generation.{name}": value for name, value in generation.items() if name.endswith("_token_id")}
    for name, value in named.items():
        for id in value if isinstance(value, list) else [value]:
            if id is not None and not (_is_count(id, 0) and id < vocabulary):
                raise UserError(
                    f"The metadata entry '{name}' of this bundle must be a token id below {vocabulary:,}, "
                    f"not {_shown(id)}."
                )


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < LARGEST


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _count(value: Any) -> Fault:
    return None if _is_count(value, 1) else "a whole number from 1 up to 2 billion"


def _flag(value: Any) -> Fault:
    return None if isinstance(value, bool) else "true or false"


def _table(value: Any) -> Fault:
    return None if isinstance(value, dict) and all(map(_is_name, value)) else "a table"


def _labels(value: Any) -> Fault:
    if not isinstance(value, list) or not all(map(_is_name, value)):
        return "a list of names"
    return None if len(set(value)) == len(value) else "a list of different names"


def _numbers(value: Any) -> Fault:
    names = ("mean", "deviation")
    known = isinstance(value, dict) and all(
        isinstance(value.get(name), int | float) and math.isfinite(value[name]) for name in names
    )
    return None if known and value["deviation"] > 0 else "a table with a mean and a deviation above 0"


def _reach(value: Any) -> Fault:
    pairs = isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value)
    if pairs and value and all(_is_count(number, 1) for one in value for number in one):
        sizes = [one[0] for one in value]
        if sorted(set(sizes)) == sizes:
            return None
    return "pairs of a source's length and a text's, the sources in ascending order"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


_ENTRIES: dict[str, Callable[[Any], Fault]] = {
    "labels": _labels,
    "numbers": _numbers,
    "documents": _flag,
    "context": _count,
    "source_limit": _count,
    "reach": _reach,
    "special": _table,
    "generation": _table,
    "source": _table,
}
