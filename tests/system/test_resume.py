"""A run that is killed or interrupted, however often and whenever, ends as if nothing had happened.

One small run is trained without interruption. Every other run here has the same settings, is stopped in some
way, resumed, and must leave the same files, to the last bit.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle import is_bundle
from clearhead.training.run_folder import RunFolder

from .commands import Warm, cold, settings
from .small_run import RESUME, SAVING, SETTINGS, TRAIN, assert_same, go

SEED = 20


def phase(run: Path) -> str:
    """How far a killed run had come, from what it left."""
    training = run / "training"
    if not (training / "data" / "ready.json").exists():
        return "preparing"
    if (training / "curves.png").exists():
        return "finishing"
    parts = (*training.glob("checkpoints/.*.writing-*"), *training.glob("weights/.*.writing-*"))
    return "saving" if parts else "training"


def plan(chance: random.Random, kills: int, seconds: float) -> Iterator[dict[str, Any]]:
    """When to kill: a fifth while the corpus is prepared, a fifth at the end, the rest in between.

    Half of those in between come by the clock, anywhere; the others at an operation on a file.
    """
    for number in range(kills):
        if number < kills // 5:
            yield {"operations": chance.randint(1, 40), "after": "run.json"}
        elif number >= kills - kills // 5:
            yield {"operations": chance.randint(1, 60), "after": "curves.png"}
        elif number % 2:
            yield {"seconds": chance.uniform(0, seconds)}
        else:
            yield {"operations": chance.randint(1, 60), "after": "checkpoints"}


def kill(warm: Warm, run: Path, strike: dict[str, Any]) -> None:
    """Resume and kill; where the run came to its end before that, once more, sooner."""
    while (ended := go(warm, run, **strike)).code == 0:
        strike = {name: old if isinstance(old, str) else old / 2 for name, old in strike.items()}
        strike |= {"operations": max(int(strike["operations"]), 1)} if "operations" in strike else {}
    assert ended.code == -signal.SIGKILL, ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("kills", [15, pytest.param(30, marks=pytest.mark.slow)])
def test_kills(warm: Warm, run: Path, whole: Path, kills: int) -> None:
    first = go(warm, run)  # for the time it takes here and now
    assert first.code == 0, first.stderr
    assert_same(run, whole)
    shutil.rmtree(run)
    print(f"seed {SEED}")  # shown where the test fails
    seen: Counter[str] = Counter()
    for strike in plan(random.Random(SEED), kills, first.took / 3):
        kill(warm, run, strike)
        seen[phase(run)] += 1
    print(dict(seen))
    assert seen.total() == kills
    assert seen["preparing"] >= kills // 10
    assert seen["training"] + seen["saving"] >= 5
    assert seen["finishing"] >= kills // 10
    last = go(warm, run)
    assert last.code == 0, last.stderr
    assert_same(run, whole)


def test_two_kills_of_the_true_command(run: Path, whole: Path) -> None:
    """The same with fresh processes, each killed as soon as a checkpoint of its own is seen."""
    for arguments, step in ((TRAIN, "step-00000012"), (RESUME, "step-00000040")):
        ended = cold(*arguments, folder=run.parent, until=run / "training" / "checkpoints" / step)
        assert ended.code == -signal.SIGKILL, ended.stderr
        assert not (run / "model.safetensors").exists()
    last = cold(*RESUME, folder=run.parent)
    assert last.code == 0, last.stderr
    assert_same(run, whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(warm: Warm, run: Path, whole: Path, number: signal.Signals) -> None:
    """A request to stop is answered after the step: all is saved, and the way to go on is named."""
    ended = go(warm, run, operations=3, after="step-00000028", signal=int(number))
    assert ended.code == 130
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert ended.stderr.splitlines()[-1] == (
        f"clearhead: stopped by {name} after step 28; everything is saved. "
        "Resume with `clearhead train --resume run`."
    )
    assert not (run / "model.safetensors").exists()
    again = go(warm, run)
    assert again.code == 0, again.stderr
    assert "Resuming after step 28." in again.stderr
    assert_same(run, whole)


@pytest.mark.parametrize("place", ["ready.json", "curves.png"])
def test_interrupted_before_the_first_step_and_after_the_last(
    warm: Warm, run: Path, whole: Path, place: str
) -> None:
    ended = go(warm, run, operations=1, after=place, signal=int(signal.SIGINT))
    assert ended.code == 130
    assert "Traceback" not in ended.stderr
    sentences = {
        "ready.json": "Resume with `clearhead train --resume run`.",
        "curves.png": "The bundle 'run' is complete except for its test scores, which "
        "`clearhead train --resume run` adds.",
    }
    assert ended.stderr.splitlines()[-1] == f"clearhead: stopped. {sentences[place]}"
    assert is_bundle(run) == (place == "curves.png")
    assert go(warm, run).code == 0
    assert_same(run, whole)


def test_resuming_a_finished_run_changes_nothing(warm: Warm, run: Path, whole: Path) -> None:
    shutil.copytree(whole, run)
    ended = go(warm, run)
    assert ended.code == 0, ended.stderr
    assert_same(run, whole)


def test_one_process_at_a_time(warm: Warm, run: Path, whole: Path) -> None:
    shutil.copytree(whole, run)
    with RunFolder(run).locked():
        ended = go(warm, run)
    assert ended.code == 2
    assert ended.stderr == "clearhead: Another process is training in 'run': wait for it to finish.\n"
    assert_same(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["lock", "data", "checkpoints/step-00000004", "curves.png"])
def test_two_commands_with_one_out(run: Path, whole: Path, place: str) -> None:
    """Whenever the second comes, it is refused, and the first does not notice."""
    others = (*TRAIN, *settings(model__width=32, tokenizer__kind="bpe"))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(cold, *TRAIN, folder=run.parent)
        while not (run / "training" / place).exists() and not first.done():
            time.sleep(0.005)
        second = pool.submit(cold, *others, folder=run.parent).result()
        assert first.result().code == 0, first.result().stderr
    assert second.code == 2
    assert second.stderr.startswith(
        ("clearhead: Another process is training in 'run'", "clearhead: There is already a run in 'run'")
    )
    assert second.stderr.count("\n") == 1
    assert_same(run, whole)


@pytest.mark.slow
def test_a_run_is_used_while_it_trains(run: Path, whole: Path) -> None:
    """Weights are removed and replaced all the time; each reader gets some that were whole."""
    often = settings(validation__every=1, validation__metric="loss", saving__every=1, saving__keep=1)
    refused: list[str] = []
    early = ("There is no bundle", "is not a bundle", "still reading its corpus", "not reached its first")
    seen: Counter[str] = Counter()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(cold, *TRAIN, *often, folder=run.parent)
        while not first.done():
            try:
                bundle = load(run)
            except UserError as error:
                refused.append(("later: " if seen["best"] else "") + str(error))
                time.sleep(0.005)
                continue
            assert all(bool(weight.isfinite().all()) for weight in bundle.model.parameters())
            seen[str(bundle.metadata.get("unfinished", {}).get("weights"))] += 1
        assert first.result().code == 0, first.result().stderr
    assert seen["best"] > 20
    odd = [one for one in refused if one.startswith("later") or not any(known in one for known in early)]
    assert not odd


def test_other_settings_are_refused_with_the_differences(warm: Warm, run: Path, whole: Path) -> None:
    shutil.copytree(whole, run)
    changes = ("steps=61", "model.dropout=0.5", "saving.keep=3", "batch.tokens=128")
    ended = warm(*RESUME, *(word for one in changes for word in ("--set", one)), folder=run.parent)
    assert ended.code == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("clearhead: The run in 'run' cannot be resumed with different settings")
    assert "model.dropout: 0.2 → 0.5; steps: 60 → 61" in ended.stderr
    assert "saving" not in ended.stderr
    assert "batch" not in ended.stderr
    assert_same(run, whole)


def test_settings_of_saving_may_change(warm: Warm, run: Path, whole: Path) -> None:
    """They are seen in what lies about, not in what is computed."""
    killed = go(warm, run, operations=3, after="step-00000028")
    assert killed.code == -signal.SIGKILL
    ended = warm(*RESUME, "--set", "saving.every=11", "--set", "saving.keep=1", folder=run.parent)
    assert ended.code == 0, ended.stderr
    assert [path.name for path in (run / "training" / "checkpoints").iterdir()] == ["step-00000060"]
    for name in ("model.safetensors", "training/log.jsonl", "training/average.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


def test_the_corpus_changed_before_it_was_tokenised(warm: Warm, run: Path, whole: Path) -> None:
    killed = go(warm, run, operations=2, after="train-0")
    assert killed.code == -signal.SIGKILL
    corpus = run.parent / "pairs.tsv"
    before = corpus.read_text("utf-8")
    corpus.write_text(before + "".join(f"z{n} a\ta z{n}\n" for n in range(20)), "utf-8")
    ended = go(warm, run)
    corpus.write_text(before, "utf-8")
    assert ended.code == 2
    assert "have changed since it started: start a new run." in ended.stderr
    assert go(warm, run).code == 0
    assert_same(run, whole)


# Each task with another corner of batching: packed rows, fixed shapes, batches made on demand or by several
# threads.
CORNERS = {
    "translate": ("pairs.tsv", settings(batch__layout="packed", batch__workers=3)),
    "summarise": ("pairs.tsv", settings(batch__shapes="fixed", batch__buckets=2)),
    "generate": ("text.txt", settings(tokenizer__kind="bpe", batch__context=24, batch__workers=0)),
    "classify": ("classes.tsv", settings(optimiser__name="adamw")),
    "tag": ("tags.tsv", settings(batch__shapes="fixed", batch__workers=2)),
    "tag with columns": (
        "tags.conll",
        [*settings(batch__layout="packed", batch__shapes="fixed"), "--target-column", "2,3"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", CORNERS)
def test_kills_in_every_task(warm: Warm, home: Path, run: Path, task: str) -> None:
    rows = (home / "pairs.tsv").read_text("utf-8").splitlines()
    sources = [row.split("\t")[0] for row in rows]
    (home / "text.txt").write_text("\n".join(sources * 3) + "\n", "utf-8")
    (home / "classes.tsv").write_text("".join(f"{text}\t{text[0]}\n" for text in sources), "utf-8")
    (home / "tags.tsv").write_text("".join(f"{text}\t{text.upper()}\n" for text in sources), "utf-8")
    words = (
        "\n".join(f"{word} {word.upper()} {ord(word[0]) % 2}" for word in text.split()) for text in sources
    )
    (home / "tags.conll").write_text("".join(f"{text}\n\n" for text in words), "utf-8")
    file, corner = CORNERS[task]
    common = [*SETTINGS, *settings(validation__metric="loss"), *corner]
    start = ("train", "--file", file, "--task", task.split()[0], "--out", "run", "--view", "plain", *common)
    first = warm(*start, folder=home)
    assert first.code == 0, first.stderr
    undisturbed = run.rename(home / task)
    for strike in plan(random.Random(SEED), 15, first.took / 3):
        begun = (run / "training" / "run.json").exists()
        ended = warm(*(RESUME if begun else start), folder=home, **strike)
        assert ended.code in (-signal.SIGKILL, 0), ended.stderr
    last = warm(*RESUME, folder=home)
    assert last.code == 0, last.stderr
    assert_same(run, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["from", "lora", "longer"])
def test_kills_of_a_run_that_starts_from_another(
    warm: Warm, home: Path, run: Path, whole: Path, kind: str
) -> None:
    """Fine-tuned with frozen weights that open later, with LoRA kept apart, or more of the same run."""
    base = [*settings(steps=30, validation__every=7, validation__metric="loss"), *SAVING]
    start = ("train", "--from", "whole", "--file", "pairs.tsv", "--out", "run", "--view", "plain", *base)
    if kind == "longer":
        shutil.copytree(whole, run)
        start = (*RESUME, "--set", "steps=90")
    elif kind == "lora":
        start = (*start, *settings(start__lora__rank=2, start__lora__apart=True))
    else:
        start = (*start, *settings(start__freeze=["encoder.*"], start__unfreeze_every=8))
    first = warm(*start, folder=home)
    assert first.code == 0, first.stderr
    undisturbed = run.rename(home / kind)
    if kind == "longer":
        shutil.copytree(whole, run)
    for number, strike in enumerate(plan(random.Random(SEED), 10, first.took / 3)):
        begun = (run / "training" / "run.json").exists() and (kind != "longer" or number > 0)
        ended = warm(*(RESUME if begun else start), folder=home, **strike)
        assert ended.code in (-signal.SIGKILL, 0), ended.stderr
    last = warm(*(start if kind == "longer" else RESUME), folder=home)
    assert last.code == 0, last.stderr
    assert_same(run, undisturbed)
