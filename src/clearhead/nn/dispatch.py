"""How tokens get to their experts and back: three implementations with the same result.

- `loop`: expert by expert, each with the tokens that chose it: the readable reference;
- `segments`: choices sorted by expert, and a product for each run of them; the host reads the runs' lengths;
- `grouped`: the same with one call for all runs (`torch.nn.functional.grouped_mm`), whose lengths stay on
  the device, so the host never waits for a GPU and steps can be recorded.

A choice of expert E, one beyond the last, belongs to no expert: it adds nothing and gets no gradient.

Shapes: N tokens, E experts, K chosen for a token, C = N·K choices, D model width, F inner width.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

BYTES = 16  # rows of matrices in a grouped product must be multiples of this


class Nets(Protocol):
    """The interface of experts."""

    inner: Any  # (E, F, D)

    def nets(self, x: Tensor, product: Any) -> Tensor:
        """The experts' nets applied to rows."""


class Dispatch(Protocol):
    """The weighted sum of each token's experts."""

    def __call__(self, experts: Nets, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """x (N, D), chosen and weights (N, K), to (N, D)."""


class Loop:
    """Expert by expert."""

    def __call__(self, experts: Nets, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for number in range(experts.inner.shape[0]):
            token, place = (chosen == number).nonzero(as_tuple=True)
            result = experts.nets(x[token], lambda rows, all, at=number: F.linear(rows, all[at]))
            out = out.index_add(0, token, result * weights[token, place].unsqueeze(-1))
        return out


class Sorted:
    """Choices sorted by expert: their nets see one run of rows for each expert."""

    def __call__(self, experts: Nets, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        count = experts.inner.shape[0]
        number, order = chosen.flatten().sort(stable=True)  # (C,)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        ends = torch.searchsorted(
            number, torch.arange(count, device=number.device), right=True, out_int32=True
        )
        token = order // chosen.shape[1]
        # After the last run comes uninitialised memory, in gradients, too. Only padding chooses nobody, so it
        # is left out by token, and by choice only where it would reach the weights; not multiplied by 0.
        real = chosen[:, :1] < count  # (N, 1)
        weights = torch.where(number.unsqueeze(-1) < count, _spread(weights.reshape(-1, 1), order, back), 0)
        rows = _spread(torch.where(real, x, 0), token, back)  # (C, D)
        out = _gather(self.results(experts, rows, ends) * weights, token, back, len(x))
        return torch.where(real, out, 0)

    def results(self, experts: Nets, rows: Tensor, ends: Tensor) -> Tensor:
        """The experts' outputs for their runs of rows, (C, D); arbitrary after the last run."""
        return experts.nets(rows, self.product(ends, len(rows)))

    def product(self, ends: Tensor, choices: int) -> Any:
        """`product(rows, matrices)`, each run of rows with its own expert's matrix."""
        sizes = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
        behind = choices - sum(sizes)

        def product(rows: Tensor, matrices: Tensor) -> Tensor:
            *runs, rest = rows.split([*sizes, behind])
            found = [F.linear(run, one) for run, one in zip(runs, matrices, strict=True)]
            return torch.cat([*found, rest.new_zeros(behind, matrices.shape[1])])

        return product


class Grouped(Sorted):
    """Like `Sorted`, with one product for all runs, where `can_group`."""

    def product(self, ends: Tensor, choices: int) -> Any:
        return lambda rows, matrices: F.grouped_mm(rows, matrices.mT, offs=ends)


def can_group(matrices: Tensor, x: Tensor) -> bool:
    """PyTorch's grouped product takes bf16 on both devices, and float32 on a CPU, in rows of 16 bytes."""
    # while compiling, PyTorch knows only bf16
    single = x.dtype == torch.float32 and x.device.type == "cpu" and not torch.compiler.is_compiling()
    known = x.dtype == torch.bfloat16 or single
    same = x.dtype == matrices.dtype and not torch.is_autocast_enabled(x.device.type)
    return known and same and all(size * x.element_size() % BYTES == 0 for size in matrices.shape[1:])


class _Spread(torch.autograd.Function):
    """Rows of tokens as rows of choices in order of experts. Its gradient is `_Gather`, without atomics.

    `token` is the row that each choice takes; `back` the place of each choice, token by token.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(token, back)
        ctx.tokens = len(x)
        return x[token]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        token, back = ctx.saved_tensors
        return _gather(gradients[0], token, back, ctx.tokens), None, None


class _Gather(torch.autograd.Function):
    """Rows of choices summed for each token. Its gradient is `_Spread`."""

    @staticmethod
    def forward(ctx: Any, choices: Tensor, token: Tensor, back: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(token, back)
        return choices[back].view(tokens, -1, choices.shape[-1]).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _spread(gradients[0], *ctx.saved_tensors), None, None, None


def _spread(x: Tensor, token: Tensor, back: Tensor) -> Tensor:
    return _Spread.apply(x, token, back)  # type: ignore[no-any-return, no-untyped-call]


def _gather(choices: Tensor, token: Tensor, back: Tensor, tokens: int) -> Tensor:
    return _Gather.apply(choices, token, back, tokens)  # type: ignore[no-any-return, no-untyped-call]


DISPATCHES: dict[str, Dispatch] = {"loop": Loop(), "segments": Sorted(), "grouped": Grouped()}
