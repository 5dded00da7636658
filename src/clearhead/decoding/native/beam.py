"""Beam search with its state in the compiled engine: `NativeBeam`.

Makes the same choices as `decoding/beam.py`, number for number, for searches with one group, no coverage and
no processors beyond forbidden symbols. That file handles everything else, and explains the search. Here a
step is one call, whatever the number of requests.

Rows that can no longer win are dropped (`source/beam.h` says why that changes nothing), so a request has at
most K of them.

Shapes: B active requests, K texts of each.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from copy import copy

import torch

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Hypothesis, Moves, Rows, Scores, Search, not_finite
from clearhead.decoding.beam import candidates_of
from clearhead.decoding.beam_state import hypothesis, kept_of, last_divisors
from clearhead.decoding.native import binding
from clearhead.decoding.native.binding import EARLY, FORBIDDEN, FORCED, STOP, free_with, functions
from clearhead.decoding.native.rows import NativeRows
from clearhead.decoding.native.scores import NativeScores, no_memory
from clearhead.decoding.options import LengthPenalty
from clearhead.decoding.processors import nothing_left

STRIDE = 8  # steps per call at most: a few, since they cannot be interrupted


class NativeBeam:
    """Searches for one batch over the scores of `NativeRows`."""

    def __init__(self, batch: Batch) -> None:
        self.library = functions()
        options = batch.options
        self.penalty = LengthPenalty(options.length_penalty, options.length_kind)
        symbols = batch.symbols
        kinds = torch.zeros(batch.vocabulary, dtype=torch.uint8)
        kinds[list(symbols.stops)] |= STOP
        kinds[list(symbols.forbidden)] |= FORBIDDEN
        told = binding.BeamOptions(
            width=options.beam,
            kept=kept_of(options),
            candidates=candidates_of(batch),
            stop=symbols.stop,
            stops=len(symbols.stops),
            early=EARLY.index(options.early_stopping),
            forced=FORCED.index(options.forced),
            kinds=kinds.data_ptr(),
        )
        limits = torch.tensor(batch.limits, dtype=torch.int64)
        last = torch.tensor(last_divisors(options, batch.limits), dtype=torch.float64)
        counts = limits.data_ptr(), last.data_ptr(), len(limits)
        self._own(self.library.beam(ctypes.byref(told), batch.vocabulary, *counts))
        self.width, self.active, self.written = options.beam, len(limits), 0
        self.nbest = options.nbest

    def _own(self, handle: int | None) -> None:
        if not handle:
            raise no_memory()
        self.handle = handle
        free_with(self, self.library.beam_free, handle)

    @staticmethod
    def fits(batch: Batch) -> bool:
        """Whether a batch whose processors only forbid symbols can be searched here."""
        options = batch.options
        return (
            options.beam > 1
            and options.groups == 1
            and not options.coverage
            and candidates_of(batch) >= options.beam
        )

    def advance(self, scores: Scores) -> Moves:
        assert isinstance(scores, NativeScores)
        moves = torch.empty(2, self.active * self.width, dtype=torch.int64)
        parent, token = moves
        now, after = self.penalty.at(self.written + 1), self.penalty.at(self.written + 2)
        moves_to = parent.data_ptr(), token.data_ptr()
        with scores.engine() as engine:
            where = engine, scores.buffer.pointer, scores.begin
            rows = self.library.beam_advance(self.handle, *where, now, after, *moves_to)
        if rows < 0:
            raise no_memory()
        self.written += 1
        return Moves(parent[:rows], token[:rows])

    def layout(self) -> list[tuple[int, int]]:
        found = array("q", bytes(16 * self.active))
        count = self.library.beam_layout(self.handle, found.buffer_info()[0])
        return list(zip(found[: 2 * count : 2], found[1 : 2 * count : 2], strict=True))

    def take(self, numbers: Sequence[int]) -> NativeBeam:
        every = [number for number, _ in self.layout()]
        first = every.index(numbers[0]) if numbers and numbers[0] in every else -1
        if first < 0 or every[first : first + len(numbers)] != list(numbers):
            raise UserError(f"The requests {list(numbers)} are not active together in this search.")
        taken = copy(self)
        taken._own(self.library.beam_take(self.handle, first, len(numbers)))
        taken.active = len(numbers)
        self.active -= len(numbers)
        return taken

    def certain(self, number: int) -> Sequence[int]:
        return ()

    def stride(
        self, rows: Rows, searches: Sequence[Search], scores: Sequence[Scores], enough: int
    ) -> list[Scores] | None:
        """See `decoding.backend.Strides`: the engine's own beams need no Python between two steps."""
        beams = [one for one in searches if isinstance(one, NativeBeam)]
        seen = [one for one in scores if isinstance(one, NativeScores)]
        if len(beams) < len(searches) or not isinstance(rows, NativeRows) or rows.keep:
            return None
        if rows.at_last_position():  # texts must end in this step, which needs no further position
            return None
        divisors = [
            array("d", (one.penalty.at(one.written + 1 + step) for step in range(STRIDE + 1)))
            for one in beams
        ]
        handles = [one.handle for one in beams]
        most = sum(one.active * one.width for one in beams)
        steps, found = rows.stride(list(zip(handles, seen, strict=True)), divisors, most, enough)
        for one in beams:
            one.written += steps
        return list(found)

    def finished(self) -> list[tuple[int, list[Hypothesis] | Exception]]:
        count = self.library.beam_decided(self.handle)
        if not count:
            return []
        found = [self._answer(which) for which in range(count)]
        self.active -= count
        self.library.beam_forget(self.handle)
        return found

    def _answer(self, which: int) -> tuple[int, list[Hypothesis] | Exception]:
        answer, text = binding.BeamAnswer(), binding.BeamText()
        self.library.beam_answer(self.handle, which, ctypes.byref(answer))
        if answer.broken:
            return answer.number, not_finite()
        if answer.dead:
            return answer.number, nothing_left(self.written - 1)
        texts = []
        for rank in range(min(answer.texts, self.nbest)):
            self.library.beam_text(self.handle, which, rank, ctypes.byref(text))
            tokens, logps = text.tokens[: text.count], text.logps[: text.count]
            try:
                texts.append(hypothesis(tokens, logps, bool(text.willing), text.score))
            except UserError as error:  # concerns this request alone
                return answer.number, error
        return answer.number, texts
