"""Reading and writing the `config.json` of other toolkits, one checked setting at a time.

A missing setting gets its toolkit's default; a setting of the wrong type, or one that
needs maths this toolkit does not have, is refused with a message that names it.
Knows nothing about any one family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from clearhead.base.errors import UserError, shown

# Their names of activations -> ours. If several are the same function, we write the first.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}

MOST_LABELS = 1_000_000  # that are named here one by one

REQUIRED: Any = object()  # the default of a setting that must be given


class Settings:
    """The content of a `config.json`."""

    def __init__(self, plain: Mapping[str, Any], where: str = "config.json") -> None:
        self.plain = plain
        self.where = where

    def whole(self, name: str, default: int | object = REQUIRED, least: int = 1) -> int:
        """A whole number of at least 1, or of at least `least`."""
        value = self._get(name, default)
        if type(value) is not int or not least <= value < 2**31:
            self.refuse(name, value, f"a whole number from {least} up to 2 billion is needed")
        return value

    def number(self, name: str, default: float | object = REQUIRED) -> float:
        """Any number."""
        value = self._get(name, default)
        if type(value) not in (int, float):
            self.refuse(name, value, "a number is needed")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false; null is false, as transformers reads it."""
        value = False if self.plain.get(name, default) is None else self._get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false is needed")
        return value

    def activation(self, name: str, default: str) -> str:
        """The name of an activation, as ours."""
        value = self._get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            self.refuse(name, value, "the supported activations are " + ", ".join(sorted(ACTIVATIONS)))
        return ACTIVATIONS[value]

    def table(self, name: str) -> dict[str, Any]:
        """A nested table; empty if there is none."""
        value = self._get(name, {})
        if not isinstance(value, Mapping):
            self.refuse(name, value, "a table is needed")
        return dict(value)

    def id(self, name: str) -> int | None:
        """A token id, or None; the first if several are listed."""
        value = self.plain.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        # Some files write −1 for "none".
        return value if type(value) is int and value >= 0 else None

    def has(self, name: str) -> bool:
        """Whether the file has a setting; null counts as missing."""
        return self.plain.get(name) is not None

    def fixed(self, values: Mapping[str, Any]) -> None:
        """Settings that would change the maths and must have these values if given."""
        for name, value in values.items():
            if self.has(name) and self.plain[name] != value:
                only = "null" if value is None else repr(value)  # as the file has it
                self.refuse(name, self.plain[name], f"only {only} can be imported")

    def equal(self, *names: str) -> None:
        """Settings that may differ there but are one here."""
        found = {name: self.plain[name] for name in names if self.has(name)}
        if len({repr(value) for value in found.values()}) > 1:
            listed = " and ".join(f"{name}={value!r}" for name, value in found.items())
            raise UserError(
                f"{self.where} has {listed}, which must be equal: in clearhead, encoder and decoder share "
                "these settings."
            )

    def refuse(self, name: str, value: Any, reason: str) -> NoReturn:
        """Raise a UserError about one setting."""
        raise UserError(f"{self.where} has {name}={shown(value)}, which cannot be imported: {reason}.")

    def _get(self, name: str, default: Any) -> Any:
        value = self.plain.get(name)
        if value is not None:
            return value
        if default is REQUIRED:
            raise UserError(f"{self.where} lacks the setting '{name}', which is needed to build the model.")
        return default


def labels(settings: Settings) -> list[str]:
    """The names of a classifier's classes, in order."""
    named = settings.table("id2label")
    if not named:
        count = settings.whole("num_labels", settings.whole("_num_labels", 2))
        if count > MOST_LABELS:
            settings.refuse("num_labels", count, f"a classifier has at most {MOST_LABELS:,} labels")
        return [f"LABEL_{i}" for i in range(count)]
    found = [named.get(str(i)) for i in range(len(named))]
    if not all(isinstance(name, str | int) for name in found):
        settings.refuse("id2label", named, "its keys must run from 0 without a gap, and its values be names")
    if len({str(name) for name in found}) < len(found):
        settings.refuse("id2label", named, "two labels have the same name")
    return [str(name) for name in found]
