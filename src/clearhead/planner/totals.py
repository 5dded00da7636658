"""The sums a plan shows: FLOPs of a step and of a run, bytes of training and of decoding.

Takes the products and activations the families list and adds them up. Knows
nothing about devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from clearhead.models.config import ModelConfig
from clearhead.models.decoder import Decoder
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.recurrent import Recurrent
from clearhead.models.stack import Layer
from clearhead.nn.attention import MultiHeadAttention
from clearhead.planner.activations import FLOAT, LOSS, Kept, Storage
from clearhead.planner.batch import Batch
from clearhead.planner.families import kept, products
from clearhead.planner.flops import Kind, Product

BYTES = {"bf16": 2, "float32": 4}
CONTEXT = 512  # tokens a decoding state is shown for where neither positions nor lengths say more


@dataclass(frozen=True)
class Flops:
    """FLOPs of matrix products, with attention over all queries × keys, masked or not."""

    forward: int  # of one step
    backward: int
    steps: int
    tokens: int  # `batch_tokens` of one step
    by_part: dict[str, int]  # forward and backward
    scores: int  # forward and backward: products that grow with queries × keys
    vocabulary: int  # forward and backward: hidden states to scores over words
    fused_step: int  # as `step`, where a fused kernel computes scores again on the way back
    flash_step: int  # as `fused_step`, where it also skips what a causal mask hides

    @property
    def step(self) -> int:
        """One training step: forward and backward."""
        return self.forward + self.backward

    @property
    def run(self) -> int:
        """The whole training."""
        return self.step * self.steps

    @property
    def per_token(self) -> float:
        """Training FLOPs for each token of the batch (with its share of the source)."""
        return self.step / self.tokens


def count_flops(model: nn.Module, batch: Batch, steps: int) -> Flops:
    """Every matrix product of a training run, added up."""
    found = products(model, batch)
    by_part: dict[str, int] = {}
    for product in found:
        by_part[product.part] = by_part.get(product.part, 0) + product.forward + product.backward
    return Flops(
        forward=sum(product.forward for product in found),
        backward=sum(product.backward for product in found),
        steps=steps,
        tokens=batch.tokens,
        by_part=by_part,
        scores=_of_kind(found, "scores"),
        vocabulary=_of_kind(found, "vocabulary"),
        fused_step=sum(_fused(product) for product in found),
        flash_step=round(sum(_fused(product) * product.visible for product in found)),
    )


def _of_kind(found: Iterable[Product], kind: Kind) -> int:
    return sum(product.forward + product.backward for product in found if product.kind == kind)


def _fused(product: Product) -> int:
    """Forward, backward, and once more what a fused kernel did not keep."""
    return product.forward + product.backward + (product.forward if product.recomputed else 0)


@dataclass(frozen=True)
class Memory:
    """Bytes of training, and of what decoding remembers."""

    weights: int
    gradients: int
    optimiser: int
    activations: dict[str, int]  # by part, kept for the backward pass
    loss: int  # scores over words or classes and their gradients, at the moment the backward pass begins
    state_per_token: int  # decoding: self-attention's keys and values of all layers, one token
    cross_per_token: int  # decoding: cross-attention's keys and values of all layers, one source token
    memory_per_token: int  # decoding: the encoder's output, one source token
    context: int  # tokens that `state` below is shown for

    @property
    def kept(self) -> int:
        """All activations."""
        return sum(self.activations.values())

    @property
    def fixed(self) -> int:
        """What does not depend on the batch."""
        return self.weights + self.gradients + self.optimiser

    @property
    def training(self) -> int:
        """Everything at once: the most a step can need."""
        return self.fixed + self.kept + self.loss

    @property
    def state(self) -> int:
        """Self-attention's keys and values of one sequence at full context."""
        return self.state_per_token * self.context


def count_memory(model: nn.Module, config: ModelConfig, batch: Batch, dtype: str, on_cpu: bool) -> Memory:
    """What training takes with Adam, and what decoding remembers."""
    item = BYTES[dtype]
    tensors = list(model.parameters())
    count = sum(tensor.numel() for tensor in tensors)
    found = kept(model, batch, Storage(item, on_cpu))
    state, cross, memory = _decoding(model, item)
    return Memory(
        weights=count * item,
        gradients=count * item,
        # Two moments in float32, a step count for each tensor, and the float32 weights that bf16 ones round.
        optimiser=count * 2 * FLOAT + len(tensors) * FLOAT + (count * FLOAT if item < FLOAT else 0),
        activations=_by_part(found),
        loss=_loss(found, item),
        state_per_token=state,
        cross_per_token=cross,
        memory_per_token=memory,
        context=_context(config, batch),
    )


def _by_part(found: Iterable[Kept]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for one in found:
        parts[one.part] = parts.get(one.part, 0) + one.bytes
    return parts


def _loss(found: Iterable[Kept], item: int) -> int:
    """Beside the kept log-probabilities: the scores, and the gradients of both."""
    return sum(one.bytes for one in found if one.part == LOSS) * (item + 2 * FLOAT) // FLOAT


def _decoding(model: nn.Module, item: int) -> tuple[int, int, int]:
    """Bytes for each token: own keys and values, cross keys and values, the encoder's output."""
    if isinstance(model, Recurrent):
        width = model.config.width
        memory = width * (2 if model.config.recurrent.bidirectional else 1)
        return len(model.cells) * model.parts * width * item, 0, memory * item
    if not isinstance(model, (EncoderDecoder, Decoder)) or model.config.head.kind != "none":
        return 0, 0, 0
    own = cross = 0
    for layer in model.decoder.layers:
        assert isinstance(layer, Layer)
        own += _keys_and_values(layer.attention)
        cross += 0 if layer.cross_attention is None else _keys_and_values(layer.cross_attention)
    memory = model.config.width if isinstance(model, EncoderDecoder) else 0
    return own * item, cross * item, memory * item


def _keys_and_values(attention: MultiHeadAttention) -> int:
    """Numbers one token leaves behind in one attention layer."""
    return attention.key.out_features + attention.value.out_features


def _context(config: ModelConfig, batch: Batch) -> int:
    if config.position.name == "learned" and config.family != "recurrent":
        return config.position.max_length
    return max(batch.target_length, CONTEXT)
