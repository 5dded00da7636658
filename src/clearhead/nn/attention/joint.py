"""Several projections of the same tokens as one product, which is faster in training on a GPU.

So is its backward pass. Knows nothing about heads or attention.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from clearhead.nn.layers import fuses, is_plain


def pays(*parts: nn.Module) -> bool:
    """Whether these projections should be one product, on a GPU: only in training, and if they are plain.

    Kernels read 16 bytes at a time, so each part must start at a multiple of them.
    """
    return (
        torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cuda")
        and all(type(part) is nn.Linear and is_plain(part) and part.out_features % 8 == 0 for part in parts)
    )


def project_together(x: Tensor, *parts: nn.Linear) -> list[Tensor]:
    """Each projection of x, as parts of one product."""
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    weights: list[Tensor] = [part.weight for part in parts]
    weight = torch.cat(weights)
    if biases and fuses(x):
        from clearhead.nn import fused  # registers GPU operators, so imported only if used

        if len(x) > 1 and not torch.compiler.is_compiling():  # gradients of rows arrive separately
            return list(fused.linear_in_parts(x, weight, torch.cat(biases), [len(w) for w in weights]))
        whole = fused.linear(x, weight, torch.cat(biases))
    else:
        whole = functional.linear(x, weight, torch.cat(biases) if biases else None)
    return list(whole.split([part.out_features for part in parts], -1))
