"""The weights of a model to a safetensors file and back.

A tensor that several modules share is stored once, under its first name. Reading
fills a model that was built without memory (on "meta"), one tensor at a time, so
a large model needs memory for itself and its largest tensor, not for two. No
pickle. Knows nothing about the other files of a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from clearhead.base import preload
from clearhead.base.errors import UserError
from clearhead.bundle.mapped import MAPPED, MappedFile, tensor_at

Shapes = Mapping[str, tuple[int, ...]]

ALIGNMENT = 64  # bytes, as in torch's allocator: otherwise matrix products may round differently


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a model, each once, under its first name."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor
    return found


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The stored names with their shapes."""
    return {name: tuple(tensor.shape) for name, tensor in tensors_of(model).items()}


def disagreement(found: Shapes, wanted: Shapes) -> str | None:
    """A clause: the first tensor that is missing, unexpected or of another shape; None if all fit."""
    for name, shape in wanted.items():
        if name not in found:
            return f"the tensor '{name}' is missing"
        if found[name] != shape:
            return f"the tensor '{name}' has the shape {found[name]} where the config asks for {shape}"
    for name in found:
        if name not in wanted:
            return f"the model described by the config has no tensor '{name}'"
    return None


def write_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors unchanged, in their own number formats."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    # "pt" tells other readers of the format that these are torch tensors, row-major
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # raised when the disk is full
        raise UserError(f"Cannot write the weights '{path.name}': {_reason(error)}.") from error


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the header of the file; no weight is read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def fill(
    model: nn.Module,
    path: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    file: MappedFile | None = None,
) -> None:
    """Give a model built on "meta" the weights of a matching file; mapped ones, if `file` is given."""
    known = preload.take(path)

    def read(name: str) -> Tensor:
        tensor = None
        if device.type == "cpu" and file is not None:
            tensor = file.tensor(name)
        elif device.type == "cpu" and known is not None and known.memory is not None:
            tensor = tensor_at(known.memory, 0, known.places.get(name), ALIGNMENT)
        if tensor is None or dtype not in (None, tensor.dtype):
            return _read(path, name, device, dtype)
        return tensor

    fill_with(model, read)
    if file is not None:
        MAPPED[model] = file


def fill_with(model: nn.Module, weights: Callable[[str], Tensor]) -> None:
    """Give a model built on "meta" its weights by name; shared weights are shared again."""
    filled: dict[int, nn.Parameter] = {}
    for name, empty in tensors_of(model).items():
        filled[id(empty)] = nn.Parameter(weights(name), requires_grad=empty.requires_grad)
    for module in model.modules():
        own = list(module.named_parameters(recurse=False, remove_duplicate=False))
        for name, empty in own:
            setattr(module, name, filled[id(empty)])  # not `_parameters[name] =`: RNNs override __setattr__
        for name, unfilled in module.named_buffers(recurse=False):
            if id(unfilled) in filled:  # the others are recomputed and not stored
                module._buffers[name] = filled[id(unfilled)].data
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # on CUDA its kernels need all weights of a layer in one block


def _read(path: Path, name: str, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    """One tensor, in ordinary memory.

    The file is opened again for each, so that the pages mapped for the last one are released. It is a copy
    instead of the mapped pages: those would change with the file, and be at addresses where matrix products
    may round differently.
    """
    try:
        with safe_open(path, framework="pt") as file:
            stored = file.get_tensor(name)
            if not stored.is_floating_point():
                kind = str(stored.dtype).removeprefix("torch.")
                raise UserError(
                    f"'{path}' is damaged: the tensor '{name}' has the type {kind}, which weights cannot "
                    "have."
                )
            fresh = torch.empty(stored.shape, dtype=dtype or stored.dtype, device=device)
            return fresh.copy_(stored)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"The weights '{path}' are damaged or truncated ({_reason(error)}): copy them here again."
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
