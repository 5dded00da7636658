"""How much an input token matters to an output token, by the number of steps between them.

For each label y_t of some validation examples, the norm of ∂ log p(y_t) / ∂ e_s, with e_s the embedding
of input token s. The distance counts the steps of a recurrence from one to the other:

    source s of S, target t        S − s + t       the rest of the source, and the output before it
    one sequence, t and s          |t − s| + 1
    one answer for a whole text    T − s           to its end

In a recurrence the gradient passes that many cells, and vanishes; attention reaches any token in one step.

Shapes: R rows, S input tokens, T labels, V classes, E width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clearhead.data.batch import Batch, counted
from clearhead.data.encoding import Encoding
from clearhead.data.load import Loader
from clearhead.jobs.prepare import Prepared
from clearhead.training.config import TrainConfig
from clearhead.training.objectives import run_model

POSITIONS = 24  # labels per batch, evenly spaced, whose gradients are taken
BATCHES, TOKENS = 4, 512  # batches, and tokens of each
EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 2**31)  # distances are grouped by powers of two


class AtDistance(NamedTuple):
    """The mean norm over a number of token pairs that are `low` to `high` steps apart."""

    low: int
    high: int
    norm: float
    pairs: int


def gradient_by_distance(
    model: nn.Module, config: TrainConfig, encoding: Encoding, prepared: Prepared, rows: int
) -> list[AtDistance]:
    """Norms of gradients by distance, over about `rows` examples of the validation set, short and long."""
    few = {"tokens": TOKENS, "max_rows": max(rows // BATCHES, 1), "accumulate": 1}
    batch = config.batch.replace(layout="padded", shapes="free", workers=0, **few)
    specials = prepared.tokenizers.specials()
    loader = Loader([prepared.validation], encoding, batch, specials, config.seed, evaluation=True)
    sums, counts = torch.zeros(len(EDGES)), torch.zeros(len(EDGES), dtype=torch.long)
    edges = torch.tensor(EDGES)
    device = next(model.parameters()).device
    model.eval()
    for one in loader.batches(0, 0, -(-loader.count() // BATCHES)):  # they are sorted by length
        for distances, norms in _of_batch(model, one.to(device)):
            place = torch.bucketize(distances, edges, right=True) - 1
            sums.index_add_(0, place, norms)
            counts += torch.bincount(place, minlength=len(EDGES))
    return [
        AtDistance(EDGES[i], EDGES[i + 1] - 1, float(sums[i] / counts[i]), int(counts[i]))
        for i in range(len(EDGES) - 1)
        if counts[i]
    ]


def _of_batch(model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Distances and norms (pairs,), one label of each row at a time: rows do not depend on each other."""
    read: list[Tensor] = []
    known: Any = model
    embedding = known.source_embedding if hasattr(model, "source_embedding") else known.embedding
    hook = embedding.register_forward_hook(lambda module, given, out: read.append(out))
    # cuDNN has no gradients of recurrences in eval mode
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        try:
            logits = run_model(model, batch).float()
        finally:
            hook.remove()
        told = _logp(logits, batch.labels)  # (R, T)
        known_labels = counted(batch.labels).reshape(told.shape)
        sizes = batch.lengths if batch.source is None else batch.source_lengths
        lengths = torch.as_tensor(sizes, device=told.device)[: batch.rows]
        for t in range(0, told.shape[1], -(-told.shape[1] // POSITIONS)):
            there = known_labels[: batch.rows, t]
            if bool(there.any()):
                total = told[: batch.rows, t][there].sum()
                # 0 if a decoder without cross-attention has read nothing
                (gradient,) = torch.autograd.grad(
                    total, read[0], retain_graph=True, allow_unused=True, materialize_grads=True
                )
                norms = gradient[: batch.rows].float().norm(dim=-1)  # (R, S)
                yield _pairs(batch, norms, lengths, t, there)


def _logp(logits: Tensor, labels: Tensor) -> Tensor:
    """log p of each label, (R, T); for regression, the output itself; (R, 1) for one answer per row."""
    if labels.is_floating_point():
        return logits.reshape(len(labels), -1)
    logp = logits.log_softmax(-1)
    found = logp.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return found.reshape(len(labels), -1)


def _pairs(batch: Batch, norms: Tensor, lengths: Tensor, t: int, there: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of label t and each real input token that it can attend to."""
    place = torch.arange(norms.shape[1], device=norms.device)
    real = (place < lengths.unsqueeze(1)) & there.unsqueeze(1)
    if batch.source is not None:
        distance = lengths.unsqueeze(1) - place + t
    elif batch.labels.dim() == 1:
        distance = lengths.unsqueeze(1) - place
    else:
        distance = ((t - place).abs() + 1).expand_as(norms)
        real = real & (norms > 0)  # a decoder does not see later tokens
    return distance[real].cpu(), norms[real].detach().cpu()
