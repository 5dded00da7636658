"""The end of a run: choose the best weights, write the bundle, then score the test set.

Three candidates are compared on the validation set: the last weights, the best at
a validation, and the mean of the last few. The winner becomes the bundle's model;
the others stay in the run's folder. The bundle is on disk before anything is
measured that could fail or take long, and each figure is added once it is known.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from clearhead.base.atomic import atomic_write_bytes
from clearhead.base.device import name_of_cpu
from clearhead.base.errors import UserError, counted
from clearhead.bundle import Bundle
from clearhead.bundle.adapter import NOTE, Adapter
from clearhead.bundle.folder import write_bundle
from clearhead.bundle.metadata import read_metadata, replace_notes
from clearhead.decoding.number_formats import FORMATS
from clearhead.evaluation.evaluate import Evaluation, EvaluationConfig
from clearhead.evaluation.formats import measure_formats
from clearhead.evaluation.report import Subject, make_report, write_report
from clearhead.jobs.lengthen import is_short_of_time
from clearhead.jobs.prepare import Prepared, from_lines
from clearhead.jobs.start import OLD_DOMAIN, started_bundle
from clearhead.nn.lora import fold, merged
from clearhead.planner.totals import RUNS
from clearhead.tasks import task_named
from clearhead.training.averaging import average_files
from clearhead.training.config import TrainConfig
from clearhead.training.curves import draw_curves
from clearhead.training.distributed.ranks import Ranks, is_lost
from clearhead.training.log import read_log
from clearhead.training.loop import Outcome, Trainer
from clearhead.training.run_folder import RunFolder
from clearhead.training.weights import named_weights, set_weights

LAST, BEST, AVERAGE = "last", "best", "average"
SCORING = "scoring its test set"  # all ranks do this together


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    folder: Path
    bundle: Bundle
    outcome: Outcome
    chosen: str  # which weights the bundle has
    validation: dict[str, dict[str, float]]  # candidate → its values
    test: Evaluation | None
    said: list[str] = field(default_factory=list)  # messages for the user
    failed: list[str] = field(default_factory=list)  # messages about figures that the bundle lacks
    rank: int = 0  # of the process; ranks other than 0 write nothing, but share the long work


@dataclass
class Ending:
    """A run whose bundle is on disk, and what is measured from there on."""

    folder: RunFolder
    config: TrainConfig
    prepared: Prepared
    bundle: Bundle
    log: list[dict[str, Any]]
    ranks: Ranks
    test: Evaluation | None = None
    said: list[str] = field(default_factory=list)


# A figure that is computed after the bundle is written. Returns entries for its notes.
Figure = Callable[[Ending], Mapping[str, Any]]


def finish(
    trainer: Trainer,
    outcome: Outcome,
    folder: RunFolder,
    config: TrainConfig,
    prepared: Prepared,
    notes: Mapping[str, Any],
) -> Finished:
    """Choose the weights, write the bundle, and add the figures measured afterwards."""
    if trainer.sharded is not None:
        trainer.make_whole()
    candidates = _candidates(trainer)
    judged: dict[str, dict[str, float]] = {}
    for name, weights in candidates.items():
        _use(trainer, weights)
        judged[name] = dict(trainer.judge().values)
    chosen = min(judged, key=lambda name: trainer.score(judged[name]))
    _use(trainer, candidates[chosen])
    adapter = _adapter(trainer.model, config)
    fold(trainer.model)
    trainer.model.eval()
    ranks = trainer.ranks
    if not ranks.first:
        bundle = Bundle(trainer.model, prepared.tokenizers.target, dict(notes), prepared.source_tokenizer)
        _added(SCORING, _test_set, Ending(folder, config, prepared, bundle, [], ranks))
        return Finished(folder.path, bundle, outcome, chosen, judged, None, rank=ranks.rank)
    for name in (BEST, AVERAGE):
        if name in candidates:
            whole = merged(candidates[name], config.start.lora.scale)
            plain = {key: tensor.to("cpu").contiguous() for key, tensor in whole.items()}
            atomic_write_bytes(folder.training / f"{name}.safetensors", safetensors.torch.save(plain))
    log = read_log(folder.training, lenient=True)  # damage was reported when the run was resumed
    found = [one.get("sentence") for one in log if one["kind"] == "finding"]
    findings = [*notes.get("findings", []), *(one for one in found if isinstance(one, str))]
    known = {
        **notes,
        "findings": findings,
        "weights": chosen,
        "training": _training_facts(outcome, trainer),
        "validation": judged,
        **_measured_before(folder, chosen, outcome),
        **({} if adapter is None else {NOTE: adapter.note()}),
    }
    bundle = Bundle(trainer.model, prepared.tokenizers.target, known, prepared.source_tokenizer)
    write_bundle(bundle, folder.path, adapter=adapter)
    ending = Ending(folder, config, prepared, bundle, log, ranks)
    failed = [sentence for what, make in FIGURES.items() if (sentence := _added(what, make, ending))]
    doctor = [f"Doctor: {sentence}" for sentence in findings]
    more = _more(folder, notes, outcome)
    said = [*doctor, *ending.said, flops_in_words(outcome.flops), *more]
    return Finished(folder.path, bundle, outcome, chosen, judged, ending.test, said, failed)


def _adapter(model: nn.Module, config: TrainConfig) -> Adapter | None:
    """The contents of a bundle that holds only the adapter and needs its base."""
    if not config.start.lora.apart or config.start.base is None:
        return None
    learns = {name for name, weight in model.named_parameters() if weight.requires_grad}
    learns |= {name for name, _ in model.named_buffers() if name.endswith("router.balance")}  # no gradient
    learnt = {name: tensor.clone() for name, tensor in model.state_dict().items() if name in learns}
    assert config.start.sha256 is not None
    return Adapter(Path(config.start.base).absolute(), config.start.sha256, config.start.lora.scale, learnt)


def _more(folder: RunFolder, notes: Mapping[str, Any], outcome: Outcome) -> list[str]:
    """How to continue a run that was short of time and did not stop early."""
    outlook = notes.get("outlook") or {}
    if not is_short_of_time(outlook) or not outlook.get("minutes") or not outcome.why.startswith("all"):
        return []
    missing = outlook["minutes"] * (1 - outlook["passes"] / outlook["wanted_passes"])
    return [
        f"There was time for about {outlook['passes']:.0f} of {outlook['wanted_passes']:.0f} "
        f"epochs: `clearhead train --resume {folder.path} --minutes {max(round(missing), 1)}` "
        "continues from here."
    ]


def _measured_before(folder: RunFolder, chosen: str, outcome: Outcome) -> dict[str, Any]:
    """The figures of a run that had already finished: they stay until they are measured again."""
    figures: dict[str, Any] = {"test": {}, "test_signatures": {}}
    with suppress(UserError, KeyError, TypeError):  # missing, or in another form
        before = read_metadata(folder.path).metadata
        if before["weights"] == chosen and before["training"]["steps"] == outcome.steps:
            figures |= {name: before[name] for name in (*figures, FORMATS) if name in before}
    return figures


def _added(what: str, make: Figure, ending: Ending) -> str | None:
    """Add one figure to the bundle; returns a message if that failed."""
    folder = ending.folder.path
    try:
        found = make(ending)
        if found:
            ending.bundle.metadata = {**ending.bundle.metadata, **found}
            replace_notes(folder, ending.bundle.metadata)
    except Exception as error:
        if is_lost(error):  # a rank has died: end the run, instead of skipping the figure
            raise
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        return (
            f"The bundle '{folder}' is complete, but {what} failed ({reason}): `clearhead train --resume "
            f"{folder}` tries again."
        )
    return None


def _curves(ending: Ending) -> Mapping[str, Any]:
    try:
        draw_curves(ending.log, ending.folder.training)
    except ImportError:  # a run must not fail because it cannot draw
        again = f"`clearhead train --resume {ending.folder.path}`"
        ending.said.append(
            f"The curves were not drawn, because matplotlib cannot be imported: `pip install matplotlib`, "
            f"then {again} draws them."
        )
    return {}


def _test_set(ending: Ending) -> Mapping[str, Any]:
    rows, asked = ending.prepared.held_out["test"], ending.config.test
    if not rows:
        return {}
    config = EvaluationConfig(**asked.to_dict(), way="torch")
    judge, ranks = task_named(ending.config.task).judge, ending.ranks
    test = judge(ending.bundle, rows, config, show=ranks.first, ranks=ranks)
    if not ranks.first:
        return {}
    name = ending.folder.path.name
    page = make_report(Subject(name, test), title=f"Test set of {name}")
    write_report(page, ending.folder.training, "test")
    ending.test = test
    return {
        "test": {"examples": len(rows), "search": config.search, **test.metrics},
        "test_signatures": test.signatures,
    }


def _old_domain(ending: Ending) -> Mapping[str, Any]:
    """How much the model has forgotten: base and result on texts of the base's own domain."""
    file = ending.folder.data / OLD_DOMAIN
    if not file.is_file():
        return {}
    rows, judge = from_lines(file), task_named(ending.config.task).judge
    config = EvaluationConfig(tokenise=ending.config.test.tokenise, way="torch")
    before = started_bundle(ending.config, ending.folder, ending.bundle)
    scores = {
        name: judge(one, rows, config).metrics for name, one in (("base", before), ("now", ending.bundle))
    }
    figures = [f"{name} {value:.4g} → {scores['now'][name]:.4g}" for name, value in scores["base"].items()]
    ending.said.append(
        f"On {counted(len(rows), 'example')} of the base's own domain, before and after: "
        f"{', '.join(figures)}."
    )
    return {"old_domain": {"examples": len(rows), **scores}}


def _number_formats(ending: Ending) -> Mapping[str, Any]:
    rows = ending.prepared.held_out["validation"]
    found = measure_formats(ending.bundle, rows, task_named(ending.config.task).judge)
    return {FORMATS: found} if found else {}


# By name, for error messages. No failure can lose the bundle, or prevent the next figure.
FIGURES: dict[str, Figure] = {
    SCORING: _test_set,
    "drawing its curves": _curves,
    "measuring what it has forgotten": _old_domain,
    "measuring other number formats": _number_formats,
}


def _candidates(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """Weights by name, without duplicates."""
    state, files = trainer.state, trainer.files
    found = {LAST: files.read(state.step)} if state.step in state.weights else {}
    if state.best_step != state.step:
        found[BEST] = files.read(state.best_step)
    if trainer.config.averaging.snapshots > 1 and len(state.recent) > 1:
        found[AVERAGE] = average_files([files.path(step) for step in state.recent])
    return found


@torch.no_grad()
def _use(trainer: Trainer, weights: Mapping[str, Tensor]) -> None:
    """Load weights into the model; a moving average must no longer override them."""
    trainer.ema = None
    set_weights(trainer.model, dict(weights))
    assert named_weights(trainer.model).keys() == weights.keys()


def _training_facts(outcome: Outcome, trainer: Trainer) -> dict[str, Any]:
    device = trainer.precision.device
    return {
        "steps": outcome.steps,
        "ended": outcome.why,
        "best_step": outcome.best_step,
        "seconds": round(outcome.seconds, 1),
        "flops": outcome.flops,
        "labels": outcome.labels,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else name_of_cpu(),
        "dtype": str(trainer.precision.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
    }


def flops_in_words(flops: float) -> str:
    """The FLOPs of training, compared with the table of the lectures.

    >>> flops_in_words(3.3e15)
    'Training took 3.3e+15 FLOPs: 0.1 % of the 3.3e+18 of the original base model, 0.014 % of the big one.'
    """
    base, big = (run.table for run in RUNS)
    shares = [100 * flops / whole for whole in (base, big)]
    small, large = (f"{share:.2g}" if share < 99.5 else f"{share:,.0f}" for share in shares)
    return (
        f"Training took {flops:.1e} FLOPs: {small} % of the {base:.1e} of the original base model, "
        f"{large} % of the big one."
    )
