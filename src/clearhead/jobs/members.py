"""What a comparison compares: architectures by name, settings that vary, and how they are made equal.

A member is a name and the settings in which it differs from the others. All members share the corpus, the
tokenizer, batches and steps. Trains nothing and writes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from clearhead.base.config import Config, Count, Seed
from clearhead.base.errors import UserError, nearest
from clearhead.base.settings import flat
from clearhead.jobs.recipe import Table, merged, nested, table_in
from clearhead.jobs.refusals import check_settings
from clearhead.models.build import count_parameters
from clearhead.models.config import NO_TRANSFORMERS, ModelConfig
from clearhead.planner.batch import PAIR_LENGTH, PAIRS
from clearhead.training.config import TrainConfig
from clearhead.training.flops import StepFlops

NEAR = 0.02  # sizes that differ by less are left as they are
WIDEST = 16_384
_SLOW = {"schedule": {"rate": 1e-3}}  # recurrences and gated convolutions diverge at larger steps


def _recurrent(cell: str, attention: str) -> Table:
    model = {"family": "recurrent", "layers": 2, "recurrent": {"cell": cell, "attention": attention}}
    return {"model": model, **_SLOW}


# By name: how they differ from the recipe or from sizing's choice. Rates are those at which such models are
# usually trained; a recipe's own member may set others.
ARCHITECTURES: dict[str, Table] = {
    **{cell: _recurrent(cell, "none") for cell in ("rnn", "gru", "lstm")},
    **{f"{cell}+attention": _recurrent(cell, "additive") for cell in ("rnn", "gru", "lstm")},
    "convs2s": {"model": {"family": "convolutional", "position": {"name": "sinusoidal"}}, **_SLOW},
    "transformer": {},  # as in the recipe
    "transformer-post": {"model": {"norm": {"place": "post"}}},
    "transformer-pre": {"model": {"norm": {"place": "pre"}}},
    **{family: {"model": {"family": family}} for family in ("encoder", "decoder", "encoder-decoder")},
}
# Default members, by the kind of the task's answers.
WRITERS = (
    *("rnn", "gru", "lstm", "rnn+attention", "gru+attention", "lstm+attention"),
    *("convs2s", "transformer-post", "transformer-pre"),
)
READERS = ("encoder", "decoder", "encoder-decoder")
# Model settings that every member starts from; the others follow from its family.
_SHARED = (
    "width",
    "layers",
    "dropout",
    "attention.heads",
    "feedforward.width",
    "embedding.dropout",
    "norm.place",
)


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Config):
    """What is compared, and how."""

    _noun: ClassVar[str] = "comparison"

    architectures: tuple[str, ...] = ()  # by name: rnn, gru+attention, convs2s, transformer-pre, …
    members: dict[str, dict[str, Any]] = field(default_factory=dict)  # name → settings, as in a recipe
    vary: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # setting → values; all combinations
    equal: Literal["parameters", "flops", "none"] = "parameters"  # what to equalise by choosing widths
    seeds: Count = 3  # for every member: first_seed, first_seed + 1, …
    first_seed: Seed = 1
    metric: str | None = None  # of the test set; None: the task's first
    rows: Count = 16  # validation examples whose gradients are measured


@dataclass(frozen=True)
class Member:
    """One member: its settings are complete except for the seed; or why it is left out."""

    name: str
    settings: Table
    model: ModelConfig | None = None
    refused: str | None = None


@dataclass(frozen=True)
class Comparison:
    """All results, and the path of the page that shows them."""

    config: CompareConfig
    task: str
    members: list[Member]
    results: dict[str, list[dict[str, Any]]]  # name → measurements, seed by seed
    page: Path | None = None
    failed: tuple[str, ...] = ()  # messages about runs that failed this time


def differing(config: CompareConfig, writes: bool) -> dict[str, Table]:
    """Every member's name and the settings in which it differs."""
    for name in config.architectures:
        if name not in ARCHITECTURES:
            raise UserError(f"There is no architecture '{name}': {nearest(name, ARCHITECTURES)}")
    for path in config.vary:
        if path in ("seed", "task"):
            raise UserError(
                f"A comparison keeps the task fixed and sets the seeds itself: '{path}' cannot vary."
            )
    found: dict[str, Table] = {name: ARCHITECTURES[name] for name in config.architectures}
    found |= config.members
    if not found and not config.vary:
        found = {name: ARCHITECTURES[name] for name in (WRITERS if writes else READERS)}
    points = [
        dict(zip(config.vary, values, strict=True)) for values in itertools.product(*config.vary.values())
    ]
    return {
        " ".join(filter(None, (name, _named(point)))): merged(table, nested(point))
        for name, table in (found or {"": {}}).items()
        for point in points
    }


def _named(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{path.removeprefix('model.')}={_shown(value)}" for path, value in point.items())


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def invited(config: CompareConfig, settings: Table, base: TrainConfig, writes: bool) -> list[Member]:
    """All members with complete settings, as large as `base`, which is what `train` would train."""
    shared = _settings_of(base, settings)
    measure = MEASURES[config.equal]
    goal = None if measure is None else measure(base.model, base)
    found = []
    for name, table in differing(config, writes).items():
        own = "width" in table_in(table, "model")  # an explicit width is kept
        found.append(_member(name, merged(shared, table), base, None if own else measure, goal))
    if all(one.refused for one in found):
        if not (config.architectures or config.members or config.vary):
            raise UserError(
                f"There are no architectures to compare for the task '{base.task}': vary a setting instead, "
                f"such as --vary model.layers=2,4."
            )
        raise UserError(found[0].refused or "")
    return found


def _settings_of(base: TrainConfig, settings: Table) -> Table:
    """The user's settings, and those chosen from the corpus that all members share."""
    chosen = flat(base.to_dict())
    parts = ("tokenizer", "batch", "objective", "optimiser", "schedule", "averaging", "validation")
    kept = {name: value for name, value in chosen.items() if name == "steps" or name.split(".")[0] in parts}
    del kept["schedule.steps"]  # follows from the steps, which may differ
    kept |= {
        f"model.{name}": chosen[f"model.{name}"] for name in _SHARED if chosen[f"model.{name}"] is not None
    }
    return merged(nested(kept), settings)


def _member(name: str, said: Table, base: TrainConfig, measure: Measure | None, goal: float | None) -> Member:
    try:
        model = _model(said, base)
        if measure is not None and goal is not None:
            for change in _widths(model, goal, lambda one: measure(one, base)):
                said = merged(said, {"model": change})
            model = _model(said, base)
        return Member(name, said, model)
    except UserError as error:
        return Member(name, said, refused=str(error))


def _model(said: Table, base: TrainConfig) -> ModelConfig:
    """The model that training would build; `base` has the sizes that follow from the corpus."""
    found = check_settings(said).model
    sizes = {"vocabulary": base.model.vocabulary, "source_vocabulary": base.model.source_vocabulary}
    head = {f"head__{name}": getattr(base.model.head, name) for name in ("classes", "columns")}
    return found.replace(**sizes, **head)


def _widths(model: ModelConfig, goal: float, measure: Callable[[ModelConfig], float]) -> Iterator[Table]:
    """The settings that bring a model closest to the goal; empty if it is close already."""
    if abs(measure(model) / goal - 1) <= NEAR:
        return
    # heads divide a Transformer's width; multiples of 8 suit a GPU, but are too coarse for small models
    unit = (8 if model.width >= 128 else 2) if model.family in NO_TRANSFORMERS else 2 * model.attention.heads

    def at(count: int) -> ModelConfig:
        return model.replace(**{name.replace(".", "__"): value for name, value in flat(table(count)).items()})

    def table(count: int) -> Table:
        width = count * unit
        inner = model.feedforward.width
        wide = {} if inner is None else {"feedforward": {"width": max(round(inner * width / model.width), 1)}}
        return {"width": width, **wide}

    low, high = 1, max(WIDEST // unit, 2)
    while high - low > 1:  # at(low) is below the goal, or the smallest possible
        middle = (low + high) // 2
        low, high = (middle, high) if measure(at(middle)) <= goal else (low, middle)
    yield table(min((low, high), key=lambda count: abs(measure(at(count)) - goal)))


Measure = Callable[[ModelConfig, TrainConfig], float]


def _flops(model: ModelConfig, run: TrainConfig) -> float:
    """FLOPs of a training step for one example of typical length."""
    if model.family in PAIRS:
        return StepFlops(model)(1, PAIR_LENGTH, PAIR_LENGTH)
    texts = 1 if model.head.kind != "none" else 2  # source and target in one row
    length = run.batch.context if run.task == "generate" else texts * PAIR_LENGTH
    return StepFlops(model)(1, 0, length)


MEASURES: Mapping[str, Measure | None] = {
    "parameters": lambda model, run: float(count_parameters(model)),
    "flops": _flops,
    "none": None,
}


def said_in(recipe: Table) -> tuple[Table, Table]:
    """A recipe's settings for runs, and its table `compare`."""
    return {name: value for name, value in recipe.items() if name != "compare"}, table_in(recipe, "compare")
