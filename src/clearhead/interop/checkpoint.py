"""The files of a foreign model folder: JSON and safetensors, read with care and never unpickled.

Tensors are read one at a time on demand, from one file or from shards listed in an
index. Anything wrong with a file raises a UserError that names it. Knows nothing
about what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from torch import Tensor

from clearhead.base import reading
from clearhead.base.errors import UserError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds a table."""
    try:
        return reading.read_json(path)
    except reading.Unreadable as error:
        verb = "is damaged" if error.reason.startswith("it ") else "cannot be read"
        raise UserError(f"'{path}' {verb}: {error.reason}.") from error


class Checkpoint(Mapping[str, Tensor]):
    """The tensors of a folder by name, in one file or in shards. Leaving a `with` block closes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = ExitStack()
        try:
            self._places = self._find()  # tensor -> the name of its file and the file
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Tensor:
        file, opened = self._places[name]
        try:
            tensor: Tensor = opened.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise UserError(
                f"'{self._folder / file}' is damaged: '{name}' cannot be read ({error})."
            ) from error
        return tensor

    def _find(self) -> dict[str, tuple[str, Any]]:
        """Find each tensor's file; the index must match the files."""
        shards = _shards(self._folder)
        opened = {file: self._opened(file) for file in sorted(set(shards.values())) or [WEIGHTS]}
        held = {file: set(one.keys()) for file, one in opened.items()}
        for name, file in shards.items():
            if name not in held[file]:
                raise UserError(f"'{self._folder / INDEX}' says that '{name}' is in '{file}', but it is not.")
        places = shards or dict.fromkeys(held[WEIGHTS], WEIGHTS)
        return {name: (file, opened[file]) for name, file in places.items()}

    def _opened(self, name: str) -> Any:
        path = self._folder / name
        if not path.is_file():
            raise UserError(f"'{path}' is missing: the folder is incomplete.")
        try:
            return self._open.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise UserError(f"'{path}' is damaged: it is not a whole safetensors file.") from error


def _shards(folder: Path) -> dict[str, str]:
    """Tensor → file, from the index; empty if all are in one file."""
    if (folder / WEIGHTS).exists():
        return {}
    if not (folder / INDEX).exists():
        pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
        if pickled:
            raise UserError(
                f"'{folder}' has its weights in '{pickled[0]}', a pickle file, which can execute "
                f"arbitrary code when it is read and is therefore never loaded: convert it to '{WEIGHTS}' "
                "first."
            )
        raise UserError(f"'{folder}' contains neither '{WEIGHTS}' nor '{INDEX}': the weights are missing.")
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"'{folder / INDEX}' is damaged: it has no 'weight_map'.")
    for file in shards.values():
        # A name that leads out of the folder is not a shard, whatever it points to.
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise UserError(f"'{folder / INDEX}' is damaged: {file!r} is not a safetensors file next to it.")
    return shards
