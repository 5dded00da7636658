"""A layer of experts that is dealt to four ranks beside the same layer on each of them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from clearhead.nn.dispatch import DISPATCHES
from clearhead.nn.experts import Experts, ExpertsConfig
from clearhead.nn.tokens import Tokens
from clearhead.training.distributed.expert_parallel import cut_experts

WIDTH = 16


def errors_of_spread_experts() -> dict[str, dict[str, float]]:
    """For each dispatch how far results and gradients lie apart, with an even load and with idle ranks."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("ep",))
    found = {}
    for dispatch in DISPATCHES:
        for idle in (False, True):
            torch.manual_seed(0)
            config = ExpertsConfig(experts=8, chosen=2, shared=1, width=8, gated=True, dispatch=dispatch)
            alone = Experts(WIDTH, config)
            if idle:  # all tokens go to the first rank
                alone.router.balance[:2] = 10.0
            spread = copy.deepcopy(alone)
            cut_experts(spread, mesh)
            found[f"{dispatch}{', idle ranks' if idle else ''}"] = _errors(alone, spread, mesh.get_rank())
    return found


def _errors(alone: Experts, spread: Experts, rank: int) -> dict[str, float]:
    """Each rank has tokens of its own, and padding; one rank alone takes those of all."""
    every = torch.randn(4, 3, 5, WIDTH)
    pull = torch.randn(every.shape)
    real = torch.tensor([5, 2, 0])
    tokens = Tokens.padded(5, real=real)
    x, mine = every.clone().requires_grad_(), every[rank].clone().requires_grad_()
    wanted = [alone(one, tokens) for one in x]
    sum((result * by).sum() for result, by in zip(wanted, pull, strict=True)).backward()  # type: ignore[union-attr]
    result = spread(mine, tokens)
    (result * pull[rank]).sum().backward()
    assert x.grad is not None
    assert mine.grad is not None
    errors = {"result": _apart(result, wanted[rank]), "x": _apart(mine.grad, x.grad[rank])}
    for name, weight in alone.named_parameters():
        its = spread.get_parameter(name).grad
        if isinstance(its, DTensor):
            assert weight.grad is not None
            errors[name] = _apart(its.full_tensor(), weight.grad)
    return errors


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().norm() / theirs.detach().norm())
