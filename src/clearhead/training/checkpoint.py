"""Checkpoints: everything a run needs to resume as if it had never stopped, written atomically.

A checkpoint is a folder `step-00001000` with three files, and more if several ranks wrote it
(`distributed/checkpoint.py`):

    state.safetensors   every tensor, each once however many names it has
    state.json          format, step, facts, and which names share a tensor
    SHA256SUMS          the checksums of both, as `sha256sum --check` reads them

An atomic rename puts the folder in place once all of it is on disk, and only then are
older ones removed. Reading trusts nothing: a checkpoint that is truncated, altered or
misnamed is skipped with a message, and the one before it is used. No pickle.
Knows nothing about models or optimisers.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.base import reading
from clearhead.base.atomic import _remove_leftovers, atomic_folder, recover_folder, sha256_of
from clearhead.base.errors import UserError

FORMAT = 1  # raise it when the meaning of the files changes
TENSORS, FACTS, SUMS = "state.safetensors", "state.json", "SHA256SUMS"

_SHARD = re.compile(r"shard-[0-9]{5}-model-00001-of-00001\.safetensors")
_NAME = re.compile(r"step-([0-9]{8,})")
_UNFINISHED = re.compile(r"\.(step-[0-9]{8,})\.writing-.*")
_SET_ASIDE = re.compile(r"\.(step-[0-9]{8,})\.previous")
_REMOVED = re.compile(r"\.step-[0-9]{8,}\.removing")
_ONE_DAY = 24 * 3600.0  # no save takes this long


@dataclass(frozen=True)
class Checkpoint:
    """A saved state; tensors are on the CPU."""

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    folder: Path = Path()
    sharded: bool = False  # large tensors are in separate shard files


class Damaged(Exception):
    """What is wrong with a checkpoint, as a clause for a message."""


class Checkpoints:
    """The checkpoints of one run in one folder; the newest `keep` are retained."""

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise UserError(f"At least one checkpoint must be kept, not {keep}.")
        self.folder = Path(folder)
        self.keep = keep

    def save(self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
        """Write the checkpoint of a step; when this returns it is on disk and old ones have been removed.

        `facts` must survive a round trip through JSON: dicts with string keys, lists, strings, finite
        numbers, booleans, None. Also removes checkpoints of later steps, which a run that went back skipped.
        """
        with self.writing(step, tensors, facts):
            pass  # no further files
        return self.folder / f"step-{step:08d}"

    @contextmanager
    def writing(
        self, step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> Iterator[tuple[Path, dict[str, str]]]:
        """Like `save`; the block may add files to the folder, and records their checksums."""
        if step < 0:
            raise ValueError(f"A step is 0 or more, not {step}.")
        stored, same = _each_once(tensors)
        state = {"format": FORMAT, "step": step, "facts": dict(facts), "same": same}
        path = self.folder / f"step-{step:08d}"
        sums: dict[str, str] = {}
        try:
            with atomic_folder(path) as fresh:
                yield fresh, sums
                state |= {"shards": sorted(sums)} if sums else {}
                save_file(stored, fresh / TENSORS, metadata={"format": "pt"})
                (fresh / FACTS).write_bytes(_as_json(state))
                shards = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
                (fresh / SUMS).write_bytes(_sums(fresh) + shards.encode())
        except SafetensorError as error:  # raised when the disk is full
            raise UserError(f"Cannot write the checkpoint '{path}': {_reason(error)}.") from error
        except OSError as error:
            raise UserError(f"Cannot write the checkpoint '{path}': {error.strerror}.") from error
        self._prune(step)

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, whole or not, newest first."""
        return sorted(self._folders(), reverse=True)

    def facts(self) -> dict[int, dict[str, Any]]:
        """The facts of each checkpoint on disk, by step; damaged ones are skipped."""
        found = {}
        for step, folder in self._folders().items():
            with suppress(Damaged, UserError, OSError):
                found[step] = _state(folder, step)["facts"]
        return found

    def newest(
        self, fault: Callable[[Checkpoint], str | None] | None = None, *, tidy: bool = True
    ) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole checkpoint, or None, and a message for each one that was skipped.

        `fault` may inspect a whole checkpoint, for what it needs outside itself, and return a clause that
        says what is wrong. Also removes what a killed process left unfinished, unless `tidy` is False:
        a read-only caller must not change anything.
        """
        if tidy:
            self._tidy()
        wrong: list[tuple[str, str]] = []  # name of a checkpoint and what is wrong with it
        found: Checkpoint | None = None
        folders = self._folders()
        for step in sorted(folders, reverse=True):
            try:
                candidate = _read(folders[step], step)
                if fault is not None and (reason := fault(candidate)):
                    raise Damaged(reason)
                found = candidate
                break
            except Damaged as damage:
                wrong.append((folders[step].name, str(damage)))
        names = [name for name, _ in wrong] + ([f"step-{found.step:08d}"] if found else [])
        return found, [
            f"The checkpoint {name} is damaged ({damage}); "
            + (f"resuming from {names[i + 1]}." if i + 1 < len(names) else "there is no earlier one.")
            for i, (name, damage) in enumerate(wrong)
        ]

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of a step that another rank has verified."""
        try:
            return _read(self.folder / f"step-{step:08d}", step, trusted=True)
        except (Damaged, OSError) as error:
            raise UserError(
                f"The checkpoint of step {step} in '{self.folder}' cannot be read on every rank ({error}): "
                "all of them must see the same folder."
            ) from error

    def _folders(self) -> dict[int, Path]:
        if not self.folder.is_dir():
            return {}
        names = {path: _NAME.fullmatch(path.name) for path in self.folder.iterdir()}
        return {int(match[1]): path for path, match in names.items() if match}

    def forget_old(self, step: int) -> None:
        """Remove old checkpoints that a process killed right after saving `step` left behind."""
        for known in sorted((one for one in self._folders() if one <= step), reverse=True)[self.keep :]:
            _remove(self._folders()[known])

    def _prune(self, step: int) -> None:
        """Remove all but the newest `keep`, and those of later steps that a run went back from."""
        folders = self._folders()
        kept = sorted((known for known in folders if known <= step), reverse=True)[: self.keep]
        for known, path in folders.items():
            if known not in kept:
                _remove(path)

    def _tidy(self) -> None:
        """Complete what a killed process started: restore it, or remove it."""
        if not self.folder.is_dir():
            return
        for path in list(self.folder.iterdir()):
            if match := _SET_ASIDE.fullmatch(path.name):
                recover_folder(self.folder / match[1])
                shutil.rmtree(path, ignore_errors=True)  # left over: the new one is already in place
            elif match := _UNFINISHED.fullmatch(path.name):
                _remove_leftovers(self.folder / match[1])  # those whose process has ended
                with suppress(OSError):  # a process elsewhere cannot be checked, but no save takes days
                    if time.time() - path.stat().st_mtime > _ONE_DAY:
                        shutil.rmtree(path, ignore_errors=True)
            elif _REMOVED.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _read(folder: Path, step: int, trusted: bool = False) -> Checkpoint:
    """Read a checkpoint and verify every byte; `trusted`: its shards have been verified already."""
    state = _state(folder, step)
    shards = state.get("shards", [])
    _check_sums(folder, (TENSORS, FACTS), shards, trusted)
    try:
        with safe_open(folder / TENSORS, framework="pt") as file:
            # Copies: mapped tensors would depend on the file, and be unaligned.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        tensors |= {name: tensors[first] for name, first in state["same"].items()}
        return Checkpoint(step, tensors, state["facts"], folder, bool(shards))
    except (OSError, SafetensorError, KeyError) as error:
        raise Damaged(_reason(error)) from error


def _state(folder: Path, step: int) -> dict[str, Any]:
    """The contents of `state.json`, verified."""
    _check_sums(folder, (FACTS,))
    try:
        state = reading.read_json(folder / FACTS)
    except reading.Unreadable as error:
        raise Damaged(error.about(FACTS)) from error
    if not isinstance(state.get("format"), int):
        raise Damaged(f"its {FACTS} does not say which format it has")
    if state["format"] != FORMAT:
        # Not damage: going further back would discard work that another version can still read.
        raise UserError(
            f"The checkpoint '{folder}' has the format {state['format']}, and this version of clearhead "
            f"reads format {FORMAT}: resume with the version that wrote it."
        )
    if state.get("step") != step:
        raise Damaged(f"its {FACTS} says step {state.get('step')}")
    if not isinstance(state.get("facts"), dict) or not isinstance(state.get("same"), dict):
        raise Damaged(f"its {FACTS} lacks entries that a checkpoint needs")
    shards = state.get("shards", [])
    if not isinstance(shards, list) or not all(isinstance(x, str) and _SHARD.fullmatch(x) for x in shards):
        raise Damaged(f"its {FACTS} does not list its shards")
    return state


def _check_sums(
    folder: Path, names: Sequence[str], shards: Sequence[str] = (), trusted: bool = False
) -> None:
    """Verify the checksums and that nothing else is listed; `trusted` shards need only exist."""
    for name in (*names, *shards, SUMS):
        if not (folder / name).is_file():
            raise Damaged(f"{name} is missing")
    try:
        looked_at = (*names, *([] if trusted else shards))
        wanted, found = reading.read_bytes(folder / SUMS), _sums(folder, looked_at)
    except reading.Unreadable as error:
        raise Damaged(error.reason) from error
    for name in (TENSORS, FACTS):  # both must be listed, whichever is read
        if f"  {name}\n".encode() not in wanted:
            raise Damaged(f"{name} does not match its checksum")
    for line in found.splitlines():
        if line not in wanted.splitlines():
            raise Damaged(f"{line.split()[1].decode()} does not match its checksum")
    if len(names) > 1 and not trusted and wanted != found:
        raise Damaged(f"{SUMS} was altered")


def _sums(folder: Path, names: Sequence[str] = (TENSORS, FACTS)) -> bytes:
    return "".join(f"{sha256_of(folder / name)}  {name}\n" for name in names).encode()


def _each_once(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors copied to the CPU, each once, and for each further name the name that has the tensor."""
    stored: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    pieces_of_memory: set[int] = set()
    for name, given in tensors.items():
        tensor = given.detach()
        identity = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() > 0 and identity in first_name:
            same[name] = first_name[identity]
            continue
        first_name[identity] = name
        plain = tensor.cpu().contiguous()
        memory = plain.untyped_storage()
        # The format does not allow overlapping tensors: a view is stored separately.
        if memory.nbytes() != plain.numel() * plain.element_size() or memory.data_ptr() in pieces_of_memory:
            plain = plain.clone()
        pieces_of_memory.add(plain.untyped_storage().data_ptr())
        stored[name] = plain
    return stored, same


def _as_json(state: dict[str, Any]) -> bytes:
    """Strict JSON that reads back equal; anything else is a bug in the caller, and raises."""
    text = json.dumps(state, allow_nan=False, ensure_ascii=False, indent=1)
    if json.loads(text) != state:
        raise ValueError(
            "The facts of a checkpoint must be plain JSON data, without tuples and without numbers as keys."
        )
    return text.encode("utf-8")


def _remove(folder: Path) -> None:
    """Remove a checkpoint; if interrupted, what is left is never mistaken for one."""
    aside = folder.with_name(f".{folder.name}.removing")
    with suppress(OSError):  # failing to remove an old checkpoint does not end a run
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def rng_tensors() -> dict[str, Tensor]:
    """The state of all global random generators: torch (CPU, every CUDA device in use), numpy, Python.

    A CUDA device that has not been initialised stays so: its seed determines everything.
    """
    legacy: Any = numpy.random.get_state()
    _, words, place, has_spare, spare = legacy
    _, python_words, python_spare = random.getstate()
    found = {
        "torch": torch.get_rng_state(),
        "numpy/words": torch.from_numpy(words.astype(numpy.int64)),
        "numpy/place": torch.tensor([place, has_spare]),
        "numpy/spare": torch.tensor(spare, dtype=torch.float64),
        "python/words": torch.tensor(python_words),
        # the second of a pair of normal numbers, if only the first has been drawn
        "python/spare": torch.tensor([] if python_spare is None else [python_spare], dtype=torch.float64),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            found[f"cuda/{device}"] = torch.cuda.get_rng_state(device)
    return found


def set_rng(tensors: Mapping[str, Tensor]) -> None:
    """Restore every generator to the state from `rng_tensors`; missing devices are skipped."""
    torch.set_rng_state(tensors["torch"])
    words = tensors["numpy/words"].numpy().astype(numpy.uint32)
    place, has_spare = tensors["numpy/place"].tolist()
    numpy.random.set_state(("MT19937", words, place, has_spare, tensors["numpy/spare"].item()))
    spare = tensors["python/spare"].tolist()
    random.setstate((3, tuple(tensors["python/words"].tolist()), spare[0] if spare else None))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device in range(devices):
        if f"cuda/{device}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda/{device}"], device)
