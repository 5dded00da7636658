"""Does a variant of training change what is learned? The same runs in several variants, over several seeds.

    python benchmarks/training_quality.py formats  --data DATA   float32 and bf16
    python benchmarks/training_quality.py switches --data DATA   each switch of GPU training on and off
    python benchmarks/training_quality.py muon     --data DATA   Muon in a fifth fewer steps, on two recipes
    python benchmarks/training_quality.py fp8      --data DATA   feed-forward nets in 8 bits
    python benchmarks/training_quality.py passes   --data DATA   what two CPU cores have time for, as BLEU

            [--seeds 1 2 3] [--steps N] [--only REGEX] [--jobs 1] [--minutes M] [--device auto]
            [--set model.width=256 …]

DATA is the folder with `multi30k/`, `tatoeba-en-fr/` and `tiny-shakespeare/`. Every run is what `clearhead
train` does, in a separate process. The tables give the validation loss after the last step (the lowest of the
run for `muon`), and how far it is from that of the first row with the same seed; `passes` gives the test
set's BLEU. `--jobs` runs at a time go in parallel, and after `--minutes` the remaining ones are skipped.
Nothing here depends on the clock; the seconds are for information only.

`passes` trains with the model and the steps that `clearhead train` plans for two AVX-512 cores and 40
minutes, in float32 and in bf16, on any device: on a GPU only the batches' shapes are fixed, so that steps can
be recorded.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
DROPOUT = 0.1
FEWER = 0.8  # of Adam's steps, with which Muon must manage
CORES = 2


@dataclass
class Run:
    """One way to train, for one seed."""

    table: str
    name: str
    settings: dict[str, Any]  # by path
    variant: str = ""  # of `_training_variants`
    recipe: str | None = None
    seed: int = 1
    plan: str | None = None  # the number format that two cores are planned for
    minutes: float = 40.0  # and the time
    result: dict[str, Any] = field(default_factory=dict)


def formats(options: argparse.Namespace) -> list[Run]:
    """float32 beside bf16, with what would otherwise be chosen by how much time there is."""
    steps = options.steps or 600
    settings: dict[str, Any] = {"steps": steps, "schedule.warmup": max(steps // 10, 1)}
    settings |= {"model.dropout": DROPOUT, "model.embedding.dropout": DROPOUT, "schedule.name": "cosine"}
    captions = {**raw_captions(options.data), **settings}
    table = f"Multi30k (raw), {steps:,} steps"
    return [Run(table, name, {**captions, "compute.dtype": name}) for name in ("float32", "bf16")]


def switches(options: argparse.Namespace) -> list[Run]:
    """A recipe, shorter, as a GPU trains it by default, and with one thing changed at a time."""
    steps = options.steps or 1500
    own = {
        "steps": steps,
        "schedule.warmup": max(steps // 6, 1),
        "batch.tokens": 6400,  # real ones: about as many as padded batches of 8192 hold
        "model.dropout": DROPOUT,
        "model.embedding.dropout": DROPOUT,
    }
    padded = {"batch.layout": "padded", "batch.tokens": 8192}
    table = f"multi30k-en-de-fast, {steps:,} steps, dropout {DROPOUT}"

    def run(name: str, variant: str = "", **changes: Any) -> Run:
        settings = own | {path.replace("__", "."): value for path, value in changes.items()}
        return Run(table, name, settings, variant, "multi30k-en-de-fast")

    return [
        run("packed, fused, recorded, projected loss, bf16"),
        run("not recorded", compute__graphs=False),
        run("compiled", compute__compile=True),
        run("layers not fused", "layers-apart"),
        run("attention by PyTorch's varlen kernel", "varlen"),
        run("loss not fused", "loss-apart"),
        run("optimiser in steps of its own", "optimiser-apart"),
        run("scores of all places at once", "whole-scores"),
        run("activations recomputed", compute__recompute=True),
        Run(table, "padded", own | padded, "", "multi30k-en-de-fast"),
        Run(table, "padded, float32", own | padded | {"compute.dtype": "float32"}, "", "multi30k-en-de-fast"),
    ]


def muon(options: argparse.Namespace) -> list[Run]:
    """Adam with all steps and with fewer, beside Muon with fewer at four rates."""
    found = []
    for recipe in ("multi30k-en-de-fast", "tiny-shakespeare"):
        plain = tomllib.loads((RECIPES / f"{recipe}.toml").read_text(encoding="utf-8"))
        all_steps, warmup = plain["steps"], plain["schedule"]["warmup"]
        steps = options.steps or all_steps
        for name, changes, share in (
            ("Adam", {}, 1.0),
            (f"Adam, {FEWER:.0%} of the steps", {}, FEWER),
            *(
                (
                    f"Muon at {r} × the rate, {FEWER:.0%} of the steps",
                    {"optimiser.name": "muon", "optimiser.muon_rate": float(r)},
                    FEWER,
                )
                for r in (1, 2, 4, 8)
            ),
        ):
            count = round(steps * share)
            settings = {"steps": count, "schedule.warmup": max(round(warmup * count / all_steps), 1)}
            settings["validation.every"] = max(count // 20, 1)
            found.append(Run(f"{recipe}, {steps:,} steps", name, settings | changes, "", recipe))
    return found


def fp8(options: argparse.Namespace) -> list[Run]:
    """A decoder whose feed-forward nets multiply in 8 bits, beside bf16."""
    steps = options.steps or 2000
    settings = {"steps": steps, "validation.every": max(steps // 10, 1)}
    table = f"tiny-shakespeare, {steps:,} steps"
    return [
        Run(table, name, settings, variant, "tiny-shakespeare")
        for name, variant in (("bf16", ""), ("feed-forward nets in fp8", "fp8"))
    ]


def passes(options: argparse.Namespace) -> list[Run]:
    """What two cores have time for in float32 and in bf16; with less time, too, as for longer sentences."""
    captions = raw_captions(options.data)
    tatoeba = {"data.train": [{"file": str(longest_third(options.data, options.work))}]}
    own = {"steps": options.steps} if options.steps else {}
    tables = (
        ("Multi30k (raw), English to German", captions, 40.0),
        ("Multi30k (raw), English to German, 23.5 minutes", captions, 23.5),
        ("Tatoeba's longest third, English to French", tatoeba, 40.0),
    )
    return [
        Run(table, f"planned for {dtype}", {**corpus, **own}, plan=dtype, minutes=minutes)
        for table, corpus, minutes in tables
        for dtype in ("float32", "bf16")
    ]


EXPERIMENTS = {one.__name__: one for one in (formats, switches, muon, fp8, passes)}


def raw_captions(data: Path) -> dict[str, Any]:
    """Multi30k as it was written."""

    def pair(name: str) -> dict[str, str]:
        names = {"source": f"{name}.en.gz", "target": f"{name}.de.gz"}
        return {side: str(data / "multi30k" / file) for side, file in names.items()}

    return {
        "data.train": [pair("train")],
        "data.validation": pair("val"),
        "data.test": pair("test_2016_flickr"),
    }


def longest_third(data: Path, folder: Path) -> Path:
    """A file with the third of Tatoeba's pairs that has the most words, in the order of the whole."""
    out = folder / "longest.tsv"
    with gzip.open(data / "tatoeba-en-fr" / "eng-fra.tsv.gz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    by_words = sorted(range(len(lines)), key=lambda number: -len(lines[number].split()))
    kept = sorted(by_words[: len(lines) // 3])
    out.write_text("".join(lines[number] + "\n" for number in kept), encoding="utf-8")
    return out


# -- a run, in a separate process ----------------------------------------------------------------------------


def trained(run: Run, options: argparse.Namespace) -> dict[str, Any]:
    """Start a run and wait for it."""
    job = options.work / f"{time.monotonic_ns()}.json"
    facts = {**asdict(run), "own": options.own, "data": str(options.data), "device": options.device}
    job.write_text(json.dumps(facts), encoding="utf-8")
    left = None if options.until is None else options.until - time.monotonic()
    if left is not None and left < 5:
        return {"failed": "no time was left"}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--job", str(job)], capture_output=True, text=True, timeout=left
        )
    except subprocess.TimeoutExpired:
        return {"failed": "no time was left"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "seconds": round(time.perf_counter() - began, 1)}


def work(job: Path) -> dict[str, Any]:
    """Train as the file says; what the log and the test set say of it."""
    import _training_variants as variants
    from clearhead.base.settings import parse_settings
    from clearhead.jobs import finish as ending
    from clearhead.jobs import train as jobs
    from clearhead.jobs.recipe import merged, nested, read_recipe
    from clearhead.training.run_folder import RunFolder

    run = json.loads(job.read_text(encoding="utf-8"))
    said = read_recipe(RECIPES / f"{run['recipe']}.toml", Path(run["data"])) if run["recipe"] else {}
    said = merged(said, {"seed": run["seed"], "compute": {"device": run["device"]}}, nested(run["settings"]))
    facts: dict[str, Any] = {}
    if run["plan"]:
        said, facts = planned(said, run["plan"], run["minutes"], run["device"])
        figure = "scoring its test set"
        ending.FIGURES = {figure: ending.FIGURES[figure]}
    else:  # only the validation loss after the last step is needed
        said["data"].pop("test", None)
        said["validation"] = {"every": said["steps"], "patience": None, **said.get("validation", {})}
        said["validation"] |= {"decode": 0, "metric": "loss"}
        jobs.finish = lambda *_: None  # type: ignore[assignment,return-value]
    said = merged(said, nested(parse_settings(run["own"])))
    variants.apply(run["variant"])
    out = job.with_suffix("")
    finished = jobs.train(out, said, view="quiet")
    log = RunFolder(out).training / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    curve = [(line["step"], line["loss"]) for line in lines if line["kind"] == "validation"]
    if finished is not None and finished.test is not None:
        facts |= {"test": finished.test.metrics}
    return {**facts, "curve": curve, "skipped": max(line.get("skipped", 0) for line in lines)}


def planned(
    said: dict[str, Any], dtype: str, minutes: float, device: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that `clearhead train` chooses on two AVX-512 cores, to be computed on a device."""
    from clearhead.base.device import pick_device
    from clearhead.data.config import DataConfig
    from clearhead.data.survey import survey
    from clearhead.jobs import prepare
    from clearhead.jobs.recipe import compose, merged
    from clearhead.planner.devices import cpu
    from clearhead.tasks import task_named
    from clearhead.text.learn import TokenizerConfig
    from clearhead.training.cpu.worker import NARROW
    from clearhead.training.sizing import FILLED, Machine, as_table, choose, choose_vocabulary

    task = task_named("translate")
    found = survey(DataConfig.from_dict(said["data"], "data"), task.columns)
    vocabulary = choose_vocabulary(prepare.words_in(found), gpu=False)
    tokens = TokenizerConfig.from_dict(as_table([vocabulary])["tokenizer"], "tokenizer")
    _, facts = prepare.learn_tokenizers(found, tokens)
    peak = cpu("avx512-vnni", CORES, 16e9).float32
    machine = Machine(False, peak, minutes, NARROW if dtype == "bf16" else None)
    choices = [vocabulary, *choose(task.sized(facts), machine)]
    sizes = {"vocabulary": facts.vocabulary, "source_vocabulary": facts.source_vocabulary}
    config = compose(choices, said, sizes)
    gpu = pick_device(device).type == "cuda"
    here = {
        "compute": {"dtype": dtype},
        "validation": {"decode": 0},
        "batch": {"layout": "padded", "shapes": "fixed" if gpu else "free"},
    }
    read = config.steps * FILLED * config.batch.tokens / facts.batched_tokens
    about = {
        "pairs": facts.examples,
        "passes": round(read, 1),
        "steps": config.steps,
        "width": config.model.width,
        "layers": config.model.layers,
        "tokens": config.batch.tokens,
    }
    own = merged(config.to_dict(), said, here)
    own["model"].pop("vocabulary"), own["model"].pop("source_vocabulary")
    return own, about


# -- tables --------------------------------------------------------------------------------------------------


def loss_of(run: Run, lowest: bool) -> float | None:
    losses = [loss for _, loss in run.result.get("curve", ())]
    return None if not losses else min(losses) if lowest else losses[-1]


def loss_table(runs: Sequence[Run], seeds: Sequence[int], lowest: bool) -> None:
    """A row for each way: the loss by seed, and how far it is from the first row's."""
    heads = [f"seed {seed}" for seed in seeds]
    print(f"\n{runs[0].table}\n\n| | {' | '.join(heads)} | mean | from the first row, by seed | mean |")
    print("|---|" + "---|" * (len(seeds) + 3))
    first: dict[int, float] = {}
    for name in dict.fromkeys(run.name for run in runs):
        losses = {run.seed: loss for run in runs if run.name == name if (loss := loss_of(run, lowest))}
        first = first or losses
        both = [seed for seed in losses if seed in first]
        apart = [losses[seed] / first[seed] - 1 for seed in both]
        cells = [f"{losses[seed]:.4f}" if seed in losses else "–" for seed in seeds]
        if both:
            cells.append(f"{statistics.mean(losses.values()):.4f}")
            cells.append(", ".join(f"{one:+.2%}" for one in apart))
            change = (
                statistics.mean(losses[seed] for seed in both) / statistics.mean(first[s] for s in both) - 1
            )
            cells.append(f"{change:+.2%}")
        print(f"| {name} | {' | '.join(cells)} |")


def curves(runs: Sequence[Run]) -> None:
    """The validation losses of each run on the way."""
    for run in runs:
        if "curve" in run.result:
            print(
                f"{run.name}, seed {run.seed}: " + ", ".join(f"{s}: {v:.4f}" for s, v in run.result["curve"])
            )


def scores(runs: Sequence[Run]) -> None:
    """Plan and BLEU of each run."""
    print("\n| corpus | planned for | seed | pairs | model | steps of tokens | passes | BLEU | chrF |")
    print("|---|---|---|---|---|---|---|---|---|")
    for run in runs:
        if "test" in run.result:
            f, test = run.result, run.result["test"]
            bleu, chrf = (next((v for k, v in test.items() if k.endswith(m)), 0.0) for m in ("BLEU", "chrF"))
            print(
                f"| {run.table} | {run.plan} | {run.seed} | {f['pairs']:,} | {f['layers']} + {f['layers']} "
                f"of {f['width']} | {f['steps']:,} of {f['tokens']:,} | {f['passes']} | {bleu:.1f} | "
                f"{chrf:.1f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="instead of the experiment's own number")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", default="", metavar="REGEX", help="rows of such names")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--minutes", type=float, help="after which runs are given up")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", action="append", default=[], dest="own", metavar="A.B=C")
    options = parser.parse_args()
    options.until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        options.work = Path(folder)
        experiments = {name: EXPERIMENTS[name](options) for name in options.experiments}
        runs = {
            name: [
                Run(**{**asdict(run), "seed": seed})
                for seed in options.seeds
                for run in ways
                if re.search(options.only, f"{run.table}: {run.name}")
            ]
            for name, ways in experiments.items()
        }
        # the first seed of everything comes first, in case time runs out
        every = sorted(
            (run for own in runs.values() for run in own), key=lambda run: options.seeds.index(run.seed)
        )

        def do(run: Run) -> None:
            run.result = trained(run, options)
            loss = loss_of(run, lowest=False)
            told = run.result.get("failed") or f"{loss:.4f} in {run.result['seconds']:.0f} s"
            print(f"  {run.table}: {run.name}, seed {run.seed}: {told}", file=sys.stderr, flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(do, every))
    for name, own in runs.items():
        if name == "passes":
            scores(own)
            continue
        for table in dict.fromkeys(run.table for run in own):
            some = [run for run in own if run.table == table]
            loss_table(some, options.seeds, lowest=name == "muon")
            if name in ("muon", "fp8"):
                curves(some)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        print(json.dumps(work(Path(sys.argv[2]))), flush=True)
        os._exit(0)  # nothing is left to do that could fail
    main()
