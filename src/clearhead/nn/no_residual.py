"""A sub-layer without its residual connection, to show what the connection is good for.

    post   norm(dropout(f(x)))                pre   dropout(f(norm(x)))

Replaces `Residual` of `layers.py`, with the same parameters by the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from clearhead.nn.layers import Residual
from clearhead.nn.look import Look
from clearhead.nn.pending import Pending


class NoResidual(Residual):
    """The sub-layer's output replaces its input."""

    def takes_apart(self, x: Tensor | Pending, look: Look | None) -> bool:
        """False: there is no sum that could add the bias."""
        return False

    def forward(
        self, x: Tensor | Pending, sublayer: Callable[[Tensor], Tensor], look: Look | None = None
    ) -> Any:
        """Only the sub-layer's output; `look` is offered it as `added`."""
        x = x.total() if isinstance(x, Pending) else x
        found = self.dropout(sublayer(self.norm(x) if self.norm_first else x))
        if look is not None:
            look.give("added", found)
        return found if self.norm_first else self.norm(found)
