"""Every case of the ONNX operator Attention that the installed `onnx` ships, in our masks and dials.

The cases hold their inputs and the outputs of ONNX's reference. Each becomes a `Problem`, which every
kernel of the CPU that can compute it must solve; what the operator shows of its scores is one of our stages.

Shapes: R rows, H heads, G key/value heads, T queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, Problem, attend, build_score, masks
from clearhead.nn.attention.kernels import unsupported
from clearhead.nn.look import Look
from clearhead.nn.positions import Position
from clearhead.nn.tokens import Tokens

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
shipped = pytest.importorskip("onnx.backend.test.case.node.attention")

STAGES = ("scaled", "scores", "masked", "weights")  # by qk_matmul_output_mode
FAR = 2**20  # a side of a window without a bound
# On each number; ONNX sums in another order, and rounds halves more often than we do.
BOUNDS = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


@dataclass
class Node:
    """One case: settings, inputs and outputs by the operator's names."""

    name: str
    settings: dict[str, Any]
    inputs: dict[str, Any]
    outputs: dict[str, Any]

    def tensor(self, name: str) -> Tensor | None:
        value = self.inputs.get(name, self.outputs.get(name))
        if value is None:
            return None
        if str(value.dtype) == "bfloat16":
            return torch.from_numpy(value.astype("float32")).bfloat16()
        return torch.from_numpy(value.copy())


def found() -> Iterator[Node]:
    """What the package's export functions hand over, which other packages store as files."""
    made: list[Node] = []

    def keep(node: Any, inputs: Any, outputs: Any, name: str, **_: Any) -> None:
        schema = onnx.defs.get_schema("Attention")
        settings = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        taken = [each.name for each, given in zip(schema.inputs, node.input, strict=False) if given]
        given = [each.name for each, wanted in zip(schema.outputs, node.output, strict=False) if wanted]
        made.append(
            Node(
                name,
                settings,
                dict(zip(taken, inputs, strict=True)),
                dict(zip(given, outputs, strict=True)),
            )
        )

    before = shipped.expect
    shipped.expect = keep
    try:
        for name in sorted(vars(shipped.Attention)):
            if name.startswith("export"):
                getattr(shipped.Attention, name)()
    finally:
        shipped.expect = before
    yield from made


NODES = {node.name: node for node in found()}


def mask_of(node: Node, keys: int) -> masks.Mask:
    """Causality, windows, padding and the given mask, each as one of ours."""
    settings, combined = node.settings, masks.Everything() & masks.Everything()
    if settings.get("is_causal"):
        combined = combined & masks.Causal()
    sides = [settings.get(name, -1) for name in ("left_window_size", "right_window_size")]
    if max(sides) >= 0:
        combined = combined & masks.Window(*(FAR if side < 0 else side for side in sides))
    lengths, given = node.tensor("nonpad_kv_seqlen"), node.tensor("attn_mask")
    if lengths is not None:
        combined = combined & masks.Padding(lengths)
    if given is not None:
        given = given[(None,) * (4 - given.dim())]  # three dimensions are (H, T, S) there
        short = (0, keys - given.shape[-1])  # a mask that ends early hides the rest
        if given.dtype == torch.bool:
            combined = combined & masks.Boolean(F.pad(given, short, value=False))
        else:
            combined = combined & masks.from_additive(F.pad(given, short, value=-math.inf))
    return combined


def problem_of(node: Node) -> Problem:
    settings, heads = node.settings, ("q_num_heads", "kv_num_heads", "kv_num_heads")
    q, k, v = (
        x if x.dim() == 4 else x.unflatten(-1, (settings[count], -1)).transpose(1, 2)
        for x, count in zip(map(node.tensor, "QKV"), heads, strict=True)
    )
    start = 0
    past = node.tensor("past_key"), node.tensor("past_value")
    if past[0] is not None:
        start = past[0].shape[2]
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    lengths = node.tensor("nonpad_kv_seqlen")
    queries = Tokens.padded(q.shape[2], start=start)
    if lengths is not None:  # the last real keys are those of the queries
        queries = Tokens.ragged(lengths - q.shape[2], q.shape[2], int(lengths.max()))
    keys = Tokens.padded(k.shape[2])
    score = build_score(
        "scaled_dot", q.shape[1], q.shape[3], k.shape[3], 1, scale=settings.get("scale") or None
    )
    mask = mask_of(node, k.shape[2]).placed(queries, keys)
    softcap = settings.get("softcap") or None
    return Problem(q, k, v, queries, keys, mask, score=score, position=Position(), softcap=softcap)


def close(found: Tensor, wanted: Tensor, name: str) -> None:
    assert found.shape == wanted.shape, name
    both = torch.isfinite(wanted)
    assert torch.equal(torch.isneginf(found), torch.isneginf(wanted)), name
    assert torch.allclose(found[both].double(), wanted[both].double(), rtol=0, atol=BOUNDS[wanted.dtype]), (
        name
    )


def test_there_are_cases() -> None:
    assert len(NODES) >= 50
    said = {key for node in NODES.values() for key in (*node.settings, *node.inputs, *node.outputs)}
    wanted = {
        "is_causal",
        "scale",
        "softcap",
        "qk_matmul_output_mode",
        "attn_mask",
        "past_key",
        "present_key",
    }
    assert wanted | {"q_num_heads", "nonpad_kv_seqlen", "qk_matmul_output"} <= said


@pytest.mark.parametrize("name", NODES)
def test_every_case_of_the_operator(name: str) -> None:
    node = NODES[name]
    problem, wanted = problem_of(node), node.tensor("Y")
    kernels = [
        one
        for one in ("reference", "tiled", "sdpa", "auto")
        if unsupported(one, problem) is None or one == "auto"
    ]
    assert kernels[:2] == ["reference", "tiled"]
    for kernel in kernels:
        out = attend(problem, kernel)
        close(out if wanted.dim() == 4 else out.transpose(1, 2).flatten(2), wanted, f"{name}, {kernel}")
    for side, ours in (("present_key", problem.k), ("present_value", problem.v)):
        if side in node.outputs:
            assert torch.equal(ours, node.tensor(side))
    if "qk_matmul_output" in node.outputs:
        stage = STAGES[node.settings.get("qk_matmul_output_mode", 0)]
        close(problem.stage(stage), node.tensor("qk_matmul_output"), f"{name}, {stage}")


@pytest.mark.parametrize("mask", ["every key", "new keys", "each position"])
@pytest.mark.parametrize(
    "settings", [{}, {"scale": 0.3}, {"kv_heads": 1, "softcap": 0.8, "scale": 1.7}], ids=str
)
def test_a_layer_with_a_past_is_the_operator(settings: dict[str, Any], mask: str) -> None:
    """A layer that goes on from a state, and the operator with past keys: numbers, stages and all."""
    torch.manual_seed(0)
    past, new, whole = 3, 4, 7
    layer = MultiHeadAttention(AttentionConfig(width=8, heads=2, **settings)).double().requires_grad_(False)
    x = torch.randn(2, whole, 8, dtype=torch.float64)
    bias = torch.randn(2, 2, whole, whole, dtype=torch.float64)
    bias[0, :, past + 1] = -math.inf  # a query that sees nothing
    theirs = bias[:, :, past:].clone()
    if mask == "every key":
        ours = masks.Bias(bias[:, :, past:])
    elif mask == "new keys":  # the past is visible
        ours = masks.Bias(bias[:, :, past:, past:])
        theirs[..., :past] = 0.0
    else:
        ours = masks.Bias(bias)
    state = layer.new_state()
    layer(x[:, :past], mask=masks.Causal(), queries=Tokens.padded(past), state=state)
    before = [side[:, :, :past].clone().numpy() for side in (state.k, state.v)]
    look = Look(["q", "k", "v", "mixed", *STAGES])
    queries = Tokens.padded(new, start=past)
    layer(x[:, past:], mask=ours & masks.Causal(), queries=queries, state=state, look=look)
    assert set(STAGES) <= set(look.names)
    q, k, v = (look[name].numpy() for name in "qkv")
    inputs = [q, k[:, :, past:], v[:, :, past:], theirs.numpy(), *before]
    attributes = {name: value for name, value in settings.items() if name != "kv_heads"}
    for mode, stage in enumerate(STAGES):
        node = onnx.helper.make_node(
            "Attention",
            ["Q", "K", "V", "attn_mask", "past_key", "past_value"],
            ["Y", "present_key", "present_value", "qk_matmul_output"],
            is_causal=1,
            qk_matmul_output_mode=mode,
            **attributes,
        )
        operator = onnx.reference.ReferenceEvaluator(node)
        names = ["Q", "K", "V", "attn_mask", "past_key", "past_value"]
        y, keys, values, shown = operator.run(None, dict(zip(names, inputs, strict=True)))
        close(look["mixed"], torch.from_numpy(y), stage)
        ours_shown = look[stage]
        if stage == "scaled" and "softcap" in settings:  # the reference shows them capped, the text does not
            ours_shown = settings["softcap"] * torch.tanh(ours_shown / settings["softcap"])
        close(ours_shown, torch.from_numpy(shown), stage)
        assert torch.equal(look["k"], torch.from_numpy(keys))
        assert torch.equal(look["v"], torch.from_numpy(values))


@pytest.mark.parametrize("shape", [(4, 5), (3, 7), (5, 5), (4, 8), (7, 4)])
def test_a_mask_that_fits_neither_way_is_refused(shape: tuple[int, int]) -> None:
    layer = MultiHeadAttention(AttentionConfig(width=8, heads=2))
    state = layer.new_state()
    layer(torch.randn(1, 3, 8), queries=Tokens.padded(3), state=state)
    mask = masks.Causal() & (masks.Boolean(torch.ones(shape, dtype=torch.bool)) | masks.Window(1))
    with pytest.raises(
        UserError, match=rf"A mask of {shape[0]} × {shape[1]} does not fit 4 queries .* 7 keys"
    ):
        layer(torch.randn(1, 4, 8), mask=mask, queries=Tokens.padded(4, start=3), state=state)
