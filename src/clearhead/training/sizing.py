"""Default sizes: model, vocabulary, batch and steps from the corpus and the device.

Rules of thumb, each with the reason that is printed next to its value. They are
defaults: a recipe or `--set` overrides any of them. Returns plain settings and
builds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clearhead.data.pictures import patch_for, side_for
from clearhead.training.config import TrainConfig
from clearhead.training.sizes import SIZES, Asked, Passes, Rate, Size

CPU_MINUTES = 40.0  # what a user may be willing to wait on a laptop
GPU_MINUTES = 20.0
# The gain of a CPU with bf16 products, chosen so that a planned run ends within its minutes (39 of 40 on two
# quiet cores at width 128: docs/performance.md). Steps alone gain less: the float32 plan ends early.
QUICKER = 2.6
CPU_EFFICIENCY = 0.2  # of the planner's peak: what a model of width 128 reaches, validations included
GPU_EFFICIENCY = 0.05  # small models keep a large GPU waiting
SMALL = 2_000_000  # target tokens below which a model soon memorises its corpus
MANY_EPOCHS = 50.0  # after which a small model has memorised its corpus
FEWEST_EPOCHS = 4.0  # a model with time for fewer is too large
MOST_MINUTES = 1_000_000  # about two years
MOST_STEPS = 10**9  # nobody waits for so many; a batch of one token would ask for more
FILLED = 0.85  # of a batch; the rest is padding
FEWEST_EXAMPLES = 32  # in a batch of long texts: with fewer, each step follows chance
POOLING = {  # why a text's vector is made so
    "mean": "every word contributes, which takes less text to learn",
    "last": "the last position has read all others",
}


class Choice(NamedTuple):
    """One setting that was chosen, and why."""

    name: str
    value: Any
    reason: str


class PictureFacts(NamedTuple):
    """What is known about a corpus of pictures, all of one size."""

    side: int = 28  # pixels
    patch: int = 4
    channels: int = 1

    @property
    def patches(self) -> int:
        """The patches of one picture."""
        return (self.side // self.patch) ** 2

    @classmethod
    def of(cls, channels: int, height: int, width: int, patch: Any = None) -> PictureFacts:
        """Of pictures of this size; `patch`: the one that was asked for, if any."""
        if not isinstance(patch, int) or patch < 1:  # not given, or left for validation to reject
            patch = patch_for(height, width)
        return cls(side_for(height, width, patch), patch, channels)


@dataclass(frozen=True)
class Facts:
    """What is known about a corpus, in tokens."""

    examples: int  # in the training set
    source_tokens: int  # in the whole training set
    target_tokens: int
    vocabulary: int
    source_vocabulary: int | None = None
    classes: int = 0
    tag_columns: tuple[int, ...] = ()  # if words have several tags: the number of labels of each column
    picture: PictureFacts | None = None  # if the corpus is of pictures

    @property
    def batched_tokens(self) -> int:
        """Tokens as batches count them: those of the longer side."""
        return max(self.source_tokens, self.target_tokens, 1)

    def cut(self, source: int, target: int) -> Facts:
        """The same with texts truncated to this many tokens."""
        return replace(
            self,
            source_tokens=min(self.source_tokens, source * self.examples),
            target_tokens=min(self.target_tokens, target * self.examples),
        )


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a task asks of a model for a corpus, in numbers: the only input of sizing.

    Whether a model reads, writes or both shows in the number of tokens on either side.
    """

    facts: Facts
    family: str
    why: str  # the reason for this family
    tokens: int  # how much there is to learn from
    passes: Passes  # epochs for such a corpus
    rate: Rate  # of learning
    by_heart: float = MANY_EPOCHS  # epochs in which a small model memorises its corpus
    fewest_passes: float = FEWEST_EPOCHS  # that a model must have time for
    consistency: float = 0.0  # if there is little text and much time; 0: never
    most_batch: int = 2**31  # tokens in a batch
    rows: bool = True  # examples are separate, not parts of one long text
    context: int = 0  # tokens of a chunk of a long text
    smoothing: float = 0.0  # of labels
    decay: float = 0.1  # of weights; 0: the paper's optimiser and schedule
    head: str = "none"
    pooling: str = ""
    model: tuple[Choice, ...] = ()  # the usual settings of such models
    judging: tuple[Choice, ...] = ()  # the metric, and how much is decoded for it

    @property
    def wanted_passes(self) -> float:
        """The number of epochs, given enough time."""
        return self.passes.over(self.tokens)


@dataclass(frozen=True)
class Machine:
    """Where it will run."""

    gpu: bool
    peak: float | None  # FLOP/s, from a table by kind of device, never measured here
    minutes: float | None = None  # how long training may take; None: a default for the device
    bf16_from: int | None = None  # CPU: models at least this wide are trained in bf16; None: none
    efficiency: float = 1.0  # a fraction of the usual one

    def rate(self, width: int) -> float:
        """FLOPs per minute in training a model of this width: wider models keep a CPU busier."""
        share = GPU_EFFICIENCY if self.gpu else CPU_EFFICIENCY * math.pow(min(width, 512) / 128, 0.7)
        if self.bf16_from is not None and width >= self.bf16_from:
            share *= QUICKER
        return (self.peak or 5e10) * share * self.efficiency * 60

    def budget(self, width: int) -> float:
        """FLOPs that fit into the time."""
        return self.rate(width) * (self.minutes or (GPU_MINUTES if self.gpu else CPU_MINUTES))


def choose_vocabulary(words: int, gpu: bool, writes: bool = True) -> Choice:
    """The vocabulary size for a corpus of this many words; a model that only reads just looks tokens up.

    >>> choose_vocabulary(725_000, gpu=True).value
    8500
    """
    costly = not gpu and writes
    factor, most = (5, 16_000) if costly else (10, 32_000)
    size = round(min(max(factor * math.sqrt(max(words, 1)), 400), most), -2)
    why = (
        "the output layer is the largest cost on a CPU"
        if costly
        else "each token occurs often enough to be learned"
    )
    return Choice("tokenizer.vocabulary", int(size), f"{factor}·√words, for about {words:,} words: {why}")


def choose(demand: Demand, machine: Machine, asked: Asked | None = None) -> list[Choice]:
    """Every setting of a run that depends on the corpus or the device, with the reason."""
    asked = asked or Asked()
    size, size_reason, restraint, work = _planned(demand, machine, asked)
    return [
        Choice("model.family", demand.family, demand.why),
        *_model(demand, size, size_reason, asked.adds_positions),
        Choice("model.dropout", restraint.dropout, restraint.reason),
        Choice("model.embedding.dropout", restraint.dropout, "the same as the layers"),
        Choice("objective.consistency", restraint.consistency, restraint.second_reason),
        *batch_choices(demand, machine, work.batch),
        Choice("steps", work.steps, work.reason),
        *_learning(demand, size, work),
        Choice("validation.every", looks(work.steps), "25 validations in a run"),
        *demand.judging,
        Choice(
            "averaging.snapshots", 10, "the average of the last 10 snapshots is smoother than any of them"
        ),
    ]


def _planned(demand: Demand, machine: Machine, asked: Asked) -> tuple[Size, str, Restraint, Work]:
    size, reason = _size(demand, machine)
    size = asked.sized(size)
    restraint = _restraint(demand, machine, size)
    if restraint.consistency:
        machine = replace(machine, efficiency=machine.efficiency / 2)  # every example is passed twice
    return size, reason, restraint, steps_for(demand, machine, size, asked.batch)


def minutes_wanted(demand: Demand, machine: Machine, asked: Asked | None = None) -> int | None:
    """About how many minutes all epochs would take; None: far too many."""
    given = machine.minutes or (GPU_MINUTES if machine.gpu else CPU_MINUTES)
    while given < MOST_MINUTES:
        if not _planned(demand, replace(machine, minutes=given), asked or Asked())[3].hurried:
            return math.ceil(given / 10) * 10 if given > 20 else math.ceil(given)
        given *= 1.1
    return None


def passes_of(config: TrainConfig, facts: Facts) -> float:
    """About how many epochs a run trains."""
    return config.steps * FILLED * config.batch.tokens * config.batch.accumulate / facts.batched_tokens


def dealt(choices: Sequence[Choice], shares: int) -> list[Choice]:
    """The same choices with the batches of an update split over ranks: its tokens stay the same.

    >>> [choice.value for choice in dealt([Choice("batch.tokens", 4096, "")], 4)]
    [1024, 4]
    """
    if shares == 1:
        return list(choices)
    found = []
    for choice in choices:
        if choice.name == "batch.tokens":
            tokens = max(choice.value // shares, 1)
            found.append(Choice(choice.name, tokens, f"{choice.reason}, split over {shares} ranks"))
            found.append(Choice("batch.accumulate", shares, "a batch for each rank that has data of its own"))
        else:
            found.append(choice)
    return found


class Restraint(NamedTuple):
    """Regularisation, to keep a model from memorising a small corpus."""

    dropout: float
    consistency: float
    reason: str
    second_reason: str


def _restraint(demand: Demand, machine: Machine, size: Size) -> Restraint:
    """Less of it with more text, or without time for many epochs."""
    epochs = _affordable_epochs(demand, machine, size)
    if demand.consistency and demand.tokens < SMALL and epochs > 2 * demand.by_heart:
        return Restraint(
            max(round(size.dropout - 0.1, 2), 0.1),
            demand.consistency,
            "moderate, because the consistency loss regularises too",
            "little text and much time: two passes per example, pulled towards the same prediction (R-Drop)",
        )
    dropout = size.dropout * min(1.0, epochs / MANY_EPOCHS)
    dropout = max(round(dropout * 20) / 20, min(0.1, size.dropout))
    reason = "the less text, the more dropout"
    if dropout < size.dropout:
        reason = f"only about {epochs:.0f} epochs, too few to overfit much"
    return Restraint(dropout, 0.0, reason, "only for little text and much time")


def _size(demand: Demand, machine: Machine) -> tuple[Size, str]:
    """The size for this much text, or a smaller one if the device would be too slow for it."""
    number = next(i for i, size in enumerate(SIZES) if demand.tokens <= size.tokens)
    reason = f"{demand.tokens:,} training tokens are enough for this size"
    while number > 0 and _affordable_epochs(demand, machine, SIZES[number]) < demand.fewest_passes:
        number -= 1
        reason = (
            f"{demand.tokens:,} training tokens would support a larger model, but this device has no time "
            "for it"
        )
    return SIZES[number], reason


def flops_per_epoch(demand: Demand, size: Size) -> float:
    """About 6 FLOPs for each token and weight, the output layer included, and for each pair in attention."""
    facts, width = demand.facts, size.width
    layer = 4 * width**2 + 2 * width * size.inner
    each = max(facts.examples, 1)
    source, target = facts.source_tokens / each, facts.target_tokens / each  # tokens of one example
    if facts.source_tokens and facts.target_tokens:
        read = size.layers * (layer + 2 * width * source)
        written = size.layers * (layer + 4 * width**2 + 2 * width * (source + target / 2))
        return 6.0 * (facts.source_tokens * read + facts.target_tokens * (written + width * facts.vocabulary))
    if facts.target_tokens:
        attended = 2 * width * (demand.context / 2)
        return 6.0 * facts.target_tokens * (size.layers * (layer + attended) + width * facts.vocabulary)
    return 6.0 * facts.source_tokens * size.layers * (layer + 2 * width * source)


def minutes_for(demand: Demand, machine: Machine, config: TrainConfig) -> float:
    """About how long a run takes by the same tables, however its settings were chosen."""
    model = config.model
    inner = model.feedforward.width or 4 * model.width
    size = Size(math.inf, model.width, model.layers, model.attention.heads, inner, model.dropout)
    passes = passes_of(config, demand.facts) * (2 if config.objective.consistency else 1)
    return passes * flops_per_epoch(demand, size) / machine.rate(size.width)


def _affordable_epochs(demand: Demand, machine: Machine, size: Size) -> float:
    return machine.budget(size.width) / flops_per_epoch(demand, size)


class Work(NamedTuple):
    """The length of training."""

    steps: int  # updates
    batch: int  # tokens in a batch
    hurried: bool  # there is no time for all the epochs
    reason: str


def steps_for(demand: Demand, machine: Machine, size: Size, asked: int | None) -> Work:
    """Updates, and tokens in a batch: small batches on a CPU, which gains little from large ones."""
    facts = demand.facts
    batch = min(max(facts.batched_tokens / 50, 1024), 16_384 if machine.gpu else 2048, demand.most_batch)
    if demand.rows:
        fewest = FEWEST_EXAMPLES * facts.batched_tokens / facts.examples
        batch = max(batch, min(fewest, 16_384 if machine.gpu else 8192))
    batch = asked or int(batch) - int(batch) % 256
    wanted = demand.wanted_passes
    affordable = _affordable_epochs(demand, machine, size)
    epochs = min(wanted, max(affordable, 1.0))
    steps = math.ceil(epochs * facts.batched_tokens / (FILLED * batch))
    steps = min(max(steps, 100), MOST_STEPS)
    steps = round(steps, -2) if steps >= 1000 else steps
    limit = "as many as this device has time for" if epochs < wanted else "more for small corpora"
    return Work(steps, batch, epochs < wanted, f"about {epochs:.0f} epochs, {limit}")


def _model(demand: Demand, size: Size, reason: str, adds_positions: bool) -> Iterator[Choice]:
    yield Choice("model.width", size.width, reason)
    yield Choice("model.layers", size.layers, "the same as the width")
    yield Choice("model.attention.heads", size.heads, f"heads of {size.width // size.heads}")
    yield Choice("model.feedforward.width", size.inner, f"{size.inner // size.width} × the width")
    yield Choice("model.norm.place", "pre", "trains steadily at any depth")
    for choice in demand.model:
        if choice.name != "model.embedding.scale" or not adds_positions:
            yield choice
    if demand.head != "none":
        yield Choice("model.head.kind", demand.head, "the task")
        if demand.facts.classes:
            yield Choice("model.head.classes", demand.facts.classes, "labels in the training text")
        if demand.facts.tag_columns:
            yield Choice("model.head.columns", list(demand.facts.tag_columns), "tags in each column")
        yield Choice("model.head.dropout", size.dropout, "the less text, the more dropout")
    if demand.pooling:
        yield Choice("model.head.pooling", demand.pooling, POOLING[demand.pooling])


def batch_choices(demand: Demand, machine: Machine, tokens: int) -> Iterator[Choice]:
    """The size and the shapes of batches."""
    facts = demand.facts
    why = "a batch size at which this device is efficient"
    if abs(tokens - facts.batched_tokens / 50) < 256:
        why = "a fiftieth of the corpus in a step"
    elif abs(tokens - FEWEST_EXAMPLES * facts.batched_tokens / facts.examples) < 256:
        why = f"at least {FEWEST_EXAMPLES} examples in a step"
    yield Choice("batch.tokens", tokens, why)
    if machine.gpu:
        yield Choice("batch.shapes", "fixed", "few shapes, so that each step can be recorded and replayed")
    if demand.context:
        yield Choice("batch.context", demand.context, "tokens that a prediction can see")


def _learning(demand: Demand, size: Size, work: Work) -> Iterator[Choice]:
    rate = float(f"{min(demand.rate.at(size.width), 5e-3):.1g}")
    yield Choice("schedule.rate", rate, "the narrower the model, the larger the steps it tolerates")
    share = 10 if work.hurried else 4
    yield Choice(
        "schedule.warmup", max(min(2000, work.steps // share), 1), "Adam's moments settle before large steps"
    )
    if not demand.decay:
        yield Choice("objective.label_smoothing", demand.smoothing, "the paper's")
        if work.hurried:
            yield Choice("schedule.name", "cosine", "little time: the rate decays almost to zero")
            yield Choice("schedule.floor", 0.02, "a fiftieth of the peak at the end")
        else:
            yield Choice("schedule.name", "inverse-sqrt", "the paper's")
        return
    yield Choice("schedule.name", "cosine", "training ends with small steps")
    yield Choice("schedule.floor", 0.1, "a tenth of the peak at the end")
    yield Choice("objective.label_smoothing", demand.smoothing, "keeps the probabilities calibrated")
    yield Choice("optimiser.name", "adamw", "decouples weight decay from the gradient")
    yield Choice("optimiser.weight_decay", demand.decay, "the usual value with AdamW")


def looks(steps: int) -> int:
    """Steps from one validation to the next: 25 in a run, or fewer in a short one."""
    return max(steps // 25, min(20, steps))


def as_table(choices: Sequence[Choice]) -> dict[str, Any]:
    """The chosen settings as nested tables, as a recipe has them.

    >>> as_table([Choice("model.width", 64, ""), Choice("steps", 5, "")])
    {'model': {'width': 64}, 'steps': 5}
    """
    table: dict[str, Any] = {}
    for choice in choices:
        *path, last = choice.name.split(".")
        inner = table
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = choice.value
    return table
