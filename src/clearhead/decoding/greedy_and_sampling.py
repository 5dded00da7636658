"""Texts written one token after the other: the most probable token each time, or a random draw.

Greedy decoding has one row per request, sampling as many independent rows as texts are requested. A row that
has ended leaves at once. The record of what was written is on the host; a step waits for the device once.

Shapes: R rows now, V vocabulary, L tokens written.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.decoding.backend import Batch, Hypothesis, Moves, Scores, not_finite
from clearhead.decoding.processors import Past, Pipeline, nothing_left
from clearhead.decoding.random_draws import drawn, keys, uniform

RECORD = 64  # initial capacity of the record in tokens; it doubles

Floats = NDArray[np.floating[Any]]


class _Choice(NamedTuple):
    """What each row would write next."""

    token: Tensor  # (R,)
    logp: Tensor  # (R,) the model's own
    score: Tensor | None = None  # (R,) the best after processors; None: no processors ran


class GreedyOrSampling:
    """A `Search` without alternatives: greedy, or `nbest` texts drawn independently for each request.

    What is drawn for a request depends only on its seed, the number of the text and the position. At its
    limit a row writes a stop symbol: the one it has chosen, else the first. Texts of one request are returned
    most probable first.
    """

    def __init__(self, batch: Batch, pipeline: Pipeline) -> None:
        self.pipeline, self.symbols, self.device = pipeline, batch.symbols, batch.device
        self.sample = batch.options.sample
        self.on_logits = batch.options.repetition != 1 and batch.options.repetition_of == "logits"
        self.texts = batch.options.nbest if self.sample else 1  # for each request
        self.prompts = batch.prompts
        self.written = 0
        count = len(batch.requests) * self.texts
        self.slots = np.arange(count)  # (R,) the text that each row writes
        self.limits = np.repeat(np.array(batch.limits), self.texts)  # (R,)
        self.nearest = int(self.limits.min())
        self.ids = np.zeros((count, RECORD), dtype=np.int64)  # by slot and position
        self.logps = np.zeros((count, RECORD))
        self.ended: dict[int, list[tuple[int, Hypothesis]]] = {}  # by request: (number, text)
        self.ready: list[tuple[int, list[Hypothesis] | Exception]] = []
        self.rows = torch.arange(count, device=self.device)
        self.request = self.rows // self.texts
        self.tokens = torch.zeros(count, 0, dtype=torch.long, device=self.device)  # (R, L)
        self.remembers = self.sample or pipeline.plain_from is None  # whether `tokens` are maintained
        if self.sample:
            seeds = [seed for seed in batch.seeds for _ in range(self.texts)]
            self.keys = keys(seeds, (self.slots % self.texts).tolist(), self.device)

    def finished(self) -> list[tuple[int, list[Hypothesis] | Exception]]:
        ready, self.ready = self.ready, []
        return ready

    def layout(self) -> list[tuple[int, int]]:
        requests, rows = np.unique(self.slots // self.texts, return_counts=True)
        return list(zip(requests.tolist(), rows.tolist() if self.written else [1] * len(rows), strict=True))

    def take(self, numbers: Sequence[int]) -> GreedyOrSampling:
        leave, taken = np.isin(self.slots // self.texts, numbers), copy.copy(self)
        taken.ready, taken.ended = [], {one: self.ended.pop(one) for one in numbers if one in self.ended}
        for search, rows in (
            (taken, leave),
            (self, ~leave),
        ):  # the record is indexed by slot, so both share it
            which = np.flatnonzero(rows)
            search._keep(which, torch.from_numpy(which).to(self.device))
        return taken

    def certain(self, number: int) -> Sequence[int]:
        return self.ids[number, : self.written].tolist() if self.texts == 1 else ()

    def advance(self, scores: Scores) -> Moves:
        spread = self.written == 0 and self.texts > 1  # one row per request becomes one per text
        choice = self._choose(scores, spread)
        token, logp, score, stop = self._seen(choice, scores, spread)
        if score is None and self._is_forbidden(token):
            choice = self._weigh(scores, spread)
            token, logp, score, stop = self._seen(choice, scores, spread)
        ending = willing = self._stops(token)
        if stop is not None:
            cut = self.limits <= self.written
            ending = willing | cut
            logp = np.where(cut & ~willing, stop, logp)
            token = np.where(cut & ~willing, self.symbols.stop, token)
        if score is not None and (score == -np.inf).any():
            willing = willing & (score > -np.inf)
        failed = self._failures(logp, score)
        self._record(token, logp)
        parent, following = (self.request if spread else self.rows), choice.token
        if failed:
            ending = ending | np.isin(self.slots // self.texts, list(failed))
        if ending.any():
            for row in np.flatnonzero(ending).tolist():
                if self.slots[row] // self.texts not in failed:
                    self._end(int(self.slots[row]), bool(willing[row]))
            going = np.flatnonzero(~ending)
            kept = torch.from_numpy(going).to(self.device)
            parent, following = parent[kept], following[kept]
            self._keep(going, kept)
        if self.remembers:
            self.tokens = torch.cat([self.tokens, following.unsqueeze(1)], dim=1)
        self.written += 1
        return Moves(parent, following)

    # -- choosing ---------------------------------------------------------------------------------

    def _choose(self, scores: Scores, spread: bool) -> _Choice:
        if self.written < len(self.pipeline.prefix):
            token = torch.full_like(self.rows, self.pipeline.prefix[self.written])
            logp = scores.at(token[:1]).squeeze(1)
            return _Choice(token, logp[self.request] if spread else logp)
        if not self.sample and self.pipeline.plain(self.written):
            best, ids = scores.top(1)
            return _Choice(ids.squeeze(1), best.squeeze(1))
        return self._weigh(scores, spread)

    def _is_forbidden(self, token: NDArray[np.int64]) -> bool:
        """Whether the model's top token is a forbidden symbol; with a trained model it hardly ever is."""
        if self.written < len(self.pipeline.prefix):
            return False
        return any(bool((token == one).any()) for one in self.pipeline.forbidden)

    def _weigh(self, scores: Scores, spread: bool) -> _Choice:
        """The choice when the score of every token matters."""
        logp = scores.logp()
        if spread:
            logp = logp[self.request]
        totals = scores.totals() if self.on_logits else None
        totals = totals[self.request] if totals is not None and spread else totals
        past = Past(self.tokens, self.prompts, self.request, self.written, totals)
        shaped = self.pipeline.shape(logp, past)
        if self.sample:
            best = shaped.amax(dim=-1)
            if self.device.type == "cpu" and bool(best.isnan().any()):  # such rows fail alone
                shaped = torch.where(best.isnan().unsqueeze(1), 0.0, shaped)
            narrow, ids = self.pipeline.narrow(shaped, past)
            token = drawn(narrow, uniform(self.keys, self.written))
            token = token if ids is None else ids.gather(1, token.unsqueeze(1)).squeeze(1)
        elif self.device.type == "cpu":  # some ten times as fast as torch
            token = torch.from_numpy(shaped.numpy().argmax(axis=-1))
            best = shaped.gather(1, token.unsqueeze(1)).squeeze(1)
        else:
            best, token = shaped.max(dim=-1)  # the first of equals, as in numpy
        return _Choice(token, logp.gather(1, token.unsqueeze(1)).squeeze(1), best)

    def _seen(
        self, choice: _Choice, scores: Scores, spread: bool
    ) -> tuple[NDArray[np.int64], Floats, Floats | None, Floats | None]:
        """The choice on the host, and for rows at their limit the stop symbol's log-probabilities."""
        stop = None
        if self.written >= self.nearest:
            stop = scores.at(torch.tensor([self.symbols.stop], device=self.device)).squeeze(1)
            stop = stop[self.request] if spread else stop
        wanted = [choice.token, choice.logp, choice.score, stop]
        if self.device.type == "cpu":
            token, logp, *others = (None if one is None else one.numpy() for one in wanted)
        else:  # all at once: each copy would wait for the device
            together = torch.stack([one.double() for one in wanted if one is not None]).cpu().numpy()
            lines = iter(together)
            token, logp, *others = (None if one is None else next(lines) for one in wanted)
            token = None if token is None else token.astype(np.int64)
        assert token is not None
        assert logp is not None
        return token, logp, others[0], others[1]

    # -- ending -----------------------------------------------------------------------------------

    def _failures(self, logp: Floats, score: Floats | None) -> set[int]:
        """End requests that cannot continue: a row has no allowed token, or its scores are not finite."""
        if math.isfinite(logp.sum()) and (score is None or math.isfinite(score.sum())):
            return set()
        found: dict[int, Exception] = {}
        for row, request in enumerate((self.slots // self.texts).tolist()):
            if score is not None and score[row] == -np.inf and self.limits[row] > self.written:
                found.setdefault(request, nothing_left(self.written))
            elif not math.isfinite(logp[row]) or (score is not None and math.isnan(score[row])):
                found[request] = not_finite()
        for request in found:
            self.ended.pop(request, None)
        self.ready += found.items()
        return set(found)

    def _stops(self, token: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these tokens end a text."""
        found: NDArray[np.bool_] = token == self.symbols.stop
        for other in self.symbols.other_stops:
            found = found | (token == other)
        return found

    def _record(self, token: NDArray[np.int64], logp: Floats) -> None:
        if self.written == self.ids.shape[1]:
            self.ids = np.concatenate([self.ids, np.zeros_like(self.ids)], axis=1)
            self.logps = np.concatenate([self.logps, np.zeros_like(self.logps)], axis=1)
        self.ids[self.slots, self.written] = token
        self.logps[self.slots, self.written] = logp

    def _end(self, slot: int, willing: bool) -> None:
        each = tuple(self.logps[slot, : self.written + 1].tolist())
        total = min(math.fsum(each), 0.0)  # a rounded log-probability may be slightly above 0
        *ids, stop = self.ids[slot, : self.written + 1].tolist()
        request, text = divmod(slot, self.texts)
        found = self.ended.setdefault(request, [])
        found.append((text, Hypothesis(tuple(ids), total, willing, total, each, stop)))
        if len(found) == self.texts:
            del self.ended[request]
            found.sort(key=lambda one: (-one[1].score, one[0]))
            self.ready.append((request, [one for _, one in found]))

    def _keep(self, going: NDArray[np.int64], kept: Tensor) -> None:
        """Keep only the rows `going`; `kept` is the same on the device."""
        self.slots, self.limits = self.slots[going], self.limits[going]
        self.nearest = int(self.limits.min()) if len(going) else 0
        self.rows = self.rows[: len(going)]
        self.request = self.request[kept]
        if self.remembers:
            self.tokens = self.tokens[kept]
        if self.sample:
            self.keys = self.keys[kept]
