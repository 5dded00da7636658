"""What a family of foreign models is: tables for its config and its tensors, and what does not fit in.

Whether a family can hold one of our models is not written down anywhere a second
time: the config is written as theirs and read back, and every setting that does
not come back is one the family cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from clearhead.interop.mapping import Copy, Names, Row, expand
from clearhead.interop.settings import REQUIRED, THEIR_ACTIVATIONS, Settings
from clearhead.models.config import ModelConfig

Tensors = Mapping[str, Tensor]


def no_copies(config: ModelConfig) -> list[Copy]:
    """For families that store nothing twice."""
    return []


def as_they_are(config: ModelConfig, tensors: Tensors) -> Tensors:
    """For families that need nothing done to our tensors before the table."""
    return tensors


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the table of families."""

    model_type: str  # as config.json names it
    architectures: tuple[str, ...]  # those that can be imported; the first where config.json names none
    prefix: str  # before the names of the model's body
    body: str = ""  # the class that is the body alone, whose checkpoints are written without the prefix
    read: Callable[[Settings, Names], ModelConfig]  # config.json to our config
    write: Callable[[ModelConfig], dict[str, Any]]  # and back
    architecture: Callable[[ModelConfig], str]  # the class that holds a model of ours
    rows: Callable[[ModelConfig], list[Row]]
    copies: Callable[[ModelConfig], list[Copy]] = no_copies
    ignored: tuple[str, ...] = ()  # patterns of tensors that hold nothing learned, or nothing we need
    older_endings: Mapping[str, str] = field(default_factory=dict)  # ending now -> ending in old checkpoints
    training_only: tuple[str, ...] = ()  # settings that act in training alone and have no place here
    prepare: Callable[[ModelConfig, Tensors], Tensors] = as_they_are  # our tensors, before they are exported

    def settings_for(self, config: ModelConfig) -> dict[str, Any]:
        """The config.json of one of our models, without token ids."""
        return {
            "architectures": [self.architecture(config)],
            "model_type": self.model_type,
            **self.write(config),
        }

    def misfits(self, config: ModelConfig) -> list[str]:
        """The settings of our model that do not survive the way there and back, as `name=value`."""
        written = Settings(self.settings_for(config))
        names = Names([row.theirs for row in expand(self.rows(config), config)], self.prefix)
        before, after = essence(config), essence(self.read(written, names))
        every = dict.fromkeys([*before, *after])
        return [f"{name}={before.get(name)!r}" for name in every if before.get(name) != after.get(name)]


@dataclass(frozen=True)
class Setting:
    """A setting of theirs that has one place in our config, so that one row reads and writes it.

    `kind` is the method of `Settings` that reads it; one without a default must be given.
    """

    theirs: str
    ours: str  # as `filled` names it
    kind: Literal["whole", "number", "flag", "activation"] = "whole"
    default: Any = REQUIRED


def read_rows(settings: Settings, rows: Iterable[Setting], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The plain data of a config: what is `fixed` for a family, and what config.json says."""
    flat = dict(fixed)
    for row in rows:
        flat[row.ours] = getattr(settings, row.kind)(row.theirs, row.default)
    plain: dict[str, Any] = {}
    for path, value in flat.items():
        table, _, name = path.rpartition(".")
        (plain.setdefault(table, {}) if table else plain)[name] = value
    return plain


def write_rows(rows: Iterable[Setting], config: ModelConfig) -> dict[str, Any]:
    """The way back of `read_rows`."""
    flat = filled(config)
    flat["feedforward.activation"] = THEIR_ACTIVATIONS[config.feedforward.activation]
    return {row.theirs: flat[row.ours] for row in rows}


# Settings a position scheme reads; the others lie idle and may differ. Layouts are not among them:
# the tables bring the features into the order that is wanted.
_POSITION_SETTINGS: dict[str, Collection[str]] = {
    "none": (),
    "sinusoidal": ("base",),
    "learned": ("max_length",),
    "rotary": ("base", "scaling"),
    "t5": ("buckets", "max_distance"),
    "alibi": (),
    "transformer_xl": (),
    "shaw": ("max_distance",),
    "music": ("max_distance",),
}


def filled(config: ModelConfig) -> dict[str, Any]:
    """A config as one flat table (`attention.heads`), with what is None for "as usual" filled in."""
    attention = config.attention.replace(width=config.width)
    flat = _flat(config.to_dict())
    flat |= {
        "decoder_layers": config.depth_of_decoder,
        "attention.kv_heads": attention.groups,
        "attention.scale": attention.factor,
        "attention.query_dim": attention.query_size,
        "attention.key_dim": attention.key_size,
        "attention.value_dim": attention.value_size,
        "attention.memory_width": attention.memory_width or config.width,
        "attention.output_bias": attention.bias if attention.output_bias is None else attention.output_bias,
        "feedforward.width": config.feedforward.width or 4 * config.width,
        "norm.final": config.norm.place == "pre" if config.norm.final is None else config.norm.final,
    }
    if config.position.name == "rotary":
        flat |= {"position.base": rotary_base(config), "position.scaling": _scaling(config)}
    return flat


def essence(config: ModelConfig) -> dict[str, Any]:
    """Everything in a config that decides what a model computes, flat and with defaults filled in.

    Starts from all settings and takes away those known to lie idle, so that a setting added to the
    config some day counts until somebody says here that it does not.
    """
    flat = filled(config)
    idle = {"initialisation", "attention.width", "attention.kernel", "embedding.tie_output"}
    if not config.embedding.tie_output:
        idle.add("embedding.output_scale")
    if config.attention.score not in ("reduced_rank", "additive"):
        idle.add("attention.score_rank")
    if config.family != "encoder-decoder":
        idle |= {"decoder_layers", "source_vocabulary"}
    idle |= {f"embedding.{name}" for name in _idle_in_embedding(config)}
    idle |= {f"head.{name}" for name in _idle_in_head(config)}
    if config.family == "vision":
        idle |= {"vocabulary", "position.max_length"}  # an image's size says how many positions there are
    used = {"position.name", *(f"position.{name}" for name in _POSITION_SETTINGS[config.position.name])}
    return {
        name: value
        for name, value in flat.items()
        if name not in idle
        and not name.endswith("dropout")  # acts in training alone, and is carried as well as it goes
        and not (name.startswith("position.") and name not in used)
        and not (name.startswith("image.") and config.family != "vision")
        and not (name.startswith("recurrent.") and config.family != "recurrent")
    }


def rotary_base(config: ModelConfig) -> float:
    """The base of rotary positions; `ntk` scaling is nothing but a larger one."""
    base, scaling = config.position.base, config.position.scaling
    if scaling is None or scaling.kind != "ntk":
        return base
    size = config.attention.replace(width=config.width).key_size
    return base * float(scaling.factor ** (size / (size - 2)))


_SCALING_SETTINGS: dict[str, Collection[str]] = {
    "linear": ("kind", "factor"),
    "yarn": ("kind", "factor", "original_length", "fast_turns", "slow_turns", "temperature"),
    "llama3": ("kind", "factor", "original_length", "low_frequency", "high_frequency"),
}


def _scaling(config: ModelConfig) -> dict[str, Any] | None:
    """The settings of a rotary scaling that its kind reads."""
    scaling = config.position.scaling
    if scaling is None or scaling.kind == "ntk":
        return None
    return {name: getattr(scaling, name) for name in _SCALING_SETTINGS[scaling.kind]}


def _idle_in_embedding(config: ModelConfig) -> Collection[str]:
    """Settings of the output are idle where there is none, and all of them in front of images."""
    if config.family == "vision":
        return ("scale", "norm", "token_types", "output_bias", "output_scale")
    if config.family == "encoder" and config.head.kind != "mlm":
        return ("output_bias", "output_scale")
    return ()


def _idle_in_head(config: ModelConfig) -> Collection[str]:
    head = config.head
    if head.kind == "none" and config.family not in ("encoder", "vision"):
        return ("kind", "classes", "pooling", "pooler", "transform")
    idle = {"classes"} if head.kind not in ("classify", "tag") else set()
    return idle | ({"transform"} if head.kind != "mlm" else set())


def _flat(plain: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping) and f"{path}{name}" != "position.scaling":
            result |= _flat(value, f"{path}{name}.")
        else:
            result[f"{path}{name}"] = value
    return result
