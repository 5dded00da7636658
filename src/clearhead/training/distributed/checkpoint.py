"""Checkpoints that all ranks write together and any ranks can read, by `torch.distributed.checkpoint`.

Besides the files of a single rank (`checkpoint.py`) there is a shard file for each rank, in the safetensors
format, which records where in the whole each tensor belongs: no pickle. Every rank writes and hashes its own
file, all ranks wait for each other, and then rank 0 writes the checksums and renames the folder. The data is
copied first and written by a thread while training continues; the next checkpoint waits for this one.

Any number of ranks, in any layout, can read it: each reads the parts of the files that it needs.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from clearhead.base.atomic import sha256_of
from clearhead.base.errors import UserError
from clearhead.training.checkpoint import Checkpoints
from clearhead.training.distributed.ranks import Ranks

# It logs long explanations of what is intended here.
logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


class ShardWriter:
    """Writes checkpoints of all ranks, one at a time, in the background."""

    def __init__(self, checkpoints: Checkpoints, ranks: Ranks) -> None:
        self.checkpoints = checkpoints
        self.ranks = ranks
        self._group = dist.new_group(backend="gloo")  # its own, so training can communicate meanwhile
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._done: Callable[[], None] = lambda: None

    def begin(
        self,
        step: int,
        shards: Mapping[str, Tensor],
        small: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        done: Callable[[], None],
    ) -> None:
        """Copy everything, and write it in the background; `wait` calls `done` when it is on disk.

        `shards`: shards, or tensors that are the same on all ranks. `small`: only rank 0's count.
        """
        self.wait()
        kept = {name: _copied(tensor) for name, tensor in shards.items()}
        little = {name: tensor.detach().to("cpu", copy=True) for name, tensor in small.items()}
        self._done = done
        self._thread = threading.Thread(
            target=self._run, args=(step, kept, little, facts), name="clearhead-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last one is on disk, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._error is not None:
                raise self._error
            self._done()

    def _run(
        self, step: int, shards: dict[str, Tensor], small: dict[str, Tensor], facts: Mapping[str, Any]
    ) -> None:
        try:
            if self.ranks.first:
                with self.checkpoints.writing(step, small, facts) as (folder, sums):
                    self._tell(str(folder))
                    sums.update(self._write(folder, shards))
            else:
                self._write(Path(self._tell(None)), shards)
        except BaseException as error:  # re-raised in the caller's thread
            self._error = error

    def _tell(self, of_first: str | None) -> str:
        held = [of_first]
        dist.broadcast_object_list(held, src=0, group=self._group)
        assert held[0] is not None
        return held[0]

    def _write(self, folder: Path, shards: dict[str, Tensor]) -> dict[str, str]:
        """Write this rank's file, and return the checksums of all ranks' files."""
        writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
        save(shards, storage_writer=writer, process_group=self._group)
        mine = folder / f"shard-{self.ranks.rank + 1:05d}-model-00001-of-00001.safetensors"
        found: list[Any] = [None] * self.ranks.count
        sums = {mine.name: sha256_of(mine)} if mine.exists() else {}  # a rank may have nothing to write
        dist.all_gather_object(found, sums, group=self._group)
        return {name: checksum for one in found for name, checksum in one.items()}


def read_shards(folder: Path, places: dict[str, Tensor], ranks: Ranks) -> None:
    """Fill tensors, or shards of tensors, from a checkpoint's files, whichever ranks wrote them."""
    reader = HuggingFaceStorageReader(str(folder))
    try:
        known = reader.read_metadata().state_dict_metadata
        for name, place in places.items():
            if name not in known or tuple(known[name].size) != tuple(place.shape):  # type: ignore[union-attr]
                raise UserError(
                    f"The checkpoint '{folder}' belongs to another model: its '{name}' is missing or has "
                    "a different shape."
                )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about reading in a single process, which is intended
            load(places, storage_reader=reader, no_dist=not ranks.many)
    except (CheckpointException, SafetensorError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"The checkpoint '{folder}' cannot be read ({reason}).") from error


def read_whole(folder: Path, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Tensors with these name prefixes, assembled from all shards in one process."""
    known = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    places = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        for name, one in known.items()
        if name.startswith(prefixes) and isinstance(one, TensorStorageMetadata)
    }
    read_shards(folder, places, Ranks())
    return places


def _copied(tensor: Tensor) -> Tensor:
    """A copy in host memory."""
    if not isinstance(tensor, DTensor):
        return tensor.detach().to("cpu", copy=True)
    local = tensor.to_local().detach().to("cpu", copy=True)
    return DTensor.from_local(
        local,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
