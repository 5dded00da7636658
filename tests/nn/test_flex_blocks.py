"""The blocks that flex visits, made run by run, are those PyTorch finds by making the whole mask.

Runs on the CPU: only the kernel itself needs a GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from clearhead.nn.attention import flex, kernels
from clearhead.nn.attention.problem import Problem

from .builders import MASK_ROWS, Layout, case
from .watching import Watch

HEADS = {"heads": 2, "key_dim": 4}
LAYOUTS = {
    "self": Layout(HEADS, queries=300),
    "packed": Layout(HEADS, queries=(1, 200, 90)),
    "cross": Layout(HEADS, queries=130, keys=401),
}


def rule_of(problem: Problem):
    """The mask as PyTorch wants it: a function of one row, head, query and key."""

    def may_look(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        visible = problem.mask.allowed(problem.queries, problem.keys, torch.arange(2))
        whole = visible.expand(problem.q.shape[0], 2, problem.q.shape[2], problem.k.shape[2])
        return whole[row, head, i, j]

    return may_look


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", MASK_ROWS)
def test_blocks_are_those_of_the_whole_mask(mask: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "RUN", 2 * 401 * 128)  # several runs
    problem = case("dot", "none", mask, LAYOUTS[layout]).problem()
    if problem.allowed(problem.queries, problem.keys) is None:
        return
    shape = problem.q.shape[2], problem.k.shape[2]
    wanted = create_block_mask(rule_of(problem), problem.q.shape[0], 2, *shape, device="cpu")
    found = BlockMask.from_kv_blocks(*flex._visible_blocks(problem), BLOCK_SIZE=128, seq_lengths=shape)
    dense = wanted.to_dense()
    assert torch.equal(dense, found.to_dense().expand_as(dense))
    whole = wanted.full_kv_num_blocks
    assert torch.equal(whole, found.full_kv_num_blocks.expand_as(whole))


def test_no_matrix_is_made() -> None:
    problem = case("dot", "none", "causal", Layout(HEADS, queries=16_384)).problem()
    with Watch() as watch:
        flex._visible_blocks(problem)
    assert watch.largest <= max(flex.RUN, 16_384 * flex.BLOCK)  # a row of blocks is the least


@pytest.mark.parametrize(
    ("mask", "scheme", "pays"),
    [
        ("none", "none", False),
        ("causal", "none", False),  # the plain fused kernel does these at full speed
        ("causal", "rotary", False),
        ("causal", "alibi", True),
        ("causal & padding", "none", True),
        ("window", "none", True),
    ],
)
def test_compiling_is_left_to_long_special_cases(mask: str, scheme: str, pays: bool) -> None:
    problems = [case("scaled_dot", scheme, mask, Layout(HEADS, queries=n)).problem() for n in (128, 2048)]
    assert [kernels.worthwhile(problem) for problem in problems] == [False, pays]
