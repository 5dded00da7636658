"""Deferred sums: in training on a GPU, the next norm adds them up in its own kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Apart(NamedTuple):
    """A product without its bias, which the following sum must add."""

    product: Tensor
    bias: Tensor


class Pending(NamedTuple):
    """A residual stream, and what is still to be added to it: the next norm does both in one kernel.

    In training, a stack on a GPU passes it from sub-layer to sub-layer. With post-norm nothing is left to
    add, but the stream is passed twice, so that the gradients of the sub-layer and of the sum around it
    meet in the norm's kernel.
    """

    stream: Tensor
    added: Tensor | Apart | None = None
    dropped: float = 0.0  # the share of `added` that dropout removes
    seen: Tensor | None = None  # the stream again, for the next sub-layer

    def normed(self, norm: Any, stream: bool = True) -> tuple[Tensor, Tensor]:
        """The norm of the sum, and the sum, which has its own gradient if the stream continues."""
        if self.added is None:
            return norm(self.total()), self.stream
        from clearhead.nn import fused_norm  # registers GPU operators, so only if used

        added, shift = self.added if isinstance(self.added, Apart) else (self.added, None)
        settings = norm.weight, norm.bias, self.dropped, norm.eps
        return fused_norm.add_norm(self.stream, added, *settings, stream, shift)

    def normed_twice(self, norm: Any) -> Pending:
        """The norm of the sum, as the stream that continues."""
        if torch.compiler.is_compiling():
            return Pending(self.normed(norm, stream=False)[0])
        from clearhead.nn import fused_norm

        added, shift = self.added if isinstance(self.added, Apart) else (self.added, None)
        found = fused_norm.add_norm_twice(
            self.stream, added, norm.weight, norm.bias, self.dropped, norm.eps, shift
        )
        return Pending(found[0], seen=found[1])

    def total(self) -> Tensor:
        """The sum, as a tensor."""
        if self.added is None:
            return self.stream if self.seen is None else self.seen
        added = self.added.product + self.added.bias if isinstance(self.added, Apart) else self.added
        return self.stream + F.dropout(added, self.dropped, self.dropped > 0)
