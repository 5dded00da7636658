"""Which number format `auto` and `fast` choose for a bundle; nothing is timed.

`auto` is float32 on a CPU and, on a GPU, the format the bundle was trained in. `fast` takes the first format,
in the order of speed of the kind of processor, whose cost on the validation set is below a bound; training
measures that cost and stores it in the bundle (`metadata["formats"]`, see docs/bundle.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from clearhead.bundle.folder import Bundle
from clearhead.decoding.native import Dtype
from clearhead.decoding.native.binding import instruction_set

FORMATS = "formats"  # the name in a bundle's metadata
NATS = "nats per token"  # the measure of a language model

# The C++ engine's formats, fastest first, by the instruction set of the kernels it uses; a format that is not
# faster than float32 there is left out.
CPU_ORDER: dict[str, tuple[Dtype, ...]] = {
    # Measured by `python benchmarks/instruction_sets.py`; avx2-vnni follows from its neighbours.
    "avx512-vnni": ("int8", "bf16", "float32"),
    "avx512": ("int8", "bf16", "float32"),
    "avx2-vnni": ("int8", "bf16", "float32"),
    "avx2": ("int8", "bf16", "float32"),
    "plain": ("int8", "float32"),
    # Estimated from the loops (`python benchmarks/arm_loops.py`): bf16 reads half the memory but computes
    # slower than float32 as soon as there are several rows; int8 computes faster, and reads a quarter.
    "neon-i8mm": ("int8", "float32"),
    "neon-dotprod": ("int8", "float32"),
    "neon": ("int8", "float32"),
}
GPU_ORDER: tuple[Dtype, ...] = ("bf16", "float32")

# What `fast` accepts: a loss of this many points (of 100) of the metric, or nats per token if that is the
# metric, and this relative entropy to float32's distributions in nats per token: on texts that the model
# itself would write, perplexity is 2 % higher.
MOST_POINTS, MOST_NATS, MOST_DRIFT = 0.5, 0.02, 0.02


def trained_in(bundle: Bundle) -> Dtype:
    """The format a bundle was trained in, by its metadata, else that of its weights; float32 for float16."""
    noted = bundle.metadata.get("training")
    name = noted.get("dtype") if isinstance(noted, Mapping) else None
    if not isinstance(name, str):
        name = str(next(bundle.model.parameters()).dtype).removeprefix("torch.")
    return "bf16" if name in ("bfloat16", "bf16") else "float32"


def fast(bundle: Bundle, device: torch.device, why_not_native: str | None) -> tuple[Dtype, str | None]:
    """The format that `fast` selects here, and a sentence if it is float32 after all."""
    if device.type == "cpu" and why_not_native is not None:
        reason = why_not_native.removesuffix(".")
        return "float32", f"--fast needs the C++ engine, which cannot be used here: {reason}."
    order, kind = _order(device)
    if order[0] == "float32":
        return "float32", f"float32 is the fastest number format on this kind of device ({kind})."
    stored = bundle.metadata.get(FORMATS)
    measured = stored.get(device.type) if isinstance(stored, Mapping) else None
    if not isinstance(stored, Mapping) or not isinstance(measured, Mapping):
        place = "GPU" if device.type == "cuda" else "CPU"
        return "float32", (
            f"This bundle does not record what other number formats cost in quality on a {place}, so "
            "float32 is used; `clearhead evaluate BUNDLE … --formats` measures and records it."
        )
    metric = stored.get("metric")
    for one in order:
        if acceptable(measured.get(one), metric):
            return one, None
    tried = " and ".join(one for one in order if one != "float32")
    return "float32", (
        f"According to the measurements in this bundle, {tried} would lose too much quality, so float32 "
        "is used."
    )


def _order(device: torch.device) -> tuple[tuple[Dtype, ...], str]:
    """The formats of a device, fastest first, and the kind of device."""
    if device.type == "cuda":
        return GPU_ORDER, "cuda"
    if device.type == "cpu":
        return CPU_ORDER.get(instruction_set(), ("float32",)), instruction_set()
    return ("float32",), device.type


def acceptable(figures: Any, metric: Any) -> bool:
    """Whether a format's stored figures are within the bounds; missing or non-numeric ones are not."""
    if not isinstance(figures, Mapping):
        return False
    most = MOST_NATS if metric == NATS else MOST_POINTS
    return _below(figures.get("cost"), most) and _below(figures.get("drift"), MOST_DRIFT)


def _below(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= most  # NaN is not
