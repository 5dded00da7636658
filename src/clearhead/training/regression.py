"""The objective of regression: the squared error."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from clearhead.data.batch import Batch, counted
from clearhead.training.objectives import Losses, Model, at_least_float32, pass_through, with_extras


class NumberObjective:
    """Predict one number for each row: the squared error, in units of the numbers' variance."""

    passes = 1
    figures: tuple[str, ...] = ("loss",)

    def __call__(self, model: Model, batch: Batch) -> Losses:
        out = pass_through(model, batch)
        [error] = self.measure(out.logits, batch)
        return with_extras(Losses(error, error.detach()), out.extras, batch)

    def measure(self, logits: Tensor, batch: Batch) -> list[Tensor]:
        """Σ (output − number)²."""
        known = counted(batch.labels)
        exact = logits.to(at_least_float32(logits))
        apart = exact.reshape(batch.labels.shape) - batch.labels.masked_fill(~known, 0.0)
        return [apart.masked_fill(~known, 0.0).square().sum()]

    def judged(self, sums: Sequence[float], labels: int) -> dict[str, float]:
        """The mean squared error."""
        return {"loss": sums[0] / max(labels, 1)}
