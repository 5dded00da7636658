"""Rows and beams that leave and come back go on as if they had never left, bit for bit, and leak nothing."""

from __future__ import annotations

import gc
import random
import threading
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Hypothesis, Request
from clearhead.decoding.native import NativeRows
from clearhead.decoding.native.beam import NativeBeam
from clearhead.decoding.native.pack import Dtype
from clearhead.decoding.native.scores import NativeScores, TakenRows
from clearhead.decoding.options import Options
from clearhead.decoding.rows import TorchRows

from .compiled import needs_engine
from .test_native import SYMBOLS, build
from .test_native_beam import model_of

pytestmark = needs_engine

FAMILIES = ["encoder-decoder", "decoder"]
MODELS = {family: build(family, width=48, attention__heads=3, vocabulary=150) for family in FAMILIES}
Text = tuple[tuple[int, ...], tuple[int, ...]]  # what was given, what was written
NOBODY = torch.zeros(0, dtype=torch.int64)


class Alone:
    """The scores of each text, written by itself without interruption."""

    def __init__(self, family: str, dtype: Dtype) -> None:
        self.rows = NativeRows(MODELS[family], SYMBOLS, dtype, threads=1)

    def logp(self, text: Text) -> torch.Tensor:
        scores = self.rows.admit([text[0]])
        for token in text[1]:
            scores = self.rows.step(torch.tensor([0]), torch.tensor([token]))
        found = scores.logp()
        self.rows.step(NOBODY, NOBODY)
        return found[0]


@settings(max_examples=25, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    dtype=st.sampled_from(["float32", "int8"]),
    threads=st.integers(1, 2),
    chance=st.randoms(use_true_random=False),
)
def test_rows_that_leave_and_come_back(
    family: str, dtype: Dtype, threads: int, chance: random.Random
) -> None:
    """Requests come, rows go on, runs of rows leave, join again in another order, or are forgotten."""
    ours = NativeRows(MODELS[family], SYMBOLS, dtype, threads=threads)
    theirs = TorchRows(MODELS[family], SYMBOLS) if dtype == "float32" else None
    alone = Alone(family, dtype)
    active: list[Text] = []
    taken: list[tuple[list[Text], TakenRows, object]] = []
    for _ in range(14):
        move = chance.choice(["admit", "step", "step", "step", "take", "join", "drop"])
        if move == "admit" or not active:
            fresh = [tuple(chance.randrange(3, 150) for _ in range(chance.randint(1, 9))) for _ in range(3)]
            ours.admit(fresh)
            active += [(one, ()) for one in fresh]
            if theirs is not None:
                theirs.admit(fresh)
        elif move == "step":
            parents = sorted(chance.choices(range(len(active)), k=chance.randint(1, len(active) + 1)))
            tokens = [chance.randrange(3, 150) for _ in parents]
            active = [
                (active[row][0], (*active[row][1], token)) for row, token in zip(parents, tokens, strict=True)
            ]
            told = torch.tensor(parents), torch.tensor(tokens)
            found = ours.step(*told).logp()
            for row, text in enumerate(active):
                assert torch.equal(found[row], alone.logp(text))
            if theirs is not None:
                assert torch.allclose(found, theirs.step(*told).logp(), atol=1e-4)
        elif move == "take":
            begin = chance.randrange(len(active))
            end = chance.randint(begin, len(active))
            left = None if theirs is None else theirs.take(begin, end)
            taken.append((active[begin:end], ours.take(begin, end), left))
            del active[begin:end]
        elif taken:
            texts, rows, left = taken.pop(chance.randrange(len(taken)))
            if move == "join":
                ours.join(rows)
                active += texts
                if theirs is not None:
                    theirs.join(left)
            del rows, left
        assert ours.count == len(active)
    ours.step(NOBODY, NOBODY)
    assert (ours.memory()[0] > 0) == any(texts for texts, *_ in taken)
    taken.clear()
    assert (ours.count, ours.memory()[0]) == (0, 0)


def test_memory_of_taken_rows_is_used_again() -> None:
    rows = NativeRows(MODELS["decoder"], SYMBOLS)
    used = []
    for round_ in range(4):
        rows.admit([[5] * 60] * 40)
        held = [rows.take(0, 10) for _ in range(4)]
        assert rows.count == 0
        for one in held[: 2 + round_ % 2]:
            rows.join(one)
        assert rows.count == 10 * (2 + round_ % 2)
        rows.step(NOBODY, NOBODY)
        del held, one
        used.append(rows.memory())
    assert used[0] == used[-1]
    assert used[0][0] == 0


def test_what_cannot_leave_or_join_is_a_sentence() -> None:
    rows, others = NativeRows(MODELS["decoder"], SYMBOLS), NativeRows(MODELS["decoder"], SYMBOLS)
    rows.admit([[5, 6], [7]])
    for begin, end in (-1, 1), (1, 0), (0, 3), (3, 3):
        with pytest.raises(UserError):
            rows.take(begin, end)
    taken = rows.take(0, 1)
    with pytest.raises(UserError, match="taken from here"):
        others.join(taken)
    rows.join(taken)
    with pytest.raises(UserError, match="only once"):
        rows.join(taken)
    del taken
    assert (rows.count, rows.memory()[0]) == (2, 3)


def test_taken_rows_may_outlive_everything_else() -> None:
    rows = NativeRows(build("decoder"), SYMBOLS)
    rows.admit([[5, 6], [7]])
    taken, engine = rows.take(0, 2), rows._engine
    del rows
    gc.collect()
    assert engine.library.slots(engine.handle) == 3
    del engine, taken
    gc.collect()


def test_copied_scores() -> None:
    """They are the same numbers, and hold no more memory than they need."""
    keep = frozenset({"hidden", "attention"})
    rows = NativeRows(MODELS["encoder-decoder"], SYMBOLS, keep=keep)
    scores = rows.admit([[5, 6, 7, 2], [9, 2], [8, 8, 2]])
    part = scores.part(1, 3)
    copied = part.copy()
    wanted = part.logp(), part.top(4), part.at(torch.tensor([3, 7])), part.totals()
    assert part.hidden is not None
    assert part.attention is not None
    extras = part.hidden.clone(), part.attention.clone()
    for tensor in (scores.buffer.logits, scores.hidden, scores.attention):
        assert tensor is not None
        tensor.zero_()
    found = copied.logp(), copied.top(4), copied.at(torch.tensor([3, 7])), copied.totals()
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.testing.assert_close((copied.hidden, copied.attention), extras, rtol=0, atol=0)
    assert copied.buffer.rows == 2


@dataclass
class Active:
    """A beam, the numbers of its active requests, and the scores of their rows."""

    beam: NativeBeam
    active: list[int]
    scores: NativeScores


class Parking:
    """Drives beams as a backend does, and lets requests leave and come back between two steps.

    `copies`: scores of what leaves are copied, so that they do not hold those of all rows.
    """

    def __init__(self, rows: NativeRows, chance: random.Random | None, copies: bool = True) -> None:
        self.rows, self.chance, self.copies = rows, chance, copies
        self.batches: list[Active] = []
        self.parked: list[tuple[Active, TakenRows]] = []
        self.found: dict[int, list[Hypothesis]] = {}

    def admit(self, requests: list[Request]) -> None:
        """Numbers of requests are their numbers in the beam, which is the only one that begins."""
        batch = Batch(requests, requests[0].options, SYMBOLS, self.rows.vocabulary, self.rows.device)
        scores = self.rows.admit([one.given for one in requests])
        self.batches.append(Active(NativeBeam(batch), list(range(len(requests))), scores))

    def run(self, aborted: set[int], striding: bool) -> None:
        while self.batches or self.parked:
            for _ in range(3 if self.chance is not None else 0):
                self.disturb(aborted)
            if self.batches:
                self.stride() if striding else self.step()

    def disturb(self, aborted: set[int]) -> None:
        assert self.chance is not None
        if self.parked and (not self.batches or self.chance.random() < 0.4):
            batch, taken = self.parked.pop(self.chance.randrange(len(self.parked)))
            if batch.active[0] not in aborted:
                self.rows.join(taken)
                self.batches.append(batch)
        elif self.batches and self.chance.random() < 0.5:
            which = self.chance.randrange(len(self.batches))
            whole = self.batches[which]
            begin = self.chance.randrange(len(whole.active))
            end = self.chance.randint(begin + 1, len(whole.active))
            if aborted & set(whole.active[begin:end]):
                end = begin + 1
            self.park(which, begin, end)

    def park(self, which: int, begin: int, end: int) -> None:
        whole = self.batches[which]
        first = sum(one.scores.rows for one in self.batches[:which])
        layout = whole.beam.layout()
        assert [number for number, _ in layout] == whole.active
        low, high = (sum(rows for _, rows in layout[:some]) for some in (begin, end))
        parts = [(0, begin, 0, low), (end, len(whole.active), high, whole.scores.rows)]
        middle = whole.beam.take(whole.active[begin:end])
        scores = whole.scores.part(low, high)
        left = Active(middle, whole.active[begin:end], scores.copy() if self.copies else scores)
        self.parked.append((left, self.rows.take(first + low, first + high)))
        stays = []
        for some, last, row, behind in parts:
            if some < last:
                numbers = whole.active[some:last]
                beam = whole.beam.take(numbers)
                assert sum(rows for _, rows in beam.layout()) == behind - row
                stays.append(Active(beam, numbers, whole.scores.part(row, behind)))
        self.batches[which : which + 1] = stays

    def step(self) -> None:
        parents, tokens, offset = [NOBODY], [NOBODY], 0
        counts = []
        for one in self.batches:
            moves = one.beam.advance(one.scores)
            parents.append(moves.parent + offset)
            tokens.append(moves.token)
            offset += one.scores.rows
            counts.append(len(moves.parent))
        scores = self.rows.step(torch.cat(parents), torch.cat(tokens))
        begins = [sum(counts[:i]) for i in range(len(counts))]
        pairs = zip(begins, counts, strict=True)
        self.collect([scores.part(begin, begin + count) for begin, count in pairs])

    def stride(self) -> None:
        beams, scores = [one.beam for one in self.batches], [one.scores for one in self.batches]
        after = beams[0].stride(self.rows, beams, scores, 1)
        assert after is not None
        self.collect(after)

    def collect(self, after: list[NativeScores]) -> None:
        for one, scores in zip(self.batches, after, strict=True):
            for number, texts in one.beam.finished():
                one.active.remove(number)
                self.found[number] = texts
            one.scores = scores
        self.batches = [one for one in self.batches if one.scores.rows]


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    push=st.sampled_from([-30.0, 2.0, 4.0]),
    beam=st.integers(2, 5),
    early=st.sampled_from(["never", False, True]),
    limits=st.lists(st.integers(1, 40), min_size=2, max_size=9),
    striding=st.booleans(),
    threads=st.integers(1, 2),
    chance=st.randoms(use_true_random=False),
)
def test_beams_that_leave_and_come_back(
    family: str,
    push: float,
    beam: int,
    early: bool | str,
    limits: list[int],
    striding: bool,
    threads: int,
    chance: random.Random,
) -> None:
    options = Options(beam=beam, nbest=beam, early_stopping=early)
    given = [tuple(3 + (5 * i + 3 * t) % 37 for t in range(1 + i % 6)) for i in range(len(limits))]
    requests = [Request(ids, limit, options) for ids, limit in zip(given, limits, strict=True)]
    rows = NativeRows(model_of(family, 40, push), SYMBOLS, threads=threads)
    undisturbed = Parking(rows, None)
    undisturbed.admit(requests)
    undisturbed.run(set(), striding)
    assert rows.memory()[0] == 0
    disturbed = Parking(rows, chance)
    disturbed.admit(requests)
    aborted = {number for number in range(len(limits)) if chance.random() < 0.2}
    disturbed.run(aborted, striding)
    assert undisturbed.found.keys() - disturbed.found.keys() <= aborted
    for number, texts in disturbed.found.items():
        assert texts == undisturbed.found[number]
    assert (rows.count, rows.memory()[0]) == (0, 0)


def test_only_active_neighbours_leave() -> None:
    options = Options(beam=2)
    requests = [Request((5, 2), 9, options)] * 4
    batch = Batch(requests, options, SYMBOLS, 40, torch.device("cpu"))
    beam = NativeBeam(batch)
    for numbers in [], [4], [0, 2], [2, 1], [-1, 0], [3, 4]:
        with pytest.raises(UserError, match="not active together"):
            beam.take(numbers)
    one = beam.take([1, 2])
    assert (one.layout(), beam.layout()) == ([(1, 1), (2, 1)], [(0, 1), (3, 1)])
    assert one.certain(1) == ()
    for numbers in [1], [2, 3]:
        with pytest.raises(UserError, match="not active together"):
            beam.take(numbers)


def test_two_threads_take_turns_with_one_engine() -> None:
    """Each parks and resumes its requests; scores are read and parked rows die beside the other's steps."""
    options = Options(beam=3, nbest=2)
    rows = NativeRows(model_of("encoder-decoder", 40, 2.0), SYMBOLS, threads=2)
    requests = [Request((5 + i, 6, 2), 12 + i, options) for i in range(4)]
    wanted = Parking(rows, None)
    wanted.admit(requests)
    wanted.run(set(), False)
    pump, failed = threading.Lock(), []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(4):
                mine, held = Parking(rows, chance), []
                with pump:
                    assert rows.count == 0
                    mine.admit(requests)
                    for _ in range(chance.randint(1, 4)):
                        mine.disturb(set())
                        if mine.batches:
                            mine.step()
                    while mine.batches:  # the rows are the other's now
                        mine.park(0, 0, len(mine.batches[0].active))
                    held.append(rows.admit([[5, 6, 2]] * 3))
                    abandoned = rows.take(0, 3)
                held[0].logp(), held[0].copy().top(3)  # outside, while the other steps
                del abandoned
                with pump:
                    mine.run(set(), False)
                assert mine.found == wanted.found
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=[seed], daemon=True) for seed in (1, 2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
        assert not one.is_alive()
    if failed:
        raise failed[0]
    assert (rows.count, rows.memory()[0]) == (0, 0)
