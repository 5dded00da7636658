"""How good a model is during training: its loss over the validation set, and other metrics.

Every rank takes its share of the batches, and all of them get the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clearhead.base.device import widest
from clearhead.data.load import Loader
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.doctor import Finding
from clearhead.training.objectives import Objective, run_model
from clearhead.training.step import Precision
from clearhead.training.view import Sample


@dataclass(frozen=True)
class Checked:
    """The result of a validator: metrics by name, and examples to look at."""

    values: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    findings: Sequence[Finding] = ()


Validator = Callable[[nn.Module], Checked]


def validation_loss(
    model: nn.Module, loader: Loader, precision: Precision, objective: Objective, ranks: Ranks | None = None
) -> dict[str, float]:
    """The objective's figures over the whole validation set; each rank takes its share."""
    ranks = ranks or Ranks()
    sums: Tensor | None = None
    labels = 0
    for batch in loader.batches(0, ranks.rank, ranks.count):
        ours = batch.to(precision.device)
        with precision.context():
            logits = run_model(model, ours)
        found = [one.to(widest(precision.device)) for one in objective.measure(logits, ours)]
        sums = torch.stack(found) if sums is None else sums + torch.stack(found)
        labels += batch.tokens
    found_by = [one for one in ranks.everyone((sums.tolist() if sums is not None else [], labels)) if one[0]]
    totals = [sum(parts) for parts in zip(*(one[0] for one in found_by), strict=True)]
    return objective.judged(totals, sum(one[1] for one in found_by))
