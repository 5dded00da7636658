"""Compare architectures, or any settings, on one corpus: a loop over `train` and `evaluate`, with seeds.

    OUT/compare.json           what is compared: settings of all members, written before the first run
    OUT/NAME-seed1/            an ordinary run and its bundle, for each member and seed
    OUT/results/NAME-seed1.json  what was measured of it
    OUT/compare.html           the tables and charts, in one file; compare.md has the tables

A comparison that was stopped resumes where it was: measured runs are left alone, and an unfinished one is
resumed. `processes` runs go side by side, spread over the available GPUs.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from clearhead.base.atomic import atomic_write_text
from clearhead.base.device import pick_device
from clearhead.base.errors import UserError
from clearhead.base.reading import Unreadable, read_json
from clearhead.base.settings import parse_setting
from clearhead.data.encoding import Encoding
from clearhead.data.load import Loader
from clearhead.evaluation.evaluate import Evaluation
from clearhead.evaluation.report import by_words
from clearhead.jobs import prepare
from clearhead.jobs.compare_page import write_page
from clearhead.jobs.finish import Finished
from clearhead.jobs.gradient_by_distance import gradient_by_distance
from clearhead.jobs.members import CompareConfig, Comparison, Member, differing, invited
from clearhead.jobs.plan import decided
from clearhead.jobs.recipe import Table, merged, table_in
from clearhead.jobs.side_by_side import side_by_side
from clearhead.jobs.train import begun, resume, train
from clearhead.models.build import build, count_parameters
from clearhead.planner.batch import Batch
from clearhead.planner.totals import count_memory
from clearhead.tasks import task_named
from clearhead.training.config import TrainConfig
from clearhead.training.load import NAME as LOAD
from clearhead.training.load import summed_up
from clearhead.training.log import TIMING, read_log
from clearhead.training.run_folder import RunFolder, as_json

RECORD, RESULTS, PAGE = "compare.json", "results", "compare.html"
SETTLED = 3  # skip this many speeds: the machine is still warming up


def compare(
    out: str | Path,
    settings: Table | None = None,
    config: CompareConfig | None = None,
    *,
    processes: int | None = None,
    view: str = "auto",
    minutes: float | None = None,
) -> Comparison:
    """Train and measure every member with every seed, and draw the page; or resume what is in `out`."""
    folder = Path(out)
    found = _opened(folder, settings, config, minutes)
    waiting = [one for one in _runs(found) if not _result(folder, *one).exists()]
    count = max(torch.cuda.device_count(), 1) if processes is None else processes
    if count > 1 and len(waiting) > 1:
        command = [sys.executable, "-m", "clearhead", "compare", "--out", str(folder), "--only"]
        names = [name_of_run(member, seed) for member, seed in waiting]
        failed = side_by_side({name: [*command, name] for name in names}, count, folder)
    else:
        failed = [
            sentence
            for member, seed in waiting
            if (sentence := _tried(folder, found, member, seed, view)) is not None
        ]
    done = replace(read(folder), failed=tuple(failed))
    return replace(done, page=write_page(done, folder / PAGE))


def _tried(folder: Path, found: Comparison, member: Member, seed: int, view: str) -> str | None:
    """Train and measure one run; returns a message if it fails, so the others still run."""
    try:
        measure(folder, found, member, seed, view)
    except UserError as error:
        return f"{name_of_run(member, seed)} did not finish: {error}"
    return None


def read(folder: Path) -> Comparison:
    """The results in a folder so far."""
    plain = _json(folder / RECORD)
    config = CompareConfig.from_dict(plain["compare"])
    members = [Member(one["name"], one["settings"], refused=one["refused"]) for one in plain["members"]]
    empty = Comparison(config, plain["task"], members, {})
    results: dict[str, list[dict[str, Any]]] = {}
    for member, seed in _runs(empty):
        path = _result(folder, member, seed)
        if path.exists():
            results.setdefault(member.name, []).append(_json(path))
    return Comparison(config, plain["task"], members, results)


def _opened(
    folder: Path, settings: Table | None, config: CompareConfig | None, minutes: float | None
) -> Comparison:
    """The comparison in a folder; or a new one, with all settings written before the first run."""
    record = folder / RECORD
    if settings is None:
        if not record.is_file():
            raise UserError(f"There is no comparison to resume in '{folder}': say what to compare.")
        return read(folder)
    asked = config or CompareConfig()
    said = {"settings": settings, "compare": asked.to_dict(), "minutes": minutes}
    if record.exists():
        if json.loads(json.dumps(said)) != {name: _json(record).get(name) for name in said}:
            raise UserError(
                f"There is already another comparison in '{folder}': resume it with `clearhead compare "
                f"--out {folder}`, or choose another --out."
            )
        return read(folder)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"The folder '{folder}' is not empty: choose another --out.")
    task = task_named(str(settings.get("task", TrainConfig().task)))
    differing(asked, task.columns.writes)  # refuses unknown names before the corpus is read
    plain = merged(_alike(settings), settings)
    members = invited(asked, plain, decided(plain, minutes), task.columns.writes)
    listed = [{"name": one.name, "settings": one.settings, "refused": one.refused} for one in members]
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_text(record, as_json({"format": 1, "task": task.name, **said, "members": listed}))
    return read(folder)


def _alike(settings: Table) -> Table:
    """The same batches and precision for all: not every family has packed batches, nor every width bf16."""
    device = pick_device(table_in(settings, "compute").get("device", "auto"))
    exact = {"compute": {"dtype": "float32"}} if device.type == "cpu" else {}
    return {"batch": {"layout": "padded"}, **exact}


def _runs(found: Comparison) -> Iterator[tuple[Member, int]]:
    """Seed by seed, so there is a table early."""
    first = found.config.first_seed
    for seed in range(first, first + found.config.seeds):
        yield from ((member, seed) for member in found.members if member.refused is None)


def name_of_run(member: Member, seed: int) -> str:
    """The name of a run's folder."""
    return f"{re.sub(r'[^A-Za-z0-9.+=-]+', '_', member.name)}-seed{seed}"


def _result(folder: Path, member: Member, seed: int) -> Path:
    return folder / RESULTS / f"{name_of_run(member, seed)}.json"


def measure_one(folder: Path, name: str, view: str) -> None:
    """Train and measure the run of this name, in a separate process."""
    found = read(folder)
    for member, seed in _runs(found):
        if name_of_run(member, seed) == name:
            measure(folder, found, member, seed, view)
            return
    raise UserError(f"There is no run '{name}' in the comparison in '{folder}'.")


def measure(folder: Path, found: Comparison, member: Member, seed: int, view: str) -> None:
    """Train one member with one seed, or resume it, and write its measurements."""
    place = folder / name_of_run(member, seed)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    whole = not begun(place)
    if whole:
        finished = train(place, merged(member.settings, {"seed": seed}), view=view)
    else:
        finished = resume(place, view=view)
    plain = measured(finished, found.config)
    if torch.cuda.is_available() and whole:
        plain["peak_bytes"] = torch.cuda.max_memory_allocated()
    (folder / RESULTS).mkdir(exist_ok=True)
    atomic_write_text(_result(folder, member, seed), as_json({"member": member.name, "seed": seed, **plain}))


def measured(finished: Finished, asked: CompareConfig) -> dict[str, Any]:
    """Everything that is compared about one run."""
    folder = RunFolder(finished.folder)
    config, _ = folder.read_record()
    task = task_named(config.task)
    prepared = prepare.open_all(folder.data, len(config.data.train))
    encoding = task.encoding(config.model.family, config.data.two)
    facts = finished.bundle.metadata["training"]
    words = not task.columns.pictures  # pictures have no length, and no distance between two inputs
    given = finished.bundle.model, config, encoding, prepared, asked.rows
    gradients = gradient_by_distance(*given) if words else []
    return {
        "figures": _figures(finished),
        "parameters": count_parameters(finished.bundle.model),
        "width": config.model.width,
        "flops": facts["flops"],
        "steps": facts["steps"],
        "minutes": facts["seconds"] / 60,
        "device": facts["device"],
        "dtype": facts["dtype"],
        "train_tokens_per_second": _training_speed(folder),
        "decode_tokens_per_second": _decoding_speed(finished),
        "planned_bytes": _planned_bytes(finished, config, prepared, encoding),
        "by_length": _by_length(finished.test) if words and finished.test is not None else [],
        "gradients": [one._asdict() for one in gradients],
        "curve": [
            [one["step"], one["loss"]]
            for one in read_log(folder.training, lenient=True)
            if one["kind"] == "validation" and isinstance(one.get("loss"), float)
        ],
        "load": _load(folder),
    }


def _load(folder: RunFolder) -> list[list[float]]:
    """Steps, and the load of the busiest expert of all layers over the mean; nothing without experts."""
    noted = [one for one in read_log(folder.training, lenient=True) if one["kind"] == "train"]
    found = [(one["step"], summed_up(one.get("extras", {})).get(LOAD)) for one in noted]
    return [[step, value] for step, value in found if value is not None]


def _planned_bytes(
    finished: Finished, config: TrainConfig, prepared: prepare.Prepared, encoding: Encoding
) -> int:
    """The planner's count for training on the largest batch of an epoch."""
    loader = Loader(prepared.train, encoding, config.batch, prepared.tokenizers.specials(), config.seed)
    rows, source, target = max(loader.plan(0).shape.tolist(), key=lambda one: one[0] * sum(one[1:]))
    if config.model.family == "encoder":  # one sequence, which is read
        source, target = target, 0
    used = finished.bundle.metadata["training"]["dtype"]
    dtype = "bf16" if used in ("bfloat16", "float16") else "float32"
    on_cpu = next(finished.bundle.model.parameters()).device.type == "cpu"
    model, batch = build(config.model, device="meta"), Batch(rows, source, target)
    return count_memory(model, config.model, batch, dtype, on_cpu).training


def _figures(finished: Finished) -> dict[str, float]:
    """The figures of the test set, or of the validation set if there is none."""
    if finished.test is not None:
        return dict(finished.test.metrics)
    return {f"{name} (validation)": value for name, value in finished.validation[finished.chosen].items()}


def _training_speed(folder: RunFolder) -> float | None:
    """Labels per second: the median over the log, without its beginning."""
    speeds = []
    path = folder.training / TIMING
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        value = json.loads(line).get("tokens_per_second")
        speeds += [value] if isinstance(value, int | float) else []
    return statistics.median(speeds[SETTLED:] or speeds) if speeds else None


def _decoding_speed(finished: Finished) -> float | None:
    """Tokens per second in decoding the test set with PyTorch, even if a family has a faster engine."""
    test = finished.test
    if test is None or not test.judge.writes or not test.seconds:
        return None
    tokenizer = finished.bundle.tokenizer
    assert tokenizer is not None
    return sum(len(tokenizer.encode(text)) + 1 for text in test.outputs) / test.seconds


def _by_length(found: Evaluation) -> list[dict[str, Any]]:
    """Quality by the number of source words, as in evaluation reports."""
    return [
        {
            "low": low,
            "high": high,
            "examples": len(inside),
            "scores": found.judge.bucket_scores(found, inside),
        }
        for low, high, inside in by_words(found.examples)
    ]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except Unreadable as error:
        raise UserError(
            f"The comparison is damaged: {error.about(path.name)}. Remove it to measure again."
        ) from error
    if not isinstance(found, dict):
        raise UserError(
            f"The comparison is damaged: '{path}' does not contain a table. Remove it to measure again."
        )
    return found


def axes_of(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """`a.b=1,2` as axes: each value is parsed like a setting's.

    >>> axes_of(["model.layers=1,2", "model.position.name=rotary,none"])
    {'model.layers': (1, 2), 'model.position.name': ('rotary', None)}
    """
    axes: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise UserError(f"Write an axis as name=value,value, not '{text}'.")
        found = tuple(parse_setting(f"{path}={value}")[1] for value in values.split(","))
        if len(set(map(repr, found))) != len(found):
            raise UserError(f"The axis '{path.strip()}' has a value twice.")
        axes[path.strip()] = found
    return axes
