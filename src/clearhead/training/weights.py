"""Weights at the validations of a run: one file each, of which the best and the last few are kept.

A file is written whole or not at all, and its checksum goes into the
checkpoint that mentions it, so that a damaged one is noticed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from clearhead.base.atomic import atomic_write_bytes, sha256_of

FOLDER = "weights"


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once, by the first of its names, with the buffers that are saved."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() in seen and tensor.numel():
            continue  # tied: it is there under another name
        seen.add(tensor.data_ptr())
        found[name] = tensor
    return found


def set_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights by name into a model, in place; tied ones follow."""
    own = model.state_dict()
    for name, tensor in weights.items():
        own[name].copy_(tensor)


class WeightFiles:
    """The folder of weight files of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def path(self, step: int) -> Path:
        """Where the weights after a step lie."""
        return self.folder / f"step-{step:08d}.safetensors"

    def write(self, step: int, weights: dict[str, Tensor]) -> str:
        """Write one file; returns its checksum."""
        plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in weights.items()}
        atomic_write_bytes(self.path(step), safetensors.torch.save(plain))
        return sha256_of(self.path(step))

    def read(self, step: int) -> dict[str, Tensor]:
        """The weights after a step."""
        return safetensors.torch.load_file(self.path(step))

    def fault(self, known: dict[int, str]) -> str | None:
        """What is wrong with the files a checkpoint mentions (step → checksum); None if all is well."""
        for step, checksum in known.items():
            path = self.path(step)
            if not path.is_file():
                return f"{path.name} is missing"
            if sha256_of(path) != checksum:
                return f"{path.name} does not match its checksum"
        return None

    def keep_only(self, steps: Iterable[int]) -> None:
        """Remove every other file."""
        wanted = {self.path(step).name for step in steps}
        if self.folder.is_dir():
            for path in self.folder.glob("step-*.safetensors"):
                if path.name not in wanted:
                    path.unlink(missing_ok=True)
