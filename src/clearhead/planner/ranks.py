"""What a training step costs each of many ranks, by layout: memory, traffic, time, and whether it fits.

Weights are counted on the model, part by part as `training/distributed/shard.py` shards them; collectives by
what a ring sends: (n−1)/n of the bytes for a gather or a reduce-scatter among n ranks, twice that for a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from clearhead.base.errors import UserError
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention.multihead import MultiHeadAttention
from clearhead.nn.costs import FLOAT
from clearhead.nn.experts import Experts
from clearhead.nn.layers import FeedForward
from clearhead.planner.batch import Batch
from clearhead.planner.devices import USABLE, UTILISATION, Device
from clearhead.planner.layout import Layout
from clearhead.planner.totals import BYTES, Flops, Memory

HOST = 8  # ranks of one machine
INSIDE, BETWEEN = (
    4.5e11,
    5e10,
)  # bytes/s that a rank sends to one on its machine (NVLink), to another (400 Gbit/s)
MOST = 1 << 20  # ranks
_CUT = {
    "query": True,
    "key": True,
    "value": True,
    "inner": True,
    "gate": True,
    "output": False,
}  # and its bias


@dataclass(frozen=True)
class Weights:
    """How many weights there are, by what splits them."""

    cut: int  # by tensor parallelism
    uncut: int
    experts: int  # of the uncut ones, those spread by expert parallelism: a rank's share
    largest_layer: int  # of all weights, before tensor parallelism splits any
    around: int  # outside the layers


@dataclass(frozen=True)
class Spread:
    """A plan on one rank of a layout."""

    layout: str
    accumulate: int  # batches of a step, split over the ranks with different data
    shards: int  # bytes: weights, gradients and moments that are always here
    gathered: int  # bytes: layers gathered for their passes, with their gradients
    activations: int  # bytes, with those of the loss
    traffic: int  # bytes that a rank sends in a step
    traffic_between: int  # of these, to other machines
    compute_seconds: float
    step_seconds: float
    fits: bool

    @property
    def memory(self) -> int:
        """Everything at once."""
        return self.shards + self.gathered + self.activations


def layouts_for(ranks: int, asked: str | None) -> list[Layout]:
    """The requested layout, followed by the usual ones."""
    if not 2 <= ranks <= MOST:
        raise UserError(f"A plan's ranks must be 2 to {MOST:,}, not {ranks}.")
    found = [Layout.parse(asked, ranks)] if asked is not None else []
    found += [Layout(ddp=ranks), Layout(fsdp=ranks)]
    found += [Layout(fsdp=ranks // tp, tp=tp) for tp in (2, 4, 8) if ranks % tp == 0]
    found += [Layout(ddp=ranks // ep, ep=ep) for ep in (2, 4, 8) if ranks % ep == 0]
    if ranks > HOST and ranks % HOST == 0:
        found.append(Layout(ddp=ranks // HOST, fsdp=HOST))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Job:
    """The work to spread: a model and one step of its training, on a number of devices of one kind."""

    model: nn.Module
    batch: Batch
    flops: Flops
    memory: Memory
    dtype: str
    device: Device


def spread(job: Job, layout: Layout) -> Spread | None:
    """What one rank of a layout does; None if the model's heads, widths or experts cannot be split like this.

    A step takes as few passes as fit into memory.
    """
    if layout.tp > 1 and not _divides(job.model, layout.tp):
        return None
    if layout.ep > 1 and not _deals(job.model, layout):
        return None
    passes = 1
    while True:
        found = _spread(job, layout, passes)
        if found.fits or layout.data * passes >= job.batch.rows:
            return found
        passes *= 2


def _spread(job: Job, layout: Layout, passes: int) -> Spread:
    weights, item = count_weights(job.model, layout.ep), BYTES[job.dtype]
    mine = weights.cut // layout.tp + weights.uncut  # before sharding
    layer = weights.largest_layer // layout.tp  # approximately: norms are small
    if layout.shards:
        shards = 4 * FLOAT * mine // layout.fsdp  # weight, gradient, two moments, all in float32
        # the parts around the layers stay gathered; of the layers this one and the next, and a gradient
        gathered = item * (2 * weights.around + 3 * layer) + FLOAT * (weights.around + layer)
    else:
        shards, gathered = job.memory.fixed, 0
    width: int = job.model.config.width  # type: ignore[union-attr, assignment]
    tokens = -(-(job.batch.source_tokens + job.batch.target_tokens) // layout.data)
    passing = item * width * tokens * _sublayers(job.model)  # the inputs of sub-layers
    slices = (job.memory.kept + job.memory.loss) // (layout.data * layout.tp)
    activations = (slices + (passing if layout.tp > 1 else 0)) // passes
    travelling = item * _choices(job.model, job.batch) // layout.data
    sent = dict(_traffic(layout, weights, item, passing, passes))
    sent["ep"] += 4 * (layout.ep - 1) * travelling // layout.ep  # there and back, and so do their gradients
    away = [name for name in sent if _leaves_the_host(layout, name)]
    seconds = {name: count / (BETWEEN if name in away else INSIDE) for name, count in sent.items()}
    peak = job.device.peak(job.dtype)
    assert peak is not None  # the caller has chosen a supported number format
    compute = job.flops.step / (layout.ranks * peak * UTILISATION)
    return Spread(
        layout=str(layout),
        accumulate=layout.data * passes,
        shards=shards,
        gathered=gathered,
        activations=activations,
        traffic=sum(sent.values()),
        traffic_between=sum(sent[name] for name in away),
        compute_seconds=compute,
        # shards are transferred while layers compute; the others are waited for
        step_seconds=max(compute, seconds["fsdp"]) + seconds["ddp"] + seconds["ep"] + seconds["tp"],
        fits=shards + gathered + activations <= job.device.memory * USABLE,
    )


def count_weights(model: nn.Module, ep: int = 1) -> Weights:
    """A model's weights, by what splits them; experts: those of one of `ep` ranks."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    dealt = {
        weight: weight.numel() // ep
        for module in model.modules()
        if isinstance(module, Experts)
        for weight in module.stacked_weights()
    }

    def count(module: nn.Module) -> int:
        return sum(dealt.get(weight, weight.numel()) for weight in module.parameters())

    every, sizes = count(model), [count(layer) for layer in layers]
    cut = sum(number for layer in layers for number in _cut(layer))
    return Weights(cut, every - cut, sum(dealt.values()), max(sizes, default=0), every - sum(sizes))


def _cut(layer: Layer) -> Iterator[int]:
    """Numbers in the products that tensor parallelism splits."""
    for part in (layer.attention, layer.cross_attention, layer.feedforward):
        for name, with_bias in _CUT.items():
            product = getattr(part, name, None)
            if isinstance(product, nn.Linear):
                yield product.weight.numel()
                if with_bias and product.bias is not None:
                    yield product.bias.numel()


def _divides(model: nn.Module, ranks: int) -> bool:
    attentions = [module.config for module in model.modules() if isinstance(module, MultiHeadAttention)]
    inner = [module.inner.out_features for module in model.modules() if isinstance(module, FeedForward)]
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    known = MultiHeadAttention, FeedForward
    if not all((type(one.attention), type(one.feedforward)) == known for one in layers):
        return False
    counts = [*inner, *(one.heads for one in attentions), *(one.groups for one in attentions)]
    return bool(attentions) and all(count % ranks == 0 for count in counts)


def _deals(model: nn.Module, layout: Layout) -> bool:
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    rows = [weights.shape[1] for module in experts for weights in module.stacked_weights()]
    dealt = all(module.config.experts % layout.ep == 0 for module in experts)
    return bool(experts) and dealt and all(count % layout.fsdp == 0 for count in rows)


def _choices(model: nn.Module, batch: Batch) -> int:
    """Numbers sent to all experts in a step: a row of the model's width for each choice."""
    found = 0
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        tokens = batch.source_tokens if stack.name == "encoder" else batch.target_tokens
        for layer in stack.layers:
            part = layer.feedforward
            if isinstance(part, Experts):
                found += tokens * part.config.chosen * part.output.shape[1]
    return found


def _sublayers(model: nn.Module) -> int:
    """The sub-layers one token passes: half of all if a source and a target share them."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    parts = sum(1 + (layer.feedforward is not None) + (layer.cross_attention is not None) for layer in layers)
    two = any(layer.cross_attention is not None for layer in layers)
    return parts // 2 if two else parts


def _traffic(
    layout: Layout, weights: Weights, item: int, passing: int, passes: int
) -> Iterator[tuple[str, int]]:
    """Bytes that a rank sends in a step, by mesh dimension. `passing`: the inputs of sub-layers."""
    ddp, fsdp, tp = layout.ddp, layout.fsdp, layout.tp
    mine = weights.cut // tp + weights.uncut
    yield "ddp", 2 * (ddp - 1) * FLOAT * mine // (ddp * fsdp)  # gradients are summed in float32
    # each pass gathers weights twice, and scatters gradients
    yield "fsdp", passes * (fsdp - 1) * (2 * item + FLOAT) * mine // fsdp
    # gradients of all but experts are summed; the experts' tokens come on top
    yield "ep", 2 * (layout.ep - 1) * FLOAT * (mine - weights.experts) // (layout.ep * fsdp)
    # gathered and scattered in both passes; gradients of uncut weights are summed
    yield "tp", 4 * (tp - 1) * passing // tp + 2 * (tp - 1) * FLOAT * weights.uncut // (tp * fsdp)


def _leaves_the_host(layout: Layout, name: str) -> bool:
    """Do the ranks of a dimension span several machines? Neighbours in `tp` are the closest."""
    inside = layout.ep * layout.tp
    return {"tp": layout.tp, "ep": inside, "fsdp": layout.fsdp * inside, "ddp": layout.ranks}[name] > HOST
