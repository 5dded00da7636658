"""Averages of weights: an exponential moving average (EMA) over all steps, or a mean of stored snapshots.

Knows nothing about when snapshots are taken or which weights are the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from clearhead.base.config import Bounds, Config, Share
from clearhead.base.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AveragingConfig(Config):
    """Which averages of the weights are kept."""

    _noun: ClassVar[str] = "averaging"

    ema: Share = 0.0  # decay of the moving average, such as 0.999; 0: none
    # average the weights at this many of the last validations; 0: none
    snapshots: Annotated[int, Bounds(0, 10_000)] = 0


class Ema:
    """A moving average of a model's trainable weights.

    After update number t (from 0), average ← average + (1 − d)·(weights − average) with
    d = min(decay, (1 + t) / (10 + t)), so a young average forgets faster. The step count lives on the
    device next to the averages: updates can be recorded and replayed, and nothing waits for the device.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise UserError(f"The decay of a moving average must lie in [0, 1), not {decay}.")
        self.decay = decay
        self.names: list[str] = []
        self.averages: list[Tensor] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.names.append(name)
                self.averages.append(parameter.detach().clone())
        if not self.averages:
            raise UserError("This model has no parameter to average.")
        self.count = torch.zeros((), dtype=torch.float32, device=self.averages[0].device)

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor]) -> None:
        """Include the current weights: the trainable parameters, in the model's order."""
        weights = list(parameters)
        if len(weights) != len(self.averages):
            raise ValueError(f"{len(weights)} parameters for {len(self.averages)} averages.")
        # 1 − d, which is 9 / (10 + t) during the first steps
        share = (9.0 / (10.0 + self.count)).clamp_(min=1.0 - self.decay)
        if self.count.device.type == "cpu":
            torch._foreach_lerp_(self.averages, weights, share.item())  # one pass; on a CPU item() is free
        else:
            change = torch._foreach_sub(weights, self.averages)
            torch._foreach_mul_(change, share)
            torch._foreach_add_(self.averages, change)
        self.count.add_(1.0)

    def weights(self) -> dict[str, Tensor]:
        """The averages by parameter name: the tensors themselves, not copies."""
        return dict(zip(self.names, self.averages, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint stores."""
        return {"count": self.count} | {f"average/{name}": tensor for name, tensor in self.weights().items()}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned; if any of it does not fit, nothing changes."""
        places = self.tensors()
        for name, place in places.items():
            if name not in tensors or tensors[name].shape != place.shape:
                raise UserError(
                    f"The stored moving average does not match '{name}': it belongs to another model."
                )
        for name, place in places.items():
            place.copy_(tensors[name])

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Within the block the model computes with the averages; afterwards it has its own weights again.

        They are restored bit for bit. Values are copied into the same tensors, so recorded steps and
        optimisers remain valid.
        """
        weights: list[Tensor] = [weight for weight in model.parameters() if weight.requires_grad]
        with torch.no_grad():
            kept = [weight.detach().clone() for weight in weights]
            torch._foreach_copy_(weights, self.averages)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(weights, kept)


def average_files(paths: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of the tensors of several safetensors files, summed in float64.

    Needs memory for one model in float64 and one tensor of one file, however many files there are. Integer
    tensors are not averaged: the last file's are returned.
    """
    if not paths:
        raise UserError("There are no snapshots to average: save at least one.")
    sums: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                if sums:
                    _same_names(paths[0], sums, path, names)
                for name in names:
                    _add(sums, kinds, name, file.get_tensor(name), (paths[0], path))
        except (SafetensorError, OSError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(f"The weights '{path}' are damaged or truncated ({reason}).") from error
    for name, kind in kinds.items():
        if kind.is_floating_point:
            sums[name] = sums[name].div_(len(paths)).to(kind)
    return sums


def _same_names(first: str | Path, known: Iterable[str], path: str | Path, names: Iterable[str]) -> None:
    odd = sorted(set(known) ^ set(names))
    if odd:
        raise UserError(
            f"Cannot average '{first}' and '{path}': only one of them has the tensor '{odd[0]}'; only "
            "weights of the same model can be averaged."
        )


def _add(
    sums: dict[str, Tensor],
    kinds: dict[str, torch.dtype],
    name: str,
    stored: Tensor,
    paths: tuple[str | Path, str | Path],
) -> None:
    """Add one tensor of one file to its sum. `paths`: the first file and this one."""
    if name not in sums:
        kinds[name] = stored.dtype
        # a copy either way: the tensor read is a view of the mapped file
        sums[name] = stored.to(torch.float64, copy=True) if stored.is_floating_point() else stored.clone()
        return
    if sums[name].shape != stored.shape or kinds[name] != stored.dtype:
        here, there = (
            f"{tuple(shape)} {str(kind).removeprefix('torch.')}"
            for shape, kind in ((sums[name].shape, kinds[name]), (stored.shape, stored.dtype))
        )
        raise UserError(
            f"Cannot average '{paths[0]}' and '{paths[1]}': the tensor '{name}' is {here} in one and "
            f"{there} in the other; only weights of the same model can be averaged."
        )
    if stored.is_floating_point():
        sums[name].add_(stored)
    else:
        sums[name].copy_(stored)
