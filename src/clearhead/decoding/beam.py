"""Beam search: the best K texts so far are kept at each step, over all sentences of a batch at once.

The beam of a sentence has K places. At each step its unfinished texts are
extended by every token, and the likeliest extensions take the places that no
finished text holds; a text that ends keeps its place for good. When every text
has ended, or no unfinished one can beat the best finished one any more, that one
is the answer. Stopping early is exact: it never changes the answer. With one
place this is greedy search; with room for every text it is exhaustive search.

Shapes: B sentences still being written, K places, V vocabulary, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.steps import Hypothesis, Run, Symbols, refuse_not_finite


@dataclass(frozen=True)
class LengthPenalty:
    """What a text's log-probability is divided by, so that long texts are not at a loss.

    `power`: length^alpha, so that alpha=1 is the plain average (fairseq's lenpen). `wu`: ((5 + length)
    / 6)^alpha, of Wu et al. 2016, equation 14. The length counts the stop symbol. alpha=0: nothing.

    >>> LengthPenalty(1.0).at(4), LengthPenalty(0.0).at(4), LengthPenalty(1.0, "wu").at(7)
    (4.0, 1.0, 2.0)
    """

    alpha: float = 1.0
    kind: Literal["power", "wu"] = "power"

    def at(self, length: int) -> float:
        """The divisor for a text of `length` tokens."""
        base = float(length) if self.kind == "power" else (5.0 + length) / 6.0
        return float(base**self.alpha)


@torch.no_grad()
def beam_search(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    beams: int = 5,
    penalty: LengthPenalty | None = None,
    max_length: int | None = None,
) -> list[list[Hypothesis]]:
    """For each row of `given` (B, S) its finished texts, best first; the first is the answer.

    `given`, `lengths` and `max_length` are as for `greedy`. There are at most `beams` texts a row, and
    fewer where stopping early left others unfinished. The default penalty is the plain average.

    >>> import clearhead, torch
    >>> model = clearhead.build("tiny").eval()
    >>> found = beam_search(model, torch.tensor([[5, 6, 2]]), symbols=Symbols(1, 2, (0, 1)), beams=3)
    >>> found[0][0].score == max(one.score for one in found[0])
    True
    """
    if beams < 1:
        raise UserError(f"A beam has at least one place, not {beams}.")
    run = Run(model, given, lengths, symbols, max_length)
    search = _Search(run, beams, penalty or LengthPenalty())
    logp = run.first.repeat_interleave(beams, dim=0)  # (B·K, V)
    run.reorder(torch.arange(len(given), device=given.device).repeat_interleave(beams))
    while (chosen := search.extend(logp)) is not None:
        logp = run.step(chosen)
    return search.answers()


class _Search:
    """The places of all beams. The first K finished texts of a sentence are kept by its first number."""

    def __init__(self, run: Run, beams: int, penalty: LengthPenalty) -> None:
        self.run, self.beams, self.penalty = run, beams, penalty
        rows, device, kind = len(run.first), run.first.device, run.first.dtype
        self.written = 0
        self.sentences = torch.arange(rows, device=device)  # (B,) numbers in the first batch
        self.live = torch.full((rows, beams), -torch.inf, device=device, dtype=kind)
        self.live[:, 0] = 0.0  # there is one empty text, and -inf marks a place without one
        self.tokens = torch.zeros(rows, beams, run.longest + 1, dtype=torch.long, device=device)
        self.held = torch.zeros(rows, dtype=torch.long, device=device)  # places of finished texts
        # One slot more than places: there goes what has not ended, and nobody reads it.
        self.logp = torch.full((rows, beams + 1), -torch.inf, device=device, dtype=kind)
        self.score = torch.full_like(self.logp, -torch.inf)
        self.count = torch.zeros(rows, beams + 1, dtype=torch.long, device=device)
        self.willing = torch.zeros(rows, beams + 1, dtype=torch.bool, device=device)
        self.texts = torch.zeros(rows, beams + 1, run.longest + 1, dtype=torch.long, device=device)
        limits = run.limits.tolist()
        self.shortest = min(limits)
        divisors = torch.tensor([penalty.at(limit + 1) for limit in limits], dtype=kind)
        self.last_divisor = divisors.to(device)  # of the longest text each sentence may get

    def extend(self, logp: Tensor) -> Tensor | None:
        """One more token in every place, given (B·K, V); what to hand the model, or None at the end."""
        stop, vocabulary = self.run.symbols.stop, logp.shape[1]
        scores = logp.view(-1, self.beams, vocabulary)  # (B,K,V)
        asked = torch.ones_like(self.live, dtype=torch.bool)  # would the model stop here by itself?
        totals = self.live.unsqueeze(-1) + scores
        if self.written >= self.shortest:
            forced = (self.run.limits[self.sentences] <= self.written).unsqueeze(1)  # (B,1)
            asked = ~forced | (scores.argmax(-1) == stop)
            others = torch.arange(vocabulary, device=logp.device) != stop
            totals.masked_fill_(forced.unsqueeze(-1) & others, -torch.inf)
        best, where = totals.flatten(1).topk(self.beams)  # (B,K), best first
        free = self.beams - self.held[self.sentences].unsqueeze(1)
        best = best.masked_fill(torch.arange(self.beams, device=logp.device) >= free, -torch.inf)
        parent, token = where // vocabulary, where % vocabulary
        self.tokens = self.tokens.gather(1, parent.unsqueeze(-1).expand_as(self.tokens))
        self.tokens[:, :, self.written] = token
        ended = (token == stop) & (best > -torch.inf)
        self._keep(ended, best, asked.gather(1, parent))
        self.live = best.masked_fill(ended, -torch.inf)
        self.written += 1
        return self._go_on(parent, token)

    def _keep(self, ended: Tensor, logp: Tensor, willing: Tensor) -> None:
        """Move the texts that have just ended to the finished ones of their sentence."""
        number = self.sentences.unsqueeze(1)
        slot = (self.held[number] + ended.cumsum(1) - 1).masked_fill(~ended, self.beams)
        self.logp[number, slot] = logp
        self.score[number, slot] = logp / self.penalty.at(self.written + 1)
        self.count[number, slot] = self.written
        self.willing[number, slot] = willing
        self.texts[number, slot] = self.tokens
        self.held[self.sentences] += ended.sum(1)

    def _go_on(self, parent: Tensor, token: Tensor) -> Tensor | None:
        """Leave decided sentences behind; the others' next tokens, (B·K,).

        The log-probability of a text can only fall from here on, and the divisor of its end lies between
        those of the shortest and the longest text it can become: that bounds its score.
        """
        nearest = self.penalty.at(self.written + 1)  # if the stop symbol came next
        bound = self.live.amax(1) / self.last_divisor[self.sentences].clamp(min=nearest)
        finished = self.score[self.sentences, : self.beams].amax(1)
        going = (bound > finished).nonzero().squeeze(1)  # the one look at the device in a step
        if not len(going):
            return None
        rows = going.unsqueeze(1) * self.beams + parent[going]
        self.run.reorder(rows.flatten())
        self.sentences, self.live = self.sentences[going], self.live[going]
        self.tokens = self.tokens[going]
        return token[going].flatten()

    def answers(self) -> list[list[Hypothesis]]:
        """All finished texts, best first; equals in the order in which they ended."""
        found = []
        fields = (self.texts, self.count, self.logp, self.willing, self.score)
        plain = zip(*(one.tolist() for one in fields), self.held.tolist(), strict=True)
        for texts, counts, logps, willing, scores, held in plain:
            if not held:
                refuse_not_finite(float("nan"))
            ended = [
                Hypothesis(tuple(texts[i][: counts[i]]), refuse_not_finite(logps[i]), willing[i], scores[i])
                for i in range(held)
            ]
            found.append(sorted(ended, key=lambda one: -one.score))
        return found
