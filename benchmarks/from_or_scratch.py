"""Is a fine-tuned model ever worse than one trained from scratch? `--from` on corpora that nobody tuned for.

    OMP_NUM_THREADS=1 python benchmarks/from_or_scratch.py --data DATA --out runs/from [--only names czech]

Plain `clearhead train` trains a base within a few minutes. Then the task is trained with `--from` that base
and without it, with no other option than a seed, and `clearhead evaluate` measures both on lines that no run
has seen. Prints a table in Markdown; existing runs are not trained again.

    names     letters of given names, from a model of the characters of Shakespeare's plays
    czech     English → Czech captions from 1,000 pairs, from a translator of other captions into German
    reviews   500 sentences of SST-2, from a model that fills masks in Wikipedia articles
    captions  English → French captions from 1,500 pairs, from a translator of Tatoeba's sentences
    plays     a tenth of Shakespeare's plays, from a language model of Wikipedia articles

Fine-tuning's rule for narrow bases was chosen with the scores of the first three known, not of the others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

NAMES, HELD_OUT = 8000, 3000  # names to train on, and to test on


Arguments = tuple[str, ...]  # of a command


class Case(NamedTuple):
    """What a base learns, what is learnt from it, on what both are measured."""

    what: str
    base: Arguments
    task: Arguments
    test: Arguments
    metric: str
    larger: bool  # is better


def lines_of(file: Path) -> list[str]:
    """The lines of a text file, packed or not."""
    with (
        gzip.open(file, "rt", encoding="utf-8")
        if file.suffix == ".gz"
        else file.open(encoding="utf-8") as text
    ):
        return text.read().splitlines()


def put(file: Path, lines: Sequence[str]) -> str:
    """Write lines; returns where."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


def names(data: Path, made: Path) -> Case:
    """A language model of characters: other texts, the same letters."""
    found = lines_of(data / "names" / "names.txt")
    random.Random(1).shuffle(found)
    train = put(made / "names-train.txt", found[:NAMES])
    test = put(made / "names-test.txt", found[-HELD_OUT:])
    play = str(data / "tiny-shakespeare" / "input.txt.gz")
    spelt = ("--set", "tokenizer.kind=characters")
    base = ("--file", play, "--task", "generate", *spelt)
    what = f"{NAMES:,} given names by their characters, from tiny Shakespeare"
    task = ("--file", train, "--task", "generate")
    return Case(what, base, task, ("--file", test), "nats per character", larger=False)


def czech(data: Path, made: Path) -> Case:
    """Another target language: the decoder, the tokenizer and half of what attention knows are of no use."""
    what = "captions English → Czech, 1,000 pairs, from 27,000 others English → German"
    base = caption_pairs(data, made / "de-train", "train", "de", slice(2000, None))
    task = caption_pairs(data, made / "cs-train", "train", "cs", slice(1000))
    test = caption_pairs(data, made / "cs-test", "test_2016_flickr", "cs")
    return Case(what, base, task, test, "BLEU", larger=True)


def captions(data: Path, made: Path) -> Case:
    """Another domain, few pairs, the same languages."""
    what = "captions English → French, 1,500 pairs, from Tatoeba's sentences"
    base = ("--file", str(data / "tatoeba-en-fr" / "eng-fra.tsv.gz"))
    task = caption_pairs(data, made / "fr-train", "train", "fr", slice(1500))
    test = caption_pairs(data, made / "fr-test", "test_2016_flickr", "fr")
    return Case(what, base, task, test, "BLEU", larger=True)


def caption_pairs(data: Path, name: Path, file: str, language: str, part: slice = slice(None)) -> Arguments:
    """Some pairs of Multi30k, written to files of their own."""
    folder = data / "multi30k"
    sides = (("--source", "en"), ("--target", language))
    found = [(option, side, lines_of(folder / f"{file}.{side}.gz")[part]) for option, side in sides]
    written = [(option, put(name.with_suffix(f".{side}"), texts)) for option, side, texts in found]
    return tuple(word for pair in written for word in pair)


def plays(data: Path, made: Path) -> Case:
    """A language model of another century's English; held out is the end of the plays."""
    found = lines_of(data / "tiny-shakespeare" / "input.txt.gz")
    train = put(made / "plays-train.txt", found[: len(found) // 10])
    test = put(made / "plays-test.txt", found[-len(found) // 10 :])
    base = ("--file", str(data / "wikitext-2" / "wiki.train.tokens.gz"), "--task", "generate")
    what = f"{len(found) // 10:,} lines of Shakespeare's plays, from Wikipedia articles"
    task = ("--file", train, "--task", "generate")
    return Case(what, base, task, ("--file", test), "nats per character", larger=False)


def reviews(data: Path, made: Path) -> Case:
    """A classifier of few texts on an encoder of another domain."""
    train = put(made / "reviews.tsv", lines_of(data / "sst2" / "train-sentences.tsv.gz")[:501])
    what = "500 sentences of SST-2, from masked words of WikiText-2"
    base = ("--file", str(data / "wikitext-2" / "wiki.train.tokens.gz"), "--task", "mask")
    test = ("--file", str(data / "sst2" / "test.tsv"))
    return Case(what, base, ("--file", train, "--task", "classify"), test, "accuracy", larger=True)


CASES = {"names": names, "czech": czech, "reviews": reviews, "captions": captions, "plays": plays}


def clearhead(*arguments: str) -> str:
    """What a command prints."""
    done = subprocess.run([sys.executable, "-m", "clearhead", *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return done.stdout


def train(out: Path, *arguments: str) -> Path:
    """A run, unless it is there."""
    if not (out / "model.safetensors").exists():
        clearhead("train", *arguments, "--out", str(out), "--view", "quiet")
    return out


def scores(case: Case, out: Path, seeds: Sequence[int], *base: str) -> list[float]:
    """What each seed reaches on the test set."""
    found = []
    for seed in seeds:
        run = train(out / f"seed{seed}", *case.task, *base, "--set", f"seed={seed}")
        told = json.loads(clearhead("evaluate", str(run), *case.test, "--json"))
        found.append(float(told["metrics"][case.metric]))
        print(f"{run}: {case.metric} {found[-1]:.3f}", file=sys.stderr, flush=True)
    return found


def shown(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    spread = f" ± {statistics.stdev(values):.3g}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4g}{spread}"


def main() -> None:
    """Train, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--only", nargs="+", choices=CASES, default=["names", "czech"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=5, help="for a base")
    chosen = parser.parse_args()
    print("| task | metric | from scratch | `--from` |\n|---|---|---|---|")
    for name in chosen.only:
        out = chosen.out / name
        case = CASES[name](chosen.data, out / "data")
        base = train(out / "base", *case.base, "--minutes", str(chosen.minutes))
        scratch = scores(case, out / "scratch", chosen.seeds)
        started = scores(case, out / "from", chosen.seeds, "--from", str(base))
        best = "higher" if case.larger else "lower"
        row = (case.what, f"{case.metric} ({best} is better)", shown(scratch), shown(started))
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
