"""Adam and AdamW as training needs them: nothing waits for the device, a bad step changes nothing.

torch's fused kernels, with the learning rate as a tensor on the device, so it can
change between replays of a recorded step. A tensor can cancel a step
(`step_unless`): the kernels read it themselves, and the host never has to ask
the device whether the gradients were finite.

Also the learning-rate schedule. Knows nothing about losses or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from clearhead.base.config import (
    Config,
    Count,
    CountOrZero,
    Epsilon,
    Fraction,
    Positive,
    PositiveOrZero,
    Share,
)
from clearhead.base.errors import UserError
from clearhead.nn.layers import TokenEmbedding

Pace = Callable[[str], tuple[float, int]]  # a fraction of the learning rate, and after which step it applies


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig(Config):
    """How a gradient becomes an update. The defaults are those of "Attention Is All You Need", §5.3."""

    _noun: ClassVar[str] = "optimiser"

    # adamw: decoupled weight decay; muon: for matrices
    name: Literal["adam", "adamw", "muon"] = "adam"
    muon_rate: Positive = 2.0  # Muon's learning rate as a multiple of the learning rate
    betas: tuple[Share, Share] = (0.9, 0.98)  # decay rates of the two moments
    eps: Epsilon = 1e-9  # added to the root of the second moment
    weight_decay: PositiveOrZero = 0.0  # not on norms, biases and embeddings
    clip: PositiveOrZero = 1.0  # largest norm of the gradient over all parameters; 0: no clipping


def build_optimiser(
    model: nn.Module, config: OptimiserConfig, device: torch.device | str, pace: Pace | None = None
) -> torch.optim.Optimizer:
    """Adam or AdamW over a model's trainable parameters, its state already in memory.

    `pace` gives the fraction of the rate at which a parameter, by name, learns (`training/start.py`); None:
    all of it.

    The state exists from the start, so insufficient memory shows at once and a recorded step finds
    everything in its place. Call `set_rate` before the first step.
    """
    device = torch.device(device)
    groups = _groups(model, config.weight_decay, pace)
    for group in groups:
        group["lr"] = torch.zeros((), dtype=torch.float32, device=device)
    if not groups:
        raise UserError("This model has no trainable parameters: unfreeze some of its weights.")
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    if config.name == "muon":
        from clearhead.training import muon  # rarely used

        kind, groups = muon.Muon, muon.split_groups(groups, muon.matrices_of(model), config.muon_rate)
    optimiser = kind(
        groups,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
        capturable=device.type == "cuda",
    )
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            optimiser.state[parameter] = _fresh_state(parameter)
            if group.get("muon"):  # Muon has one moment
                del optimiser.state[parameter]["exp_avg_sq"]
    return optimiser


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Change the learning rate in place, so a recorded step sees it."""
    for group in optimiser.param_groups:
        group["lr"].fill_(rate * group.get("factor", 1.0))


def step_unless(optimiser: torch.optim.Optimizer, found_inf: Tensor) -> None:
    """Take the optimiser's step, unless `found_inf` (0-d) is not zero: then nothing changes at all.

    Parameters, moments and step counts stay the same bit for bit. The device decides, and the host does not
    wait for it. The fused kernels read the tensor from the optimiser, where torch's own gradient scaler
    puts it too, and take exactly 1.0 as "skip".
    """
    adam: Any = optimiser
    adam.found_inf = (found_inf != 0).to(torch.float32)
    try:
        adam.step()
    finally:
        del adam.found_inf


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients together to the norm `limit` (0: leave them) and return the norm before.

    A norm that is not finite makes every gradient so: cancel the step then.
    """
    owners = [parameter for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm([owner.grad for owner in owners if owner.grad is not None])
    if limit > 0:
        nn.utils.clip_grads_with_norm_(owners, limit, norm)
    return norm


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Each trainable parameter once, under the first of its names."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _groups(model: nn.Module, weight_decay: float, pace: Pace | None) -> list[dict[str, Any]]:
    """All parameters in one group, or in two, with and without decay; for each pace."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, TokenEmbedding)}
    found: dict[tuple[bool, tuple[float, int]], list[nn.Parameter]] = {}
    for name, parameter in trained_parameters(model):
        spared = weight_decay == 0 or parameter.ndim < 2 or id(parameter) in embeddings
        found.setdefault((spared, (1.0, 0) if pace is None else pace(name)), []).append(parameter)
    return [
        {"params": found[key], "weight_decay": 0.0 if key[0] else weight_decay, "pace": key[1]}
        for key in sorted(found)
    ]


def _fresh_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    """The state that torch's fused Adam creates at its first step."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }


# -- the learning rate -----------------------------------------------------------------------------------
#
# A pure function of the settings, the step and the width of the model. Warm-up is linear. After it,
# with peak rate r, warm-up w and T steps in all:
#
#     inverse-sqrt   r · √(w / step)
#     cosine         r · (f + (1 − f) · (1 + cos π·p) / 2),   p = (step − w) / (T − w), f = floor
#     linear         r · (1 − (1 − f) · p)
#     constant       r
#
# Without an explicit rate, a schedule takes the peak of "Attention Is All You Need" (§5.3), d^−½ · w^−½, and
# `inverse-sqrt` is then the paper's formula to the letter: d^−½ · min(step^−½, step · w^−1.5).


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """The learning-rate schedule."""

    _noun: ClassVar[str] = "schedule"

    name: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    warmup: CountOrZero = 4000  # steps until the peak; 0: start at the peak
    steps: Count = 100_000  # the step at which cosine and linear end; a run sets it to its own length
    rate: Positive | None = None  # the peak learning rate; None: the paper's, from width and warm-up
    floor: Fraction = 0.0  # cosine and linear: the final rate as a fraction of the peak
    begin: CountOrZero = 0  # the step at which it starts: where a run ended before it was extended

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name in ("cosine", "linear") and self.warmup >= self.steps - self.begin:
            raise UserError(
                f"A {self.name} schedule of {self.steps - self.begin} steps is too short for a warm-up of "
                f"{self.warmup}: make schedule.warmup smaller than the number of steps."
            )


def peak_rate(config: ScheduleConfig, width: int) -> float:
    """The highest rate, reached at the end of the warm-up."""
    if config.rate is not None:
        return config.rate
    return float(width**-0.5 * max(config.warmup, 1) ** -0.5)


def rate_at(config: ScheduleConfig, step: int, width: int) -> float:
    """The learning rate of a step; the first step is number 1.

    >>> rate_at(ScheduleConfig(), 4000, 512) == 512**-0.5 * 4000**-0.5
    True
    >>> rate_at(ScheduleConfig(name="linear", warmup=10, steps=110, rate=1.0), 60, 512)
    0.5
    """
    if step < 1:
        raise ValueError(f"Steps are counted from 1, not {step}.")
    step, length = max(step - config.begin, 1), config.steps - config.begin
    warmup = max(config.warmup, 1)
    if config.name == "inverse-sqrt" and config.rate is None:
        return float(width**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = peak_rate(config, width)
    if step < warmup:
        return peak * step / warmup
    if config.name == "inverse-sqrt":
        return peak * math.sqrt(warmup / step)
    if config.name == "constant":
        return peak
    # p, the progress from the end of the warm-up (0) to the end of the run (1)
    gone = min(1.0, (step - config.warmup) / (length - config.warmup))
    left = (1 + math.cos(math.pi * gone)) / 2 if config.name == "cosine" else 1 - gone
    return peak * (config.floor + (1 - config.floor) * left)
