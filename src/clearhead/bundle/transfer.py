"""Which weights of one model initialise another one, by their names and shapes.

A model starts from one of the same family, an encoder also from that of an encoder-decoder. The head is taken
if both have the same. Knows nothing about files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.bundle.weights import tensors_of
from clearhead.models.config import ModelConfig

HEAD = "head."
# Which families can start from a base of which family, the most natural one first.
FAMILIES = {
    "encoder": ("encoder",),
    "encoder-decoder": ("encoder", "encoder-decoder"),
    "decoder": ("decoder",),
    "recurrent": ("recurrent",),
    "vision": ("vision",),
}


@dataclass(frozen=True)
class Transfer:
    """What a model takes from its base, what else it has, and which weights of the base it does not use."""

    taken: dict[str, str]  # name → its name in the base
    new: list[str]
    dropped: list[str]  # by their names in the base


def name_in_base(name: str, family: str, base: str) -> str:
    """The name of a weight in a base of another family.

    >>> name_in_base("embedding.table.weight", "encoder", "encoder-decoder")
    'source_embedding.table.weight'
    """
    if family == "encoder" and base == "encoder-decoder" and name.startswith("embedding."):
        return f"source_{name}"
    return name


def transfer(model: nn.Module, base: nn.Module, same_head: bool) -> Transfer:
    """Find initial values for all weights. `same_head`: the heads have the same outputs in the same order."""
    here, there = settings_of(model), settings_of(base)
    offered: Mapping[str, Tensor] = base.state_dict(keep_vars=True)  # under all their names
    taken: dict[str, str] = {}
    new: list[str] = []
    for name, tensor in tensors_of(model).items():
        source = name_in_base(name, here.family, there.family)
        known = offered.get(source)
        answers = name.startswith(f"{HEAD}classifier.")
        if known is None or (answers and not same_head):
            if not name.startswith((HEAD, "embedding.types.")):
                raise UserError(f"The base has no weight '{source}', which this model needs.")
            new.append(name)
        elif known.shape != tensor.shape:
            raise UserError(
                f"The weight '{source}' of the base has the shape {tuple(known.shape)}, and this model needs "
                f"{tuple(tensor.shape)}."
            )
        else:
            taken[name] = source
    used = {id(offered[source]) for source in taken.values()}
    dropped = [name for name, tensor in tensors_of(base).items() if id(tensor) not in used]
    return Transfer(taken, new, dropped)


def in_words(names: Iterable[str], model: nn.Module) -> str:
    """Weights by the parts they belong to, with their number of parameters.

    >>> import clearhead
    >>> model = clearhead.build("tiny")
    >>> in_words(tensors_of(model), model)
    'source_embedding, encoder, decoder (45,952 parameters)'
    """
    chosen = list(names)
    if not chosen:
        return "nothing"
    sizes = {name: math.prod(tensor.shape) for name, tensor in tensors_of(model).items()}
    parts = [".".join(name.split(".")[: 2 if name.startswith(HEAD) else 1]) for name in chosen]
    return f"{', '.join(dict.fromkeys(parts))} ({sum(sizes[name] for name in chosen):,} parameters)"


def settings_of(model: nn.Module) -> ModelConfig:
    """The config of one of our models."""
    config = model.config
    assert isinstance(config, ModelConfig)
    return config
