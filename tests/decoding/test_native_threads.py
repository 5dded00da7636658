"""One engine, one bundle, several Python threads: calls wait for one another, true misuse is a sentence."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.backend import Symbols
from clearhead.decoding.native import NativeRows, Packed, pack, why_not
from clearhead.decoding.native.scores import NativeScores

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no native engine: {why_not()}")

SYMBOLS = Symbols(1, 2, (0, 1))
SOURCES = [[3 + (7 * i + t) % 90 for t in range(1 + i % 9)] for i in range(24)]


def build(**changes: object) -> nn.Module:
    """A small model."""
    torch.manual_seed(3)
    return clearhead.build("tiny", vocabulary=1500, **changes).eval()


def together(*works: Callable[[], None]) -> None:
    """All of them at once; what one of them raises is raised here."""
    failed: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        try:
            ready.wait()
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=[work], daemon=True) for work in works]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
        assert not one.is_alive(), "a thread waits for ever"
    if failed:
        raise failed[0]


def test_scores_are_read_by_several_threads_while_rows_go_on() -> None:
    rows = NativeRows(build(), SYMBOLS, threads=2)
    scores = rows.admit(SOURCES)
    logp, (values, ids) = scores.logp(), scores.top(40)
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            assert torch.equal(scores.logp(), logp)
            again = scores.part(2, 24).top(40)
            assert torch.equal(again[0], values[2:])
            assert torch.equal(again[1], ids[2:])

    wanted = walk(NativeRows(build(), SYMBOLS, threads=2))

    def go_on() -> None:
        try:
            step: NativeScores = scores
            for number in range(30):
                step = rows.step(torch.arange(24), step.top(1)[1][:, 0])
                if number < len(wanted):
                    assert torch.equal(step.logp(), wanted[number])
        finally:
            over.set()

    together(read, read, go_on)


def walk(rows: NativeRows, steps: int = 6) -> list[torch.Tensor]:
    """Log-probabilities of each greedy step."""
    scores, found = rows.admit(SOURCES), []
    for _ in range(steps):
        scores = rows.step(torch.arange(24), scores.top(1)[1][:, 0])
        found.append(scores.logp())
    return found


def test_two_threads_that_step_the_same_rows_are_told_so() -> None:
    rows = NativeRows(build(), SYMBOLS, threads=2)
    rows.admit(SOURCES)
    refused: list[str] = []
    over = threading.Event()

    def step() -> None:
        for _ in range(2000):
            if over.is_set():
                return
            try:
                scores = rows.step(torch.arange(24), torch.full((24,), 5))
                assert torch.isfinite(scores.logp()).all()
            except UserError as error:
                refused.append(str(error))
                over.set()

    together(step, step)
    assert refused
    assert all("Another thread" in one for one in refused)
    assert rows.count == 24
    assert rows.step(torch.tensor([23]), torch.tensor([7])).rows == rows.count == 1


def test_a_bundle_is_packed_once_for_all_threads() -> None:
    model = build()
    found: list[Packed] = []
    wanted = walk(NativeRows(build(), SYMBOLS, threads=1))

    def decode() -> None:
        found.append(pack(model))
        for one, other in zip(walk(NativeRows(model, SYMBOLS, threads=2)), wanted, strict=True):
            assert torch.equal(one, other)

    together(*[decode] * 3)
    assert found[0] is found[1] is found[2]


def test_buffers_are_given_back_by_any_thread() -> None:
    rows = NativeRows(build(), SYMBOLS, threads=1)
    engine = rows._engine

    def take_and_give() -> None:
        for number in range(400):
            held = [rows._scores(1 + (number + i) % 7, 0) for i in range(5)]
            assert len({id(one.buffer) for one in held}) == 5
            assert all(one.buffer.rows >= 1 + (number + i) % 7 for i, one in enumerate(held))

    together(*[take_and_give] * 3)
    gc.collect()
    assert len(engine.spare) <= 4 + 3  # as many more as threads that gave one back at the same moment


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_in_the_midst_of_another_threads_call() -> None:
    model = build()
    rows, own = NativeRows(model, SYMBOLS, threads=2), NativeRows(model, SYMBOLS, threads=2)
    wanted = walk(NativeRows(model, SYMBOLS, threads=2))
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with rows._engine.turn:  # as long as a call takes
            inside.set()
            leave.wait(60)

    other = threading.Thread(target=stay)
    other.start()
    inside.wait(60)
    child = os.fork()
    if not child:
        try:
            good = all(torch.equal(a, b) for a, b in zip(walk(own), wanted, strict=True))
            rows.admit(SOURCES)
        except UserError as error:
            os._exit(0 if good and "forked" in str(error) else 3)
        finally:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    leave.set()
    other.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert rows.admit(SOURCES).rows == 24
