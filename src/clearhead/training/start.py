"""A run that starts from another model's weights: which ones are frozen, and how fast the others learn.

Patterns of names freeze weights. The others may learn more slowly the further they are below the top, may
start to learn one layer after the other, from the top down, or may all be frozen while a low-rank update is
learned (LoRA). Knows nothing about where the weights come from (`jobs/start.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import nn

from clearhead.base.config import Bounds, Config, Count, CountOrZero, Positive
from clearhead.base.errors import UserError
from clearhead.data.config import CorpusConfig
from clearhead.models.config import ModelConfig
from clearhead.nn import lora

_LAYER = re.compile(r"(?:encoder|decoder)\.layers\.(\d+)\.")
# name prefixes of weights below the first layer
_BELOW = ("embedding.", "source_embedding.", "target_embedding.", "position.", "patches.", "class_token")


@dataclass(frozen=True, kw_only=True)
class LoraConfig(Config):
    """LoRA: weights are frozen, and low-rank updates are learned, W + (alpha / rank) · B A."""

    _noun: ClassVar[str] = "lora"

    rank: CountOrZero = 0  # rank of the update; 0: no LoRA, the weights themselves are trained
    alpha: Positive = 16.0  # the update is multiplied by alpha / rank
    targets: tuple[str, ...] = ("*attention.query", "*attention.value")  # patterns of linear layers' names
    apart: bool = False  # write a small bundle that needs its base; False: merge the updates into the weights

    @property
    def scale(self) -> float:
        """The factor of the update."""
        return self.alpha / max(self.rank, 1)


@dataclass(frozen=True, kw_only=True)
class StartConfig(Config):
    """The model that a run starts from, and how its weights are trained."""

    _noun: ClassVar[str] = "start"

    base: str | None = None  # folder of a bundle, or of a Hugging Face model; None: training from scratch
    sha256: str | None = None  # checksum of its weights, stored when the run begins
    freeze: tuple[str, ...] = ()  # weights whose names match a pattern are frozen: ["embedding.*"]
    # each layer's learning rate is this fraction of that of the layer above
    rate_decay: Annotated[float, Bounds(0, 1, above=True)] = 1.0
    # train only what is above the layers at first, and one more layer after every this many steps
    unfreeze_every: Count | None = None
    # texts of the base's own domain, on which base and result are compared; None: the base's validation set
    old_domain: CorpusConfig | None = None
    lora: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.freeze, self.unfreeze_every, self.old_domain, self.lora.rank, self.rate_decay < 1)
        if self.base is None and any(given):
            raise UserError(
                "The settings under 'start' only apply to a run that starts from a model: name the model "
                "with --from, or leave them out."
            )


class Pace(NamedTuple):
    """How a weight learns: at what fraction of the learning rate, and after which step."""

    share: float = 1.0
    opens: int = 0


def distance_from_top(name: str, model: ModelConfig) -> int:
    """How many layers below the top a weight is; 0 for anything above all layers, such as a head.

    >>> two = ModelConfig(layers=2)
    >>> distance_from_top("encoder.layers.1.attention.query.weight", two)
    1
    >>> distance_from_top("embedding.table.weight", two), distance_from_top("head.classifier.bias", two)
    (3, 0)
    """
    decodes = model.family in ("encoder-decoder", "recurrent")
    depth = max(model.layers, model.depth_of_decoder) if decodes else model.layers
    if name.startswith(_BELOW):
        return depth + 1
    found = _LAYER.match(name)
    return 0 if found is None else depth - int(found[1])


def pace_of(start: StartConfig, model: ModelConfig) -> Callable[[str], Pace] | None:
    """How each weight learns, by its name; None: all the same."""
    if start.rate_decay == 1.0 and start.unfreeze_every is None:
        return None

    def pace(name: str) -> Pace:
        distance = distance_from_top(name, model)
        return Pace(start.rate_decay**distance, distance * (start.unfreeze_every or 0))

    return pace


def open_groups(optimiser: torch.optim.Optimizer, step: int) -> None:
    """Let the parameters learn whose first step has come; the others stay fixed at rate 0."""
    for group in optimiser.param_groups:
        share, opens = group.get("pace", Pace())
        group["factor"] = share if step > opens else 0.0


def prepare(model: nn.Module, start: StartConfig, new: Collection[str]) -> list[str]:
    """Freeze weights and attach LoRA's layers; returns messages about it.

    `new` are the weights that the base does not have: LoRA leaves them trainable.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in start.freeze:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(
                f"start.freeze has the pattern '{pattern}', which matches no weight: the names look like "
                f"'{names[0]}' and '{names[-1]}'."
            )
    for name, parameter in model.named_parameters():
        frozen = any(fnmatchcase(name, pattern) for pattern in start.freeze)
        rests = start.lora.rank > 0 and name not in new
        parameter.requires_grad_(not (frozen or rests))
    said = []
    if start.lora.rank:
        found = lora.attach(model, start.lora.targets, start.lora.rank, start.lora.scale)
        said.append(
            f"LoRA of rank {start.lora.rank} on {len(found)} linear layers; their own weights stay frozen."
        )
    learns = sum(one.numel() for one in model.parameters() if one.requires_grad)
    if not learns:
        raise UserError("start.freeze freezes every weight of this model: leave some of them trainable.")
    whole = sum(one.numel() for one in model.parameters())
    if learns < whole:
        said.append(f"{learns:,} of {whole:,} parameters are trainable.")
    return said
