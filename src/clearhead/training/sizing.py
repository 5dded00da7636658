"""What to train when nobody says: model, vocabulary, batch and steps from the corpus and the device.

Rules of thumb, each with the reason that is printed beside its value. They are
defaults: a recipe or `--set` overrides any of them. Returns plain settings and
builds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from clearhead.data.config import Task
from clearhead.training.config import TrainConfig
from clearhead.training.sizes import PASSES, SIZES, Asked, Size

FAMILIES: dict[Task, tuple[str, str]] = {
    "translate": ("encoder-decoder", "an encoder reads the source, a decoder writes the target"),
    "summarise": ("encoder-decoder", "an encoder reads the text, a decoder writes the summary"),
    "generate": ("decoder", "each token is predicted from those before it"),
    "classify": ("encoder", "the whole text is read at once, and one label given"),
    "tag": ("encoder", "the whole text is read at once, and each word gets a label"),
}
PAIRS = ("translate", "summarise")

CPU_MINUTES = 40.0  # what a person may wait for on a laptop
GPU_MINUTES = 20.0
CPU_EFFICIENCY = 0.2  # of the planner's peak: what a step of a model 128 wide reaches, validations included
GPU_EFFICIENCY = 0.05  # small models keep a large GPU waiting
SMALL = 2_000_000  # target tokens below which a corpus is soon known by heart
MANY_EPOCHS = 50.0  # passes in which a small model learns its corpus by heart
FEWEST_EPOCHS = 4.0  # a model that would see its corpus less often is too large for the time
MOST_STEPS = 10**9  # nobody waits for so many; a batch of one token would ask for more
FILLED = 0.85  # of a batch; the rest is padding
FEWEST_EXAMPLES = 32  # in a batch of long texts: with fewer, each step follows chance


class Choice(NamedTuple):
    """One setting that was chosen, and why."""

    name: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Facts:
    """What sizing looks at."""

    task: Task
    examples: int  # in the training set
    source_tokens: int  # in the training set, all together
    target_tokens: int
    vocabulary: int
    source_vocabulary: int | None = None
    classes: int = 0

    @property
    def tokens(self) -> int:
        """How much there is to learn from: a target, or the only text; one label a text has a bound."""
        counted = {
            "summarise": (self.source_tokens + self.target_tokens) // 2,
            "classify": min(self.source_tokens, SMALL - 1),
            "tag": self.source_tokens,
        }
        return max(counted.get(self.task, self.target_tokens), 1)

    @property
    def batched_tokens(self) -> int:
        """Tokens as batches count them: of the longer side."""
        return max(self.source_tokens, self.target_tokens, 1)

    def cut(self, source: int, target: int) -> Facts:
        """The same with texts that end after so many tokens."""
        return replace(
            self,
            source_tokens=min(self.source_tokens, source * self.examples),
            target_tokens=min(self.target_tokens, target * self.examples),
        )


@dataclass(frozen=True)
class Machine:
    """Where it will run."""

    gpu: bool
    peak: float | None  # FLOP/s, from a table by kind of device: what ran how fast here decides nothing
    minutes: float | None = None  # how long training may take; None: a default for the device
    efficiency: float = 1.0  # what is left of the usual one

    def rate(self, width: int) -> float:
        """FLOPs a minute while a model of this width is trained: a CPU is the busier the wider it is."""
        share = GPU_EFFICIENCY if self.gpu else CPU_EFFICIENCY * math.pow(min(width, 512) / 128, 0.7)
        return (self.peak or 5e10) * share * self.efficiency * 60

    def budget(self, width: int) -> float:
        """FLOPs that fit into the time."""
        return self.rate(width) * (self.minutes or (GPU_MINUTES if self.gpu else CPU_MINUTES))


def choose_filters(task: Task) -> list[Choice]:
    """What a task leaves out of its training text."""
    if task == "translate":
        return []
    found = [Choice("data.filter.too_long", "cut", "the beginning of a long text says most of it")]
    if task == "summarise":
        found.append(
            Choice("data.filter.source_tokens", 512, "attention grows with the square of the length")
        )
    return [] if task == "generate" else found


def choose_vocabulary(words: int, gpu: bool, task: Task = "translate") -> Choice:
    """How many tokens a corpus of so many words is cut into.

    >>> choose_vocabulary(725_000, gpu=True).value
    8500
    """
    costly = not gpu and task not in ("classify", "tag")  # those only look tokens up
    factor, most = (5, 16_000) if costly else (10, 32_000)
    size = round(min(max(factor * math.sqrt(max(words, 1)), 400), most), -2)
    why = "the output layer costs most on a CPU" if costly else "each token is seen often enough to be learnt"
    return Choice("tokenizer.vocabulary", int(size), f"{factor}·√words, for about {words:,} words: {why}")


def choose(facts: Facts, machine: Machine, asked: Asked | None = None) -> list[Choice]:
    """Every setting of a run that depends on the corpus or the device, with the reason."""
    asked = asked or Asked()
    family, why = FAMILIES[facts.task]
    size, size_reason = _size(facts, machine)
    size = asked.sized(size)
    restraint = _restraint(facts, machine, size)
    if restraint.consistency:
        machine = replace(machine, efficiency=machine.efficiency / 2)  # every example passes twice
    work = _steps(facts, machine, size, asked.batch)
    return [
        Choice("model.family", family, why),
        *_model(facts, size, size_reason, asked.adds_positions),
        Choice("model.dropout", restraint.dropout, restraint.reason),
        Choice("model.embedding.dropout", restraint.dropout, "as the layers"),
        Choice("objective.consistency", restraint.consistency, restraint.second_reason),
        *_batch(facts, machine, work.batch),
        Choice("steps", work.steps, work.reason),
        *_learning(facts, size, work),
        *_judging(facts.task, work.steps),
    ]


class Restraint(NamedTuple):
    """What keeps a model from learning a small corpus by heart."""

    dropout: float
    consistency: float
    reason: str
    second_reason: str


def _restraint(facts: Facts, machine: Machine, size: Size) -> Restraint:
    """Less of it the more text there is, and where there is no time for many passes anyway."""
    epochs = _affordable_epochs(facts, machine, size)
    enough = _wanted_epochs(facts) if facts.task == "classify" else MANY_EPOCHS
    if facts.task in (*PAIRS, "classify") and facts.tokens < SMALL and epochs > 2 * enough:
        return Restraint(
            max(round(size.dropout - 0.1, 2), 0.1),
            2.0,
            "moderate, because of the consistency",
            "little text and much time: every example twice, and both answers pulled together (R-Drop)",
        )
    dropout = size.dropout * min(1.0, epochs / MANY_EPOCHS)
    dropout = max(round(dropout * 20) / 20, min(0.1, size.dropout))
    reason = "the less text, the more dropout"
    if dropout < size.dropout:
        reason = f"only about {epochs:.0f} passes over the corpus, in which little is learnt by heart"
    return Restraint(dropout, 0.0, reason, "only for little text and much time")


def _size(facts: Facts, machine: Machine) -> tuple[Size, str]:
    """The size for this much text, or a smaller one if the device would be too slow for it."""
    number = next(i for i, size in enumerate(SIZES) if facts.tokens <= size.tokens)
    reason = f"{facts.tokens:,} training tokens carry this size"
    fewest = min(FEWEST_EPOCHS, _wanted_epochs(facts) / 3) if facts.task == "classify" else FEWEST_EPOCHS
    while number > 0 and _affordable_epochs(facts, machine, SIZES[number]) < fewest:
        number -= 1
        reason = f"{facts.tokens:,} training tokens would carry more, but this device has no time for it"
    return SIZES[number], reason


def flops_per_epoch(facts: Facts, size: Size) -> float:
    """About 6 FLOPs for each token and weight, the output layer included, and for each pair in attention."""
    width, each = size.width, max(facts.examples, 1)
    layer = 4 * width**2 + 2 * width * size.inner
    source, target = facts.source_tokens / each, facts.target_tokens / each  # tokens of one example
    if facts.task in PAIRS:
        read = size.layers * (layer + 2 * width * source)
        written = size.layers * (layer + 4 * width**2 + 2 * width * (source + target / 2))
        return 6.0 * (facts.source_tokens * read + facts.target_tokens * (written + width * facts.vocabulary))
    if facts.task == "generate":
        attended = 2 * width * (_context(facts) / 2)
        return 6.0 * facts.target_tokens * (size.layers * (layer + attended) + width * facts.vocabulary)
    return 6.0 * facts.source_tokens * size.layers * (layer + 2 * width * source)


def minutes_for(facts: Facts, machine: Machine, config: TrainConfig) -> float:
    """About how long a run takes by the same tables, whoever has chosen its settings."""
    model, batch = config.model, config.batch
    inner = model.feedforward.width or 4 * model.width
    size = Size(math.inf, model.width, model.layers, model.attention.heads, inner, model.dropout)
    epochs = config.steps * FILLED * batch.tokens * batch.accumulate / facts.batched_tokens
    passes = 2 if config.objective.consistency else 1
    return passes * epochs * flops_per_epoch(facts, size) / machine.rate(size.width)


def _context(facts: Facts) -> int:
    return 256 if facts.tokens < 40_000_000 else 512


def _affordable_epochs(facts: Facts, machine: Machine, size: Size) -> float:
    return machine.budget(size.width) / flops_per_epoch(facts, size)


def _wanted_epochs(facts: Facts) -> float:
    return PASSES[facts.task].over(facts.tokens)


class Work(NamedTuple):
    """How much is trained."""

    steps: int  # updates
    batch: int  # tokens in a batch
    hurried: bool  # there is no time for all the passes that would be wanted
    reason: str


def _steps(facts: Facts, machine: Machine, size: Size, asked: int | None) -> Work:
    """Updates, and tokens in a batch: small ones on a CPU, which gains little from large ones."""
    batch = min(max(facts.batched_tokens / 50, 1024), 16_384 if machine.gpu else 2048)
    if facts.task == "classify":
        batch = min(batch, 8192)  # one label a text: the more updates count
    if facts.task != "generate":  # its rows are parts of one long text
        fewest = FEWEST_EXAMPLES * facts.batched_tokens / facts.examples
        batch = max(batch, min(fewest, 16_384 if machine.gpu else 8192))
    batch = asked or int(batch) - int(batch) % 256
    wanted = _wanted_epochs(facts)
    affordable = _affordable_epochs(facts, machine, size)
    epochs = min(wanted, max(affordable, 1.0))
    steps = math.ceil(epochs * facts.batched_tokens / (FILLED * batch))
    steps = min(max(steps, 100), MOST_STEPS)
    steps = round(steps, -2) if steps >= 1000 else steps
    limit = (
        "as often as this device has time for" if epochs < wanted else "as small corpora are read more often"
    )
    return Work(steps, batch, epochs < wanted, f"about {epochs:.0f} passes over the corpus, {limit}")


def _model(facts: Facts, size: Size, reason: str, adds_positions: bool) -> Iterator[Choice]:
    yield Choice("model.width", size.width, reason)
    yield Choice("model.layers", size.layers, "as the width")
    yield Choice("model.attention.heads", size.heads, f"heads of {size.width // size.heads}")
    yield Choice("model.feedforward.width", size.inner, f"{size.inner // size.width} × the width")
    yield Choice("model.norm.place", "pre", "trains steadily at any depth")
    if facts.task in (*PAIRS, "generate"):
        yield Choice(
            "model.position.name", "rotary", "order as distance, which little text suffices to learn"
        )
    if facts.task == "generate":
        if not adds_positions:
            yield Choice("model.embedding.scale", False, "rotary positions are not added to the embedding")
        yield Choice("model.feedforward.activation", "gelu", "customary in language models")
        yield Choice("model.initialisation", "scaled", "customary in language models")
    if facts.task in ("classify", "tag"):
        yield Choice("model.head.kind", facts.task, "the task")
        yield Choice("model.head.classes", max(facts.classes, 1), "labels in the training text")
        yield Choice("model.head.dropout", size.dropout, "the less text, the more dropout")
        if facts.task == "classify":
            yield Choice(
                "model.head.pooling", "mean", "every word has its say, which needs less text to learn"
            )


def _batch(facts: Facts, machine: Machine, tokens: int) -> Iterator[Choice]:
    why = "what this device computes well at once"
    if abs(tokens - facts.batched_tokens / 50) < 256:
        why = "a fiftieth of the corpus in a step"
    elif abs(tokens - FEWEST_EXAMPLES * facts.batched_tokens / facts.examples) < 256:
        why = f"at least {FEWEST_EXAMPLES} examples in a step"
    yield Choice("batch.tokens", tokens, why)
    if machine.gpu:
        yield Choice("batch.shapes", "fixed", "few shapes, so that each step can be recorded and replayed")
    if facts.task == "generate":
        yield Choice("batch.context", _context(facts), "tokens that one prediction can look back on")


def _learning(facts: Facts, size: Size, work: Work) -> Iterator[Choice]:
    usual = {"translate": 7e-4 * (512 / size.width) ** 1.4, "classify": 5e-4 * (256 / size.width) ** 0.5}
    rate = float(f"{min(usual.get(facts.task, 1e-3 * (256 / size.width) ** 0.5), 5e-3):.1g}")
    yield Choice("schedule.rate", rate, "the narrower the model, the larger the steps it bears")
    share = 10 if work.hurried else 4
    yield Choice(
        "schedule.warmup", max(min(2000, work.steps // share), 1), "steady moments before large steps"
    )
    if facts.task in PAIRS:
        yield Choice("objective.label_smoothing", 0.1, "the paper's")
    if facts.task in PAIRS and work.hurried:
        yield Choice("schedule.name", "cosine", "little time: the rate falls to nothing by its end")
        yield Choice("schedule.floor", 0.02, "a fiftieth of the peak at the end")
    elif facts.task in PAIRS:
        yield Choice("schedule.name", "inverse-sqrt", "the paper's")
    else:
        yield Choice("schedule.name", "cosine", "ends with small steps")
        yield Choice("schedule.floor", 0.1, "a tenth of the peak at the end")
        yield Choice("objective.label_smoothing", 0.0, "probabilities are to be true ones")
        yield Choice("optimiser.name", "adamw", "weight decay apart from the gradient")
        yield Choice("optimiser.weight_decay", 0.1, "customary with AdamW")


def looks(steps: int) -> int:
    """Steps from one validation to the next: 25 in a run, or fewer in a short one."""
    return max(steps // 25, min(20, steps))


def _judging(task: Task, steps: int) -> Iterator[Choice]:
    yield Choice("validation.every", looks(steps), "25 looks at the model in a run")
    if task == "classify":
        yield Choice("validation.metric", "f1", "right labels count, and those of rare classes as much")
        yield Choice("validation.decode", 5000, "a label costs no more than a look")
    elif task != "generate":
        right = "tokens" if task in PAIRS else "labels"
        reason = f"right {right} are what counts; with little text the loss turns long before they get fewer"
        yield Choice("validation.metric", "accuracy", reason)
    yield Choice("averaging.snapshots", 10, "the mean of the last 10 looks is smoother than any of them")


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
