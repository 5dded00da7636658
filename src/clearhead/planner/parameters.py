"""Parameters by part, counted on the model itself.

Walks the modules, so that the parts always add up to what the model holds; a
tensor that several parts share counts once, under the first of them. Knows
nothing of FLOPs or memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from clearhead.nn.positions import Position

# A word in a parameter's path inside a stack → how the part is called.
_IN_STACK = {
    "attention": "self-attention",
    "cross_attention": "cross-attention",
    "feedforward": "feed-forward",
    "norm": "norms",
}
# The first word of the path, for what stands outside the stacks.
_OUTSIDE = {
    "patches": "patches",
    "class_token": "patches",
    "cells": "decoder recurrence",
    "first": "decoder recurrence",
    "score": "decoder attention",
    "combine": "output",
    "output": "output",
    "head": "head",
}
OTHER = "other"


@dataclass(frozen=True)
class Part:
    """A part and how many numbers it learns; `shared_with` names the parts that use them as well."""

    name: str
    count: int
    shared_with: tuple[str, ...] = ()


def parameters_by_part(model: nn.Module) -> tuple[Part, ...]:
    """All parameters of a model, in the order of its modules.

    >>> import clearhead
    >>> parameters_by_part(clearhead.build("tiny", layers=1))[0]
    Part(name='source embedding', count=3200, shared_with=('target embedding', 'output'))
    """
    schemes = [name for name, module in model.named_modules() if isinstance(module, Position)]
    owner: dict[int, str] = {}
    counts: dict[str, int] = {}
    shared: dict[str, dict[str, None]] = {}  # the inner dict is an ordered set
    for path, parameter in model.named_parameters(remove_duplicate=False):
        name = _part(path, schemes)
        if id(parameter) not in owner:
            owner[id(parameter)] = name
            counts[name] = counts.get(name, 0) + parameter.numel()
        elif owner[id(parameter)] != name:
            shared.setdefault(owner[id(parameter)], {})[name] = None
    return tuple(Part(name, count, tuple(shared.get(name, ()))) for name, count in counts.items())


def _part(path: str, schemes: Iterable[str]) -> str:
    """The part a parameter is told under, from where it stands in the model."""
    top, *inner = path.split(".")
    if any(path.startswith(f"{scheme}.") for scheme in schemes):
        return "positions"
    if top.endswith("embedding"):
        if "norm" in inner:
            return "embedding norms"
        return "token types" if "types" in inner else top.replace("_", " ")
    if top in ("encoder", "decoder"):
        found = [name for word, name in _IN_STACK.items() if word in inner]
        return f"{top} {found[0] if found else 'recurrence'}"
    return _OUTSIDE.get(top, OTHER)
