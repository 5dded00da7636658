"""The blocks that flex visits, made run by run, are those PyTorch finds by making the whole mask.

Runs on the CPU: only the kernel itself needs a GPU.
"""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from clearhead.nn.attention import flex, kernels
from clearhead.nn.attention.masks import Causal, Global, Local, Mask, Padding, Prefix, Window
from clearhead.nn.attention.problem import Problem
from clearhead.nn.tokens import Tokens

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


@pytest.mark.parametrize("mask", [Causal() & Window(200), Window(9, 9) | Global(3), Local(300)], ids=repr)
def test_a_sparse_mask_lists_its_blocks_once(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing visible is left out, another mask of the same rule takes the same list, and others do not."""
    monkeypatch.setattr(flex, "_lists", {})

    def listed(mask: Mask, count: int = 1000) -> list[Tensor]:
        problem = case("dot", "none", "causal", Layout(HEADS, queries=count)).problem()
        return flex._blocks_in_spans(dataclasses.replace(problem, mask=mask))

    first = listed(mask)
    blocks = BlockMask.from_kv_blocks(*first, BLOCK_SIZE=128, seq_lengths=(1000, 1000)).to_dense()
    tokens = Tokens.padded(1000)
    visible = mask.allowed(tokens, tokens, torch.arange(1)).expand(1, 1, 1000, 1000)
    needed = F.max_pool2d(visible.float(), 128, ceil_mode=True)
    assert not (needed > blocks).any()
    assert blocks.sum() < blocks.numel()
    assert listed(copy.copy(mask))[1] is first[1]
    assert listed(mask & Padding([1000, 7]))[1] is listed(mask & Padding([8, 9]))[1]
    others = [listed(mask & Window(3)), listed(mask, 900), listed(mask | Prefix(torch.tensor([[5]])))]
    assert all(other[1] is not first[1] for other in others)
    monkeypatch.setattr(flex, "MOST_LISTS", len(flex._lists))
    assert listed(mask, 800)[1] is not listed(mask, 800)[1]
    assert listed(mask)[1] is first[1]  # recorded steps go on reading what is kept


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
