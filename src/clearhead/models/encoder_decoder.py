"""The original Transformer: an encoder reads the source, a decoder writes the target.

One `forward` serves training (the whole target in one masked pass) and decoding
(a few new tokens and a state): a state only changes where tokens start and what is
remembered. With a head it labels texts as BART does: the text goes to both sides,
and the decoder's last token, which has seen all of it, gives the class or the
number. (BART's decoder reads it shifted right: pass it in shifted for the same
numbers.)

Shapes: B rows, S source tokens, T target tokens, E model width.
"""

from __future__ import annotations

from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.models.heads import Head
from clearhead.models.positions import input_embedding
from clearhead.models.stack import (
    ModelOutput,
    Stack,
    Surroundings,
    as_rows,
    new_extras,
    refuse_unlike,
    scored,
)
from clearhead.models.state import DecoderState, Source, refuse_foreign
from clearhead.nn.attention.masks import Causal, Everything, Mask
from clearhead.nn.extras import Extras
from clearhead.nn.layers import Output, TokenEmbedding
from clearhead.nn.look import Look
from clearhead.nn.tokens import Lengths, Tokens


class EncoderDecoder(nn.Module):
    """Source ids and target ids to scores over the target vocabulary, or to the head's output for a text."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        target = TokenEmbedding(config.vocabulary, config.width, config.embedding.scale)
        source = target
        if config.source_vocabulary is not None:
            source = TokenEmbedding(config.source_vocabulary, config.width, config.embedding.scale)
        self.source_embedding = input_embedding(config, source)
        self.target_embedding = input_embedding(config, target)
        self.encoder = Stack(config, config.layers, causal=False)
        self.decoder = Stack(config, config.depth_of_decoder, causal=True, cross=config.cross_attention)
        self.causal = Causal() if config.causal_mask else Everything()
        self.projects = config.head.kind == "none"  # can return hidden states without scores
        if self.projects:
            self.output = Output(target, config.embedding)
        else:
            self.head = Head(config, None)

    def forward(
        self,
        source: Tensor | None,
        target: Tensor,
        *,
        source_lengths: Lengths | None = None,
        target_lengths: Lengths | None = None,
        state: DecoderState | None = None,
        look: Look | None = None,
        scores: bool = True,
    ) -> ModelOutput:
        """Scores for the token after each target token; with a head, those of the text and `pooled` (B, E).

        Training: source and the target shifted right. Decoding: `state = model.begin(source)`, then
        `forward(None, new_tokens, state=state)` as often as needed. Packed ids (one dimension) need lengths.
        With `scores=False` the caller computes scores from `projection`.
        """
        if state is not None:
            if source is not None:
                raise UserError("The state already holds the source: give source=None together with a state.")
            return self._continue(target, target_lengths, state, look)
        if source is None:
            raise UserError("Without a state, the model needs a source.")
        refuse_unlike(source, target, source_lengths, target_lengths)
        extras = new_extras(self.encoder, self.decoder)
        memory, memory_tokens, memory_mask = self._read(source, source_lengths, look, extras)
        ids, tokens, mask = as_rows(target, target_lengths, "target tokens")
        around = Surroundings(
            tokens, self.causal & mask, memory=memory, memory_tokens=memory_tokens, memory_mask=memory_mask
        )
        x = self.decoder(self.target_embedding(ids, tokens), around, None, look, extras)
        if target.dim() == 1:
            memory = memory.squeeze(0)
        if self.config.head.kind == "none":
            found = scored(self.output, x.squeeze(0) if target.dim() == 1 else x, look, scores)
        else:
            found = self.head.output(x, tokens, look)
        found.memory, found.extras = memory, extras
        return found

    def encode(
        self, source: Tensor, source_lengths: Lengths | None = None, look: Look | None = None
    ) -> Tensor:
        """The encoder's output, (B, S, E), or (N, E) for packed source."""
        memory, _, _ = self._read(source, source_lengths, look)
        return memory.squeeze(0) if source.dim() == 1 else memory

    def begin(
        self, source: Tensor, source_lengths: Lengths | None = None, look: Look | None = None
    ) -> DecoderState:
        """Read the source once; the state from which decoding starts."""
        if source.dim() != 2:
            raise UserError("Decoding starts from padded source rows (two dimensions).")
        memory, _, _ = self._read(source, source_lengths, look)
        return self.decoder.new_state(Source(memory, source_lengths))

    def _read(
        self, source: Tensor, lengths: Lengths | None, look: Look | None, extras: Extras | None = None
    ) -> tuple[Tensor, Tokens, Mask]:
        ids, tokens, mask = as_rows(source, lengths, "source tokens")
        around = Surroundings(tokens, mask)
        x = self.encoder(self.source_embedding(ids, tokens), around, look=look, extras=extras)
        return x, tokens, mask

    def _continue(
        self, target: Tensor, lengths: Lengths | None, state: DecoderState, look: Look | None
    ) -> ModelOutput:
        refuse_foreign(state, self.decoder.layers)
        if state.source is None:
            raise UserError("The state holds no source: make it with model.begin(source).")
        if target.dim() != 2:
            raise UserError("Decoding with a state takes rows of tokens (two dimensions).")
        sources, source_count = state.source.memory.shape[:2]
        shared = len(target) != sources  # a beam's rows share one memory
        asking = Tokens.padded(target.numel() // sources, device=target.device) if shared else None
        tokens, keys, visible = state.next_tokens(target, lengths)
        around = Surroundings(
            tokens,
            self.causal & visible,
            keys,
            memory=state.source.memory,
            memory_tokens=Tokens.padded(source_count, device=target.device),
            memory_mask=state.source.mask,
            asking=asking,
        )
        extras = new_extras(self.decoder)
        x = self.decoder(self.target_embedding(target, tokens), around, state, look, extras)
        state.advance(target, tokens)
        found = scored(self.output, x, look)
        found.memory, found.state, found.extras = state.source.memory, state, extras
        return found
