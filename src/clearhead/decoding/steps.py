"""One decoding run of any model that writes: what is given, how far it may go, the next token's scores.

Encoder-decoders and the recurrent baseline are given a source and start from the
start symbol; a decoder is given a prompt and goes on from it. Behind `Run` all of
them look alike: the first scores, then new scores for each token written. Knows
nothing about how a token is chosen.

Shapes: B rows, S given tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.text.tokenizer import Tokenizer

WITH_SOURCE = ("encoder-decoder", "recurrent")
WITHOUT_LIMIT = 256  # tokens a decoder writes where neither the caller nor its positions set an end


@dataclass(frozen=True)
class Symbols:
    """The ids that steer a decoding run."""

    start: int | None  # what a target begins with; a decoder, which is given a prompt, needs none
    stop: int  # what it ends with
    forbidden: tuple[int, ...] = ()  # never written

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Symbols:
        """A vocabulary's own symbols; padding and start are never written.

        >>> Symbols.of(Tokenizer.words("to be"))
        Symbols(start=1, stop=2, forbidden=(0, 1))
        """
        if tokenizer.stop is None:
            raise UserError("This tokenizer has no stop token, so that no text written with it could end.")
        outside = {tokenizer.pad, tokenizer.start} - {None, tokenizer.stop}  # one token may play two roles
        return cls(tokenizer.start, tokenizer.stop, tuple(sorted(one for one in outside if one is not None)))


@dataclass(frozen=True)
class Hypothesis:
    """One text as ids, and what the model thinks of it."""

    ids: tuple[int, ...]  # without the start and the stop symbol
    logp: float  # natural log-probability of all ids and of the stop symbol after them
    stopped: bool  # False: it was cut at the limit, where the model would rather have gone on
    score: float  # what hypotheses are compared by; greedy: logp


def config_of(model: nn.Module) -> ModelConfig:
    """The settings of a model that writes; a sentence for one that cannot."""
    config: ModelConfig = model.config  # type: ignore[assignment]
    if config.family not in (*WITH_SOURCE, "decoder"):
        raise UserError(f"A model of the family '{config.family}' writes no text.")
    return config


def positions_of(config: ModelConfig) -> int | None:
    """How many tokens a model can place in one text; None: any number."""
    learned = config.family != "recurrent" and config.position.name == "learned"
    return config.position.max_length if learned else None


class Run:
    """A decoding run under way: hand it the token each row has written, get the scores of the next.

    A row may write `limits[row]` tokens, and then only the stop symbol: `max_length`, or without it
    2·S + 20 for a source of S tokens and 256 after a prompt; in any case no more than the model has
    positions for. A limit depends on nothing but its own row.
    """

    def __init__(
        self,
        model: nn.Module,
        given: Tensor,
        lengths: Sequence[int] | Tensor | None,
        symbols: Symbols,
        max_length: int | None = None,
    ) -> None:
        config = config_of(model)
        if given.dim() != 2 or not given.numel():
            raise UserError("Decoding starts from padded rows (two dimensions) with at least one token.")
        if max_length is not None and max_length < 1:
            raise UserError(f"A text must be allowed at least one token, not max_length={max_length}.")
        self.model, self.symbols = model, symbols
        self.has_source = config.family in WITH_SOURCE
        sizes = torch.full(given.shape[:1], given.shape[1]) if lengths is None else torch.as_tensor(lengths)
        if int(sizes.min()) < 1:
            raise UserError("A row without any token gives the model nothing to start from.")
        self.limits = self._limits(sizes.cpu(), positions_of(config), max_length).to(given.device)
        self.longest = int(self.limits.max())
        self.state: Any
        self.first = self._begin(given, sizes.to(given.device))  # (B, V) log-probabilities
        refuse_not_finite(float(self.first.amax(-1).sum()))
        self._banned = torch.tensor(symbols.forbidden, dtype=torch.long, device=given.device)
        self.first.index_fill_(1, self._banned, -torch.inf)

    def _limits(self, sizes: Tensor, positions: int | None, max_length: int | None) -> Tensor:
        if max_length is not None:
            limits = torch.full_like(sizes, max_length)
        elif self.has_source:
            limits = 2 * sizes + 20
        else:
            limits = torch.full_like(sizes, WITHOUT_LIMIT if positions is None else positions)
        if positions is None:
            return limits
        used = torch.ones_like(sizes) if self.has_source else sizes  # the start symbol, or the prompt
        return limits.minimum((positions - used).clamp(min=0))

    def _begin(self, given: Tensor, sizes: Tensor) -> Tensor:
        ragged = bool((sizes != given.shape[1]).any())
        if not self.has_source:
            self.state = self.model.begin()  # type: ignore[operator]
            logits = self.model(given, lengths=sizes if ragged else None, state=self.state).logits
            rows = torch.arange(len(given), device=given.device)
            return _log_softmax(logits[rows, sizes - 1])
        if self.symbols.start is None:
            raise UserError("This vocabulary has no start token, with which a target begins.")
        self.state = self.model.begin(given, sizes if ragged else None)  # type: ignore[operator]
        starts = torch.full_like(given[:, :1], self.symbols.start)
        return _log_softmax(self.model(None, starts, state=self.state).logits[:, -1])

    def step(self, ids: Tensor) -> Tensor:
        """Log-probabilities (B, V) of the token after `ids` (B,), which each row has just written.

        Of the whole vocabulary, and only then are forbidden tokens ruled out: the others keep the
        probability that the model gives them.
        """
        tokens = ids.unsqueeze(1)
        if self.has_source:
            logits = self.model(None, tokens, state=self.state).logits
        else:
            logits = self.model(tokens, state=self.state).logits
        return _log_softmax(logits[:, -1]).index_fill_(1, self._banned, -torch.inf)

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on from what row `rows[i]` was; rows may be repeated or left out."""
        self.state.reorder(rows)


def refuse_not_finite(logp: float) -> float:
    """A sentence where the model's scores are not numbers, so that nothing can be chosen by them."""
    if not -torch.inf < logp <= 0.0:
        raise UserError("The model's scores are not finite: its weights are damaged, or training diverged.")
    return logp


def _log_softmax(logits: Tensor) -> Tensor:
    """In float32 at least: half precision cannot tell near-equal candidates apart."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide.log_softmax(dim=-1)
