"""Train a model from text files, from the first line read to the bundle, or go on where a run stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from clearhead.base.atomic import sha256_of
from clearhead.base.device import pick_device, pick_dtype, use_threads, wake
from clearhead.base.errors import UserError
from clearhead.base.seed import seed_everything
from clearhead.data.config import DataConfig
from clearhead.data.encoding import Encoding, Tokenizers
from clearhead.data.findings import Survey
from clearhead.data.load import Loader
from clearhead.data.read import ends_documents
from clearhead.data.survey import survey
from clearhead.jobs import prepare
from clearhead.jobs.finish import Finished, finish
from clearhead.jobs.recipe import Table, compose, explained, laid_out, merged, padded_if_need_be
from clearhead.jobs.refusals import (
    check_corpus,
    check_labels,
    check_lengths,
    check_settings,
    check_together,
    family_said,
)
from clearhead.jobs.validate import DecodingValidator
from clearhead.jobs.warm_up import WarmUp
from clearhead.models.build import build, count_parameters
from clearhead.models.stack import recompute_activations
from clearhead.planner.layout import Layout
from clearhead.tasks import task_named
from clearhead.text.learn import TokenizerConfig
from clearhead.training import doctor
from clearhead.training.config import ComputeConfig, SavingConfig, TrainConfig, differences
from clearhead.training.cpu.worker import NARROW, in_bf16
from clearhead.training.distributed.ranks import Ranks, joined, one_voice, restarts
from clearhead.training.flops import peak_of
from clearhead.training.loop import Corpus, Trainer
from clearhead.training.run_data import is_ready, length_notes
from clearhead.training.run_folder import READY, RunFolder, as_json
from clearhead.training.sizes import Asked
from clearhead.training.sizing import (
    Choice,
    Machine,
    as_table,
    choose,
    choose_vocabulary,
    dealt,
    minutes_for,
)
from clearhead.training.step import Precision
from clearhead.training.view import View, choices_table, make_view
from clearhead.training.view.words import duration

MOST_MINUTES = 1_000_000  # about two years
ONE = Layout()  # rank
VALIDATION_TOKENS = 8192  # places of a validation batch


@dataclass(frozen=True)
class _Plan:
    """Everything that was decided before the first byte is written."""

    config: TrainConfig
    survey: Survey
    tokenizers: Tokenizers
    choices: list[Choice]
    findings: list[str]
    minutes: float  # that the run takes by the table of devices


@one_voice()
def train(
    out: str | Path,
    settings: Table,
    *,
    minutes: float | None = None,
    view: str = "auto",
    replace: bool = False,
) -> Finished:
    """Train from scratch into a new folder, or one whose run has not taken a step.

    `settings` are nested tables as in a recipe file; what they leave open is chosen from the corpus and
    the device. `minutes` is how long training may take. `replace`: a run or bundle that is there is removed
    as soon as the new one can begin.
    """
    folder = RunFolder(Path(out))
    folder.refuse_place()
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        raise UserError(
            f"The time for training must be more than 0 minutes and at most {MOST_MINUTES:,}, not {minutes}."
        )
    early = check_settings(settings)
    with _ranks(early.compute) as ranks, _watched(folder, view, ranks) as watching:
        # torchrun gives its first command again, and not every machine counts how often
        if ranks.any(restarts() > 0) and ranks.word(folder.record.exists()):
            return _go_on(folder, None, watching, ranks)
        warm_up = WarmUp(alone=not ranks.many)
        if ranks.first:
            if not (replace and folder.is_used()):
                folder.refuse_occupied()
            plan = _decide(early, settings, minutes, ranks.layout)
            warm_up.start(plan.config, plan.survey.to_dict())
            _tell(plan, watching)
            config, notes = plan.config, _begin(folder, plan, settings, replace, watching)
        ranks.word()  # the others have waited for it
        if not ranks.first:
            config, record = folder.read_record()
            notes = record["notes"]
        return _run(folder, config, notes, watching, ranks, warm_up)


def _begin(folder: RunFolder, plan: _Plan, settings: Table, replace: bool, view: View) -> dict[str, Any]:
    """Write down what the run is, and its data; returns the notes."""
    if folder.record.exists() and not replace:
        view.say(f"The run in '{folder.path}' had not taken a step: it is begun anew.")
    folder.empty()
    notes = _notes(plan)
    folder.write_record(plan.config, {"settings": settings, "notes": notes})
    with folder.emptied_on_error():
        said = prepare.write_all(
            plan.survey, plan.config.data, plan.tokenizers, _encoding(plan.config), folder.data
        )
    for sentence in said:
        view.say(sentence)
    return notes


@one_voice()
def resume(out: str | Path, settings: Table | None = None, *, view: str = "auto") -> Finished:
    """Go on with the run in a folder, as if it had never stopped.

    `settings` may change what is seen of a run, not what it computes.
    """
    folder = RunFolder(Path(out))
    folder.refuse_absent()
    config, _ = _changed(folder, settings)
    with _ranks(config.compute) as ranks, _watched(folder, view, ranks) as watching:
        return _go_on(folder, settings, watching, ranks)


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
def _watched(folder: RunFolder, view: str, ranks: Ranks) -> Iterator[View]:
    """What is seen of the run, and nobody else in its folder; both are rank 0's."""
    with (
        make_view(view if ranks.first else "quiet") as watching,
        folder.locked() if ranks.first else nullcontext(),
    ):
        yield watching


def _changed(folder: RunFolder, settings: Table | None) -> tuple[TrainConfig, dict[str, Any]]:
    """The record of the run in a folder, with settings that change nothing of what it computes."""
    config, record = folder.read_record()
    if settings:
        changed = TrainConfig.from_dict(merged(config.to_dict(), settings))
        unlike = differences(config, changed)
        if unlike:
            raise UserError(
                f"The run in '{folder.path}' cannot go on with other settings, which would silently make "
                f"another run of it ({'; '.join(unlike)}): leave them away, or train anew."
            )
        config = changed
    return config, record


def begun(out: str | Path) -> bool:
    """Is there a run in this folder that can go on?"""
    return RunFolder(Path(out)).record.exists()


def _prepare_again(folder: RunFolder, config: TrainConfig, notes: dict[str, Any], view: View) -> None:
    """The run stopped before its corpus was tokenised; both are pure functions of the files."""
    found = survey(config.data, task_named(config.task).columns)
    tokenizers, _ = prepare.learn_tokenizers(found, config.tokenizer)
    sizes = (tokenizers.target.vocabulary_size, tokenizers.source.vocabulary_size)
    known = (config.model.vocabulary, config.model.source_vocabulary or config.model.vocabulary)
    if sizes != known or _corpus_facts(found) != notes["corpus"]:
        raise UserError(f"The files of the run in '{folder.path}' have changed since it began: train anew.")
    for sentence in prepare.write_all(found, config.data, tokenizers, _encoding(config), folder.data):
        view.say(sentence)


def _decide(early: TrainConfig, said: Table, minutes: float | None, layout: Layout = ONE) -> _Plan:
    """Read the corpus, learn the tokenizers, choose what was left open; writes nothing."""
    task = task_named(early.task)
    first = list(task.defaults)
    data = DataConfig.from_dict(merged(as_table(first).get("data", {}), said.get("data", {})), "data")
    compute = early.compute
    device = pick_device(compute.device)
    dtype = pick_dtype(compute.dtype, device)
    wake(device)
    found = survey(data, task.columns)
    check_corpus(found)
    first.append(choose_vocabulary(prepare.words_in(found), device.type == "cuda", task.columns.writes))
    learning = merged(as_table(first).get("tokenizer", {}), said.get("tokenizer", {}))
    tokenizers, facts = prepare.learn_tokenizers(found, TokenizerConfig.from_dict(learning, "tokenizer"))
    if data.filter.too_long == "cut":
        facts = facts.cut(data.filter.source_tokens, data.filter.target_tokens)
    gpu = device.type == "cuda"
    quick = NARROW if compute.dtype in ("auto", "bf16") and in_bf16(device, NARROW) else None
    peak = peak_of(device, dtype if gpu else torch.float32, compute.threads)
    machine = Machine(gpu, peak, minutes, quick)
    demand = task.sized(facts, family_said(said), data.two)
    choices = [*first, *dealt(choose(demand, machine, Asked.of(said)), layout.data)]
    sizes = {"vocabulary": facts.vocabulary, "source_vocabulary": facts.source_vocabulary}
    config = compose(choices, said, sizes)
    dtype = Precision.chosen(compute.dtype, device, config.model.width).dtype
    choices = laid_out(choices, said, config, device, dtype)
    config = padded_if_need_be(compose(choices, said, sizes), device, dtype)
    check_labels(config, found)
    check_together(config, device)
    check_lengths(config, found, tokenizers, _encoding(config))
    held = found.overlaps.values()
    findings = doctor.found(
        [
            *(doctor.overlap(one.examples, one.rows) for one in held),
            doctor.vocabulary_too_large(
                facts.source_tokens + facts.target_tokens, facts.vocabulary, config.tokenizer.smallest
            ),
        ]
    )
    shown = explained(choices, said, config)
    took = minutes_for(demand, machine, config)
    return _Plan(config, found, tokenizers, shown, [str(one) for one in findings], took)


def _tell(plan: _Plan, view: View) -> None:
    for line in plan.survey.report():
        view.say(line)
    if type(view) is not View:  # which shows nothing
        rows = [(choice.name, _value(choice.value), choice.reason) for choice in plan.choices]
        choices_table(rows, sys.stderr)
    size = count_parameters(plan.config.model)
    form = plan.tokenizers.target.normalisation
    view.say(f"A model of {size:,} parameters. Normalisation of the text: {form}.")
    view.say(
        f"{plan.config.steps:,} steps take about {duration(60 * plan.minutes)} by the table of devices; a "
        "busy machine takes longer for the same steps."
    )
    for sentence in plan.findings:
        view.say(f"Doctor: {sentence}")


def _value(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _notes(plan: _Plan) -> dict[str, Any]:
    """What the bundle will say about itself."""
    filter, found = plan.config.data.filter, plan.survey
    documents, numbers = ends_documents(found.train[0].corpus), found.numbers
    return {
        "task": plan.config.task,
        "framing": _encoding(plan.config).framings(plan.tokenizers, documents).to_dict(),
        "labels": list(found.labels),
        **({} if numbers is None else {"numbers": {"mean": numbers.mean, "deviation": numbers.deviation}}),
        "documents": documents,
        **({"context": plan.config.batch.context} if found.columns.is_stream else {}),
        **({"source_limit": filter.source_tokens} if filter.too_long == "cut" else {}),
        "corpus": _corpus_facts(plan.survey),
        "recipe": plan.config.to_dict(),
        "chosen": [
            {"setting": choice.name, "value": choice.value, "reason": choice.reason}
            for choice in plan.choices
        ],
        "findings": plan.findings,
    }


def _encoding(config: TrainConfig) -> Encoding:
    data = config.data
    return task_named(config.task).encoding(config.model.family, data.two, data.corruption)


def _corpus_facts(found: Survey) -> dict[str, Any]:
    return {"rows": found.to_dict()["rows"], "report": found.report()}


def _run(
    folder: RunFolder,
    config: TrainConfig,
    notes: dict[str, Any],
    view: View,
    ranks: Ranks,
    warm_up: WarmUp,
) -> Finished:
    """Train, from the beginning or from the last checkpoint, and finish."""
    _refuse_unlike(folder, config, ranks)
    task, encoding = task_named(config.task), _encoding(config)
    prepared = prepare.open_all(folder.data, len(config.data.train))
    warm_up.start(config, prepared.notes["survey"])
    framings = encoding.framings(prepared.tokenizers, bool(prepared.notes["documents"]))
    notes = {**notes, "framing": framings.to_dict(), **length_notes(config, notes, prepared.train)}
    compute: ComputeConfig = config.compute
    use_threads(compute.threads)
    device = pick_device(compute.device)
    warm_up.wait()
    seed_everything(config.seed)
    model = build(config.model)
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
    """Ranks that would compute something else than the others are found out before the first step."""
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
    validation = Loader([prepared.validation], encoding, judging, specials, config.seed, evaluation=True)
    return Corpus(training, validation)


def _headlines(config: TrainConfig, device: torch.device, ranks: Ranks) -> Sequence[str]:
    model = config.model
    where = f"{device}, {ranks.count} ranks as {ranks.layout}" if ranks.many else f"{device}"
    return [
        f"{config.task}: {model.family}, {model.layers} layers of width {model.width}, "
        f"vocabulary {model.vocabulary:,}, {count_parameters(model):,} parameters, on {where}"
    ]


def decided(settings: Table, minutes: float | None = None) -> TrainConfig:
    """The whole config of a run, with all that is chosen from the corpus and the device; writes nothing."""
    return _decide(check_settings(settings), settings, minutes).config
