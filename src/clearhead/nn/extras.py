"""Auxiliary outputs of a model's parts: losses and statistics of one pass.

Only parts with `gives_extras = True` get an `Extras`, and only in training; a model without such parts
creates none. An objective adds the losses with their weights, and a log shows the statistics.
"""

from __future__ import annotations

from torch import Tensor

from clearhead.base.errors import UserError


class Extras:
    """Losses by name, as (mean over the batch's tokens, weight in the objective), and statistics by place.

    Means, since a batch may have many tokens and few labels: an objective counts a mean once for each label,
    as it does the loss. Counts are sums over the batch: those of an update's batches are added up.

    >>> import torch
    >>> extras = Extras()
    >>> for layer in range(2):
    ...     extras.at(f"encoder.{layer}").loss("balance", torch.tensor(3.0), weight=0.01)
    ...     extras.at(f"encoder.{layer}").statistic("load", torch.tensor([0.2, 0.8]))
    >>> extras.losses, list(extras.statistics)
    ({'balance': (tensor(6.), 0.01)}, ['encoder.0.load', 'encoder.1.load'])
    """

    def __init__(self) -> None:
        # Not a dataclass: FSDP looks for tensors in a layer's dataclass arguments, and would pass a copy.
        self.losses: dict[str, tuple[Tensor, float]] = {}
        self.statistics: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.place = ""

    def at(self, place: str) -> Extras:
        """The same extras, for one place in the model."""
        found = Extras()
        found.losses, found.statistics, found.counts = self.losses, self.statistics, self.counts
        found.place = f"{self.place}{place}."
        return found

    def loss(self, name: str, value: Tensor, weight: float) -> None:
        """Add to a loss: values that layers report under one name are summed."""
        so_far, known = self.losses.get(name, (None, weight))
        if known != weight:
            raise UserError(f"The loss '{name}' has the weights {known} and {weight}: give it one of them.")
        self.losses[name] = (value if so_far is None else so_far + value, weight)

    def statistic(self, name: str, value: Tensor) -> None:
        """Report one or more numbers for the log, detached from the gradients."""
        self.statistics[self.place + name] = value.detach()

    def count(self, name: str, value: Tensor) -> None:
        """Report numbers that are sums over the batch, such as how many tokens chose each expert."""
        self.counts[self.place + name] = value.detach()
