"""The end of a run: which weights are best, how they do on the test set, and the bundle.

Three candidates are judged on the validation set: the last weights, the best at
a validation, and the mean of the last few. The winner becomes the bundle's
model; the others stay in the run's folder.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from clearhead.base.atomic import atomic_write_bytes
from clearhead.base.device import name_of_cpu
from clearhead.bundle import Bundle
from clearhead.bundle.folder import write_bundle
from clearhead.evaluation.evaluate import Evaluation, EvaluationConfig, evaluate
from clearhead.evaluation.report import Subject, make_report, write_report
from clearhead.jobs.prepare import Prepared
from clearhead.planner.paper import RUNS
from clearhead.training.averaging import average_files
from clearhead.training.config import TrainConfig
from clearhead.training.curves import draw_curves
from clearhead.training.log import read_log
from clearhead.training.loop import Outcome, Trainer
from clearhead.training.run_folder import RunFolder
from clearhead.training.weights import named_weights, set_weights

LAST, BEST, AVERAGE = "last", "best", "average"


@dataclass(frozen=True)
class Finished:
    """A run that came to its end."""

    folder: Path
    bundle: Bundle
    outcome: Outcome
    chosen: str  # which weights the bundle has
    validation: dict[str, dict[str, float]]  # candidate → its values
    test: Evaluation | None
    said: list[str] = field(default_factory=list)  # what a person should know about it


def finish(
    trainer: Trainer,
    outcome: Outcome,
    folder: RunFolder,
    config: TrainConfig,
    prepared: Prepared,
    notes: Mapping[str, Any],
) -> Finished:
    """Choose the weights, score the test set, draw the curves, and write the bundle."""
    candidates = _candidates(trainer)
    judged: dict[str, dict[str, float]] = {}
    for name, weights in candidates.items():
        _use(trainer, weights)
        judged[name] = dict(trainer.judge().values)
    chosen = min(judged, key=lambda name: trainer.score(judged[name]))
    _use(trainer, candidates[chosen])
    for name in (BEST, AVERAGE):
        if name in candidates:
            plain = {key: tensor.to("cpu").contiguous() for key, tensor in candidates[name].items()}
            atomic_write_bytes(folder.training / f"{name}.safetensors", safetensors.torch.save(plain))
    trainer.model.eval()
    records = read_log(folder.training)
    draw_curves(records, folder.training)
    findings = [*notes.get("findings", []), *(one["sentence"] for one in records if one["kind"] == "finding")]
    bundle = Bundle(trainer.model, prepared.tokenizers.target, dict(notes), prepared.source_tokenizer)
    rows = prepared.held_out["test"]
    asked = EvaluationConfig(
        beam=config.test.beam,
        max_length=config.test.max_length,
        tokenise=config.test.tokenise,
        way="torch",
    )
    test = evaluate(bundle, rows, config.task, asked, show=True) if rows else None
    bundle.metadata = {
        **notes,
        "findings": findings,
        "weights": chosen,
        "training": _training_facts(outcome, trainer),
        "validation": judged,
        "test": {} if test is None else {"examples": len(rows), "search": asked.search, **test.metrics},
        "test_signatures": {} if test is None else test.signatures,
    }
    write_bundle(bundle, folder.path)
    if test is not None:
        page = make_report(Subject(folder.path.name, test), title=f"Test set of {folder.path.name}")
        write_report(page, folder.training, "test")
    said = [*(f"Doctor: {sentence}" for sentence in findings), flops_in_words(outcome.flops)]
    return Finished(folder.path, bundle, outcome, chosen, judged, test, said)


def _candidates(trainer: Trainer) -> dict[str, dict[str, Tensor]]:
    """Weights by name; those that would be the same are left out."""
    state, files = trainer.state, trainer.files
    found = {LAST: files.read(state.step)} if state.step in state.weights else {}
    if state.best_step != state.step:
        found[BEST] = files.read(state.best_step)
    if trainer.config.averaging.snapshots > 1 and len(state.recent) > 1:
        found[AVERAGE] = average_files([files.path(step) for step in state.recent])
    return found


@torch.no_grad()
def _use(trainer: Trainer, weights: Mapping[str, Tensor]) -> None:
    """Put weights into the model; a moving average must not cover them any longer."""
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
    """What was spent, beside the table of the lectures.

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
