"""The decoder-only model (GPT, Llama): each token sees those before it and predicts the next.

With a head it labels texts instead: the last token, which has seen all others, gives the class or number.

Shapes: B rows, T tokens, E model width.
"""

from __future__ import annotations

from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.models.heads import Head
from clearhead.models.positions import input_embedding
from clearhead.models.stack import ModelOutput, Stack, Surroundings, as_rows, new_extras, scored
from clearhead.models.state import DecoderState, refuse_foreign
from clearhead.nn.attention.masks import Causal, Everything, Mask
from clearhead.nn.layers import Output, TokenEmbedding
from clearhead.nn.look import Look
from clearhead.nn.tokens import Lengths


class Decoder(nn.Module):
    """Token ids to scores for the next token at each position, or to the head's output for the text."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        table = TokenEmbedding(config.vocabulary, config.width, config.embedding.scale)
        self.embedding = input_embedding(config, table)
        self.decoder = Stack(config, config.layers, causal=True)
        self.projects = config.head.kind == "none"  # can return hidden states without scores
        if self.projects:
            self.output = Output(table, config.embedding)
        else:
            self.head = Head(config, None)

    def begin(self) -> DecoderState:
        """An empty past: the state from which step-by-step decoding starts."""
        return self.decoder.new_state()

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Lengths | None = None,
        state: DecoderState | None = None,
        mask: Mask | None = None,
        look: Look | None = None,
        scores: bool = True,
    ) -> ModelOutput:
        """Scores for the token after each given one; with a head, those of the text and `pooled` (B, E).

        `mask` replaces the causal mask (by a `Prefix` or a `Window`, say); padding is hidden in any case.
        `scores=False`: the caller computes them from `projection`. With a state, `tokens` are the next ones
        of each row, and `lengths` how many of them are real.
        """
        seen = (Causal() if self.config.causal_mask else Everything()) if mask is None else mask
        if state is None:
            ids, where, padding = as_rows(tokens, lengths)
            around = Surroundings(where, seen & padding)
        else:
            if tokens.dim() != 2:
                raise UserError("Decoding with a state takes rows of tokens (two dimensions).")
            refuse_foreign(state, self.decoder.layers)
            ids = tokens
            where, keys, visible = state.next_tokens(ids, lengths)
            around = Surroundings(where, seen & visible, keys)
        extras = new_extras(self.decoder)
        x = self.decoder(self.embedding(ids, around.tokens), around, state, look, extras)
        if state is not None:
            state.advance(ids, around.tokens)
        if self.config.head.kind != "none":
            return self.head.output(x, around.tokens, look, extras)
        if tokens.dim() == 1:
            x = x.squeeze(0)
        found = scored(self.output, x, look, scores)
        found.state, found.extras = state, extras
        return found
