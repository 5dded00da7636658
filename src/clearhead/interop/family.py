"""What a family of foreign models is: tables for its config and its tensors, and what does not fit.

No second list says whether a family can represent one of our models: the config is
written as theirs and read back, and every setting that does not survive is one the
family cannot express.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import Tensor

from clearhead.interop.mapping import Copy, Names, Row, Table, expand, several
from clearhead.interop.settings import REQUIRED, THEIR_ACTIVATIONS, Settings
from clearhead.models.config import LayerRule, ModelConfig
from clearhead.nn.attention.latent import LatentConfig

Tensors = Mapping[str, Tensor]
Flat = dict[str, Any]  # our config as one flat table (`attention.heads`)


@dataclass(frozen=True)
class Setting:
    """One of their settings with a counterpart in our config, so that one row reads and writes it.

    If it has several names of theirs, they must agree; if several of ours, the first one's value is written.
    `kind` is the method of `Settings` that reads it. Without a default, it is required; a default may be
    computed from what the rows before it have read.
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    kind: Literal["whole", "number", "flag", "activation"] = "whole"
    default: Any = REQUIRED


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the table of families."""

    model_type: str  # its name in config.json
    # the importable classes, and the head of each; the first is used if config.json names none
    architectures: Mapping[str, str]
    prefix: str  # before the names of the model's body
    body: str = ""  # the class that is the body alone, whose checkpoints omit the prefix
    settings: tuple[Setting, ...]
    ours: Mapping[str, Any]  # what all its models share, in terms of our config
    # their settings that would change the maths, and must have these values if given
    theirs: Mapping[str, Any] = field(default_factory=dict)
    read_more: Callable[[Settings, Names, Flat], Flat] = lambda settings, names, flat: {}  # beyond the rows
    write_more: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}
    table: Callable[[ModelConfig], Table]
    ignored: tuple[str, ...] = ()  # patterns of tensors that hold nothing learned, or nothing we need
    older_endings: Mapping[str, str] = field(default_factory=dict)  # suffix now -> suffix in old checkpoints
    training_only: tuple[str, ...] = ()  # settings that act only in training and have no counterpart here
    # our tensors, before they are exported
    prepare: Callable[[ModelConfig, Tensors], Tensors] = lambda config, tensors: tensors

    def rows(self, config: ModelConfig) -> list[Row]:
        return [row for row in self.table(config) if isinstance(row, Row)]

    def copies(self, config: ModelConfig) -> list[Copy]:
        return [copy for copy in self.table(config) if isinstance(copy, Copy)]

    def architecture(self, config: ModelConfig) -> str:
        """The class for one of our models; a regression is a classifier of one class there."""
        kind = "classify" if config.head.kind == "number" else config.head.kind
        every = self.architectures
        return next((name for name, head in every.items() if head == kind), next(iter(every)))

    def read(self, settings: Settings, names: Names) -> ModelConfig:
        """config.json to our config."""
        settings.fixed(self.theirs)
        flat = dict(self.ours)
        for row in self.settings:
            theirs = several(row.theirs)
            settings.equal(*theirs)
            default = row.default(flat) if callable(row.default) else row.default
            flat |= dict.fromkeys(several(row.ours), getattr(settings, row.kind)(theirs[0], default))
        plain: dict[str, Any] = {}
        for path, value in (flat | self.read_more(settings, names, flat)).items():
            table, _, name = path.rpartition(".")
            (plain.setdefault(table, {}) if table else plain)[name] = value
        return ModelConfig.from_dict(plain)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """The config.json of one of our models, without token ids."""
        flat = filled(config)
        flat["feedforward.activation"] = THEIR_ACTIVATIONS[config.feedforward.activation]
        plain: dict[str, Any] = {"architectures": [self.architecture(config)], "model_type": self.model_type}
        # another kind of part may lack a setting: then reading it back shows that it does not fit
        plain |= {
            name: flat.get(several(row.ours)[0]) for row in self.settings for name in several(row.theirs)
        }
        if config.family == "encoder-decoder":
            plain["is_encoder_decoder"] = True
        if config.head.kind in ("classify", "tag"):
            plain["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.head.classes)}
        if config.head.kind == "number":
            plain |= {"id2label": {"0": "LABEL_0"}, "problem_type": "regression"}
        return plain | self.write_more(config)

    def misfits(self, config: ModelConfig) -> list[str]:
        """The settings of our model that do not survive the round trip, as `name=value`; tables by name."""
        stored = [name for row in expand(self.rows(config), config) for name in row.stored]
        names = Names(stored, self.prefix)
        before, after = essence(config), essence(self.read(Settings(self.write(config)), names))
        lost = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
        return [name if name == "layer_pattern" else f"{name}={before.get(name)!r}" for name in lost]


# Settings that a position scheme reads; the others are unused and may differ. Layouts are not among them:
# the tables reorder the features as needed.
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
_SCALING_SETTINGS: dict[str, Collection[str]] = {
    "linear": ("kind", "factor"),
    "yarn": ("kind", "factor", "original_length", "fast_turns", "slow_turns", "temperature"),
    "llama3": ("kind", "factor", "original_length", "low_frequency", "high_frequency"),
}


# Settings that act only in the training of experts, or do not change what they compute.
_EXPERTS_IN_TRAINING = ("balance_loss", "z_loss", "bias_rate", "dispatch")


def filled(config: ModelConfig) -> Flat:
    """A config as one flat table, with the defaults that None stands for filled in."""
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
        "feedforward.width": config.feedforward.inner(config.width),
        "norm.final": config.norm.place == "pre" if config.norm.final is None else config.norm.final,
    }
    if isinstance(attention, LatentConfig):
        flat["attention.latent_dim"] = attention.latent_size
        flat["attention.rotary_dim"] = attention.position_size
    if config.position.name == "rotary":
        scaling = config.position.scaling
        used = () if scaling is None else _SCALING_SETTINGS.get(scaling.kind, ())
        flat["position.base"] = rotary_base(config)
        flat["position.scaling"] = {name: getattr(scaling, name) for name in used} or None
    return flat


def essence(config: ModelConfig) -> Flat:
    """Everything in a config that determines what a model computes, flat and with defaults filled in.

    Starts from all settings and removes those known to be unused, so that a setting added to the config later
    counts until it is listed here.
    """
    flat, kind, family = filled(config), config.head.kind, config.family
    unused = {f"position.{name}" for name in config.position.to_dict()}
    unused -= {f"position.{name}" for name in ("name", *_POSITION_SETTINGS[config.position.name])}
    flat["layer_pattern"] = [_rule(rule, config.width) for rule in config.layer_pattern]
    rules = {
        ("initialisation", "attention.width", "attention.kernel", "embedding.tie_output", *unused): True,
        ("*dropout",): True,  # acts only in training, and is carried over where possible
        tuple(f"feedforward.{name}" for name in _EXPERTS_IN_TRAINING): True,
        ("embedding.output_scale",): not config.embedding.tie_output,
        ("embedding.output_bias", "embedding.output_scale"): family == "encoder" and kind != "mlm",
        ("attention.score_rank",): config.attention.score not in ("reduced_rank", "additive"),
        ("decoder_layers", "source_vocabulary"): family != "encoder-decoder",
        # an image's size determines the number of positions
        ("vocabulary", "embedding.*", "position.max_length"): family == "vision",
        ("head.*",): kind == "none" and family not in ("encoder", "vision"),
        ("head.classes",): kind not in ("classify", "tag"),
        ("head.transform",): kind != "mlm",
        ("image.*",): family != "vision",
        ("recurrent.*", "convolution.*"): True,  # of families that have no counterpart
    }
    idle = [pattern for patterns, applies in rules.items() if applies for pattern in patterns]
    return {name: value for name, value in flat.items() if not any(fnmatchcase(name, one) for one in idle)}


def _rule(rule: LayerRule, width: int) -> Flat:
    """What determines the computation of a rule's layers."""
    plain, own = rule.to_dict(), rule.feedforward
    if own is not None:
        plain["feedforward"] |= {"width": own.inner(width), "dropout": 0.0}
        for name in _EXPERTS_IN_TRAINING:
            plain["feedforward"].pop(name, None)
    return plain


def rotary_base(config: ModelConfig) -> float:
    """The base of rotary positions; `ntk` scaling is just a larger base."""
    base, scaling = config.position.base, config.position.scaling
    if scaling is None or scaling.kind != "ntk":
        return base
    size = config.attention.replace(width=config.width).position_size
    return base * float(scaling.factor ** (size / (size - 2)))


def _flat(plain: Mapping[str, Any], path: str = "") -> Flat:
    result: Flat = {}
    for name, value in plain.items():
        if isinstance(value, Mapping) and f"{path}{name}" != "position.scaling":
            result |= _flat(value, f"{path}{name}.")
        else:
            result[f"{path}{name}"] = value
    return result
