"""The sums a plan shows: parameters by part, FLOPs of a step and of a run, bytes of training and of decoding.

Parameters are counted on the model itself, so the parts always add up to the total; products and activations
are those that `families.py` lists. The lectures' figures for two models are shown next to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from clearhead.models.build import build, preset
from clearhead.models.config import ModelConfig
from clearhead.models.convolutional import Convolutional
from clearhead.models.decoder import Decoder
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.recurrent import Recurrent
from clearhead.models.stack import Layer
from clearhead.nn.costs import FLOAT, Kind, Product, Storage
from clearhead.nn.parts import attention_kind, feedforward_kind
from clearhead.nn.positions import Position
from clearhead.planner.batch import Batch, make_batch
from clearhead.planner.devices import DEVICES
from clearhead.planner.families import LOSS, Kept, kept, products

GPUS = 8
BATCH_TOKENS = 25_000  # "approximately 25000 source tokens and 25000 target tokens"
BYTES = {"bf16": 2, "float32": 4}
CONTEXT = 512  # default tokens of a decoding state if neither positions nor lengths say more
LONG = 2**40  # more tokens than any window holds


# A word in a parameter's path inside a stack → the name of its part.
_IN_STACK = {
    "attention": "self-attention",
    "cross_attention": "cross-attention",
    "feedforward": "feed-forward",
    "convolution": "convolutions",
    "norm": "norms",
}
# The first word of the path, for parameters outside the stacks.
_OUTSIDE = {
    "patches": "patches",
    "class_token": "patches",
    "cells": "decoder recurrence",
    "first": "decoder recurrence",
    "score": "decoder attention",
    "combine": "output",
    "output": "output",
    "head": "head",
}
OTHER = "other"


@dataclass(frozen=True)
class Part:
    """A part and how many parameters it has; `shared_with` names the other parts that use them."""

    name: str
    count: int
    shared_with: tuple[str, ...] = ()


def parameters_by_part(model: nn.Module) -> tuple[Part, ...]:
    """All parameters of a model, in the order of its modules.

    >>> import clearhead
    >>> parameters_by_part(clearhead.build("tiny", layers=1))[0]
    Part(name='source embedding', count=3200, shared_with=('target embedding', 'output'))
    """
    schemes = [name for name, module in model.named_modules() if isinstance(module, Position)]
    owner: dict[int, str] = {}
    counts: dict[str, int] = {}
    shared: dict[str, dict[str, None]] = {}  # the inner dict is an ordered set
    for path, parameter in model.named_parameters(remove_duplicate=False):
        name = _part(path, schemes)
        if id(parameter) not in owner:
            owner[id(parameter)] = name
            counts[name] = counts.get(name, 0) + parameter.numel()
        elif owner[id(parameter)] != name:
            shared.setdefault(owner[id(parameter)], {})[name] = None
    return tuple(Part(name, count, tuple(shared.get(name, ()))) for name, count in counts.items())


def _part(path: str, schemes: Iterable[str]) -> str:
    """The part a parameter is counted under, from its path in the model."""
    top, *inner = path.split(".")
    if any(path.startswith(f"{scheme}.") for scheme in schemes):
        return "positions"
    if top.endswith("embedding"):
        if "norm" in inner:
            return "embedding norms"
        return "token types" if "types" in inner else top.replace("_", " ")
    if top in ("encoder", "decoder"):
        found = [name for word, name in _IN_STACK.items() if word in inner]
        return f"{top} {found[0] if found else 'recurrence'}"
    return _OUTSIDE.get(top, OTHER)


def count_idle(model: nn.Module) -> int:
    """Parameters that one token does not use: those of experts that it does not choose."""
    nets = [module.feedforward for module in model.modules() if isinstance(module, Layer)]
    return sum(feedforward_kind(net.config.kind).costs.idle(net) for net in nets if net is not None)


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
    fused_step: int  # like `step`, if a fused kernel recomputes scores in the backward pass
    flash_step: int  # like `fused_step`, if it also skips what a causal mask hides

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
        """Training FLOPs per token of the batch (with its share of the source)."""
        return self.step / self.tokens


def count_flops(model: nn.Module, batch: Batch, steps: int) -> Flops:
    """Sum every matrix product of a training run."""
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
    """Forward, backward, and the recomputation of what a fused kernel did not keep."""
    return product.forward + product.backward + (product.forward if product.recomputed else 0)


@dataclass(frozen=True)
class Memory:
    """Bytes of training, and of the decoding state."""

    weights: int
    gradients: int
    optimiser: int
    activations: dict[str, int]  # by part, kept for the backward pass
    loss: int  # scores over words or classes and their gradients, at the start of the backward pass
    state_fixed: int  # decoding: what layers keep of a sequence whatever its length
    state_per_token: int  # decoding: self-attention's keys and values of all layers, per token
    cross_per_token: int  # decoding: cross-attention's keys and values of all layers, per source token
    memory_per_token: int  # decoding: the encoder's output, per source token
    context: int  # tokens that `state` is for
    state: int  # decoding: what self-attention keeps of one sequence at full context

    @property
    def kept(self) -> int:
        """All activations."""
        return sum(self.activations.values())

    @property
    def fixed(self) -> int:
        """Everything that does not depend on the batch."""
        return self.weights + self.gradients + self.optimiser

    @property
    def training(self) -> int:
        """Everything at once: the most a step can need."""
        return self.fixed + self.kept + self.loss


def count_memory(model: nn.Module, config: ModelConfig, batch: Batch, dtype: str, on_cpu: bool) -> Memory:
    """What training takes with Adam, and what decoding keeps."""
    item = BYTES[dtype]
    tensors = list(model.parameters())
    count = sum(tensor.numel() for tensor in tensors)
    found = kept(model, batch, Storage(item, on_cpu))
    fixed, growing, cross, memory = (round(numbers * item) for numbers in _decoding(model))
    context = _context(config, batch)
    return Memory(
        weights=count * item,
        gradients=count * item,
        # Two moments in float32, a step count for each tensor, and the float32 master weights of bf16 ones.
        optimiser=count * 2 * FLOAT + len(tensors) * FLOAT + (count * FLOAT if item < FLOAT else 0),
        activations=_by_part(found),
        loss=_loss(found, item),
        state_fixed=fixed,
        state_per_token=growing,
        cross_per_token=cross,
        memory_per_token=memory,
        context=context,
        state=round(_state(model, context) * item),
    )


def _by_part(found: Iterable[Kept]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for one in found:
        parts[one.part] = parts.get(one.part, 0) + one.bytes
    return parts


def _loss(found: Iterable[Kept], item: int) -> int:
    """In addition to the kept log-probabilities: the scores, and the gradients of both."""
    return sum(one.bytes for one in found if one.part == LOSS) * (item + 2 * FLOAT) // FLOAT


def _decoding(model: nn.Module) -> tuple[float, float, float, float]:
    """Numbers kept of a sequence whatever its length, per token, per source token by cross-attention, and
    of the encoder's output.
    """
    if isinstance(model, Recurrent):
        width = model.config.width
        memory = width * (2 if model.config.recurrent.bidirectional else 1)
        return 0, len(model.cells) * model.parts * width, 0, memory
    if isinstance(model, Convolutional):
        width, kernel = model.config.width, model.config.convolution.of_decoder
        return (
            len(model.decoder) * (kernel - 1) * width,
            0,
            0,
            2 * width,
        )  # its output, and the same with the words
    if not isinstance(model, (EncoderDecoder, Decoder)) or model.config.head.kind != "none":
        return 0, 0, 0, 0
    layers = [layer for layer in model.decoder.layers if isinstance(layer, Layer)]
    fixed, growing = 0, 0.0
    for layer in layers:
        none, long, longer = (_remembered(layer.attention, tokens) for tokens in (0, LONG, 2 * LONG))
        fixed += none if longer > long else long  # a window stops growing
        growing += (longer - long) / LONG
    cross = sum(_remembered(layer.cross_attention, 1) for layer in layers)
    return fixed, growing, cross, model.config.width if isinstance(model, EncoderDecoder) else 0


def _state(model: nn.Module, context: int) -> float:
    """Numbers that the layers' self-attentions keep of a sequence of `context` tokens."""
    if isinstance(model, (EncoderDecoder, Decoder)) and model.config.head.kind == "none":
        layers = [layer for layer in model.decoder.layers if isinstance(layer, Layer)]
        return sum(_remembered(layer.attention, context) for layer in layers)
    fixed, growing, _, _ = _decoding(model)
    return fixed + growing * context


def _remembered(attention: Any, tokens: int) -> int:
    """Numbers that an attention keeps of `tokens` tokens of one sequence."""
    return 0 if attention is None else attention_kind(attention.config.kind).costs.state(attention, tokens)


def _context(config: ModelConfig, batch: Batch) -> int:
    if config.position.name == "learned" and config.family != "recurrent":
        return config.position.max_length
    return max(batch.target_length, CONTEXT)


@dataclass(frozen=True)
class Run:
    """A training run as reported in the paper."""

    name: str
    steps: int
    hours: float
    table: float  # FLOPs, as printed in the lectures


RUNS = (Run("base", 100_000, 12, 3.3e18), Run("big", 300_000, 84, 2.3e19))


@dataclass(frozen=True)
class Comparison:
    """One run of the table and our count for it."""

    name: str
    table: float  # as printed in the lectures
    hours: float
    steps: int
    hardware: float  # hours × GPUs × sustained rate
    counted: int  # our count for the paper's own run
    planned: int  # our count for the planned run

    @property
    def share(self) -> float:
        """The paper's run as we count it, relative to the table."""
        return self.counted / self.table

    @property
    def planned_share(self) -> float:
        """The planned run relative to the table."""
        return self.planned / self.table


def compare(config: ModelConfig, planned: Flops) -> Comparison | None:
    """The lectures' row for a model shaped like base or big, next to our count; None for any other.

    The table's figure is the paper's: hours × GPUs × the rate a GPU can sustain. That is what the hardware
    could have done in the time, not the arithmetic the model needs, so the count is lower by the share of the
    time in which the GPUs were not multiplying matrices.
    """
    for run in RUNS:
        original = preset(run.name)
        if _shape(config) == _shape(original):
            batch = make_batch(original, BATCH_TOKENS, None, None)
            counted = count_flops(build(original, device="meta"), batch, run.steps).run
            hardware = run.hours * 3600 * GPUS * DEVICES["p100"].float32
            return Comparison(run.name, run.table, run.hours, run.steps, hardware, counted, planned.run)
    return None


def _shape(config: ModelConfig) -> tuple[object, ...]:
    """What makes a model the paper's; vocabulary, dropout, kernel and norm placement may differ."""
    attention = config.attention.replace(width=config.width)
    heads = (attention.heads, attention.groups, attention.key_size, attention.value_size)
    dials = (attention.score, attention.bias, attention.output_bias, attention.softcap)
    feedforward = config.feedforward.replace(width=config.feedforward.width or 4 * config.width, dropout=0.0)
    depth = (config.layers, config.depth_of_decoder)
    added = config.position.name in ("sinusoidal", "learned")  # the paper trains both
    return config.family, config.width, depth, heads, dials, feedforward, added, config.norm.kind
