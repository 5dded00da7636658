"""Many sequences being written by one model in PyTorch: `TorchRows`, the `Rows` of every model.

A search sees rows and nothing else: `admit` new requests, then `step` as often as needed, each time saying
which row every new row continues and which token it writes. Only this module knows how keys and values are
stored and moved.

Shapes: R rows, V vocabulary, B new requests, S given tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from clearhead.base.device import exact_place
from clearhead.base.errors import UserError
from clearhead.decoding.backend import Extra, Symbols
from clearhead.decoding.options import WITH_SOURCE, config_of
from clearhead.nn.look import Look


class PlainScores:
    """Scores as one tensor."""

    def __init__(
        self,
        logp: Tensor,
        hidden: Tensor | None = None,
        attention: Tensor | None = None,
        logits: Tensor | None = None,
    ) -> None:
        self._logp, self.hidden, self.attention = logp, hidden, attention
        self._logits = logp if logits is None else logits
        self.context: list[Tensor] | None = None

    @classmethod
    def of(cls, logits: Tensor, hidden: Tensor | None = None, attention: Tensor | None = None) -> PlainScores:
        """From logits (R, V), in float32 at least: half precision cannot separate near-equal candidates."""
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return cls(wide.log_softmax(dim=-1), hidden, attention, wide)

    @property
    def rows(self) -> int:
        return len(self._logp)

    def logp(self) -> Tensor:
        return self._logp

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        if count == 1:  # the first of equals, on every device
            if self._logp.is_cpu and not self._logp.requires_grad:  # numpy's search is some ten times faster
                found = torch.from_numpy(self._logp.numpy().argmax(-1)[:, None])
                return self._logp.gather(1, found), found
            best, ids = self._logp.max(dim=-1, keepdim=True)
            return best, ids
        ranked = self._logp.topk(count, dim=-1)
        return ranked.values, ranked.indices

    def at(self, ids: Tensor) -> Tensor:
        return self._logp[:, ids]

    def totals(self) -> Tensor:
        return self._logits.logsumexp(dim=-1)

    def part(self, begin: int, end: int) -> PlainScores:
        part = self._each(lambda tensor: tensor[begin:end])
        part.context = None if self.context is None else self.context[begin:end]
        return part

    def copy(self) -> PlainScores:
        copy = self._each(Tensor.clone)
        copy.context = None if self.context is None else [one.clone() for one in self.context]
        return copy

    def _each(self, change: Callable[[Tensor], Tensor]) -> PlainScores:
        own = (self._logp, self.hidden, self.attention, self._logits)
        logp, *others = (None if tensor is None else change(tensor) for tensor in own)
        assert logp is not None
        return PlainScores(logp, *others)


class TorchRows:
    """Rows of a model in PyTorch: encoder-decoder, decoder or the recurrent baseline.

    Sources are read once. Cross-attention's keys and values are stored once per source, however many rows
    continue it; the self-attention cache is moved only when rows change position.
    """

    def __init__(self, model: nn.Module, symbols: Symbols, keep: frozenset[Extra] = frozenset()) -> None:
        config = config_of(model)
        self.model, self.symbols, self.keep = model, symbols, keep
        if "attention" in keep and config.family != "encoder-decoder":
            raise UserError(f"A model of the family '{config.family}' has no cross-attention to return.")
        self.cross = f"decoder.{config.depth_of_decoder - 1}.cross.weights"
        self.place = next(model.parameters()).device
        self.device = exact_place(self.place)  # where the scores are, and the search that reads them
        self.vocabulary = config.vocabulary
        self.has_source = config.family in WITH_SOURCE
        self.shares_sources = config.family == "encoder-decoder"
        self.state: Any = None
        self.source_of = torch.zeros(0, dtype=torch.long)  # (R,) the source of each row; kept on the host
        self.joined = False  # new rows may share their sources differently from earlier ones

    @property
    def count(self) -> int:
        return len(self.source_of)

    @torch.no_grad()
    def admit(self, given: Sequence[Sequence[int]]) -> PlainScores:
        lengths = torch.tensor([len(one) for one in given])
        if not len(given) or int(lengths.min()) < 1:
            raise UserError(
                "A row without tokens gives the model nothing to start from: give it at least one."
            )
        table = torch.zeros(len(given), int(lengths.max()), dtype=torch.long)
        for row, ids in enumerate(given):
            table[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        sizes = lengths.to(self.place) if bool((lengths != table.shape[1]).any()) else None
        state, output, look, last = self._begin(table.to(self.place), sizes, lengths.to(self.place))
        scores = self._scores(output, look, last)
        if "hidden" in self.keep and not self.has_source:
            whole = output.hidden.to(self.device)
            scores.context = [whole[row, :size] for row, size in enumerate(lengths.tolist())]
        self._behind(state, torch.arange(len(given)))
        return scores

    def _behind(self, state: Any, source_of: Tensor) -> None:
        """Append rows with their state to the existing ones."""
        if not self.count:
            self.state, self.source_of = state, source_of
        else:
            self.state.join(state)
            self.source_of = torch.cat([self.source_of, source_of + int(self.source_of[-1]) + 1])
            self.joined = True

    def _begin(
        self, ids: Tensor, sizes: Tensor | None, lengths: Tensor
    ) -> tuple[Any, Any, Look | None, Tensor]:
        """A state for these rows alone, the model's output, and the index of each row's last position."""
        if not self.has_source:
            state = self.model.begin()  # type: ignore[operator]
            return state, self.model(ids, lengths=sizes, state=state), None, lengths - 1
        if self.symbols.start is None:
            raise UserError("This vocabulary has no start token, which every target needs.")
        state = self.model.begin(ids, sizes)  # type: ignore[operator]
        starts = torch.full_like(ids[:, :1], self.symbols.start)
        look = self._look()
        return state, self.model(None, starts, state=state, look=look), look, torch.zeros_like(lengths)

    def _look(self) -> Look | None:
        return Look(self.cross) if "attention" in self.keep else None

    def _scores(self, output: Any, look: Look | None, last: Tensor) -> PlainScores:
        """The scores at position `last` (R,) of each row."""
        rows = torch.arange(len(last), device=self.place)
        hidden = output.hidden[rows, last] if "hidden" in self.keep else None
        attention = None
        if look is not None:
            weights = look[self.cross].mean(1)  # (sources, queries, S): rows that share a source are adjacent
            attention = weights.reshape(len(last), -1, weights.shape[-1])[:, -1]
        here = (one if one is None else one.to(self.device) for one in (hidden, attention))
        return PlainScores.of(output.logits[rows, last].to(self.device), *here)

    @torch.no_grad()
    def step(self, parent: Tensor, token: Tensor) -> PlainScores:
        if not len(parent):
            self.state, self.source_of, self.joined = None, self.source_of[:0], False
            return PlainScores(torch.zeros(0, self.vocabulary, device=self.device))
        self._reorder(parent.to(self.place))
        tokens = token.to(self.place).unsqueeze(1)
        look = self._look()
        given = (None, tokens) if self.has_source else (tokens,)
        output = self.model(*given, state=self.state, look=look)
        return self._scores(output, look, torch.zeros_like(tokens[:, 0]))

    def take(self, begin: int, end: int) -> tuple[Any, Tensor]:
        """Rows that leave: their state, which waits on the host, and the source of each."""
        if begin == end:
            return None, self.source_of[:0]
        owners = self.source_of.tolist()
        if set(owners[begin:end]) & {*owners[:begin], *owners[end:]}:  # some stay: each row gets its own
            self.state.reorder(torch.arange(self.count, device=self.place), self.source_of.to(self.place))
            self.source_of = torch.arange(self.count)
        sources, source_of = self.source_of[begin:end].unique_consecutive(return_inverse=True)
        rows = torch.arange(begin, end, device=self.place)
        state = (
            self.state.take(rows, sources.to(self.place)) if self.shares_sources else self.state.take(rows)
        )
        stay = torch.cat([self.source_of[:begin], self.source_of[end:]])
        self.source_of = stay.unique_consecutive(return_inverse=True)[1]
        self.joined = True
        if not self.count:
            self.state = None
        return state.to("cpu"), source_of

    def join(self, taken: object) -> None:
        state, source_of = cast("tuple[Any, Tensor]", taken)
        if len(source_of):
            self._behind(state.to(self.place), source_of)
            self.joined = True

    def _reorder(self, parent: Tensor) -> None:
        stay = len(parent) == self.count and not self.joined
        if stay and bool((parent == torch.arange(self.count, device=parent.device)).all()):
            return
        self.joined = False
        sources = self.source_of[parent.cpu()]
        kept, renumbered, counts = torch.unique_consecutive(sources, return_inverse=True, return_counts=True)
        if not self.shares_sources:
            self.state.reorder(parent)
        elif bool((counts == counts[0]).all()):
            self.state.reorder(parent, kept.to(self.place))
        else:
            # Requests with different beam sizes are in one batch: each row gets its own source.
            self.state.reorder(parent, sources.to(self.place))
            renumbered = torch.arange(len(parent))
        self.source_of = renumbered
