"""Saves and restores the whole state of a run.

Weights, optimiser, moving average, loss scale, the sums of the unfinished line
of the log, every random generator, the position in the data, the best so far and
the end of the log: with these a run resumes as if it had never stopped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.training.averaging import Ema
from clearhead.training.checkpoint import Checkpoint, Checkpoints, rng_tensors, set_rng
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.log import RunLog
from clearhead.training.optimiser_state import load_optimiser_tensors, optimiser_tensors
from clearhead.training.step import Stepper
from clearhead.training.weights import WeightFiles, named_weights, set_weights

if TYPE_CHECKING:
    from clearhead.training.distributed.checkpoint import ShardWriter
    from clearhead.training.distributed.shard import ShardedModel

FOLDER = "checkpoints"
PARTS = ("model", "optimiser", "ema", "scale", "meter", "rng")


@dataclass
class RunState:
    """The progress of a run, in plain numbers."""

    step: int = 0  # updates done
    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    labels: int = 0  # labels trained on
    flops: float = 0.0
    skipped: int = 0
    parts: int = 1  # into how many a batch is split since memory ran out
    best_score: float = math.inf  # lower is better, whatever the metric
    best_step: int = 0
    waited: int = 0  # validations since the best one
    weights: dict[int, str] = field(default_factory=dict)  # step → checksum of the weight files that count
    recent: list[int] = field(default_factory=list)  # the last validations' steps, for averaging
    train_loss: float = 0.0  # of the last line of the log
    best_loss: float = math.inf  # lowest validation loss, whatever the metric
    reads_source: bool = False  # the right source has been found to help
    warned: list[str] = field(default_factory=list)  # kinds of findings that have been reported
    why: str = ""  # why it ended before its last step
    seconds: float = 0.0  # of training so far

    def take_note(self, step: int, score: float, checksum: str, best: bool, keep: int) -> None:
        """Record a validation: its weights are kept while they are the best or among the last `keep`."""
        if best:
            self.best_score, self.best_step, self.waited = score, step, 0
        else:
            self.waited += 1
        self.recent = [*(old for old in self.recent if old != step), step][-keep:]
        self.weights[step] = checksum
        wanted = {*self.recent, self.best_step}
        self.weights = {old: known for old, known in self.weights.items() if old in wanted}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no infinity and no numeric keys."""
        plain = asdict(self)
        for name in ("best_score", "best_loss"):
            plain[name] = plain[name] if math.isfinite(plain[name]) else None
        plain["weights"] = {str(step): checksum for step, checksum in self.weights.items()}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RunState:
        """The inverse of `to_dict`."""
        known = {one.name for one in fields(cls)}
        state = cls(**{name: value for name, value in plain.items() if name in known})
        for name in ("best_score", "best_loss"):
            setattr(state, name, math.inf if plain[name] is None else float(plain[name]))
        state.weights = {int(step): str(checksum) for step, checksum in plain["weights"].items()}
        return state


class Run(Protocol):
    """The parts of a run."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    ema: Ema | None
    stepper: Stepper
    state: RunState
    files: WeightFiles
    log: RunLog
    ranks: Ranks
    sharded: ShardedModel | None


class Snapshots:
    """A run's checkpoints: collects the parts of a run, and restores them."""

    def __init__(self, run: Run, folder: Path, keep: int) -> None:
        self.run = run
        self.checkpoints = Checkpoints(folder / FOLDER, keep=keep)
        self._mentioned: deque[set[int]] = deque(maxlen=keep)  # weight files of the retained checkpoints
        self._writer: ShardWriter | None = None
        if run.ranks.many:
            from clearhead.training.distributed.checkpoint import ShardWriter  # takes a second to import

            self._writer = ShardWriter(self.checkpoints, run.ranks)

    def save(self) -> None:
        """Write a checkpoint; then remove weight files that no retained checkpoint mentions."""
        run = self.run
        state = run.state
        state.parts = run.stepper.parts
        facts = {**state.to_dict(), "log": run.log.position(), "extras": list(run.stepper.meter.names)}
        mentioned = set(state.weights)

        def done() -> None:
            self._mentioned.append(mentioned)
            if run.ranks.first:  # there may be more by now than when it started
                run.files.keep_only(set(run.state.weights).union(*self._mentioned))

        if self._writer is not None:
            tensors = self._tensors()
            large = {name: tensor for name, tensor in tensors.items() if _is_large(name, tensor)}
            small = {name: tensor for name, tensor in tensors.items() if name not in large}
            self._writer.begin(state.step, self._as_shards(large), small, facts, done)
            return
        self.checkpoints.save(state.step, self._tensors(), facts)
        done()

    def wait(self) -> None:
        """Wait until what `save` started is on disk."""
        if self._writer is not None:
            self._writer.wait()

    def restore(self) -> list[str]:
        """Go back to the newest whole checkpoint; returns messages for the user."""
        found, said = self._newest()
        if found is None:
            self.run.log.continue_at(0)
            return said
        said += self._set(found)
        return [*said, f"Resuming after step {found.step:,}."]

    def _newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Rank 0 finds it, and the others read the same one."""
        ranks, said = self.run.ranks, list[str]()
        found: Checkpoint | None = None
        if ranks.first:
            found, said = self.checkpoints.newest(self._fault)
        step = ranks.word(found and found.step)
        return (self.checkpoints.at(step) if found is None and step is not None else found), said

    def _mentioned_before(self, step: int) -> list[set[int]]:
        """The weight files of older retained checkpoints, the oldest first."""
        return [
            set(RunState.from_dict(facts).weights)
            for known, facts in sorted(self.checkpoints.facts().items())
            if known < step
        ]

    def _fault(self, found: Checkpoint) -> str | None:
        """What is wrong with a checkpoint's facts, or with the weight files that it mentions."""
        try:
            state, _ = RunState.from_dict(found.facts), int(found.facts["log"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return "it lacks the run's own record"
        return self.run.files.fault(state.weights)

    def _tensors(self) -> dict[str, Tensor]:
        run = self.run
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": named_weights(run.model),
            "optimiser": optimiser_tensors(run.optimiser, run.model),
            "ema": run.ema.tensors() if run.ema is not None else {},
            "scale": run.stepper.scale.tensors() if run.stepper.scale is not None else {},
            "meter": {"values": run.stepper.meter.values, "extras": run.stepper.meter.extras},
            "rng": rng_tensors(),
        }
        return {f"{part}/{name}": tensor for part, table in parts.items() for name, tensor in table.items()}

    def _as_shards(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of this rank's part of the model, as shards of the whole."""
        sharded = self.run.sharded
        if sharded is None:
            return dict(tensors)
        return {path: sharded.as_shard(_weight_of(path), tensor) for path, tensor in tensors.items()}

    def _read_large(self, found: Checkpoint) -> dict[str, Tensor]:
        """This rank's part of a checkpoint, whichever ranks wrote it."""
        from clearhead.training.distributed.checkpoint import read_shards

        empty = {
            path: torch.empty_like(tensor)
            for path, tensor in self._tensors().items()
            if _is_large(path, tensor)
        }
        read_shards(found.folder, self._as_shards(empty), self.run.ranks)
        return empty

    @torch.no_grad()
    def _set(self, found: Checkpoint) -> list[str]:
        run = self.run
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
        tensors = found.tensors
        if found.sharded or run.sharded is not None:
            tensors = {**tensors, **self._read_large(found)}
        for path, tensor in tensors.items():
            part, _, name = path.partition("/")
            parts[part][name] = tensor
        expected = {name: tuple(tensor.shape) for name, tensor in named_weights(run.model).items()}
        if expected != {name: tuple(tensor.shape) for name, tensor in parts["model"].items()}:
            raise UserError(
                "The checkpoint belongs to another model: its weights have different names or shapes."
            )
        set_weights(run.model, parts["model"])
        load_optimiser_tensors(run.optimiser, run.model, parts["optimiser"])
        if run.ema is not None:
            run.ema.load_tensors(parts["ema"])
        if run.stepper.scale is not None:
            for name, place in run.stepper.scale.tensors().items():
                place.copy_(parts["scale"][name])
        run.stepper.meter.values.copy_(parts["meter"]["values"])
        if names := found.facts.get("extras"):  # checkpoints of release 0.1 have none
            run.stepper.meter.expect(names)
            run.stepper.meter.extras.copy_(parts["meter"]["extras"])
        run.state = RunState.from_dict(found.facts)
        run.stepper.parts = max(run.stepper.parts, run.state.parts)
        if run.ranks.first:
            self.checkpoints.forget_old(found.step)
            self._mentioned.extend(self._mentioned_before(found.step))
            self._mentioned.append(set(run.state.weights))
            run.files.keep_only(set().union(*self._mentioned))
        said = run.log.continue_at(int(found.facts["log"]))
        set_rng(parts["rng"])  # last, so nothing above can draw from it
        return [said] if said else []


def _is_large(path: str, tensor: Tensor) -> bool:
    """Is it a weight, or a tensor of a weight's shape?"""
    return path.startswith(("model/", "optimiser/exp_avg", "ema/average/")) and tensor.dim() > 0


def _weight_of(path: str) -> str:
    """The weight that a large tensor belongs to.

    >>> _weight_of("optimiser/exp_avg/output.weight"), _weight_of("model/output.weight")
    ('output.weight', 'output.weight')
    """
    return path.rpartition("/")[2]
