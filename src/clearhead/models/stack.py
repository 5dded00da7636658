"""A stack of Transformer layers, for every Transformer family, with its inputs and outputs.

A layer's forward is the paper's figure, read from below:

    x ← residual(self-attention)
    x ← residual(cross-attention)      only in the decoder of an encoder-decoder
    x ← residual(feed-forward)

Shapes: R rows, T tokens, S source tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.models.positions import LayerPositions
from clearhead.models.state import DecoderState, Source
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.attention.masks import Everything, Mask, Padding
from clearhead.nn.extras import Extras
from clearhead.nn.layers import FeedForward, Output, Residual, build_norm, may_fuse
from clearhead.nn.look import Look
from clearhead.nn.no_residual import NoResidual
from clearhead.nn.parts import build_attention, build_feedforward
from clearhead.nn.pending import Pending
from clearhead.nn.state import State
from clearhead.nn.tokens import Boundaries, Lengths, Tokens, row_lengths


@dataclass
class ModelOutput:
    """The result of a forward pass; fields that a model does not have are None."""

    logits: Tensor | None = None  # (B, T, vocabulary), (N, vocabulary) packed, (B, classes), (B, 1): a number
    hidden: Tensor | None = None  # last hidden states, (B, T, E) or (N, E)
    pooled: Tensor | None = None  # one vector for each text, (B, E)
    memory: Tensor | None = None  # the encoder's output in an encoder-decoder
    state: Any = None  # the state from which decoding continues
    extras: Extras | None = None  # in training, from parts with auxiliary outputs
    # what turns `hidden` into scores if there are none: a weight (vocabulary, E) and a bias
    projection: tuple[Tensor, Tensor | None] | None = None


def scored(output: Output, x: Tensor, look: Look | None, scores: bool = True) -> ModelOutput:
    """Scores over the vocabulary for the last hidden states; or these and the projection to scores."""
    if not scores:
        return ModelOutput(hidden=output.scaled(x), projection=(output.weight, output.bias))
    logits = output(x)
    if look is not None:
        look.give("logits", logits)
    return ModelOutput(logits=logits, hidden=x)


def as_rows(ids: Tensor, lengths: Lengths | None, what: str = "tokens") -> tuple[Tensor, Tokens, Mask]:
    """ids (R, T), their positions, and the mask that hides padding."""
    if ids.dim() == 1:
        if lengths is None:
            raise UserError(f"Packed {what} (one dimension) need the length of each sequence: give lengths.")
        if isinstance(lengths, Boundaries):
            return ids.unsqueeze(0), Tokens.bounded(lengths, ids.shape[0]), Everything()
        tokens = Tokens.packed(lengths, device=ids.device)
        if tokens.count != ids.shape[0]:
            raise UserError(f"The lengths add up to {tokens.count}, but there are {ids.shape[0]} {what}.")
        return ids.unsqueeze(0), tokens, Everything()
    if ids.dim() != 2:
        raise UserError(f"{what.capitalize()} have one dimension (packed) or two (rows), not {ids.dim()}.")
    if lengths is None:
        return ids, Tokens.padded(ids.shape[1], device=ids.device), Everything()
    real = row_lengths(lengths, len(ids), ids.shape[1], ids.device)
    return ids, Tokens.padded(ids.shape[1], device=ids.device, real=real), Padding(real)


def refuse_unlike(
    source: Tensor, target: Tensor, source_lengths: Lengths | None, target_lengths: Lengths | None
) -> None:
    """Refuse sources and targets that do not match row by row, or packed sequence by sequence."""
    if source.dim() != target.dim():
        raise UserError("Source and target must be both packed (one dimension) or both in rows (two).")
    if source.dim() == 2 and len(source) != len(target):
        raise UserError(f"There are {len(source)} source rows but {len(target)} target rows.")
    if source.dim() == 1 and source_lengths is not None and target_lengths is not None:
        sources, targets = len(source_lengths), len(target_lengths)
        if sources != targets:
            raise UserError(f"There are {sources} packed sources but {targets} packed targets.")


@dataclass(frozen=True)
class Surroundings:
    """What all layers share in one pass: the positions of tokens, and what they may see."""

    tokens: Tokens
    mask: Mask
    keys: Tokens | None = None  # with a state: the positions of all keys, past and new; None: as `tokens`
    memory: Tensor | None = None  # (R, S, E) the encoder's output
    memory_tokens: Tokens | None = None
    memory_mask: Mask | None = None
    asking: Tokens | None = None  # queries of the memory, if several rows share a source; None: `tokens`
    # What is computed once for all layers of this one pass. A layer that is recomputed in the backward pass
    # needs a fresh one, or it would skip what it computed the first time.
    memo: dict[Hashable, Any] = field(default_factory=dict)


class Layer(nn.Module):
    """Self-attention, cross-attention if any, feed-forward; a residual connection around each."""

    def __init__(self, config: ModelConfig, attention: Any, cross_attention: Any, feedforward: Any) -> None:
        """The parts are rows of `nn/parts.py`, or anything with the interface described there."""
        super().__init__()
        around = Residual if config.residual else NoResidual
        self.attention = attention
        self.attention_residual = around(config.width, config.norm, config.dropout)
        self.cross_attention = cross_attention
        self.cross_residual = None
        if cross_attention is not None:
            self.cross_residual = around(config.width, config.norm, config.dropout)
        self.feedforward = feedforward
        self.feedforward_residual: Any = None
        if feedforward is not None:
            self.feedforward_residual = around(config.width, config.norm, config.dropout)

    @property
    def gives_extras(self) -> bool:
        """Whether a part has auxiliary outputs."""
        parts = (self.attention, self.cross_attention, self.feedforward)
        return any(getattr(part, "gives_extras", False) for part in parts)

    def forward(
        self,
        x: Any,
        around: Surroundings,
        own: State | None = None,
        cross: State | None = None,
        look: Look | None = None,
        extras: Extras | None = None,
    ) -> Tensor:
        """(R, T, E) to (R, T, E). `own` and `cross` are this layer's states in step-by-step decoding."""

        looks = {name: look.at(name) if look else None for name in ("self", "cross", "feedforward")}

        def more(part: Any, place: str, residual: Any, **given: Any) -> dict[str, Any]:
            if type(part) in (MultiHeadAttention, FeedForward) and residual.takes_apart(x, looks[place]):
                return {"apart": True}
            if not getattr(part, "gives_extras", False):
                return {}
            return given if extras is None else {"extras": extras.at(place), **given}

        def attend_to_self(y: Tensor) -> Any:
            return self.attention(
                y,
                mask=around.mask,
                queries=around.tokens,
                keys=around.keys,
                state=own,
                memo=around.memo,
                look=looks["self"],
                **more(self.attention, "self", self.attention_residual),
            )

        def attend_to_memory(y: Tensor) -> Any:
            asking = around.tokens if around.asking is None else around.asking
            # Rows that share a source query it as if they were more queries of one row.
            found = self.cross_attention(
                y if around.asking is None else y.reshape(-1, asking.count, y.shape[-1]),
                around.memory,
                mask=around.memory_mask,
                queries=asking,
                keys=around.memory_tokens,
                state=cross,
                memo=around.memo,
                look=looks["cross"],
                **more(self.cross_attention, "cross", self.cross_residual),
            )
            return found if around.asking is None else found.view_as(y)

        def feed(y: Tensor) -> Any:
            given = more(self.feedforward, "feedforward", self.feedforward_residual, tokens=around.tokens)
            return self.feedforward(y, **given)

        x = self.attention_residual(x, attend_to_self, looks["self"])
        if self.cross_residual is not None:
            x = self.cross_residual(x, attend_to_memory, looks["cross"])
        if self.feedforward_residual is not None:
            x = self.feedforward_residual(x, feed, looks["feedforward"])
        if look is not None:
            look.give("output", x)
        return x  # type: ignore[no-any-return]  # while sums are pending, one of them


class Stack(nn.Module):
    """Layers on top of each other, and a final norm if the config has one.

    `layer_pattern`, `Look` and `Extras` call a causal stack "decoder" and any other "encoder".
    """

    def __init__(self, config: ModelConfig, layers: int, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        positions = LayerPositions(config, causal)
        self.name = "decoder" if causal else "encoder"
        self.layers = nn.ModuleList()
        for number in range(layers):
            own, source, feed = config.parts_of(self.name, number)
            attention = build_attention(own, positions.of(own), causal)
            looking = build_attention(source) if cross else None
            self.layers.append(Layer(config, attention, looking, build_feedforward(feed, config.width)))
        self.gives_extras = any(layer.gives_extras for layer in self.layers)
        # in training: keep what goes into a layer, and compute it again for gradients
        self.recomputes = False
        final = config.norm.place == "pre" if config.norm.final is None else config.norm.final
        self.norm = build_norm(config.norm, config.width) if final else None

    def new_state(self, source: Source | None = None) -> DecoderState:
        """An empty past: the state of each layer's parts before the first token."""
        layers = [layer for layer in self.layers if isinstance(layer, Layer)]
        cross = [layer.cross_attention.new_memory() for layer in layers if layer.cross_attention is not None]
        return DecoderState([layer.attention.new_state() for layer in layers], cross, source)

    def forward(
        self,
        x: Any,
        around: Surroundings,
        state: DecoderState | None = None,
        look: Look | None = None,
        extras: Extras | None = None,
    ) -> Tensor:
        """(R, T, E), the embedded tokens, through all layers; `look` and `extras` are the whole model's."""
        if look is not None:
            look = look.at(self.name)
            look.give("embedding", x)
        residual: Any = self.layers[0].attention_residual
        if may_fuse(self.norm or residual.norm, x, look):  # fused norms take in sums, or also return them
            x = Pending(x)
        for i, layer in enumerate(self.layers):
            own = None if state is None else state.own[i]
            cross = None if state is None or not state.cross else state.cross[i]
            more = None if extras is None else extras.at(f"{self.name}.{i}")
            seen = look.at(i) if look else None
            if self.recomputes and self.training and torch.is_grad_enabled() and state is None:
                x = checkpoint(_afresh, layer, x, around, seen, more, use_reentrant=False)
            else:
                x = layer(x, around, own, cross, seen, more)
        if isinstance(x, Pending):
            x = x.total() if self.norm is None else x.normed(self.norm, stream=False)[0]
        elif self.norm is not None:
            x = self.norm(x)
        if look is not None:
            look.give("output", x)
        return x  # type: ignore[no-any-return]


def _afresh(layer: Layer, x: Any, around: Surroundings, look: Look | None, extras: Extras | None) -> Any:
    """Run a layer with its own memo, so everything it computed the first time is recomputed.

    What it reports then comes after the objective has been computed, so nothing counts twice.
    """
    return layer(x, replace(around, memo={}), None, None, look, extras)


def recompute_activations(model: nn.Module) -> None:
    """From now on a model in training stores the input of each layer, and recomputes the rest backward.

    Activations then take memory for one layer, and a step takes a third more time; gradients are the same.
    """
    for module in model.modules():
        if isinstance(module, Stack):
            module.recomputes = True


def new_extras(*stacks: Stack) -> Extras | None:
    """Collects the parts' auxiliary outputs; None outside training, or if no part has any."""
    return Extras() if any(stack.training and stack.gives_extras for stack in stacks) else None
