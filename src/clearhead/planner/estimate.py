"""`plan`: what a model will cost before it is built or trained, as numbers.

Builds the model without memory (on the `meta` device), traverses it and adds up.
`report.py` prints a plan.
"""

from __future__ import annotations

from torch import nn

from clearhead.base.errors import UserError, nearest
from clearhead.models.build import build, preset
from clearhead.models.config import ModelConfig
from clearhead.planner.batch import PAIRS, Batch, make_batch
from clearhead.planner.devices import DEVICES, USABLE, UTILISATION, Device, find_device
from clearhead.planner.ranks import Job, Spread, layouts_for, spread
from clearhead.planner.report import Plan, Timing
from clearhead.planner.totals import (
    BYTES,
    Flops,
    Memory,
    compare,
    count_flops,
    count_idle,
    count_memory,
    parameters_by_part,
)

_DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "float32": "float32", "fp32": "float32"}
# What one decoding step reads of a model, whatever the family.
_WRITING = ("decoder", "output", "cells", "score", "combine")


def plan(
    what: str | ModelConfig | nn.Module,
    batch_tokens: int = 25_000,
    steps: int = 100_000,
    *,
    source_length: int | None = None,
    target_length: int | None = None,
    device: str | Device | None = None,
    dtype: str | None = None,
    ranks: int | None = None,
    layout: str | None = None,
) -> Plan:
    """Compute what a model and its training cost, without allocating memory.

    `what` is a preset's name, a config, or a model. `batch_tokens` are the target tokens per step, in
    sequences of `target_length`; if there is a source, each of them comes with one of `source_length`, so
    equal lengths mean equally many source tokens. For a model with one sequence, its tokens count. Without
    a device, the plan shows all known ones. With `ranks`, it shows the cost of each rank by layout (such as
    `fsdp8xtp8`), on the device or else an H100; the ranks share the batch.

    >>> import clearhead
    >>> found = clearhead.plan("base", batch_tokens=25_000, steps=100_000, device="h200")
    >>> found.parameters == clearhead.count_parameters("base")
    True
    >>> f"{found.flops.run:.2e} FLOPs, {found.timings[0].run_seconds / 3600:.1f} hours"
    '9.52e+17 FLOPs, 0.7 hours'
    """
    if steps < 1:
        raise UserError(f"A plan's steps must be at least 1, not {steps}.")
    name, config, model = _resolve(what)
    batch = make_batch(config, batch_tokens, source_length, target_length)
    chosen = list(DEVICES.values()) if device is None else [find_device(device)]
    number = _dtype(dtype, None if device is None else chosen[0])
    on_cpu = device is not None and chosen[0].name == "cpu"
    flops = count_flops(model, batch, steps)
    memory = count_memory(model, config, batch, number, on_cpu)
    reading = _read_when_decoding(model, config) * BYTES[number]
    timings = [_timing(one, number, flops, memory, reading) for one in chosen]
    if layout is not None and ranks is None:
        raise UserError("A layout needs the number of ranks: give --ranks as well.")
    spreads: list[Spread] = []
    if ranks is not None:
        each = chosen[0] if device is not None else DEVICES["h100"]
        job = Job(model, batch, flops, memory, number, each)
        made = [spread(job, one) for one in layouts_for(ranks, layout)]
        if layout is not None and made[0] is None:
            raise UserError(
                f"The layout '{layout}' cannot partition this model: tp must divide its heads and its "
                "inner width, and cannot partition experts; ep must divide its experts, and fsdp together "
                "with ep must divide the width of an expert and of the model."
            )
        spreads = [one for one in made if one is not None]
    parts = parameters_by_part(model)
    return Plan(
        name=name,
        config=config,
        dtype=number,
        batch=batch,
        parts=parts,
        active=sum(part.count for part in parts) - count_idle(model),
        flops=flops,
        memory=memory,
        timings=tuple(timing for timing in timings if timing is not None),
        comparison=compare(config, flops),
        assumptions=_assumptions(config, batch, number),
        spreads=tuple(spreads),
    )


def _resolve(what: str | ModelConfig | nn.Module) -> tuple[str, ModelConfig, nn.Module]:
    """A name to show, the config, and the model to count."""
    if isinstance(what, nn.Module):
        config = getattr(what, "config", None)
        if not isinstance(config, ModelConfig):
            raise UserError(f"A plan needs a clearhead model, and a '{type(what).__name__}' is not one.")
        return config.family, config, what
    if not isinstance(what, (str, ModelConfig)):
        raise UserError(f"A plan takes the name of a preset, a ModelConfig or a model, not {what!r}.")
    config = preset(what) if isinstance(what, str) else what
    return what if isinstance(what, str) else config.family, config, build(config, device="meta")


def _dtype(name: str | None, device: Device | None) -> str:
    """The number format requested, or the device's fastest."""
    if name in (None, "auto"):
        return "float32" if device is not None and device.bf16 is None else "bf16"
    assert name is not None
    if name not in _DTYPES:
        raise UserError(
            f"Plans do not support the number format '{name}': {nearest(name, ['bf16', 'float32'])}"
        )
    if device is not None and device.peak(_DTYPES[name]) is None:
        raise UserError(f"There is no plan for the device '{device.name}' in {name}: use dtype float32.")
    return _DTYPES[name]


def _timing(device: Device, dtype: str, flops: Flops, memory: Memory, reading: int) -> Timing | None:
    """A device's row, or None if it lacks the number format."""
    peak = device.peak(dtype)
    if peak is None:
        return None
    step = flops.step / (peak * UTILISATION)
    room = device.memory * USABLE - memory.fixed
    each = (memory.kept + memory.loss) / flops.tokens
    return Timing(
        device=device,
        peak=peak,
        utilisation=UTILISATION,
        step_seconds=step,
        run_seconds=step * flops.steps,
        fits=memory.training <= device.memory * USABLE,
        largest_batch=max(0, int(room / each)),
        decode_seconds=reading / device.bandwidth if reading else None,
    )


def _read_when_decoding(model: nn.Module, config: ModelConfig) -> int:
    """Parameters that each decoding step multiplies with, for one sequence."""
    if config.family not in (*PAIRS, "decoder"):
        return 0
    parts = [getattr(model, name) for name in _WRITING if hasattr(model, name)]
    found = {id(parameter): parameter.numel() for part in parts for parameter in part.parameters()}
    return int(sum(found.values())) - sum(count_idle(part) for part in parts)


def _assumptions(config: ModelConfig, batch: Batch, dtype: str) -> tuple[str, ...]:
    if config.family in PAIRS:
        sequences = (
            f"{batch.rows:,} pairs of {batch.source_length} source and {batch.target_length} target tokens"
        )
    elif config.family == "vision":
        sequences = f"{batch.rows:,} images of {batch.source_length} tokens"
    else:
        sequences = f"{batch.rows:,} sequences of {batch.source_length or batch.target_length:,} tokens"
    numbers = "float32 throughout"
    if dtype == "bf16":
        numbers = "weights and gradients in bf16, a float32 copy of the weights beside Adam's two moments"
    return (
        f"One step holds {sequences}, without padding.",
        "FLOPs are those of matrix products, 2·m·n·k each; embedding lookups cost none.",
        f"Memory: {numbers}; a fused attention kernel; no activation checkpointing.",
        f"Time: {UTILISATION:.0%} of the device's peak, one device.",
    )
