"""How long a user of the explorer waits: every view's question, and the page's first paint.

    python benchmarks/explorer.py [BUNDLE] [--rounds 5] [--warm 5] [--tokens 20]

Each round starts a separate `clearhead explore` process with the bundle (by default the demonstration's,
trained first if there is none) and asks every question in a new random order. *Cold* is the first time: each
question has its own sentence, so nothing computed for another one helps it. *Warm* is the same question
again. The sentences have the given number of tokens, including the end symbol, and are read with one thread
per core. First paint is what Chromium measures (first-contentful-paint) on a page that it has never seen;
*drawn* is when the first view is complete. Compare on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import torch

# starts an explorer and a browser as the tests do
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "browser"))

from driving import browser, explorer, lacking

import clearhead
from clearhead.base.device import name_of_cpu
from clearhead.bundle import is_bundle
from clearhead.jobs.demo import demonstrate, home_of

LIMIT = 300  # milliseconds that a view may take the first time
PAINT_LIMIT = 1000  # milliseconds to the first paint

WORDS = (
    *("the", "a", "and", "is", "are", "not", "on", "in", "it", "she", "he", "we", "my", "her", "because"),
    *("cat", "dog", "house", "chair", "table", "book", "car", "old", "red", "small"),
)

Ask = Callable[[], Any]


def questions(client: httpx.Client, sentence: Iterator[str]) -> dict[str, Ask]:
    """What each view asks, by name, each with a sentence of its own."""
    cross = {"kind": "decoder.cross", "layer": 0}

    def post(path: str, **body: Any) -> Ask:
        return lambda: client.post(f"/api/{path}", json=body).raise_for_status().json()

    def about(path: str, **body: Any) -> Ask:
        return post(path, text=next(sentence), **body)

    def read(path: str) -> Ask:
        return lambda: client.get(f"/api/{path}").raise_for_status().json()

    several = [f"it {next(sentence)}" for _ in range(6)]
    return {
        "run, greedy": about("run"),
        "run, sampled": about("run", strategy="sample", temperature=1.2, top_k=20),
        "run, beam 4": about("run", strategy="beam"),
        "inside": about("inside"),
        "inside, one tensor": about("tensor", name="decoder.0.cross.weights", head=0),
        "attention, all heads": about("attention"),
        "attention, one head": about("attention/one", **cross, head=0),
        "attention, mean": about("attention/summary", kind="decoder.cross", how="mean"),
        "attention, rollout": about("attention/summary", kind="decoder.cross", how="rollout"),
        "attention, alignment": about("attention/summary", kind="decoder.cross", how="alignment"),
        "attention, classes of this text": about("attention/classes"),
        "attention, classes of the examples": post("attention/classes"),
        "attention, is it an explanation?": about("attention/evidence", **cross, head=0, row=1),
        "positions, two schemes": post("positions", schemes=["sinusoidal", "alibi"]),
        "contexts, six sentences": post("contexts", word="it", sentences=several),
        "depth": about("depth"),
        "lectures": read("lectures"),
        "training": read("training"),
    }


def sentences(folder: Path, tokens: int) -> Iterator[str]:
    """Different sentences of exactly so many tokens, made from words that are one token each."""
    bundle = clearhead.load(folder, device="cpu")
    reader = bundle.source_tokenizer or bundle.tokenizer
    assert reader is not None
    words = [word for word in WORDS if len(reader.encode(f"{word} {word}")) == 2]
    assert len(words) > 5, "this bundle's tokenizer cuts common English words: give another one"
    chance = random.Random(0)
    while True:
        yield " ".join(chance.choices(words, k=tokens - 1))  # plus the end symbol


def milliseconds(ask: Ask) -> float:
    began = time.perf_counter()
    ask()
    return 1000 * (time.perf_counter() - began)


def asked(folder: Path, rounds: int, again: int, tokens: int) -> dict[str, tuple[list[float], list[float]]]:
    """Cold and warm times of each question."""
    times: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(rounds):
        with explorer(folder) as home, httpx.Client(base_url=home, timeout=120) as client:
            client.get("/api/models").raise_for_status()  # as every page does first
            found = list(questions(client, sentences(folder, tokens)).items())
            for name, _ in found:
                times.setdefault(name, ([], []))
            for name, ask in random.sample(found, len(found)):
                cold, warm = times[name]
                cold.append(milliseconds(ask))
                warm += [milliseconds(ask) for _ in range(again)]
    return times


def painted(folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """First paint, and the first view drawn, in milliseconds from the request for the page."""
    paints, drawn = [], []
    with explorer(folder) as home, browser() as opened:
        for _ in range(rounds + 1):
            context = opened.new_context(reduced_motion="reduce")  # with an empty cache
            page = context.new_page()
            page.goto(home)
            page.get_by_test_id("output").wait_for()
            drawn.append(float(page.evaluate("performance.now()")))
            entries = "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)"
            paints.append(float(page.evaluate(entries)[0]))
            context.close()
    return paints[1:], drawn[1:]  # the first one also starts the browser's own processes


def row(name: str, *numbers: float) -> str:
    return f"| {name} | {' | '.join(f'{number:.0f}' for number in numbers)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", nargs="?", type=Path, help="default: the demonstration's")
    parser.add_argument("--rounds", type=int, default=5, help="explorers that are started")
    parser.add_argument("--warm", type=int, default=5, help="times that a question is asked again")
    parser.add_argument("--tokens", type=int, default=20)
    options = parser.parse_args()
    folder = options.bundle or home_of("en-fr")
    if options.bundle is None and not is_bundle(folder):
        demonstrate(folder, "en-fr")
    load = f"; load {os.getloadavg()[0]:.1f} when it began" if hasattr(os, "getloadavg") else ""
    times = asked(folder, options.rounds, options.warm, options.tokens)
    print(f"Machine: {name_of_cpu()}; Python {platform.python_version()}, torch {torch.__version__}{load}")
    print(f"A bundle with {size_of(folder)} parameters, texts of {options.tokens} tokens; medians in ms\n")
    print("| question | cold | warm | slowest cold |\n|---|--:|--:|--:|")
    for name, (cold, warm) in times.items():
        print(row(name, statistics.median(cold), statistics.median(warm), max(cold)))
    slow = [name for name, (cold, _) in times.items() if statistics.median(cold) > LIMIT]
    print(f"\nEvery view cold within {LIMIT} ms: {'NO: ' + ', '.join(slow) if slow else 'yes'}")
    if (missing := lacking()) is not None:
        print(f"\nNo first paint was measured. {missing}")
        return 1 if slow else 0
    paints, drawn = painted(folder, options.rounds)
    paint = statistics.median(paints)
    print(f"\nFirst paint {paint:.0f} ms, first view drawn {statistics.median(drawn):.0f} ms (medians)")
    return 1 if slow or paint > PAINT_LIMIT else 0


def size_of(folder: Path) -> str:
    count = sum(one.numel() for one in clearhead.load(folder, device="cpu").model.parameters())
    return f"{count:,}"


if __name__ == "__main__":
    sys.exit(main())
