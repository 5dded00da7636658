"""The training loop: steps, the log, validations, checkpoints, and a clean end.

A run is a pure function of its config and data. Whatever ends it (the last step,
patience, Ctrl-C, a kill), it resumes from its last checkpoint as if nothing had
happened: on one CPU the weights and the log come out the same to the last bit.

Knows nothing about texts, decoding or where data came from; the caller passes in
a validator that may decode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from clearhead.base.errors import UserError
from clearhead.data.batch import Batch
from clearhead.data.load import Loader
from clearhead.nn.lora import folded
from clearhead.training import doctor
from clearhead.training.averaging import Ema
from clearhead.training.board import Board
from clearhead.training.config import TrainConfig
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.distributed.step import RankStepper, RecordedRankStepper
from clearhead.training.doctor import Finding
from clearhead.training.flops import StepFlops, peak_of
from clearhead.training.graphs import GraphStepper
from clearhead.training.interrupt import Interrupted, Interrupts
from clearhead.training.log import NoLog, RunLog
from clearhead.training.objectives import Objective
from clearhead.training.optimiser import build_optimiser, rate_at
from clearhead.training.progress import Clock
from clearhead.training.snapshot import RunState, Snapshots
from clearhead.training.start import open_groups, pace_of
from clearhead.training.step import Precision, Stepper
from clearhead.training.validation import Checked, Validator, validation_loss
from clearhead.training.view import View
from clearhead.training.weights import WeightFiles, named_weights

if TYPE_CHECKING:
    from clearhead.training.distributed.shard import ShardedModel

DOCTOR_COMES = 0.3  # share of the run after which a model should have learned something
LONGEST_STREAK = 25  # skipped steps in a row; fp16 may need a dozen to find its loss scale


class Agreed(NamedTuple):
    """What all ranks know about an update before it starts."""

    spent: list[tuple[float, int]]  # FLOPs and labels of batches
    stop: bool = False  # another rank was asked to stop


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    steps: int
    why: str
    best_step: int
    best_value: float
    flops: float
    labels: int
    seconds: float


@dataclass
class Corpus:
    """The training batches of a run, and its validation batches."""

    training: Loader
    validation: Loader


class Trainer:
    """One training run in one folder."""

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        objective: Objective,
        config: TrainConfig,
        folder: Path,
        precision: Precision,
        view: View | None = None,
        validator: Validator | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.config = config
        device, dtype = precision.device, precision.dtype
        self.model = model.to(device, torch.float64 if dtype == torch.float64 else None)
        self.sharded = self._sharded(precision)
        self.corpus = corpus
        self.objective = objective
        self.view = view or View()
        self.validator = validator
        self.precision = precision
        self.log = RunLog(folder) if self.ranks.first else NoLog()
        self.board = Board(folder, config.saving.tensorboard and self.ranks.first)
        self.files = WeightFiles(folder)
        self.ema = Ema(self.model, config.averaging.ema) if config.averaging.ema else None
        pace = pace_of(config.start, config.model)
        self.optimiser = build_optimiser(self.model, config.optimiser, device, pace)
        self.stepper = self._stepper(device)
        self.state = RunState()
        self.snapshots = Snapshots(self, folder, config.saving.keep)
        self.clock = Clock(peak_of(device, dtype), "perplexity" in objective.figures)
        self.flops = StepFlops(config.model)

    def _sharded(self, precision: Precision) -> ShardedModel | None:
        """The sharded model, if the layout shards it; then `self.model` becomes this rank's part of it."""
        if not self.ranks.layout.shards:
            return None
        from clearhead.training.distributed.shard import ShardedModel  # takes a second to import

        sharded = ShardedModel(self.model, self.ranks, precision.device, precision.dtype)
        self.model = sharded.part
        return sharded

    def _stepper(self, device: torch.device) -> Stepper:
        compute = self.config.compute
        if self.sharded is not None:
            from clearhead.training.distributed.shard_step import ShardStepper

            places = self.sharded, self.ranks, self.files.folder.parent
            return self._heard(ShardStepper(*places, *self._parts(), compute.compile))
        graphs = compute.graphs is not False and (device.type, self.config.batch.shapes) == ("cuda", "fixed")
        if self.ranks.many:
            one = RecordedRankStepper if graphs else RankStepper
            return self._heard(one(self.ranks, *self._parts(), compute.compile))
        kind = GraphStepper if graphs else Stepper
        return self._heard(kind(*self._parts(), compute.compile))

    def _parts(self) -> tuple[nn.Module, Objective, torch.optim.Optimizer, Precision, float, Ema | None]:
        clip = self.config.optimiser.clip
        return self.model, self.objective, self.optimiser, self.precision, clip, self.ema

    def _heard(self, stepper: Stepper) -> Stepper:
        stepper.say = self.view.say
        return stepper

    # -- the run ------------------------------------------------------------

    def run(self) -> Outcome:
        """Train to the end; resumes from the last checkpoint if there is one."""
        for sentence in self.snapshots.restore():
            self.view.say(sentence)
        if self.state.step <= self.config.schedule.begin:  # it had ended, and was then extended
            self.state.why, self.state.waited = "", 0
        self.model.train()
        self.clock.start(self.state.step, self.state.seconds)
        self.board.resumed_after = self.state.step or None
        with Interrupts() as interrupts:
            for group in self._updates():
                facts = self._agree(group, interrupts.asked)
                self._update(group, facts)
                if facts.stop or (interrupts.asked and not self.ranks.many):
                    self._stop_for(interrupts.name or "a signal to another rank")
        self.board.close()
        return self._outcome()

    def _updates(self) -> Iterator[list[Batch]]:
        """The batches of each update, from the current step to the last."""
        state, size = self.state, self.config.batch.accumulate
        group: list[Batch] = []
        if self._ended():
            return
        takes = (lambda place: self.ranks.takes(place, size)) if self.ranks.many else None
        for place, made in enumerate(self.corpus.training.stream(state.epoch, state.batch, takes), 1):
            if made.batch is not None:
                group.append(made.batch)
            if place % size == 0:
                if self.ranks.idles(size):
                    group[-1] = group[-1].unlabelled()
                state.epoch, state.batch = made.epoch, made.number + 1
                yield group
                group = []
                if self._ended():
                    return

    def _ended(self) -> bool:
        return self.state.step >= self.config.steps or bool(self.state.why)

    def _agree(self, group: Sequence[Batch], stop: bool) -> Agreed:
        """What all ranks must know before a step: the cost of their batches, and whether to stop."""
        spent = [(self.objective.passes * self.flops.of(batch), batch.tokens) for batch in group]
        if not self.ranks.many:
            return Agreed(spent)
        # without stand-ins, and counted once for ranks that share their batches
        own = [one for one in spent if one[1] and self.ranks.rank % self.ranks.layout.tp == 0]
        flops, labels, asked = self.ranks.total(sum(one[0] for one in own), sum(one[1] for one in own), stop)
        return Agreed([(flops, int(labels))], asked > 0)

    def _update(self, group: list[Batch], facts: Agreed | None = None) -> None:
        state, saving = self.state, self.config.saving
        facts = facts or self._agree(group, stop=False)
        state.step += 1
        rate = rate_at(self.config.schedule, state.step, self.config.model.width)
        self.ranks.reseed(self.config.seed, state.step)
        open_groups(self.optimiser, state.step)
        self.stepper.labels = sum(count for _, count in facts.spent)
        self.stepper.step(group, rate)
        for cost, count in facts.spent:
            state.flops += cost
            state.labels += count
        last = state.step >= self.config.steps
        if state.step % saving.log_every == 0 or last:
            self._log(rate)
        elif self.ranks.first and self.clock.wants_to_show():
            sums = self.stepper.meter.read(reset=False)
            extras = self.stepper.meter.read_extras(max(sums["labels"], 1.0), reset=False)
            self._show(sums, rate, extras)
        validated = state.step % self.config.validation.every == 0 or last
        if validated:
            self._validate()
        by_step = saving.every is not None and state.step % saving.every == 0
        due = validated and self.ranks.word(self.clock.since_checkpoint() >= saving.seconds)
        if by_step or due or self._ended():
            self.save()

    def save(self) -> None:
        """Write a checkpoint from which the run can resume."""
        self.state.seconds = self.clock.elapsed()
        self.snapshots.save()
        if self._ended():
            self.snapshots.wait()
        self.clock.checkpointed()

    # -- what is seen of it -------------------------------------------------

    def _log(self, rate: float) -> None:
        sums = self.stepper.meter.read()
        state = self.state
        state.skipped += int(sums["skipped"])
        steps, labels = max(sums["steps"], 1.0), max(sums["labels"], 1.0)
        if sums["steps"]:
            state.train_loss = sums["nll"] / labels
        values = {
            "epoch": state.epoch,
            "loss": sums["nll"] / labels if sums["steps"] else math.nan,
            "objective": sums["objective"] / labels if sums["steps"] else math.nan,
            "rate": rate,
            "gradient_norm": sums["norm"] / steps if sums["steps"] else math.nan,
            "labels": state.labels,
            "flops": state.flops,
            "skipped": state.skipped,
        }
        extras = self.stepper.meter.read_extras(labels)
        self.log.write("train", state.step, {**values, "extras": extras} if extras else values)
        self._show(sums, rate, extras)
        self.log.time("train", state.step, self.clock.figures())
        self.board.curves("train", state.step, values)
        self.board.curves("extras", state.step, extras)
        self.board.curves("clock", state.step, self.clock.figures())
        if sums["worst_streak"] >= LONGEST_STREAK:
            self._give_up(rate)

    def _show(self, sums: Mapping[str, float], rate: float, extras: Mapping[str, float]) -> None:
        self.clock.look(self.state.step, self.config.steps, self.state.labels, self.state.flops)
        if sums["steps"]:
            self.clock.loss = sums["nll"] / max(sums["labels"], 1.0)
            self.clock.norm = sums["norm"] / sums["steps"]
        skipped = self.state.skipped + int(sums["skipped"])
        self.view.step(self.clock.progress(self.state.epoch, rate, skipped, extras))

    def _give_up(self, rate: float) -> None:
        """Stop: too many steps in a row were not finite; the weights are those before the first of them."""
        self.save()
        self.snapshots.wait()
        bad = [name for name, weight in self.model.named_parameters() if not bool(weight.isfinite().all())]
        if bad:
            reason = f"the weights themselves are not finite (first: {bad[0]})"
        elif self.precision.scaled:
            reason = "fp16 overflows at every loss scale: use compute.dtype=bf16 or float32"
        else:
            reason = (
                f"the learning rate of {rate:.2g} is probably too high: lower schedule.rate, lengthen "
                f"schedule.warmup, or lower optimiser.clip (now {self.config.optimiser.clip:g})"
            )
        raise UserError(
            f"Training stopped at step {self.state.step}: the loss or its gradient was not finite "
            f"{LONGEST_STREAK} times in a row; {reason}. The weights from before that are saved."
        )

    def _stop_for(self, name: str) -> None:
        self.save()
        self.snapshots.wait()
        raise Interrupted(self.state.step, name)

    # -- judging ------------------------------------------------------------

    def judge(self) -> Checked:
        """The loss over the whole validation set, and whatever else the validator computes."""
        with self.evaluating() as model:
            values = validation_loss(
                model, self.corpus.validation, self.precision, self.objective, self.ranks
            )
            found = Checked()
            if self.validator is not None:
                found = self.validator(model)  # the same on all ranks
        return Checked({**values, **found.values}, found.samples, found.findings)

    @contextmanager
    def evaluating(self, fold: bool = True) -> Iterator[nn.Module]:
        """The model as it would be used: no dropout, the moving average if any, LoRA merged."""
        self.model.eval()
        mean = self.ema.applied(self.model) if self.ema is not None else nullcontext()
        try:
            with torch.no_grad(), mean, folded(self.model) if fold else nullcontext():
                yield self.model if self.sharded is None else self.sharded.whole()
        finally:
            self.model.train()

    def score(self, values: Mapping[str, float]) -> float:
        """The chosen metric as a number where lower is better."""
        metric = self.config.validation.metric
        if metric not in values:
            known = ", ".join(sorted(values))
            raise UserError(f"There is no validation metric '{metric}' in this run: use one of {known}.")
        value = values[metric]
        if not math.isfinite(value):
            return math.inf
        return -value if self.config.validation.higher_is_better else value

    def _validate(self) -> None:
        state, validation = self.state, self.config.validation
        found = self.judge()
        score = self.score(found.values)
        best = score < state.best_score or not state.weights
        with self.evaluating(fold=False) as model:
            weights = named_weights(model)
            checksum = self.ranks.word(self.files.write(state.step, weights) if self.ranks.first else None)
        state.take_note(state.step, score, checksum, best, max(self.config.averaging.snapshots, 1))
        self.log.write("validation", state.step, {**found.values, "best": best})
        self.view.validation(state.step, found.values, best, found.samples)
        self.board.curves("validation", state.step, found.values)
        self.board.samples(state.step, found.samples)
        self._warn(self._examine(found))
        if validation.patience is not None and state.waited >= validation.patience:
            state.why = (
                f"the metric '{validation.metric}' has not improved for {validation.patience} validations, "
                f"since step {state.best_step}"
            )

    def _examine(self, checked: Checked) -> list[Finding]:
        """The doctor's findings on this validation, once the run has had time to learn something."""
        state, loss = self.state, checked.values["loss"]
        state.best_loss = min(state.best_loss, loss)
        if state.step < self.config.steps * DOCTOR_COMES:
            return []
        findings = [*checked.findings, doctor.parted(state.train_loss, loss, state.best_loss)]
        if not state.reads_source:  # once the source has helped, it is not checked again
            with self.evaluating() as model:
                parts = model, self.corpus.validation, self.precision, self.objective
                help = self.ranks.word(doctor.source_help(*parts) if self.ranks.first else None)
            findings.append(doctor.ignores_source(help))
            state.reads_source = findings[-1] is None
        return doctor.found(findings)

    def _warn(self, findings: Sequence[Finding]) -> None:
        """Report each kind of finding once in a run."""
        for finding in findings:
            if finding.kind not in self.state.warned:
                self.state.warned.append(finding.kind)
                self.log.write(
                    "finding", self.state.step, {"finding": finding.kind, "sentence": str(finding)}
                )
                self.view.say(f"Doctor: {finding}")

    def make_whole(self) -> None:
        """Gather the whole model on every rank, once the run is over."""
        with self.evaluating() as model:
            self.model = model
        self.sharded = self.ema = None

    def _outcome(self) -> Outcome:
        state = self.state
        value = -state.best_score if self.config.validation.higher_is_better else state.best_score
        return Outcome(
            steps=state.step,
            why=state.why or f"all {self.config.steps:,} steps are done",
            best_step=state.best_step,
            best_value=value,
            flops=state.flops,
            labels=state.labels,
            seconds=self.clock.elapsed(),
        )
