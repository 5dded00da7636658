"""The lectures' table of training FLOPs beside our count, for models shaped like the original ones.

The table's figure is the paper's: hours × GPUs × the rate a GPU can sustain. That
is what the hardware could have done in the time, not the arithmetic the model
needs, so the count stays below it by the share of the time the GPUs were not
multiplying matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.models.presets import preset
from clearhead.planner.batch import make_batch
from clearhead.planner.devices import DEVICES
from clearhead.planner.totals import Flops, count_flops

GPUS = 8
BATCH_TOKENS = 25_000  # "approximately 25000 source tokens and 25000 target tokens"


@dataclass(frozen=True)
class Run:
    """A training run as the paper reports it."""

    name: str
    steps: int
    hours: float
    table: float  # FLOPs, as printed in the lectures


RUNS = (Run("base", 100_000, 12, 3.3e18), Run("big", 300_000, 84, 2.3e19))


@dataclass(frozen=True)
class Comparison:
    """One run of the table and what we count for it."""

    name: str
    table: float  # as the lectures print it
    hours: float
    steps: int
    hardware: float  # hours × GPUs × sustained rate
    counted: int  # our count for the paper's own run
    planned: int  # our count for the run that is planned

    @property
    def share(self) -> float:
        """The paper's run as we count it, against the table."""
        return self.counted / self.table

    @property
    def planned_share(self) -> float:
        """The planned run against the table."""
        return self.planned / self.table


def compare(config: ModelConfig, planned: Flops) -> Comparison | None:
    """The table's row for a model shaped like base or big; None for any other."""
    for run in RUNS:
        original = preset(run.name)
        if _shape(config) == _shape(original):
            batch = make_batch(original, BATCH_TOKENS, None, None)
            counted = count_flops(build(original, device="meta"), batch, run.steps).run
            hardware = run.hours * 3600 * GPUS * DEVICES["p100"].float32
            return Comparison(run.name, run.table, run.hours, run.steps, hardware, counted, planned.run)
    return None


def _shape(config: ModelConfig) -> tuple[object, ...]:
    """What makes a model the paper's; vocabulary, dropout, kernel and the place of norms are left free."""
    attention = config.attention.replace(width=config.width)
    heads = (attention.heads, attention.groups, attention.key_size, attention.value_size)
    dials = (attention.score, attention.bias, attention.output_bias, attention.softcap)
    feedforward = config.feedforward.replace(width=config.feedforward.width or 4 * config.width, dropout=0.0)
    depth = (config.layers, config.depth_of_decoder)
    added = config.position.name in ("sinusoidal", "learned")  # the paper trains both
    return config.family, config.width, depth, heads, dials, feedforward, added, config.norm.kind
