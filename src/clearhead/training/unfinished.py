"""Use a run that has not written its bundle yet like one: its best weights so far, tokenizer and notes.

For every command that takes a bundle: after Ctrl-C, after a crash, and while the run is training. Changes
nothing in the folder and takes no lock. If training removes a file meanwhile, its replacement is read
instead. The weights are those that validation measured (the moving average, if there is one).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.atomic import sha256_of
from clearhead.base.errors import UserError
from clearhead.base.seed import seeded
from clearhead.bundle import Bundle, Description
from clearhead.bundle.describe import File, described
from clearhead.bundle.weights import disagreement, fill_with, shapes_of
from clearhead.data.encoding import Tokenizers
from clearhead.data.store import Store
from clearhead.models.build import build
from clearhead.nn.lora import merged
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.checkpoint import Checkpoint, Checkpoints
from clearhead.training.config import TrainConfig
from clearhead.training.log import read_log
from clearhead.training.run_data import length_notes, read_ready
from clearhead.training.run_folder import READY, SOURCE_TOKENIZER, TARGET_TOKENIZER, RunFolder
from clearhead.training.snapshot import FOLDER as CHECKPOINTS
from clearhead.training.weights import START, WeightFiles, read_tensors, set_weights

ATTEMPTS = 20  # at reading weights that training keeps replacing
BEST, CHECKPOINT, NONE = "best", "checkpoint", "none"


@dataclass(frozen=True)
class SoFar:
    """The weights of an unfinished run."""

    weights: Mapping[str, Tensor] | None  # None: those it started with
    kind: str  # BEST at a validation, of the last CHECKPOINT, or NONE
    step: int  # which they are of
    steps: int  # which the run is to have

    def sentence(self, folder: Path) -> str:
        """A message for the user."""
        which = {
            BEST: "its best weights so far",
            CHECKPOINT: "the weights of its last checkpoint",
            NONE: "the weights it started with",
        }[self.kind]
        at = f"from step {self.step:,} of {self.steps:,}"
        return f"The run in '{folder}' has not finished: using {which}, {at}."

    def to_dict(self) -> dict[str, Any]:
        """For the notes of the bundle."""
        return {"weights": self.kind, "step": self.step, "steps": self.steps}


def load_run(
    path: Path, device: torch.device, dtype: torch.dtype | None, *, untrained: bool = False
) -> Bundle:
    """An unfinished run as a bundle; reports its progress on stderr.

    With `untrained`, a run without weights yet is loaded as it started; otherwise that is an error.
    """
    config, notes, tokenizers = _read(path)
    found = so_far(path, config, untrained=untrained)
    model = _model(path, config, found, device, dtype)
    _say(found, path)
    own = None if tokenizers.source is tokenizers.target else tokenizers.source
    return Bundle(model.eval(), tokenizers.target, {**notes, "unfinished": found.to_dict()}, own)


def describe_run(path: Path) -> Description:
    """What is known about an unfinished run, like `describe` for a bundle."""
    config, notes, _ = _read(path)
    found = so_far(path, config)
    _say(found, path)
    place = RunFolder(path)
    names = (place.record, place.data / TARGET_TOKENIZER, place.data / SOURCE_TOKENIZER)
    files = [
        File(str(name.relative_to(path)), name.stat().st_size, sha256_of(name), "ok")
        for name in names
        if name.is_file()
    ]
    model = build(config.model, device="meta")
    return described(path, model, {**notes, "unfinished": found.to_dict()}, files, "", {}, None)


def _say(found: SoFar, folder: Path) -> None:
    print(f"clearhead: {found.sentence(folder)}", file=sys.stderr)


def so_far(folder: Path, config: TrainConfig, *, untrained: bool = False) -> SoFar:
    """The best weights so far; before the first validation, those of the last checkpoint."""
    training = RunFolder(folder).training
    try:
        read_log(training)
    except UserError as error:  # the log is only needed to find the best weights
        print(f"clearhead: {error}", file=sys.stderr)
    for _ in range(ATTEMPTS):
        known = _best_steps(training)
        found = _weights(training, known[-1:], config)
        if found is not None:
            return found
        if _best_steps(training) == known:  # otherwise they have just been replaced by better ones
            break
    # Before the first validation; or the best weights have been removed.
    found = _weights(training, known, config) or _of_checkpoint(training, config)
    if found is not None:
        return found
    if untrained:
        return SoFar(None, NONE, 0, config.steps)
    last = max((int(line["step"]) for line in read_log(training, lenient=True)), default=0)
    raise UserError(
        f"The run in '{folder}' has not reached its first validation or checkpoint (step {last:,} of "
        f"{config.steps:,} so far): wait for it, or resume it with `clearhead train --resume {folder}`."
    )


def _best_steps(training: Path) -> list[int]:
    """The steps whose weights were the best when they were validated."""
    lines = read_log(training, lenient=True)
    return [int(line["step"]) for line in lines if line["kind"] == "validation" and line.get("best") is True]


def _weights(training: Path, steps: Sequence[int], config: TrainConfig) -> SoFar | None:
    """The newest of these that still exist."""
    files = WeightFiles(training)
    for step in reversed(steps):
        with suppress(OSError):
            return SoFar(files.read(step), BEST, step, config.steps)
    return None


def _of_checkpoint(training: Path, config: TrainConfig) -> SoFar | None:
    for _ in range(ATTEMPTS):
        checkpoints = Checkpoints(training / CHECKPOINTS)
        known = checkpoints.steps()
        found, _ = checkpoints.newest(tidy=False)
        if found is not None:
            return SoFar(_judged(found), CHECKPOINT, found.step, config.steps)
        if checkpoints.steps() == known:
            break
    return None


def _judged(found: Checkpoint) -> dict[str, Tensor]:
    """The weights of a checkpoint that a validation would have used."""
    weights: dict[str, Tensor] = {}
    prefixes, tensors = ("model/", "ema/average/"), found.tensors
    if found.sharded:
        from clearhead.training.distributed.checkpoint import read_whole  # takes a second to import

        tensors = read_whole(found.folder, prefixes)
    for prefix in prefixes:
        names = [name for name in tensors if name.startswith(prefix)]
        weights |= {name.removeprefix(prefix): tensors[name] for name in names}
    return weights


def _read(folder: Path) -> tuple[TrainConfig, dict[str, Any], Tokenizers]:
    """Everything of a run but its weights."""
    place = RunFolder(folder)
    config, record = place.read_record()
    if not (place.data / READY).is_file():
        raise UserError(
            f"The run in '{folder}' is still reading its corpus: wait for it, or resume it with "
            f"`clearhead train --resume {folder}`."
        )
    read_ready(place.data, (TARGET_TOKENIZER, SOURCE_TOKENIZER))  # are they as written?
    target = Tokenizer.load(place.data / TARGET_TOKENIZER)
    own = place.data / SOURCE_TOKENIZER
    tokenizers = Tokenizers(Tokenizer.load(own) if own.is_file() else target, target)
    stores = (Store(place.data / f"train-{number}") for number in range(len(config.data.train)))
    notes = record["notes"]
    return config, {**notes, **length_notes(config, notes, stores)}, tokenizers


def _model(
    folder: Path, config: TrainConfig, found: SoFar, device: torch.device, dtype: torch.dtype | None
) -> nn.Module:
    if found.weights is None:
        with seeded(config.seed):
            begun = build(config.model)
        start = RunFolder(folder).data / START
        if config.start.base is not None and start.is_file():
            with torch.no_grad():
                set_weights(begun, read_tensors(start))
        return begun.to(device=device, dtype=dtype)
    weights = merged(found.weights, config.start.lora.scale)
    model = build(config.model, device="meta")
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    fault = disagreement(shapes, shapes_of(model))
    if fault is not None:
        raise UserError(f"The config and the weights of the run in '{folder}' disagree: {fault}.")
    fill_with(model, lambda name: weights[name].to(device=device, dtype=dtype))
    return model
