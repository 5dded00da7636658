"""Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): a small model drafts, a large one verifies.

The small model writes a few tokens ahead, and the large one reads them in a single step. A draft token x is
accepted with probability min(1, p(x) / q(x)), where p is the distribution that the large model would sample
from and q the one that the small model sampled from; a draw from (p − q)⁺, normalised, replaces the first
rejected token. The result is distributed exactly as if the large model had written alone. In greedy decoding
all of p is on one token: the text is the same, up to the rounding of sums over several tokens at once.

Shapes: V vocabulary, n new tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Hypothesis, Symbols, refuse_not_finite
from clearhead.decoding.options import WITH_SOURCE, Options, config_of, positions_of
from clearhead.decoding.processors import PLAIN, Past, Pipeline, nothing_left
from clearhead.decoding.random_draws import keys, uniform
from clearhead.models.stack import Stack

BLOCK = 64  # random numbers drawn at a time
Shares = NDArray[np.float64]  # (V,) probabilities


@dataclass(frozen=True)
class SpeculativeResult:
    """A text, and statistics of the drafts."""

    hypothesis: Hypothesis
    steps: int  # of the large model
    accepted: int  # draft tokens accepted, the stop symbol included
    guessed: int  # tokens that the small model wrote


@torch.no_grad()
def speculate(
    model: nn.Module,
    draft: nn.Module,
    given: Sequence[int],
    *,
    symbols: Symbols,
    limit: int,
    options: Options | None = None,
    ahead: int = 4,
    pipeline: Pipeline = PLAIN,
) -> SpeculativeResult:
    """What `model` writes for one source or prompt, greedily or sampled, with the drafts of `draft`.

    `pipeline` holds the processors of the options, which shape both models' distributions; `limit` is how
    many tokens may be written, `ahead` how many are drafted at a time.

    >>> import clearhead
    >>> model = clearhead.build("tiny").eval()
    >>> found = speculate(model, model, [5, 6, 2], symbols=Symbols(1, 2, (0, 1)), limit=8)
    >>> found.accepted == found.guessed, found.steps <= 3
    (True, True)
    """
    asked = options or Options()
    _refuse(asked, ahead)
    refuse_pair(model, draft)
    large, small = _Reader(model, given, symbols), _Reader(draft, given, symbols)
    return _Run(large, small, _Choice(asked, symbols, given, pipeline), limit, ahead).result()


def _refuse(options: Options, ahead: int) -> None:
    if ahead < 1:
        raise UserError(f"The draft model must propose at least one token at a time, not {ahead}.")
    if options.beam > 1 or options.contrastive or options.nbest > 1:
        raise UserError(
            "Speculative decoding works for a single text, greedy or sampled, and not for beam or "
            "contrastive search: leave out the draft model."
        )


def refuse_pair(model: nn.Module, draft: nn.Module) -> None:
    """Raise an error if one of these models cannot draft for the other."""
    big, small = config_of(model), config_of(draft)
    if big.vocabulary != small.vocabulary:
        raise UserError(
            f"The model has a vocabulary of {big.vocabulary} tokens and the draft model "
            f"{small.vocabulary}: speculative decoding needs the same vocabulary in both."
        )
    with_source = [config.family in WITH_SOURCE for config in (big, small)]
    sources = [config.source_vocabulary or config.vocabulary for config in (big, small)]
    if with_source[0] != with_source[1] or (with_source[0] and sources[0] != sources[1]):
        raise UserError(
            "The model and the draft model do not take the same kind of input: use models of the same kind."
        )
    if "convolutional" in (big.family, small.family):
        raise UserError(
            "A convolutional model keeps only the last tokens that its layers read, so wrong guesses "
            "cannot be undone: decode without a draft model."
        )
    for stack in (getattr(one, "decoder", None) for one in (model, draft)):
        if isinstance(stack, Stack) and (reason := stack.new_state().uncuttable) is not None:
            raise UserError(
                f"{reason} Speculative decoding must undo wrong guesses: decode without a draft model."
            )


class _Reader:
    """A model on one text: reads whatever is new, and re-reads whatever has changed."""

    def __init__(self, model: nn.Module, given: Sequence[int], symbols: Symbols) -> None:
        config = config_of(model)
        self.model, self.has_source = model, config.family in WITH_SOURCE
        self.device = next(model.parameters()).device
        positions = positions_of(config)
        if not given:
            raise UserError(
                "A row without tokens gives the model nothing to start from: give it at least one."
            )
        if self.has_source and symbols.start is None:
            raise UserError("This vocabulary has no start token, which every target needs.")
        self.opening = [symbols.start] if self.has_source else list(given)
        self.room = math.inf if positions is None else positions - len(self.opening)  # tokens that still fit
        if self.has_source and positions is not None and positions < len(given):
            self.room = -1
        self.read: list[int] = []  # what the state contains
        self.state: Any = None
        self.given = given

    def behind(self, written: Sequence[int], count: int) -> Tensor:
        """(count, V) logits after each of the last `count` tokens of opening and text."""
        if self.state is None:
            source = torch.tensor([self.given], device=self.device)
            self.state = self.model.begin(source) if self.has_source else self.model.begin()  # type: ignore[operator]
        text = [*self.opening, *written]
        same = 0
        most = min(len(self.read), len(text) - count)  # positions whose logits are needed must be read again
        while same < most and self.read[same] == text[same]:
            same += 1
        if same < len(self.read):
            self.state.truncate(same)
        new = torch.tensor([text[same:]], device=self.device)
        output = self.model(*((None, new) if self.has_source else (new,)), state=self.state)
        self.read = list(text)
        logits = output.logits[0, -count:]
        wide: Tensor = logits if logits.dtype == torch.float64 else logits.float()
        return wide


class _Choice:
    """From log-probabilities to the distribution to sample from, and the draws of one request."""

    def __init__(self, options: Options, symbols: Symbols, given: Sequence[int], pipeline: Pipeline) -> None:
        self.symbols, self.given, self.pipeline = symbols, given, pipeline
        self.sample = options.sample
        self.on_logits = options.repetition_of == "logits"
        self.seed, self.blocks = options.seed, 0
        self.numbers: list[float] = []  # drawn but not yet used

    def shares(self, logits: Tensor, written: Sequence[int]) -> Shares:
        """On the host: the distribution of the next token; greedy: all on one token."""
        device, logp = logits.device, logits.log_softmax(dim=-1)
        totals = logits.logsumexp(dim=-1, keepdim=True) if self.on_logits else None
        tokens = torch.tensor([list(written)], dtype=torch.long, device=device)
        request = torch.zeros(1, dtype=torch.long, device=device)
        past = Past(tokens, [self.given], request, len(written), totals)
        barred = torch.tensor(self.symbols.forbidden, dtype=torch.long, device=device)
        scores = logp.unsqueeze(0).index_fill(1, barred, -torch.inf)
        for processor in (*self.pipeline.before, *self.pipeline.after):
            scores = processor(scores, past)
        wide = scores[0].cpu().double()
        if not float(wide.max()) > -math.inf:
            raise nothing_left(len(written))
        found: Shares = wide.softmax(dim=-1).numpy()
        if not self.sample:
            found = np.zeros_like(found)
            found[int(wide.argmax())] = 1.0
        return found

    def number(self) -> float:
        """The next number in [0, 1)."""
        if not self.numbers:
            places = range(self.blocks * BLOCK, (self.blocks + 1) * BLOCK)
            self.numbers = uniform(keys([self.seed] * BLOCK, places, torch.device("cpu")), 0).tolist()
            self.blocks += 1
        return self.numbers.pop()

    def draw(self, shares: Shares) -> int:
        """A token drawn by its share of the total; a share of 0 is never drawn, however sums are rounded."""
        sums = shares.cumsum()
        target = min(self.number() * sums[-1], np.nextafter(sums[-1], 0.0))
        return int(np.searchsorted(sums, target, side="right"))

    def keeps(self, guess: int, p: Shares, q: Shares) -> bool:
        return bool(self.number() * q[guess] < p[guess])

    def instead(self, p: Shares, q: Shares) -> int:
        """A draw from the excess of p over q."""
        rest = np.maximum(p - q, 0.0)
        return self.draw(rest if rest.sum() > 0.0 else p)  # equal but for rounding: either will do


class _Run:
    """One text being written."""

    def __init__(self, large: _Reader, small: _Reader, choice: _Choice, limit: int, ahead: int) -> None:
        self.large, self.small, self.choice, self.limit, self.ahead = large, small, choice, limit, ahead
        self.stop, self.stops = choice.symbols.stop, choice.symbols.stops
        self.written: list[int] = []
        self.logps: list[float] = []
        self.steps = self.accepted = self.guessed = 0

    def result(self) -> SpeculativeResult:
        willing = None
        while willing is None:
            willing = self._step()
        total = refuse_not_finite(math.fsum(self.logps))
        text = Hypothesis(tuple(self.written), total, willing, total, tuple(self.logps), self.stop)
        return SpeculativeResult(text, self.steps, self.accepted, self.guessed)

    def _step(self) -> bool | None:
        """Draft and verify once; at the end of the text, whether it ended by choice, else None."""
        guesses, q = self._guesses()
        real = [one for one in guesses if one not in self.stops]  # a stop symbol can only be the last
        logits = self.large.behind([*self.written, *real], len(real) + 1)  # (n + 1, V)
        self.steps += 1
        for guess, line, theirs in zip(guesses, logits, q, strict=False):
            p = self.choice.shares(line, self.written)
            if not self.choice.keeps(guess, p, theirs):
                return self._write(self.choice.instead(p, theirs), line)
            self.accepted += 1
            if self._write(guess, line):
                return True
        p = self.choice.shares(logits[-1], self.written)  # the large model's logits include one position more
        return self._write(self.choice.draw(p), logits[-1])

    def _guesses(self) -> tuple[list[int], list[Shares]]:
        """What the small model writes next, and the distributions it sampled from."""
        count = min(self.ahead, self.limit - len(self.written))
        guesses: list[int] = []
        q: list[Shares] = []
        while len(guesses) < count and len(self.written) + len(guesses) <= self.small.room:
            text = [*self.written, *guesses]
            q.append(self.choice.shares(self.small.behind(text, 1)[0], text))
            guesses.append(self.choice.draw(q[-1]))
            if guesses[-1] in self.stops:
                break
        self.guessed += len(guesses)
        return guesses, q

    def _write(self, token: int, logits: Tensor) -> bool | None:
        """Accept a token; at the limit it becomes the stop symbol, unless it is one."""
        willing = token in self.stops
        ends = willing or len(self.written) >= self.limit
        if willing:
            self.stop = token
        self.logps.append(float(logits.log_softmax(dim=-1)[self.stop if ends else token]))
        if ends:
            return willing
        self.written.append(token)
        return None
