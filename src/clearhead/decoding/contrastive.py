"""Contrastive search (Su et al. 2022): tokens that are probable, but unlike the text so far.

At each position the model's k most probable tokens are candidates, each written by its own row. The search
takes the one with the highest

    (1 − α) · p(v | text) − α · max over the text so far of cos(h_v, h_j)

where h are the model's last hidden states, h_v the one after reading the candidate, and p is the normalised
distribution after all processors. The rows of the other candidates are forgotten.

Shapes: R rows, n active texts, k candidates, V vocabulary, E model width, T hidden states of a text.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize

from clearhead.decoding.backend import Batch, Hypothesis, Moves, Scores, not_finite
from clearhead.decoding.processors import PLAIN, Past, Pipeline, nothing_left


@dataclass
class _Text:
    """One text being written."""

    number: int  # of its request
    seen: Tensor | None = None  # (T, E) hidden states so far, each of length 1; None: none yet
    row: int = 0  # whose scores are those of its next token
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    chances: Tensor | None = None  # (k,) of the candidates
    own: list[float] = field(default_factory=list)  # the model's own log-probabilities of the candidates


class Contrastive:
    """A `Search` by likelihood and contrast; the stop symbol is a candidate like any other.

    The search compares the hidden states after the start symbol of an encoder-decoder, or after the prompt's
    tokens, and after every token written. At its limit a text gets a stop symbol; it then counts as willing
    if that was the most probable token.
    """

    def __init__(self, batch: Batch, pipeline: Pipeline = PLAIN) -> None:
        options = batch.options
        self.alpha, self.width = options.contrastive, min(options.top_k or 1, batch.vocabulary)
        self.symbols, self.device = batch.symbols, batch.device
        self.limits, self.prompts, self.pipeline = batch.limits, batch.prompts, pipeline
        self.texts = [_Text(number) for number in range(len(batch.requests))]
        self.written = 0
        self.ready: list[tuple[int, list[Hypothesis] | Exception]] = []

    def finished(self) -> list[tuple[int, list[Hypothesis] | Exception]]:
        ready, self.ready = self.ready, []
        return ready

    def layout(self) -> list[tuple[int, int]]:
        return [(text.number, len(text.candidates) or 1) for text in self.texts]

    def take(self, numbers: Sequence[int]) -> Contrastive:
        taken = copy.copy(self)
        taken.ready, taken.texts = [], [text for text in self.texts if text.number in numbers]
        self.texts = [text for text in self.texts if text.number not in numbers]
        return taken

    def certain(self, number: int) -> Sequence[int]:
        return next((text.ids for text in self.texts if text.number == number), ())

    def advance(self, scores: Scores) -> Moves:
        if scores.hidden is None:
            raise ValueError("contrastive search needs rows that keep hidden states")
        hidden = scores.hidden.float()
        if self.texts[0].seen is None:
            self._begin(scores, hidden)
        else:
            self._choose(hidden)
        return self._candidates(scores)

    def _begin(self, scores: Scores, hidden: Tensor) -> None:
        """Record each request's hidden states before anything is written."""
        states = [one.unsqueeze(0) for one in hidden] if scores.context is None else scores.context
        for row, (text, one) in enumerate(zip(self.texts, states, strict=True)):
            text.row, text.seen = row, normalize(one.float(), dim=-1)

    def _choose(self, hidden: Tensor) -> None:
        """Choose the best of every text's candidates; texts whose best is the stop symbol end.

        Works text by text, so the choice for one does not depend on the others.
        """
        going, begin = [], 0
        for text in self.texts:
            end = begin + len(text.candidates)
            states = normalize(hidden[begin:end], dim=-1)  # (k, E)
            assert text.seen is not None
            assert text.chances is not None
            alike = (states @ text.seen.T).amax(dim=-1)  # (k,)
            best = int(((1 - self.alpha) * text.chances - self.alpha * alike).argmax())
            text.logps.append(text.own[best])
            if text.candidates[best] in self.symbols.stops:
                self._end(text, True, text.candidates[best])
            else:
                text.ids.append(text.candidates[best])
                text.seen = torch.cat([text.seen, states[best : best + 1]])
                text.row = begin + best
                going.append(text)
            begin = end
        self.texts = going
        self.written += 1

    def _candidates(self, scores: Scores) -> Moves:
        """The most probable next tokens of each text, each as a row that continues it."""
        none = torch.zeros(0, dtype=torch.long, device=self.device)
        if not self.texts:
            return Moves(none, none)
        logp = scores.logp()[[text.row for text in self.texts]]  # (n, V)
        shaped = self._shaped(logp)
        chances, ids = shaped.softmax(dim=-1).topk(self.width, dim=-1)  # (n, k)
        own = logp.gather(1, ids).tolist()
        going, parents, tokens = [], [], []
        for place, (text, line) in enumerate(zip(self.texts, ids.tolist(), strict=True)):
            if self.written >= self.limits[text.number]:
                willing = line[0] in self.symbols.stops and bool(shaped[place, line[0]] > -torch.inf)
                stop = line[0] if willing else self.symbols.stop
                text.logps.append(float(logp[place, stop]))
                self._end(text, willing, stop)
                continue
            count = int((shaped[place, ids[place]] > -torch.inf).sum())  # those ruled out come last
            if not count:
                broken = bool(logp[place].isnan().any())
                self.ready.append((text.number, not_finite() if broken else nothing_left(self.written)))
                continue
            text.candidates, text.chances, text.own = line[:count], chances[place, :count], own[place][:count]
            parents += [text.row] * count
            tokens += line[:count]
            going.append(text)
        self.texts = going
        return Moves(*(torch.tensor(one, dtype=torch.long, device=self.device) for one in (parents, tokens)))

    def _shaped(self, logp: Tensor) -> Tensor:
        tokens = torch.tensor([text.ids for text in self.texts], dtype=torch.long, device=self.device)
        request = torch.tensor([text.number for text in self.texts], device=self.device)
        past = Past(tokens.reshape(len(self.texts), self.written), self.prompts, request, self.written)
        return self.pipeline.shape(logp, past)

    def _end(self, text: _Text, willing: bool, stop: int) -> None:
        total = math.fsum(text.logps)
        found = Hypothesis(tuple(text.ids), total, willing, total, tuple(text.logps), stop)
        self.ready.append((text.number, [found] if -math.inf < total <= 0.0 else not_finite()))
