"""The convolutional encoder-decoder (ConvS2S, Gehring et al. 2017): no recurrence, and no self-attention.

Each layer reads a few neighbouring tokens, so a stack of L layers with kernels of K tokens sees
L·(K−1)+1 of them. With e and g the embedded source and target tokens:

    encoder   x ← √½ (x + GLU(convolution(x)))                     GLU(a, b) = a ∘ σ(b)
    decoder   v = GLU(convolution over this token and the K−1 before it)
              d = √½ (W v + g)                                     the query to the source
              c = W′ Σ_j softmax_j(d·z_j / √E) · √½ (z_j + e_j) · √S    z: the encoder's output
              x ← √½ (x + √½ (v + c))

The factors √½ preserve the variance of sums, √S that of a mean of S tokens. 1/√E is ours: the paper's
embeddings start at a tenth of the size of ours, and with ours plain products would start with one-hot
weights. (Left out are the paper's weight normalisation, a separate width inside the layers, and dividing the
encoder's gradients by the number of attentions.) The same interface as the Transformer's encoder-decoder. In
decoding, a layer keeps the last K−1 tokens that it read, however long the text gets.

Shapes: B rows, S source tokens, T target tokens, E width, K tokens of a kernel.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.models.stack import ModelOutput, as_rows
from clearhead.models.state import DecoderState, Source, refuse_foreign
from clearhead.models.unpacked import needed_source, refuse_second_source, row_by_row
from clearhead.nn.attention.problem import masked_softmax
from clearhead.nn.layers import Dropout, InputEmbedding, Output, TokenEmbedding
from clearhead.nn.look import Look
from clearhead.nn.positions import build_position
from clearhead.nn.state import TensorState, refuse_unknown_state
from clearhead.nn.tokens import Lengths, Tokens, row_lengths

HALF = math.sqrt(0.5)


class Window(TensorState):
    """The last K−1 tokens that a decoder's convolution has read; zeros before the first.

    Tokens outside the window are gone, so it cannot be truncated to an earlier length.
    """

    _slots: ClassVar = {"last": 0}

    def __init__(self, last: Tensor) -> None:
        self.last = last  # (B, K−1, E)

    def append(self, x: Tensor, tokens: Tokens) -> Tensor:
        """New tokens (B, T, E) after the last ones, (B, K−1+T, E); padding does not enter the window."""
        whole, kept = torch.cat([self.last, x], dim=1), self.last.shape[1]
        if tokens.real is None:
            self.last = whole[:, x.shape[1] :]
        else:
            chosen = tokens.real.unsqueeze(1) + torch.arange(kept, device=x.device)  # (B, K−1)
            self.last = whole.gather(1, chosen.unsqueeze(-1).expand(-1, -1, x.shape[2]))
        return whole


class ConvolutionalSource(Source):
    """The encoder's output as keys, and the values: its sum with the words, √½ (z + e)."""

    _slots: ClassVar = {**Source._slots, "values": 1}

    def __init__(self, memory: Tensor, lengths: Lengths | None, values: Tensor) -> None:
        super().__init__(memory, lengths)
        self.values = values  # (B, S, E)

    @property
    def spread(self) -> Tensor | float:
        """√S of each row's real tokens, (B, 1, 1)."""
        if self.memory_lengths is None:
            return math.sqrt(self.memory.shape[1])
        return self.memory_lengths.to(self.memory.dtype).sqrt()[:, None, None]


class GatedConvolution(nn.Module):
    """GLU(convolution(x)): twice the width from K tokens; one half gates the other."""

    def __init__(self, width: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.weights = nn.Conv1d(width, 2 * width, kernel)
        # As in the paper: half of the variance passes the gate, and dropout raises it.
        nn.init.normal_(self.weights.weight, std=math.sqrt(4 * (1 - dropout) / (kernel * width)))
        nn.init.zeros_(self.weights.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(B, K−1+T, E) to (B, T, E)."""
        return F.glu(self.weights(x.transpose(1, 2)).transpose(1, 2), dim=-1)


class EncoderLayer(nn.Module):
    """A convolution over neighbours on both sides, in its residual connection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.convolution = GatedConvolution(config.width, config.convolution.kernel, config.dropout)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """(B, S, E) to (B, S, E); `padding` (B, S, 1) is read as zeros, like positions beyond the ends."""
        read = self.dropout(x if padding is None else x.masked_fill(padding, 0.0))
        side = self.convolution.kernel // 2
        found: Tensor = self.convolution(F.pad(read, (0, 0, side, side)))
        return (x + found) * HALF


class SourceAttention(nn.Module):
    """One head that queries the source, with the current word added to its query."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, words: Tensor, source: ConvolutionalSource) -> tuple[Tensor, Tensor]:
        """The context for x (B, T, E), and the weights (B, 1, T, S)."""
        asked = (self.query(x) + words) * (HALF / math.sqrt(x.shape[-1]))
        scores = (asked @ source.memory.transpose(1, 2)).unsqueeze(1)
        asking, there = (Tokens.padded(one.shape[1], device=x.device) for one in (x, source.memory))
        weights = masked_softmax(scores, source.mask.allowed(asking, there))
        return self.output((weights[:, 0] @ source.values) * source.spread), weights


class DecoderLayer(nn.Module):
    """A convolution over this token and those before it, then attention to the source, in one residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.convolution = GatedConvolution(config.width, config.convolution.of_decoder, config.dropout)
        self.cross_attention = SourceAttention(config.width)
        self.dropout = Dropout(config.dropout)

    def new_state(self, rows: int, like: Tensor) -> Window:
        """The state before the first token."""
        return Window(like.new_zeros(rows, self.convolution.kernel - 1, like.shape[-1]))

    def forward(
        self, x: Tensor, words: Tensor, source: ConvolutionalSource, tokens: Tokens, state: Window | None
    ) -> tuple[Tensor, Tensor]:
        """(B, T, E) to (B, T, E), and the attention weights (B, 1, T, S)."""
        read = self.dropout(x)
        if state is None:
            read = F.pad(read, (0, 0, self.convolution.kernel - 1, 0))
        else:
            read = state.append(read, tokens)
        found: Tensor = self.convolution(read)
        seen, weights = self.cross_attention(found, words, source)
        return (x + (found + seen) * HALF) * HALF, weights


class Convolutional(nn.Module):
    """Source ids and target ids to scores over the target vocabulary, by convolutions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        target = TokenEmbedding(config.vocabulary, config.width, config.embedding.scale)
        source = target
        if config.source_vocabulary is not None:
            source = TokenEmbedding(config.source_vocabulary, config.width, config.embedding.scale)
        self.source_embedding, self.target_embedding = (
            InputEmbedding(
                table, build_position(config.position, width=config.width), config.embedding, config.norm
            )
            for table in (source, target)
        )
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.depth_of_decoder))
        self.output = Output(target, config.embedding)

    def forward(
        self,
        source: Tensor | None,
        target: Tensor,
        *,
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
        state: DecoderState | None = None,
        look: Look | None = None,
    ) -> ModelOutput:
        """Like the Transformer's encoder-decoder; packed ids are unpacked into rows for the convolutions."""
        if target.dim() == 1:
            return row_by_row(self, source, target, source_lengths, target_lengths, state, look)
        if state is None:
            source = needed_source(source, target, source_lengths, target_lengths)
            read = self._read(source, source_lengths)
            _, tokens, _ = as_rows(target, target_lengths, "target tokens")
        else:
            refuse_second_source(source)
            read = self._source_of(state)
            tokens, _, _ = state.next_tokens(target, target_lengths)
        hidden = self._write(target, tokens, read, state, look)
        if state is not None:
            state.advance(target, tokens)
        logits = self.output(hidden)
        if look is not None:
            look.give("encoder.output", read.memory)
            look.give("decoder.output", hidden)
            look.give("logits", logits)
        return ModelOutput(logits=logits, hidden=hidden, memory=read.memory, state=state)

    def begin(self, source: Tensor, source_lengths: Lengths | None = None) -> DecoderState:
        """Read the source once; the state from which decoding starts."""
        if source.dim() != 2:
            raise UserError("Decoding starts from padded source rows (two dimensions).")
        read = self._read(source, source_lengths)
        layers = [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]
        return DecoderState([layer.new_state(len(source), read.memory) for layer in layers], (), read)

    def _source_of(self, state: DecoderState) -> ConvolutionalSource:
        refuse_unknown_state(state, DecoderState)
        refuse_unknown_state(state.source, ConvolutionalSource)
        refuse_foreign(state, self.decoder)
        assert isinstance(state.source, ConvolutionalSource)
        return state.source

    def _read(self, source: Tensor, lengths: Lengths | None) -> ConvolutionalSource:
        ids, tokens, _ = as_rows(source, lengths, "source tokens")
        words = self.source_embedding(ids, tokens)  # (B,S,E)
        padding = None
        if lengths is not None:
            rows, count = source.shape
            real = row_lengths(lengths, rows, count, source.device)
            padding = (tokens.position >= real.unsqueeze(1)).unsqueeze(-1)
        x = words
        for layer in self.encoder:
            x = layer(x, padding)
        return ConvolutionalSource(x, lengths, (x + words) * HALF)

    def _write(
        self,
        target: Tensor,
        tokens: Tokens,
        source: ConvolutionalSource,
        state: DecoderState | None,
        look: Look | None,
    ) -> Tensor:
        """The last hidden states, (B, T, E)."""
        words: Tensor = self.target_embedding(target, tokens)
        x = words
        for i, layer in enumerate(self.decoder):
            x, weights = layer(x, words, source, tokens, None if state is None else state.own[i])
            if look is not None:
                look.give(f"decoder.{i}.cross.weights", weights)
        return x
