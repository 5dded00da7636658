"""Weights at the validations of a run: one file each; the best and the last few are kept.

Files are written atomically. Each carries a checksum of its tensors, and the
checkpoint that mentions it stores the file's own, so damage is detected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from clearhead.base.atomic import atomic_write_bytes, sha256_of
from clearhead.base.errors import UserError

FOLDER = "weights"
START = "start.safetensors"  # in a run's data: the weights that it took from its base
CHECKSUM = "sha256"  # of the tensors, in the file's own notes


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once, by the first of its names, and the persistent buffers."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() in seen and tensor.numel():
            continue  # tied: listed under another name
        seen.add(tensor.data_ptr())
        found[name] = tensor
    return found


def set_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights by name into a model, in place; tied ones follow."""
    own = model.state_dict()
    for name, tensor in weights.items():
        own[name].copy_(tensor)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of tensors with their checksum."""
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    note = {CHECKSUM: digest(plain)}  # one entry: the order of several is random
    atomic_write_bytes(path, safetensors.torch.save(plain, metadata=note))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a file of `write_tensors`, or of release 0.1, which has no checksum; otherwise raise an error."""
    try:
        if not path.is_file():
            raise FileNotFoundError(path)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            note = file.metadata()
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise _damaged(path, "are damaged or truncated") from error
    if note is not None and note.get(CHECKSUM) != digest(tensors):
        raise _damaged(path, "do not match their checksum")
    return tensors


def digest(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of names, dtypes, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _damaged(path: Path, what: str) -> UserError:
    return UserError(
        f"The weights '{path}' {what}: remove that file to use those of another step, or resume the run."
    )


class WeightFiles:
    """The folder of weight files of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def path(self, step: int) -> Path:
        """The file of the weights after a step."""
        return self.folder / f"step-{step:08d}.safetensors"

    def write(self, step: int, weights: dict[str, Tensor]) -> str:
        """Write one file; returns its checksum."""
        write_tensors(self.path(step), weights)
        return sha256_of(self.path(step))

    def read(self, step: int) -> dict[str, Tensor]:
        """The weights after a step; an OSError if there are none."""
        return read_tensors(self.path(step))

    def fault(self, known: dict[int, str]) -> str | None:
        """What is wrong with the files a checkpoint mentions (step → checksum); None if nothing."""
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
