"""Beam search: keep the best K live texts at each step, for all requests of a batch at once.

Each step extends every live text of a request by every token and ranks the extensions by log-probability.
Those among the first K that end with the stop symbol are finished; the best K of all others stay live, so a
finished text never displaces a live one. A request is decided when no live text, whatever it may still write,
can beat its n best finished texts: stopping there never changes the result. With K = 1 the first finished
text is the answer, which is greedy search; with K as large as the number of possible texts the search is
exhaustive. In between, a wider beam may miss what a narrower one finds: that is pruning, which no stopping
rule can prevent. Diverse beams (Vijayakumar et al. 2016, algorithm 1) divide the beam into groups that choose
one after another, each avoiding what the earlier ones have just written.

Shapes: B active requests, K beam size in groups of W, R = B·K rows (at first R = B), P texts that a group
continues (1 at first, then W), C candidates of each, L space for tokens, V vocabulary, S source.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Hypothesis, Moves, Scores, not_finite
from clearhead.decoding.beam_state import Array, Arrays, Pool, Stopping, arrays_for, hypothesis, kept_of
from clearhead.decoding.options import LengthPenalty
from clearhead.decoding.processors import PLAIN, Past, Pipeline, nothing_left

BLOCK = 32  # space for texts grows by this many tokens
NEVER_SEEN = 1e-30  # attention that counts as zero; its logarithm is still finite


class Offer(NamedTuple):
    """Candidate extensions of each row."""

    score: Array  # (R, C) what the token adds; -inf: ruled out
    token: Array  # (R, C)
    own: Array  # (R, C) the model's log-probability of it, before any processor


class Choice(NamedTuple):
    """What becomes of a group's extensions. A row is an index into the batch's previous rows."""

    live: Array  # (B, W) scores of the texts that continue; -inf: an empty beam slot
    row: Array  # (B, W) the row that each of them continues
    token: Array  # (B, W)
    own: Array  # (B, W)
    ended: Array  # (B, E) scores of the texts that end here, not yet divided; -inf: none
    ended_row: Array  # (B, E)
    ended_token: Array  # (B, E) the stop symbols that end them
    ended_own: Array  # (B, E)


def candidates_of(batch: Batch) -> int:
    """Candidate tokens of each row; `Beam._offer` explains why so many are enough."""
    symbols = batch.symbols
    return min(batch.options.beam + len(symbols.stops) + len(symbols.forbidden), batch.vocabulary)


class Beam:
    """Searches for one batch with a beam of `options.beam` per request. See the top of this file.

    Texts are ranked by the sum of the log-probabilities as changed by `pipeline.before`, over the length
    penalty, plus coverage: beta · Σ over source tokens of log min(attention they got, 1), of Wu et al. 2016.
    `Hypothesis.logp` still holds the model's own log-probability. Processors, if there are any, also rule out
    the forbidden symbols. If they do nothing else, the model only returns the best few tokens of each row;
    otherwise they work on the whole vocabulary. `stopping` decides when a request is finished.
    """

    def __init__(self, batch: Batch, pipeline: Pipeline = PLAIN, arrays: Arrays | None = None) -> None:
        options, count = batch.options, len(batch.requests)
        self.arrays = arrays or arrays_for(batch.device)
        self.options, self.symbols, self.device = options, batch.symbols, batch.device
        self.prompts, self.all_limits = batch.prompts, batch.limits
        self.pipeline = pipeline
        self.width = options.beam // options.groups
        self.penalty = LengthPenalty(options.length_penalty, options.length_kind)
        self.written = 0
        none = self.arrays.real([0.0] * count)[:, None]
        self.live = [none] * options.groups  # (B, P) per group: one empty text
        self.pools = [Pool(self.arrays, count, kept_of(options)) for _ in range(options.groups)]
        self.logps = none[:, :0]  # (R, L) the model's own, of the tokens written
        self.tokens = self.arrays.whole([0] * count)[:, None][:, :0]  # (R, L)
        self.covered: Tensor | None = None  # (R, S) attention that each source token has received
        allowed = torch.zeros(batch.vocabulary, dtype=torch.float64, device=self.device)
        allowed[list(batch.symbols.forbidden)] = -math.inf
        self.allowed = self.arrays.take(allowed)  # (V,)
        self.candidates = candidates_of(batch)  # C
        self.stop = torch.tensor([batch.symbols.stop], device=self.device)
        self.stopping = Stopping(options, batch.limits, self.arrays)
        self.done: list[tuple[int, list[Hypothesis] | Exception]] = []
        self._note(list(range(count)), places=1)

    def _note(self, requests: list[int], places: int) -> None:
        """Update what depends on which requests are active, with this many rows each."""
        self.requests, self.places = requests, places
        self.limits = [self.all_limits[number] for number in requests]
        self.shortest = min(self.limits)
        self.stopping.keep(requests)
        self.line = self.arrays.whole(range(len(requests)))[:, None]  # (B, 1)
        if self.pipeline.before:
            numbers = torch.tensor(requests, device=self.device)
            self.request_of_row = numbers.repeat_interleave(places)  # (R,)

    def advance(self, scores: Scores) -> Moves:
        if self.options.coverage:
            self._cover(scores)
        offer, willing = self._offer(scores)
        choices: list[Choice] = []
        for group, live in enumerate(self.live):
            choices.append(self.choose(self._part(offer, group, live), group, choices))
        for pool, choice in zip(self.pools, choices, strict=True):
            self._collect(pool, choice, willing)
        going = self._going(choices).tolist()  # the step's only wait for the device
        left = [place for place, goes in enumerate(going) if goes]
        if len(left) < len(going):
            self._finish([place for place, goes in enumerate(going) if not goes], choices, scores)
        return self._go_on(choices, left)

    def finished(self) -> list[tuple[int, list[Hypothesis] | Exception]]:
        done, self.done = self.done, []
        return done

    def layout(self) -> list[tuple[int, int]]:
        return [(number, self.places) for number in self.requests]

    def take(self, numbers: Sequence[int]) -> Beam:
        taken, requests = copy.copy(self), self.requests
        taken.done, taken.stopping = [], copy.copy(self.stopping)
        for search, leave in ((taken, True), (self, False)):
            left = [place for place, number in enumerate(requests) if (number in numbers) == leave]
            if left:
                search._keep(left)
        return taken

    def _keep(self, left: list[int]) -> None:
        """Continue only these requests, by index; called between two steps."""
        index = self.arrays.whole(left)
        rows = self.arrays.whole([place * self.places + k for place in left for k in range(self.places)])
        self.live, self.pools = [one[index] for one in self.live], [pool.of(index) for pool in self.pools]
        self.tokens, self.logps = self.tokens[rows], self.logps[rows]
        if self.covered is not None:
            self.covered = self.covered.index_select(0, self.arrays.give(rows))
        self._note([self.requests[place] for place in left], self.places)

    def certain(self, number: int) -> Sequence[int]:
        return ()

    # -- candidates ----------------------------------------------------------------------------------

    def _offer(self, scores: Scores) -> tuple[Offer, Array | None]:
        """Each row's best extensions, and whether it would end by choice (R,); None: all that end would.

        K extensions and one for each stop symbol are enough, besides forbidden ones. A stop that is among the
        first K of the request is among the first K of its row. The K best others of the request are among the
        K best others of their row, and at most all stops rank before those. A diverse group looks for W of
        them, and the penalty for earlier groups' choices lowers at most K − W tokens: among that many first
        tokens of a row, W besides the stops keep their scores, and everything ranked after them stays there.
        """
        score: Tensor
        if self.pipeline.plain(self.written):
            score, token = scores.top(self.candidates)
            offer = Offer(*map(self.arrays.take, (score, token, score)))
            offer = offer._replace(score=offer.score + self.allowed[offer.token])
            end = end_own = scores.at(self.stop) if self.written >= self.shortest else score
        else:
            plain = scores.logp()
            tokens = self.arrays.give(self.tokens[:, : self.written])
            shaped = self.pipeline.shape(plain, Past(tokens, self.prompts, self.request_of_row, self.written))
            score, token = shaped.topk(self.candidates, dim=-1)
            offer = Offer(*map(self.arrays.take, (score, token, plain.gather(1, token))))
            end, end_own = shaped[:, self.stop], plain[:, self.stop]
        if self.written < self.shortest:
            return offer, None
        return self._at_limits(offer, self.arrays.take(end), self.arrays.take(end_own))

    def _at_limits(self, offer: Offer, end: Array, end_own: Array) -> tuple[Offer, Array]:
        """Rows at their limit may only write a stop symbol: the one they like best of all tokens, else the
        first one, whose scores are `end` and `end_own` (R, 1).
        """
        where = self.arrays.where
        rows = [int(limit <= self.written) for limit in self.limits for _ in range(self.places)]
        forced = self.arrays.whole(rows)[:, None] > 0  # (R, 1)
        highest, best = self.arrays.top(offer.score, 1)
        row = self.arrays.whole(range(len(rows)))[:, None]
        favourite = offer.token[row, best]
        stops = self._stops(favourite)  # (R, 1)
        willing = (~forced | stops)[:, 0]
        first = forced & (self.arrays.whole(range(self.candidates)) == 0)  # (R, C): the stop goes here
        end = where(stops, highest, end) if self.options.forced == "scored" else 0.0  # else it is free
        score = where(first, end, where(forced, -math.inf, offer.score))
        token = where(first, where(stops, favourite, self.symbols.stop), offer.token)
        own = where(first, where(stops, offer.own[row, best], end_own), offer.own)
        return Offer(score, token, own), willing

    def _stops(self, token: Array) -> Array:
        """Which of these tokens end a text."""
        found = token == self.symbols.stop
        for other in self.symbols.other_stops:
            found = found | (token == other)
        return found

    def _cover(self, scores: Scores) -> None:
        """Add the attention of the step that chooses the next token."""
        if scores.attention is None:
            raise UserError("A coverage penalty needs a model with cross-attention, and rows that show it.")
        sizes = [len(self.prompts[number]) for number in self.requests]
        width = max(sizes)  # others in the batch may have, or have had, longer sources
        got = _fit(scores.attention.double(), width)
        self.covered = got if self.covered is None else got + _fit(self.covered, width)
        size = torch.tensor(sizes, device=self.device).repeat_interleave(self.places)
        outside = torch.arange(width, device=self.device) >= size.unsqueeze(1)  # padding costs nothing
        logs = self.covered.clamp(NEVER_SEEN, 1.0).log().masked_fill(outside, 0.0)
        self.coverage = self.arrays.take(self.options.coverage * logs.sum(1))  # (R,)

    # -- choosing ------------------------------------------------------------------------------------

    def _part(self, offer: Offer, group: int, live: Array) -> Offer:
        """A group's share, (B, P·C) each, with scores of whole texts."""
        count = len(self.requests)
        if self.written:
            begin = group * self.width * self.candidates
            part = slice(begin, begin + self.width * self.candidates)
            offer = Offer(*(one.reshape(count, -1)[:, part] for one in offer))
        total = live[:, :, None] + offer.score.reshape(count, -1, self.candidates)
        return offer._replace(score=total.reshape(count, -1))

    def choose(self, offer: Offer, group: int, earlier: Sequence[Choice]) -> Choice:
        """Rank a group's extensions: W that may end, and W others."""
        arrays, line, width = self.arrays, self.line, self.width
        # every stop after each of W texts may rank first, and W others are needed
        look = min((1 + len(self.symbols.stops)) * width, offer.score.shape[1])
        lower = bool(earlier and self.options.diversity)
        ranks = offer.score - self._lowered(offer.token, earlier) if lower else offer.score
        rank, where = arrays.top(ranks, look)
        token, own = offer.token[line, where], offer.own[line, where]
        row = where // self.candidates + (line * self.places + group * width if self.written else line)
        score = offer.score[line, where] if lower else rank
        stops = self._stops(token)
        ended = arrays.where(stops, score, -math.inf)[:, :width]
        others, pick = arrays.top(arrays.where(stops, -math.inf, rank), min(width, look))
        live = arrays.where(others > -math.inf, score[line, pick], -math.inf) if lower else others
        if (short := width - live.shape[1]) > 0:  # a very small vocabulary: empty beam slots are rows too
            live, pick = arrays.wider(live, width), arrays.wider(pick, width)
            live[:, -short:] = -math.inf
        chosen = (row[line, pick], token[line, pick], own[line, pick])
        return Choice(live, *chosen, ended, row[:, :width], token[:, :width], own[:, :width])

    def _lowered(self, token: Array, earlier: Sequence[Choice]) -> Array:
        """The diversity penalty (B, P·C); a stop symbol is not a word to avoid, and is exempt."""
        groups = sum((token[:, :, None] == one.token[:, None, :]).any(2) * 1 for one in earlier)
        return self.options.diversity * groups * ~self._stops(token)

    def _collect(self, pool: Pool, choice: Choice, willing: Array | None) -> None:
        """Add the texts that end here to the pool, if they are good enough."""
        if self.arrays.asking_is_free and not (choice.ended > -math.inf).any():
            return  # it would change nothing
        row = choice.ended_row
        score = choice.ended / self.stopping.divisor(self.written)
        if self.options.coverage:
            score = score + self.coverage[row]
        asked = row >= 0 if willing is None else willing[row]
        tokens, logps = self._extended(row, choice.ended_token, choice.ended_own)
        pool.add(score, self.written, asked, tokens, logps)

    def _extended(self, row: Array, token: Array, own: Array) -> tuple[Array, Array]:
        """The texts of these rows with one more token, and the model's log-probability of each token."""
        if self.written >= self.tokens.shape[1]:
            self.tokens = self.arrays.wider(self.tokens, self.written + BLOCK)
            self.logps = self.arrays.wider(self.logps, self.written + BLOCK)
        tokens, logps = self.tokens[row], self.logps[row]
        tokens[..., self.written] = token
        logps[..., self.written] = own
        return tokens, logps

    # -- continuing ----------------------------------------------------------------------------------

    def _going(self, choices: Sequence[Choice]) -> Array:
        """(B,) whether a request's live texts could still change what is found."""
        going = None
        for choice, pool in zip(choices, self.pools, strict=True):
            best = self.arrays.largest(choice.live)  # (B,)
            goes = self.stopping.goes_on(best, pool.score, self.written)
            going = goes if going is None else going | goes
        return going

    def _go_on(self, choices: Sequence[Choice], left: list[int]) -> Moves:
        """Move all state to the rows that continue; those of a request are adjacent, K each."""
        fields = [(choice.live, choice.row, choice.token, choice.own) for choice in choices]
        some_leave = len(left) < len(self.requests)
        if some_leave:
            index = self.arrays.whole(left)
            fields = [(live[index], row[index], token[index], own[index]) for live, row, token, own in fields]
            self.pools = [pool.of(index) for pool in self.pools]
        self.live, *rest = map(list, zip(*fields, strict=True))
        row, token, own = (one[0] if len(one) == 1 else self.arrays.joined(one) for one in rest)
        row, token, own = row.reshape(-1), token.reshape(-1), own.reshape(-1)
        if left:
            self.tokens, self.logps = self._extended(row, token, own)
            if self.covered is not None:
                self.covered = self.covered.index_select(0, self.arrays.give(row))
        if left and (some_leave or not self.written):
            self._note([self.requests[place] for place in left], self.options.beam)
        self.written += 1
        return Moves(self.arrays.give(row), self.arrays.give(token))

    def _finish(self, decided: list[int], choices: Sequence[Choice], scores: Scores) -> None:
        index = self.arrays.whole(decided)
        by_group = [pool.of(index).read() for pool in self.pools]
        broken = sum(choice.live[index].sum(1) for choice in choices).tolist()  # non-finite if any of them is
        for place, total, *found in zip(decided, broken, *by_group, strict=True):
            answer: list[Hypothesis] | Exception
            try:
                # different groups may find the same text
                texts = {(one.ids, one.stop): one for group in found for one in group()}
                ranked = sorted(texts.values(), key=lambda one: -one.score)[: self.options.nbest]
                answer = not_finite() if math.isnan(total) else ranked or [self._cut(place, scores)]
            except UserError as error:  # concerns this request alone
                answer = error
            self.done.append((self.requests[place], answer))

    def _cut(self, place: int, scores: Scores) -> Hypothesis:
        """The best text at its limit if processors let none end; before the limit, nothing may be written."""
        if self.written < self.limits[place]:
            raise nothing_left(self.written)
        lives = [score for live in self.live for score in live[place].tolist()]
        best = lives.index(max(lives)) if self.written else 0
        row = place * self.places + best
        last = float(scores.part(row, row + 1).at(self.stop))
        logps = [*self.logps[row, : self.written].tolist(), last]
        score = (max(lives) + last) / self.penalty.at(self.written + 1)
        tokens = [*self.tokens[row, : self.written].tolist(), self.symbols.stop]
        return hypothesis(tokens, logps, False, score)


def _fit(table: Tensor, width: int) -> Tensor:
    """(R, S) padded or cut to S = `width`."""
    return nn.functional.pad(table, (0, width - table.shape[1]))
