"""Settings for a run that starts from another model's weights: little training, as the base knows most.

The rules are those of `sizing`, with a fifth of the epochs and of the learning rate: enough to learn a
small corpus, and little enough to keep what the base knows. A narrow base knows little and is trained nearly
as from scratch. The architecture is the base's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from clearhead.models.config import ModelConfig
from clearhead.training.sizes import Asked, Passes, Size
from clearhead.training.sizing import POOLING, Choice, Demand, Machine, Work, batch_choices, steps_for

LESS = 5.0  # training from scratch takes this many times the epochs and the rate
WIDE = 256  # a base that is narrower takes a larger share
LOOKS = 10  # validations in a run
BATCH = 1024  # tokens per batch of labelled texts: few epochs must still be many updates
MOST_PASSES = 8.0  # epochs of labelled texts: such a model has memorised a thousand of them after seven


def choose_from(
    demand: Demand, machine: Machine, model: ModelConfig, asked: Asked, lora: bool, same_head: bool
) -> list[Choice]:
    """Every setting of such a run that depends on the corpus or the device, with the reason."""
    usual, less = demand.passes, less_than_scratch(model.width)
    gentle = replace(demand, passes=Passes(usual.usual / less, usual.power, usual.most / less))
    if demand.head != "none":
        few = gentle.passes._replace(most=min(gentle.passes.most, MOST_PASSES * LESS / less))
        gentle = replace(gentle, passes=few, most_batch=min(demand.most_batch, BATCH))
    size = size_of(model)
    work = steps_for(gentle, machine, size, asked.batch)
    return [
        *(_head(demand) if demand.head != "none" and not same_head else ()),
        *_classes(demand),
        Choice("objective.consistency", 0.0, "the base model is already trained"),
        *batch_choices(gentle, machine, work.batch),
        Choice("steps", work.steps, f"{work.reason}; {_share(less)} of the steps from scratch"),
        *_learning(demand, size, work, lora, less),
        Choice("validation.every", max(work.steps // LOOKS, 1), f"{LOOKS} validations in a run"),
        _patience(less),
        *demand.judging,
        Choice("averaging.snapshots", 3, "the average of the last 3 snapshots is smoother than any of them"),
    ]


def less_than_scratch(width: int) -> float:
    """The divisor of epochs and rate, against training from scratch, for a base of this width.

    >>> less_than_scratch(384), less_than_scratch(192), less_than_scratch(64)
    (5.0, 2.8125, 1.0)
    """
    return max(LESS * min(width / WIDE, 1.0) ** 2, 1.0)


def _patience(less: float) -> Choice:
    if less < LESS:
        return Choice("validation.patience", LOOKS, "a narrow base learns slowly")
    return Choice("validation.patience", LOOKS // 2, "overfitting shows within half of the validations")


def _share(less: float) -> str:
    return "a fifth" if less == LESS else f"{1 / less:.0%}, because the base is narrow,"


def size_of(model: ModelConfig) -> Size:
    """A model's size, as `sizing` counts it."""
    inner = model.feedforward.width or 4 * model.width
    return Size(math.inf, model.width, model.layers, model.attention.heads, inner, model.dropout)


def _head(demand: Demand) -> Iterator[Choice]:
    yield Choice("model.head.kind", demand.head, "the task")
    yield Choice("model.head.dropout", 0.1, "the usual value for a newly initialised head")
    if demand.pooling:
        yield Choice("model.head.pooling", demand.pooling, POOLING[demand.pooling])


def _classes(demand: Demand) -> Iterator[Choice]:
    if demand.head != "none" and demand.facts.classes:
        yield Choice("model.head.classes", demand.facts.classes, "labels in the training text")
    if demand.head == "tag":
        yield Choice("model.head.columns", list(demand.facts.tag_columns), "tags in each column, if several")


def _learning(demand: Demand, size: Size, work: Work, lora: bool, less: float) -> Iterator[Choice]:
    scratch = min(demand.rate.at(size.width), 5e-3)
    rate = scratch if lora else scratch / less
    why = (
        "as from scratch: LoRA's updates start at zero"
        if lora
        else f"{_share(less)} of the rate from scratch"
    )
    yield Choice("schedule.rate", float(f"{rate:.1g}"), why)
    yield Choice(
        "schedule.warmup", max(work.steps // 10, 1), "the first steps disturb the base's weights most"
    )
    yield Choice("schedule.name", "linear", "decays to zero")
    yield Choice("objective.label_smoothing", demand.smoothing, "as from scratch")
    yield Choice("optimiser.name", "adamw", "decouples weight decay from the gradient")
    yield Choice("optimiser.weight_decay", 0.01, "the usual value in fine-tuning")
