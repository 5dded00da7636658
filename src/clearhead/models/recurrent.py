"""The baseline the Transformer replaced: a recurrent encoder-decoder, with attention or without.

The encoder is a plain RNN, a GRU or an LSTM that reads the source (both ways by default); the
decoder writes token by token, and before each token attends to all encoder states:

    c_t = attention(query s_{t−1}, keys and values h_1 … h_S)
    s_t = cell([embedding(y_t); c_t], s_{t−1})
    logits = tanh(W [s_t; c_t; embedding(y_t)]) · embeddingᵀ

Without attention there is no c_t: the decoder starts in the final state of the encoder, and that one vector
is all it knows about the source (Sutskever et al. 2014). With it, it starts in the mean of all states.

It has the same interface as the Transformer's encoder-decoder, so the two can be
compared. Work per token is constant, but the steps of a sequence cannot run in
parallel: that is what the comparison shows.

Shapes: B rows, S source tokens, T target tokens, E width, M memory width.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.models.heads import pool
from clearhead.models.stack import ModelOutput
from clearhead.models.state import Source
from clearhead.models.unpacked import needed_source, refuse_second_source, row_by_row
from clearhead.nn.attention import build_score
from clearhead.nn.attention.problem import masked_softmax
from clearhead.nn.layers import Dropout, Output, TokenEmbedding, check_ids
from clearhead.nn.look import Look
from clearhead.nn.state import refuse_unknown_state
from clearhead.nn.tokens import Lengths, Tokens, row_lengths

BLOCK = 64  # the history grows by this many steps
# The encoder, a cell of the decoder, and how many state vectors a cell has: an LSTM has two.
CELLS: dict[str, tuple[type[nn.RNNBase], type[nn.RNNCellBase], int]] = {
    "rnn": (nn.RNN, nn.RNNCell, 1),
    "gru": (nn.GRU, nn.GRUCell, 1),
    "lstm": (nn.LSTM, nn.LSTMCell, 2),
}
READERS: dict[str, Any] = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}  # one layer, one way


class RecurrentState(Source):
    """The source's states and every hidden state so far, so a row can be truncated to any length."""

    _slots: ClassVar = {**Source._slots, "keys": 1, "past": 1, "length": 0}

    def __init__(
        self, memory: Tensor, memory_lengths: Tensor | None, keys: Tensor | None, first: Tensor
    ) -> None:
        super().__init__(memory, memory_lengths)
        self.keys = keys  # (B, S, ·): of the source's states, computed once for all tokens
        self.past = first.unsqueeze(1)  # (B, capacity, K): slot n holds the hidden state after n tokens
        self.length = torch.zeros(len(first), dtype=torch.long, device=first.device)

    def lengths(self, rows: int, device: torch.device | str | None = None) -> Tensor:
        """How many tokens each row has seen, (B,)."""
        return self.length

    @property
    def hidden(self) -> Tensor:
        """Each row's current hidden state, (B, K)."""
        return self.past[torch.arange(len(self.length), device=self.length.device), self.length]

    def append(self, steps: Tensor, lengths: Lengths | None) -> None:
        """Hidden states after each new token, (B, T, K); `lengths` says how many of them are real."""
        count = steps.shape[1]
        slots = self.length.unsqueeze(1) + 1 + torch.arange(count, device=steps.device)
        lacking = int(slots.max()) + 1 - self.past.shape[1]
        if lacking > 0:
            more = self.past.new_zeros(len(steps), max(lacking, BLOCK), steps.shape[2])
            self.past = torch.cat([self.past, more], dim=1)
        self.past[torch.arange(len(steps), device=steps.device).unsqueeze(1), slots] = steps
        added = count if lengths is None else row_lengths(lengths, len(steps), count, steps.device)
        self.length = self.length + added

    def truncate(self, length: int | Tensor) -> None:
        """Forget everything from position `length` on; a tensor (B,) gives each row its own."""
        self.length = self.length.clamp(max=length)


class Recurrent(nn.Module):
    """Source ids and target ids to scores over the target vocabulary, by recurrence."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, recurrent = config.width, config.recurrent
        target = TokenEmbedding(config.vocabulary, width, config.embedding.scale)
        source = target
        if config.source_vocabulary is not None:
            source = TokenEmbedding(config.source_vocabulary, width, config.embedding.scale)
        self.source_embedding, self.target_embedding = source, target
        memory = width * (2 if recurrent.bidirectional else 1)
        kind, cell, self.parts = CELLS[recurrent.cell]
        self.encoder: nn.RNNBase = cast(Any, kind)(
            width, width, config.layers, batch_first=True, bidirectional=recurrent.bidirectional
        )
        depth, seen = config.depth_of_decoder, 0 if recurrent.attention == "none" else memory
        self.cells = nn.ModuleList(
            cast(Any, cell)(width + seen if i == 0 else width, width) for i in range(depth)
        )
        self.first = nn.Linear(memory, depth * self.parts * width)
        if recurrent.attention == "dot" and memory != width:
            raise UserError(
                "The recurrent attention 'dot' and bidirectional=true cannot work together: the encoder's "
                "states are twice as wide as the decoder's. Use attention='bilinear', or bidirectional=false."
            )
        looks = recurrent.attention != "none"
        self.score = build_score(recurrent.attention, 1, width, memory, width) if looks else None
        self.combine = nn.Linear(width + seen + width, width)
        self.dropout = Dropout(config.dropout)
        self.output = Output(target, config.embedding)

    def forward(
        self,
        source: Tensor | None,
        target: Tensor,
        *,
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
        state: RecurrentState | None = None,
        look: Look | None = None,
    ) -> ModelOutput:
        """Like the Transformer's encoder-decoder; packed ids are unpacked into rows for the recurrence."""
        if target.dim() == 1:
            return row_by_row(self, source, target, source_lengths, target_lengths, state, look)
        if target_lengths is not None:
            rows, count = target.shape
            row_lengths(target_lengths, rows, count, target.device)  # refuses impossible ones
        fresh = state is None
        if state is None:
            source = needed_source(source, target, source_lengths, target_lengths)
            state = self.begin(source, source_lengths)
        else:
            refuse_second_source(source)
        refuse_unknown_state(state, RecurrentState)
        hidden, steps, weights = self._write(target, state)
        if not fresh:
            state.append(steps, target_lengths)
        logits = self.output(hidden)
        if look is not None:
            look.give("encoder.output", state.memory)
            look.give("decoder.output", hidden)
            if weights is not None:
                look.give("decoder.0.cross.weights", weights)
            look.give("logits", logits)
        return ModelOutput(logits=logits, hidden=hidden, memory=state.memory, state=None if fresh else state)

    def begin(self, source: Tensor, source_lengths: Lengths | None = None) -> RecurrentState:
        """Read the source once; the state from which decoding starts."""
        rows, count = source.shape
        if source_lengths is not None:
            row_lengths(source_lengths, rows, count, source.device)  # refuses impossible ones
        check_ids(source, len(self.source_embedding.weight))
        x = self.dropout(self.source_embedding(source))
        lengths = None if source_lengths is None else torch.as_tensor(source_lengths, device=source.device)
        memory, last = self._read(x, lengths)
        if self.score is None:
            keys, known = None, last
        else:
            keys = self.score.keys(memory.unsqueeze(1))[:, 0]
            known = pool(memory, Tokens.padded(count, device=source.device, real=lengths), "mean")
        return RecurrentState(memory, lengths, keys, torch.tanh(self.first(known)))

    def _read(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """The encoder's states (B, S, M), zero in the padding, and the last one of each direction (B, M).

        The backward reader starts at each row's own end. Unlike packed sequences, this needs no lengths on
        the host, so CUDA graphs can record it.
        """
        rows, count, width = x.shape
        places = torch.arange(count, device=x.device).expand(rows, count)
        whole = torch.full((rows,), count, device=x.device)
        ends = (whole if lengths is None else lengths.clamp(min=1)).unsqueeze(1)
        turned = torch.where(places < ends, ends - 1 - places, places).unsqueeze(-1)  # a row read backwards
        directions = 2 if self.encoder.bidirectional else 1
        read = READERS[self.config.recurrent.cell]
        start = x.new_zeros(1, rows, width)
        state = (start, start) if self.parts == 2 else start
        last: list[Tensor] = []
        for layer in range(self.encoder.num_layers):
            ran = []
            for direction in range(directions):
                seen = x.gather(1, turned.expand_as(x)) if direction else x
                weights = self.encoder.all_weights[layer * directions + direction]
                with warnings.catch_warnings():  # cuDNN wants contiguous weights, and copies them
                    warnings.filterwarnings("ignore", "RNN module weights")
                    states = read(seen, state, weights, True, 1, 0.0, self.training, False, True)[0]
                ran.append(states.gather(1, turned.expand_as(states)) if direction else states)
            last = [ran[0].gather(1, (ends - 1).unsqueeze(-1).expand(rows, 1, width))[:, 0]]
            last += [backward[:, 0] for backward in ran[1:]]
            x = torch.cat(ran, dim=-1)
            if layer + 1 < self.encoder.num_layers:
                x = self.dropout(x)
        return x * (places < ends).unsqueeze(-1), torch.cat(last, dim=-1)

    def _write(self, target: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden (B, T, E), flat states after each token (B, T, K), attention weights (B, 1, T, S) if any."""
        check_ids(target, len(self.target_embedding.weight))
        words = self.dropout(self.target_embedding(target))  # (B,T,E)
        flat = state.hidden
        memory = state.memory.unsqueeze(1)
        keys = None if state.keys is None else state.keys.unsqueeze(1)  # (B,1,S,·)
        one, source = (Tokens.padded(n, device=target.device) for n in (1, state.memory.shape[1]))
        allowed = state.mask.allowed(one, source)
        outputs, contexts, steps, looked = [], [], [], []
        for word in words.unbind(1):
            carried = flat.unflatten(-1, (len(self.cells), self.parts, -1))  # (B, layers, parts, E)
            x, new = word, []
            if keys is not None:
                looked.append(self._attend(carried[:, -1, 0], keys, allowed))
                contexts.append((looked[-1] @ memory)[:, 0, 0])  # (B,M)
                x = torch.cat([word, contexts[-1]], dim=-1)
            for i, cell in enumerate(self.cells):
                x, pieces = self._cell(cell, x, carried[:, i])
                new.append(pieces)
                x = self.dropout(x)
            flat = torch.stack(new, dim=1).flatten(1)
            steps.append(flat)
            outputs.append(x)
        seen = [torch.stack(contexts, dim=1)] if contexts else []
        hidden = torch.tanh(self.combine(torch.cat([torch.stack(outputs, dim=1), *seen, words], dim=-1)))
        return hidden, torch.stack(steps, dim=1), torch.cat(looked, dim=2) if looked else None

    def _cell(self, cell: nn.Module, x: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        """One step of one layer: its output, and its new state, (B, parts, E)."""
        if self.parts == 1:
            hidden = cast(Tensor, cell(x, carried[:, 0]))
            return hidden, hidden.unsqueeze(1)
        hidden, memory = cell(x, (carried[:, 0], carried[:, 1]))
        return hidden, torch.stack([hidden, memory], dim=1)

    def _attend(self, query: Tensor, keys: Tensor, allowed: Tensor | None) -> Tensor:
        """Weights (B, 1, 1, S) of one decoder state over all encoder states: attention with one head."""
        assert self.score is not None
        scores = self.score.compare(self.score.queries(query[:, None, None]), keys)
        return masked_softmax(scores, allowed)
