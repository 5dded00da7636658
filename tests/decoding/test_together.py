"""One engine for all who write: threads, aborts, parking and interrupts change no text and leave nothing."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding.backend import Backend, Event
from clearhead.decoding.engine import Caller
from clearhead.decoding.options import Options
from clearhead.decoding.rows_backend import RowsBackend
from clearhead.decoding.text_requests import Written
from clearhead.decoding.writer import Writer

from .bundles import ENGLISH, translator, writer
from .together import PROMPTS, WAYS, nothing_left, together, writer_of

LONG = Options(min_length=12, max_length=16)


def ids(found: dict[int, list[Written]]) -> dict[int, list[tuple[int, ...]]]:
    """PyTorch rounds its products by the shape of a batch, so that numbers may differ in their last digit."""
    return {number: [one.ids for one in texts] for number, texts in found.items()}


@pytest.mark.parametrize("way", WAYS)
def test_two_threads_with_mixed_settings_and_aborts(way: str) -> None:
    assert together(translator(), ENGLISH, way, count=60, aborts=12, seed=1) > 20


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made", [translator, writer], ids=["translator", "writer"])
def test_a_thousand_requests_of_two_threads(way: str, made: type[Bundle]) -> None:
    texts = ENGLISH if made is translator else PROMPTS
    assert together(made(), texts, way, count=1000, aborts=200, seed=2) > 400


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        Options(max_length=12, min_length=8),
        Options(beam=3, nbest=2, max_length=10),
        Options(beam=4, groups=2, diversity=0.4, max_length=8),
        Options(beam=2, coverage=0.3, max_length=8),
        Options(sample=True, nbest=2, max_length=9, min_length=6),
        Options(contrastive=0.5, top_k=3, max_length=8),
    ],
)
@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_parked_and_resumed_is_as_never_parked(way: str, options: Options, rounds: int) -> None:
    """In the midst of a batch, before the first step and after some; the ones beside it notice nothing."""
    bundle = translator()
    alone = dict(writer_of(bundle, way).write(ENGLISH, options))
    made = writer_of(bundle, way)
    caller = Caller(made.engine)
    requests = [made.requests(text, options)[0] for text in ENGLISH]
    tickets = caller.submit(requests)
    found: dict[int, list[Written]] = {}

    def rounds_of(count: int | None) -> None:
        while caller.open.keys() - held if count is None else count > 0:
            count = None if count is None else count - 1
            for ticket, event in caller.wait() if caller.open else ():
                found[ticket.number] = [made.written(one) for one in event.texts]  # type: ignore[union-attr]

    held: set[int] = set()
    rounds_of(1 if options.beam == 1 else 0)  # a compiled beam takes several steps in a round
    for _ in range(rounds):
        rounds_of(1)
    parked = [ticket for ticket in tickets if ticket.number in (1, 2) and not ticket.done]
    held.update(ticket.number for ticket in parked)
    for ticket in parked:
        ticket.park()
    rounds_of(None)
    assert not held & found.keys()
    for ticket in parked:
        ticket.resume()
    held.clear()
    rounds_of(None)
    assert ids(found) == ids(alone)
    assert found == alone or way != "native" or options.contrastive
    nothing_left(made.engine)


@pytest.mark.parametrize("way", WAYS)
def test_tokens_arrive_while_a_text_is_being_written(way: str) -> None:
    made = writer_of(writer(), way)
    first, second = (
        made.submit("abc", LONG),
        made.submit("h", LONG),
    )
    pieces = first.pieces()
    assert next(pieces)
    assert first.caller.open, "the first piece is there before the text has ended"
    assert second.certain[0] == []  # nobody has looked yet
    whole = "".join(pieces)
    assert whole
    assert not first.caller.open
    [[wanted]] = Writer(writer(), way="torch").in_order(["h"], LONG)
    assert second.written()[0].text == wanted.text


def test_a_request_that_fails_fails_alone() -> None:
    made = Writer(translator(), way="torch")
    words = tuple((one,) for one in range(made.config.vocabulary))
    impossible = Options(banned=words, max_length=5)
    good, bad = made.submit("the cat sleeps"), made.submit("one bird sings", impossible)
    with pytest.raises(UserError, match="No token is allowed"):
        bad.written()
    [[wanted]] = Writer(translator(), way="torch").in_order(["the cat sleeps"])
    assert good.written()[0].ids == wanted.ids
    nothing_left(made.engine)


def test_what_nobody_holds_is_dropped() -> None:
    made = Writer(translator(), way="torch")
    made.submit("the cat sleeps", LONG)
    running = made.write(ENGLISH, LONG)
    streamed = made.submit("one bird sings", LONG).pieces()
    next(streamed)
    del running, streamed
    gc.collect()
    nothing_left(made.engine)


def test_parked_texts_are_not_waited_for() -> None:
    made = Writer(translator(), way="torch")
    text = made.submit("the cat sleeps", LONG)
    text.park()
    made.engine.pump()
    with pytest.raises(UserError, match="parked"):
        text.written()
    text.resume()
    [[wanted]] = Writer(translator(), way="torch").in_order(["the cat sleeps"], LONG)
    assert text.written()[0].ids == wanted.ids
    dropped = made.submit("the cat sleeps", LONG)
    dropped.abort()
    with pytest.raises(UserError, match="dropped"):
        dropped.written()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "graphs"])
def test_an_interrupt_costs_the_others_nothing(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the midst of a step: whoever pumped leaves, and what others wait for is begun anew."""
    made = writer_of(writer(), way)
    other = made.submit("abc", LONG)
    pieces = other.pieces()
    shown = next(pieces)
    kind = type(made.engine.lanes[0].backend)
    real, steps = kind.advance, 0

    def interrupted(self: Backend, most_steps: int) -> list[Event]:
        nonlocal steps
        steps += 1
        found = real(self, most_steps)
        if steps == 3:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(kind, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(made.write(["h", "g"], LONG))
    [whole] = ["".join(Writer(writer(), way="torch").submit("abc", LONG).pieces())]
    assert shown + "".join(pieces) == whole
    nothing_left(made.engine)


def test_texts_that_come_later_join_those_that_are_being_written() -> None:
    made = Writer(translator(), way="torch")
    asked: list[bool] = []

    def coming() -> Iterator[str | None]:
        yield ENGLISH[0]
        yield None
        asked.append(bool(made.engine.lanes[0].active))
        yield ENGLISH[1]

    found = dict(made.write(coming(), LONG))
    assert asked == [True]  # the first was being written when the second was asked for
    assert ids(found) == ids(dict(Writer(translator(), way="torch").write(ENGLISH[:2], LONG)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_writes_although_a_thread_was_writing() -> None:
    made = Writer(translator(), way="torch")
    wanted = dict(made.write(ENGLISH, LONG))
    inside, go_on = threading.Event(), threading.Event()
    real = RowsBackend.advance

    def slow(self: RowsBackend, most_steps: int) -> list[Event]:
        inside.set()
        go_on.wait()
        return real(self, most_steps)

    RowsBackend.advance = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: list(made.write(ENGLISH, LONG)))
    try:
        thread.start()
        inside.wait()
        RowsBackend.advance = real  # type: ignore[method-assign]
        child = os.fork()
        if child == 0:
            os._exit(0 if dict(made.write(ENGLISH, LONG)) == wanted else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        RowsBackend.advance = real  # type: ignore[method-assign]
        go_on.set()
        thread.join()
