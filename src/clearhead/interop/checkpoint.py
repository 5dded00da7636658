"""The files of a foreign model folder: JSON and safetensors, read with care and never unpickled.

Tensors are read one at a time when they are asked for, from one file or from
shards listed in an index. Whatever is wrong with a file is one sentence that
names it. Knows nothing about what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
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
    """The tensors of a folder by name. Use it in a `with` block, which closes the files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._where = _shards(folder)  # tensor -> file; one file for all: {}
        self._files: dict[str, Any] = {}
        self._open = ExitStack()
        try:
            self._names = self._list()
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        file = self._names[name]
        try:
            tensor: Tensor = self._file(file).get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise UserError(
                f"'{self._folder / file}' is damaged: '{name}' cannot be read ({error})."
            ) from error
        return tensor

    def _list(self) -> dict[str, str]:
        """Each tensor and the file it is in; an index must tell the truth about its files."""
        if not self._where:
            return dict.fromkeys(self._file(WEIGHTS).keys(), WEIGHTS)
        held = {file: set(self._file(file).keys()) for file in sorted(set(self._where.values()))}
        for name, file in self._where.items():
            if name not in held[file]:
                raise UserError(f"'{self._folder / INDEX}' says that '{name}' is in '{file}', but it is not.")
        return dict(self._where)

    def _file(self, name: str) -> Any:
        if name not in self._files:
            path = self._folder / name
            if not path.is_file():
                raise UserError(f"'{path}' is missing: the folder is incomplete.")
            try:
                self._files[name] = self._open.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError, RuntimeError) as error:
                raise UserError(f"'{path}' is damaged: it is not a whole safetensors file.") from error
        return self._files[name]


def _shards(folder: Path) -> dict[str, str]:
    """Tensor → file, from the index; empty where all are in one file."""
    if (folder / WEIGHTS).exists():
        return {}
    if not (folder / INDEX).exists():
        raise _no_weights(folder)
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise UserError(f"'{folder / INDEX}' is damaged: it has no 'weight_map'.")
    for file in shards.values():
        # A name that leads out of the folder is no shard, whatever it points at.
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise UserError(f"'{folder / INDEX}' is damaged: {file!r} is no safetensors file beside it.")
    return shards


def _no_weights(folder: Path) -> UserError:
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        return UserError(
            f"'{folder}' has its weights in '{pickled[0]}', a pickle file, which can run any code when it is "
            f"read and is therefore never loaded: convert it to '{WEIGHTS}' first."
        )
    return UserError(f"'{folder}' holds no '{WEIGHTS}' and no '{INDEX}'.")
