"""Signals as requests: the first is noted, the second acts, and all is as before afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from clearhead.training.interrupt import Interrupts


@pytest.fixture(autouse=True)
def a_terminal() -> Iterator[None]:
    """Tests that `nohup` runs ignore the hang-up signal: here they begin as in a terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def ask(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "number, name",
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")],
)
def test_the_first_is_noted(number: signal.Signals, name: str) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert not interrupts.asked
        ask(number)
        assert interrupts.asked
        assert interrupts.name == name
    assert signal.getsignal(number) == before


def test_a_terminal_may_hang_up_twice() -> None:
    """The system tells the leader of a session and the process in front, and both can be the same."""
    before = signal.getsignal(signal.SIGHUP)
    with Interrupts() as interrupts:
        ask(signal.SIGHUP)
        ask(signal.SIGHUP)
        assert interrupts.asked
    assert signal.getsignal(signal.SIGHUP) == before


def test_what_is_ignored_stays_ignored() -> None:
    """`nohup` starts a command with the hang-up signal ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            ask(signal.SIGHUP)
            assert not interrupts.asked
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_second_acts_as_usual() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        ask(signal.SIGINT)
        assert interrupts.asked
        ask(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_an_error_inside_puts_the_handlers_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ValueError, match="oops"), Interrupts():
        raise ValueError("oops")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_another_thread_it_keeps_quiet() -> None:
    """Python handles signals in its main thread only: training elsewhere just cannot be asked to stop."""
    errors: list[BaseException] = []

    def train() -> None:
        try:
            with Interrupts() as interrupts:
                assert not interrupts.asked
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert errors == []
