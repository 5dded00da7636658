"""Train a model from text files, from the first line read to the bundle, or resume a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from clearhead.base.atomic import sha256_of
from clearhead.base.cuda import unused_gpu
from clearhead.base.device import pick_device, use_threads
from clearhead.base.errors import UserError
from clearhead.base.seed import seed_everything
from clearhead.data.encoding import Encoding
from clearhead.data.load import Loader
from clearhead.data.survey import survey
from clearhead.jobs import prepare
from clearhead.jobs.finish import Finished, finish
from clearhead.jobs.lengthen import is_lengthening, lengthen, without_plan
from clearhead.jobs.plan import Plan, corpus_facts, decide, encoding_of, notes_of, tell, write_data
from clearhead.jobs.recipe import Table, merged
from clearhead.jobs.refusals import check_layout, check_settings
from clearhead.jobs.start import begin, noted_framing, read_base
from clearhead.jobs.validate import DecodingValidator
from clearhead.jobs.warm_up import WarmUp
from clearhead.models.build import build, count_parameters
from clearhead.models.stack import recompute_activations
from clearhead.planner.layout import Layout
from clearhead.tasks import task_named
from clearhead.training.config import ComputeConfig, SavingConfig, TrainConfig, differences
from clearhead.training.distributed.ranks import Ranks, joined, one_voice, restarts, started_by_torchrun
from clearhead.training.loop import Corpus, Trainer
from clearhead.training.run_data import is_ready, length_notes
from clearhead.training.run_folder import READY, RunFolder, as_json
from clearhead.training.sizing import MOST_MINUTES
from clearhead.training.step import Precision
from clearhead.training.view import View, make_view

VALIDATION_TOKENS = 8192  # positions of a validation batch


@one_voice()
def train(
    out: str | Path,
    settings: Table,
    *,
    minutes: float | None = None,
    view: str = "auto",
    replace: bool = False,
) -> Finished:
    """Train into a new folder, or one whose run has not taken a step: from scratch, or from `start.base`.

    `settings` are nested tables as in a recipe file; the rest is chosen from the corpus and the device.
    `minutes` is how long training may take. `replace`: an existing run or bundle is removed as soon as the
    new one can start.
    """
    folder = RunFolder(Path(out))
    folder.refuse_place()
    check_minutes(minutes)
    base, settings = read_base(settings)
    early = check_settings(settings, base)
    if not started_by_torchrun():
        Layout.parse(early.compute.layout, 1)  # a resumed run may go on alone, and needs no change
    with _ranks(early.compute) as ranks, _watched(folder, view, ranks, early.compute) as watching:
        # torchrun repeats its first command, and not every machine counts how often
        if ranks.any(restarts() > 0) and ranks.word(folder.record.exists()):
            return _go_on(folder, None, watching, ranks)
        warm_up = WarmUp(alone=not ranks.many)
        if ranks.first:
            if not (replace and folder.is_used()):
                folder.refuse_occupied()
            plan = decide(early, settings, minutes, ranks.layout, base)
            warm_up.start(plan.config, plan.survey.to_dict())
            tell(plan, watching)
            config, notes = plan.config, _begin(folder, plan, settings, replace, watching)
        ranks.word()  # the others are waiting for it
        if not ranks.first:
            config, record = folder.read_record()
            notes = record["notes"]
        return _run(folder, config, notes, watching, ranks, warm_up)


def _begin(folder: RunFolder, plan: Plan, settings: Table, replace: bool, view: View) -> dict[str, Any]:
    """Write the run's record and its data; returns the notes."""
    if folder.record.exists() and not replace:
        view.say(f"The run in '{folder.path}' had not taken a step: it starts over.")
    folder.empty()
    notes = notes_of(plan)
    folder.write_record(plan.config, {"settings": settings, "notes": notes})
    with folder.emptied_on_error():
        said = write_data(folder, plan.config, plan.survey, plan.tokenizers, plan.base)
    for sentence in said:
        view.say(sentence)
    return notes


@one_voice()
def resume(
    out: str | Path, settings: Table | None = None, *, minutes: float | None = None, view: str = "auto"
) -> Finished:
    """Resume the run in a folder, as if it had never stopped; or extend it, if it has finished.

    `settings` may change what a run shows, not what it computes. `minutes`, or more `steps` in the settings,
    extend a finished run.
    """
    folder = RunFolder(Path(out))
    folder.refuse_absent()
    check_minutes(minutes)
    config, _ = folder.read_record()
    longer = is_lengthening(config, settings, minutes)
    if not longer:
        config, _ = _changed(folder, settings)
    with _ranks(config.compute) as ranks, _watched(folder, view, ranks, config.compute) as watching:
        if longer:
            if ranks.first and not restarts():  # torchrun repeats its first command
                watching.say(lengthen(folder, settings, minutes))
            ranks.word()
            settings = without_plan(settings)
        return _go_on(folder, settings, watching, ranks)


def check_minutes(minutes: float | None) -> None:
    """Refuse an invalid time."""
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        raise UserError(
            f"The time for training must be above 0 minutes and at most {MOST_MINUTES:,}, not {minutes}."
        )


def _go_on(folder: RunFolder, settings: Table | None, view: View, ranks: Ranks) -> Finished:
    config, record = _changed(folder, settings)
    if ranks.first and not is_ready(folder.data):
        _prepare_again(folder, config, record["notes"], view)
    ranks.word()
    return _run(folder, config, record["notes"], view, ranks, WarmUp(alone=not ranks.many))


@contextmanager
def _ranks(compute: ComputeConfig) -> Iterator[Ranks]:
    """The processes that train together; one on its own is the usual case."""
    with joined(compute.layout, pick_device(compute.device).type == "cuda") as ranks:
        yield ranks


@contextmanager
def _watched(folder: RunFolder, view: str, ranks: Ranks, compute: ComputeConfig) -> Iterator[View]:
    """The run's view, and the lock on its folder; both belong to rank 0."""
    idle = unused_gpu() if compute.device == "auto" else None
    with (
        make_view(view if ranks.first else "quiet") as watching,
        folder.locked() if ranks.first else nullcontext(),
    ):
        if idle is not None:
            watching.say(idle)
        yield watching


def _changed(folder: RunFolder, settings: Table | None) -> tuple[TrainConfig, dict[str, Any]]:
    """The record of the run in a folder, with settings that do not change what it computes."""
    config, record = folder.read_record()
    if settings:
        changed = TrainConfig.from_dict(merged(config.to_dict(), settings))
        unlike = differences(config, changed)
        if unlike:
            raise UserError(
                f"The run in '{folder.path}' cannot be resumed with different settings, which would "
                f"change what it computes ({'; '.join(unlike)}): leave them out, or start a new run."
            )
        config = changed
    return config, record


def begun(out: str | Path) -> bool:
    """Is there a run in this folder that can be resumed?"""
    return RunFolder(Path(out)).record.exists()


def _prepare_again(folder: RunFolder, config: TrainConfig, notes: dict[str, Any], view: View) -> None:
    """Prepare the data of a run that stopped before its corpus was tokenised, from the files alone."""
    base, _ = read_base({"task": config.task, "start": config.start.to_dict()})
    found = survey(config.data, task_named(config.task).columns)
    if base is None:
        tokenizers, _ = prepare.learn_tokenizers(found, config.tokenizer)
        sizes = (tokenizers.target.vocabulary_size, tokenizers.source.vocabulary_size)
        known = (config.model.vocabulary, config.model.source_vocabulary or config.model.vocabulary)
        same = sizes == known
    else:
        tokenizers, same = base.tokenizers(), base.sha256 == config.start.sha256
    if not same or corpus_facts(found) != notes["corpus"]:
        raise UserError(
            f"The files of the run in '{folder.path}' have changed since it started: start a new run."
        )
    for sentence in write_data(folder, config, found, tokenizers, base):
        view.say(sentence)


def _run(
    folder: RunFolder,
    config: TrainConfig,
    notes: dict[str, Any],
    view: View,
    ranks: Ranks,
    warm_up: WarmUp,
) -> Finished:
    """Train, from the start or from the last checkpoint, and finish."""
    _refuse_unlike(folder, config, ranks)
    task, encoding = task_named(config.task), encoding_of(config, noted_framing(config, notes))
    prepared = prepare.open_all(folder.data, len(config.data.train))
    warm_up.start(config, prepared.notes["survey"])
    framings = encoding.framings(prepared.tokenizers, bool(prepared.notes["documents"]))
    notes = {**notes, "framing": framings.to_dict(), **length_notes(config, notes, prepared.train)}
    compute: ComputeConfig = config.compute
    use_threads(compute.threads)
    device = pick_device(compute.device)
    warm_up.wait()
    seed_everything(config.seed)
    check_layout(config, ranks.layout)
    model = build(config.model)
    for sentence in begin(model, config, folder):
        view.say(sentence)
    if compute.recompute:
        recompute_activations(model)
    trainer = Trainer(
        model,
        _corpus(config, prepared, encoding, device, ranks.layout.tp),
        task.objective(config.objective),
        config,
        folder.training,
        Precision.chosen(compute.dtype, device, 0 if ranks.layout.shards else config.model.width),
        view,
        DecodingValidator(config, task, prepared, notes, ranks),
        ranks,
    )
    view.start(f"Training {folder.path}", _headlines(config, device, ranks))
    outcome = trainer.run()
    view.stop()
    view.say(f"Training ended: {outcome.why}.")
    return finish(trainer, outcome, folder, config, prepared, notes)


def _refuse_unlike(folder: RunFolder, config: TrainConfig, ranks: Ranks) -> None:
    """Detect, before the first step, ranks that would compute something different from the others."""
    if ranks.many:
        computes = config.replace(saving=SavingConfig()).to_dict()
        ranks.refuse_unlike("a config", sha256(as_json(computes).encode()).hexdigest()[:12])
        ranks.refuse_unlike("data", sha256_of(folder.data / READY)[:12])
        ranks.refuse_unlike("a PyTorch", torch.__version__)


def _corpus(
    config: TrainConfig, prepared: prepare.Prepared, encoding: Encoding, device: torch.device, multiple: int
) -> Corpus:
    specials = prepared.tokenizers.specials()
    training = Loader(
        prepared.train,
        encoding,
        config.batch,
        specials,
        config.seed,
        weights=config.data.weights([len(store) for store in prepared.train]),
        pin=device.type == "cuda",
        multiple=multiple,
    )
    judging = config.batch.replace(
        tokens=min(config.batch.tokens, VALIDATION_TOKENS), layout="padded", shapes="free", workers=0
    )
    validation = Loader(
        [prepared.validation], encoding.plain(), judging, specials, config.seed, evaluation=True
    )
    return Corpus(training, validation)


def _headlines(config: TrainConfig, device: torch.device, ranks: Ranks) -> Sequence[str]:
    model = config.model
    where = f"{device}, {ranks.count} ranks as {ranks.layout}" if ranks.many else f"{device}"
    size = f"vocabulary {model.vocabulary:,}"
    if model.family == "vision":
        size = f"{model.head.classes} classes of pictures of {model.image.size} × {model.image.size}"
    return [
        f"{config.task}: {model.family}, {model.layers} layers of width {model.width}, "
        f"{size}, {count_parameters(model):,} parameters, on {where}"
    ]
