"""Threads that write with one `Writer` at once, with mixed settings, aborting and parking at random moments.

The quick suite has a few dozen requests of it, `make test-hard` a thousand for each backend.
"""

from __future__ import annotations

import gc
import random
import threading

import pytest

from clearhead.bundle import Bundle
from clearhead.decoding import native
from clearhead.decoding.backend import Backend
from clearhead.decoding.engine import Engine
from clearhead.decoding.graphs import GraphBackend
from clearhead.decoding.options import Options
from clearhead.decoding.text_requests import Written
from clearhead.decoding.writer import Writer

WAYS = ["torch", "graphs", *(["native"] if native.why_not() is None else [])]
PROMPTS = ["abc", "", "hgf", "aa bb"]
PATIENCE = 600.0  # seconds after which threads hang; never waited for in a test that passes

SETTINGS = [
    Options(max_length=9),
    Options(max_length=7, min_length=4),
    Options(beam=3, max_length=9),
    Options(beam=4, nbest=2, length_penalty=0.6, max_length=8),
    Options(beam=4, groups=2, diversity=0.5, max_length=6),
    Options(beam=2, coverage=0.2, max_length=7),
    Options(sample=True, temperature=0.9, seed=5, max_length=9),
    Options(sample=True, top_k=5, nbest=3, max_length=6),
    Options(contrastive=0.6, top_k=3, max_length=6),
    Options(repetition=1.3, no_repeat=2, max_length=9),
    Options(beam=2, regex="(le|la|un) .*", max_length=8),
]
WITHOUT_SOURCE = [one for one in SETTINGS if not one.coverage and one.regex is None]

Key = tuple[str, Options]


class GraphWriter(Writer):
    """What a GPU does, step by step on a CPU; settings that cannot be recorded go to PyTorch."""

    def backends(self) -> list[Backend]:
        return [GraphBackend(self.bundle.model, self.symbols, self.room), *super().backends()]


def writer_of(bundle: Bundle, way: str, room: int | None = None) -> Writer:
    if way == "graphs":
        return GraphWriter(bundle, way="torch", room=room)
    return Writer(bundle, way=way, room=room)  # type: ignore[arg-type]


class Alone:
    """What is written for a text if nothing else is."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.known = writer, dict[Key, list[Written]]()

    def __call__(self, text: str, options: Options) -> list[Written]:
        if (text, options) not in self.known:
            [(_, found)] = self.writer.write([text], options)
            self.known[text, options] = found
        return self.known[text, options]


class Caller(threading.Thread):
    """Asks for texts one after another, in every way there is, and compares each with what it should be."""

    def __init__(
        self, writer: Writer, alone: Alone, work: list[Key], aborts: int, chance: random.Random
    ) -> None:
        super().__init__(daemon=True)
        self.writer, self.alone, self.work, self.chance = writer, alone, work, chance
        self.aborts = set(chance.sample(range(len(work)), aborts))
        self.compared = self.aborted = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self.work:
                self.several() if self.chance.random() < 0.4 else self.watched()
        except BaseException as error:
            self.error = error

    def pop(self) -> tuple[str, Options, bool]:
        """The next request, and whether it is to be dropped."""
        text, options = self.work.pop()
        return text, options, len(self.work) in self.aborts

    def same(self, found: list[Written], text: str, options: Options) -> None:
        """Number for number with the C++ engine; PyTorch's products are rounded by the shape of a batch."""
        wanted = self.alone(text, options)
        assert [one.ids for one in found] == [one.ids for one in wanted], (text, options)
        if self.writer.why_not_native is None and not options.contrastive:
            assert found == wanted, (text, options)
        for one, other in zip(found, wanted, strict=True):
            assert one.token_logps == pytest.approx(other.token_logps, abs=1e-4), (text, options)
        self.compared += 1

    def several(self) -> None:
        """A few with the same settings, whose caller may leave in the midst."""
        text, options, drop = self.pop()
        texts, leaves = [text], len(self.work) if drop else None
        while self.work and len(texts) < 6 and self.work[-1][1] == options:
            text, _, drop = self.pop()
            texts.append(text)
            leaves = len(self.work) if drop else leaves
        answers = self.writer.write(texts, options)
        if leaves is not None:
            for (number, found), _ in zip(answers, range(self.chance.randint(0, 1)), strict=False):
                self.same(found, texts[number], options)
            if self.chance.random() < 0.5:
                answers.close()
            del answers  # or the garbage collector closes it
            self.aborted += 1
            return
        for number, found in answers:
            self.same(found, texts[number], options)

    def watched(self) -> None:
        """Two at once, watched as they grow, parked and resumed."""
        pairs = [self.pop() for _ in range(min(2, len(self.work)))]
        writings = [self.writer.submit(text, options) for text, options, _ in pairs]
        for writing, (text, options, drop) in zip(writings, pairs, strict=True):
            pieces, shown = writing.pieces(), ""
            for _ in range(self.chance.randint(0, 4)):
                if self.chance.random() < 0.3:
                    writing.park()
                    writing.resume()
                shown += next(pieces, "")
            if drop:
                writing.abort()
                self.aborted += 1
                continue
            shown += "".join(pieces)
            found = writing.written()
            self.same(found, text, options)
            if self.writer.has_source:
                assert shown == found[0].text
        if self.chance.random() < 0.2:
            gc.collect()


def together(bundle: Bundle, texts: list[str], way: str, count: int, aborts: int, seed: int) -> int:
    """Two threads at once; returns how many texts were compared. Raises what a thread has found wrong."""
    chance = random.Random(seed)
    known = SETTINGS if bundle.config.family == "encoder-decoder" else WITHOUT_SOURCE
    alone = Alone(writer_of(bundle, way))
    work = [(chance.choice(texts), chance.choice(known)) for _ in range(count)]
    for text, options in set(work):
        alone(text, options)
    work.sort(key=lambda one: chance.random() * 8 + known.index(one[1]))  # so that some stand together
    writer = writer_of(bundle, way, room=12)
    callers = [
        Caller(writer, alone, work[part::2], aborts // 2, random.Random(seed + part)) for part in (0, 1)
    ]
    for one in callers:
        one.start()
    for one in callers:
        one.join(PATIENCE)
        assert not one.is_alive(), "a thread hangs"
    for one in callers:
        if one.error is not None:
            raise one.error
    gc.collect()
    nothing_left(writer.engine)
    assert sum(one.aborted for one in callers) > aborts // 3
    return sum(one.compared for one in callers)


def nothing_left(engine: Engine) -> None:
    """No request, no row, no memory and no note is left behind."""
    engine.tidy()
    assert not engine._notes
    assert not engine._taken
    for lane in engine.lanes:
        assert not lane.active
        assert not lane.streaming
        assert not lane.queue
        assert not lane.queue._callers
        for name in ("_batches", "_places", "_requests", "_rows", "_active", "slots"):
            assert not getattr(lane.backend, name, None), name
