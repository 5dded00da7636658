"""A whole training run as data: what `clearhead train` chooses, prints, stores and resumes from.

One `[table]` of a recipe for each part; the config of each part is defined next to
its code. Knows nothing about how the values are chosen (`sizing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from clearhead.base.config import (
    Beam,
    Config,
    Count,
    CountOrZero,
    PositiveOrZero,
    Power,
    Seed,
    Share,
    Threads,
)
from clearhead.base.errors import UserError
from clearhead.base.settings import flat
from clearhead.data.config import DataConfig
from clearhead.data.plan import BatchConfig
from clearhead.models.config import ModelConfig
from clearhead.text.learn import TokenizerConfig
from clearhead.text.parts import Tokenisation
from clearhead.training.averaging import AveragingConfig
from clearhead.training.optimiser import OptimiserConfig, ScheduleConfig
from clearhead.training.start import StartConfig

# metrics where higher is better; every other one is a loss
HIGHER_IS_BETTER = (
    *("bleu", "chrf", "exact", "rouge1", "rouge2", "rougeL"),
    *("accuracy", "f1", "matthews", "pearson", "spearman", "mean"),
)


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """The training objective."""

    _noun: ClassVar[str] = "objective"

    label_smoothing: Share = 0.1  # this share of the target probability is spread over the vocabulary
    # R-Drop: weight of the divergence between two passes with different dropout
    consistency: PositiveOrZero = 0.0
    # weight of (log Σ exp z)², which keeps logits z small; for models that write, without `consistency`
    z_loss: PositiveOrZero = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.z_loss and self.consistency:
            raise UserError("objective.z_loss and objective.consistency cannot work together: set one to 0.")


@dataclass(frozen=True, kw_only=True)
class ValidationConfig(Config):
    """How often the model is validated, and when training stops early."""

    _noun: ClassVar[str] = "validation"

    every: Count = 500  # steps from one validation to the next
    # validation examples that are decoded each time, for metrics such as BLEU; 0: none
    decode: CountOrZero = 200
    samples: CountOrZero = 3  # how many of those are shown
    metric: str = "loss"  # the metric that chooses the best weights: loss, bleu, chrf, exact, accuracy, …
    patience: Count | None = 10  # validations without improvement until training stops; None: never

    @property
    def higher_is_better(self) -> bool:
        """Is a higher value of the metric better?"""
        return self.metric in HIGHER_IS_BETTER


@dataclass(frozen=True, kw_only=True)
class TestConfig(Config):
    """How the test set is scored at the end."""

    __test__: ClassVar[bool] = False  # pytest collects classes with such names
    _noun: ClassVar[str] = "test"

    beam: Beam = 1  # beam size; 1: greedy
    length_penalty: Power = 1.0  # scores are divided by the length to this power; higher: longer texts
    max_length: Count | None = None  # longest output in tokens; None: slightly longer than in training
    tokenise: Tokenisation = "13a"  # BLEU's tokenizer; "none" for text that is already tokenised
    # language models: tokens by which the context window moves; None: windows do not overlap
    stride: Count | None = None


@dataclass(frozen=True, kw_only=True)
class ComputeConfig(Config):
    """Device and precision. None of these changes what the model learns, up to rounding."""

    _noun: ClassVar[str] = "compute"

    device: str = "auto"
    # of matrix products; weights stay in float32. float64: weights too, for comparing layouts
    dtype: Literal["auto", "float32", "bf16", "fp16", "float64"] = "auto"
    layout: str = "ddp"  # how the ranks that torchrun starts share the work, as in fsdp8xtp8 or ddp2xep4
    compile: bool = False  # fuse the model's operations with torch.compile (slow to start)
    # activation checkpointing: save only the input of each layer and recompute the rest for the gradients
    recompute: bool = False
    graphs: bool | None = None  # replay each step as one CUDA graph; None: if the device supports it
    threads: Threads | None = None  # CPU threads; None: torch's default


@dataclass(frozen=True, kw_only=True)
class SavingConfig(Config):
    """What a run writes to disk while it trains."""

    _noun: ClassVar[str] = "saving"

    # least time between checkpoints (they are taken at validations)
    seconds: PositiveOrZero = 30.0
    every: Count | None = None  # or: a checkpoint every this many steps, whatever the time
    keep: Count = 2  # checkpoints
    log_every: Count = 50  # steps per line of the log
    tensorboard: bool = True  # also write event files for TensorBoard


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """A training run."""

    _noun: ClassVar[str] = "recipe"

    # or `summarise`, `generate`, `classify`, `regress`, `tag`; several of them as `text`; pre-training:
    # `mask`, `denoise`
    task: str = "translate"
    seed: Seed = 1
    steps: Count = 10_000  # updates of the weights
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    start: StartConfig = field(default_factory=StartConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    test: TestConfig = field(default_factory=TestConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    saving: SavingConfig = field(default_factory=SavingConfig)


# Settings that may differ on resume: they change what a run reports, not the run.
FREE_ON_RESUME = ("saving", "compute.threads", "compute.layout")


def differences(old: TrainConfig, new: TrainConfig) -> list[str]:
    """The settings that differ and would change the run, each as `name: old → new`."""
    before, after = flat(old.to_dict()), flat(new.to_dict())
    return [
        f"{name}: {before.get(name)!r} → {after.get(name)!r}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name) and not name.startswith(FREE_ON_RESUME)
    ]
