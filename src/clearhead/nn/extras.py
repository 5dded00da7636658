"""What the parts of a model say besides their result: auxiliary losses and statistics of one pass.

Only parts with `gives_extras = True` are handed an `Extras`, and only while training; a model without such
parts makes none. An objective adds the losses by their weights, and a log shows the statistics.
"""

from __future__ import annotations

from torch import Tensor

from clearhead.base.errors import UserError


class Extras:
    """Losses by name, as (sum over the batch, weight in the objective), and statistics by where they stand.

    Counts are sums over the batch, too: those of an update's batches are added up.

    >>> import torch
    >>> extras = Extras()
    >>> for layer in range(2):
    ...     extras.at(f"encoder.{layer}").loss("balance", torch.tensor(3.0), weight=0.01)
    ...     extras.at(f"encoder.{layer}").statistic("load", torch.tensor([0.2, 0.8]))
    >>> extras.losses, list(extras.statistics)
    ({'balance': (tensor(6.), 0.01)}, ['encoder.0.load', 'encoder.1.load'])
    """

    def __init__(self) -> None:
        # No dataclass: FSDP looks for tensors in those that a layer is given, and would hand it a copy.
        self.losses: dict[str, tuple[Tensor, float]] = {}
        self.statistics: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.place = ""

    def at(self, place: str) -> Extras:
        """The same extras, seen from one place in the model."""
        found = Extras()
        found.losses, found.statistics, found.counts = self.losses, self.statistics, self.counts
        found.place = f"{self.place}{place}."
        return found

    def loss(self, name: str, value: Tensor, weight: float) -> None:
        """Add to a loss: what the layers give under one name is summed."""
        so_far, known = self.losses.get(name, (None, weight))
        if known != weight:
            raise UserError(f"The loss '{name}' has the weights {known} and {weight}: give it one of them.")
        self.losses[name] = (value if so_far is None else so_far + value, weight)

    def statistic(self, name: str, value: Tensor) -> None:
        """A number or several that a log shows, kept apart from the gradients."""
        self.statistics[self.place + name] = value.detach()

    def count(self, name: str, value: Tensor) -> None:
        """Several numbers that are sums over the batch, such as how many tokens chose each expert."""
        self.counts[self.place + name] = value.detach()
