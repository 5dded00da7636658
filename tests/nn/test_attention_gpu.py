"""The battery on a GPU: flex and varlen, which run nowhere else, and tiled and sdpa with other code inside.

Flex compiles a kernel for every kind of mask and bias, which takes seconds each,
so it walks one case for each row of the tables instead of their product.

Shapes: R rows, H heads, T queries, S keys.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from clearhead.models import ModelConfig, build
from clearhead.nn.attention import attend, masks
from clearhead.nn.attention.kernels import choose, unsupported
from clearhead.nn.tokens import pack

from .builders import (
    BIAS,
    CPU_KERNELS,
    DISTANCE_BIAS,
    KERNEL_ROWS,
    LAYOUT_ROWS,
    MASK_ROWS,
    NO_PRODUCT,
    Case,
    Layout,
    case,
    cycle_cases,
    kernel_allows,
    pairs,
)

pytestmark = pytest.mark.gpu

# On the length of the error, relative to the length of the result. Matrix products of a GPU sum in
# another order; with bfloat16 each of some ten roundings is off by up to 0.4 %.
FLOAT32_OUTPUT, FLOAT32_GRADIENT = 1e-4, 1e-3
BFLOAT16_OUTPUT, BFLOAT16_GRADIENT = 0.02, 0.05

# Head sizes that the fused kernels have, and lengths that no block divides.
SIZES = {"heads": 2, "key_dim": 16}
LARGE: dict[str, Layout] = {
    "multi-head": Layout(SIZES, queries=131),
    "grouped": Layout({"heads": 4, "kv_heads": 2, "key_dim": 16}, queries=70),
    "multi-query": Layout({"heads": 3, "kv_heads": 1, "key_dim": 32}, queries=129),
    "large values": Layout({**SIZES, "value_dim": 32}, queries=65),
    "small values": Layout({"heads": 2, "key_dim": 32, "value_dim": 16, "bias": False}, queries=100),
    "query size": Layout(
        {**SIZES, "query_dim": 24}, queries=90, scores=("bilinear", "reduced_rank", "additive")
    ),
    "cross, fewer keys": Layout({**SIZES, "memory_width": 5}, queries=140, keys=37),
    "cross, more keys": Layout({"heads": 4, "kv_heads": 1, "key_dim": 16}, queries=33, keys=150),
    "packed": Layout(SIZES, queries=(1, 80, 37)),
    "packed cross": Layout({"heads": 4, "kv_heads": 2, "key_dim": 16}, queries=(60, 2, 33), keys=(7, 66, 1)),
    "soft cap": Layout({**SIZES, "softcap": 2.0}, queries=77),
    "one token": Layout(SIZES, queries=1),
    "one key": Layout(SIZES, queries=40, keys=1),
}


def relative_error(found: Tensor, wanted: Tensor) -> float:
    assert torch.isfinite(found).all()
    return ((found.float() - wanted.float()).norm() / wanted.float().norm().clamp(min=1e-6)).item()


def joined(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.flatten().float() for tensor in tensors])


def check(one: Case, kernel: object, output: float, gradient: float) -> None:
    """Against the reference on the same machine, in float32."""
    full = one if one.x.dtype == torch.float32 else in_float32(one)
    wanted = full.output("reference")
    found = one.output(kernel)
    assert relative_error(found, wanted) < output, f"{one.name}: output"
    gradients = joined(one.gradients(found)), joined(full.gradients(wanted))
    assert relative_error(*gradients) < gradient, f"{one.name}: gradients"


def in_float32(one: Case) -> Case:
    """The same rounded numbers, computed exactly."""
    attention = copy.deepcopy(one.attention).float()
    x = one.x.detach().float().requires_grad_()
    memory = None if one.memory is None else one.memory.detach().float().requires_grad_()
    return Case(attention, x, memory, one.mask, one.queries, one.keys, one.name)


def test_every_gpu_kernel_is_here() -> None:
    assert {name for name, where in KERNEL_ROWS.items() if where == "gpu"} == {"short", "varlen", "flex"}
    assert set(LARGE) == set(LAYOUT_ROWS)


@pytest.mark.parametrize("score, scheme", list(pairs()))
@pytest.mark.parametrize("kernel", CPU_KERNELS)
def test_kernels_of_everywhere(kernel: str, score: str, scheme: str) -> None:
    for one, layout in cycle_cases(score, scheme, torch.float32, "cuda"):
        if kernel_allows(kernel, score, LAYOUT_ROWS[layout]):
            check(one, CPU_KERNELS[kernel], FLOAT32_OUTPUT, FLOAT32_GRADIENT)


FLEX_PAIRS = [
    (score, scheme)
    for score, scheme in pairs()
    if score not in NO_PRODUCT and (scheme not in BIAS or scheme in DISTANCE_BIAS)
]
FLEX = [
    (*FLEX_PAIRS[number % len(FLEX_PAIRS)], mask, layout)
    for number, (mask, layout) in enumerate(zip(MASK_ROWS, LARGE, strict=True))
] + [("scaled_dot", "t5", "causal & padding", "soft cap"), ("dot", "rotary", "window", "packed")]


@pytest.mark.parametrize("score, scheme, mask, layout", FLEX)
def test_flex(score: str, scheme: str, mask: str, layout: str) -> None:
    shape = LARGE[layout]
    score = score if score in shape.scores else "bilinear"
    one = case(score, scheme, mask, shape, torch.float32, device="cuda")
    assert unsupported("flex", one.problem()) is None
    check(one, "flex", FLOAT32_OUTPUT, FLOAT32_GRADIENT)


@pytest.mark.parametrize("kernel", ["flex", "sdpa", "tiled"])
@pytest.mark.parametrize("layout", ["multi-head", "grouped", "cross, more keys", "packed", "soft cap"])
def test_either_mask_and_numbers_that_learn(layout: str, kernel: str) -> None:
    """Masks joined by `|` and a bias: forward, and backward into everything, the bias included."""
    shape = LARGE[layout]
    if kernel == "sdpa" and layout == "soft cap":
        return
    one = case("scaled_dot", "t5", "none", shape, torch.float32, device="cuda")
    queries, keys = one.queries.count, (one.keys or one.queries).count
    torch.manual_seed(0)
    numbers = torch.randn(1, shape.settings["heads"], queries, keys, device="cuda")
    numbers[:, :, queries // 2] = -torch.inf
    numbers = numbers.requires_grad_()
    table = torch.rand(queries, keys) < 0.2  # on the host: kernels bring a mask's data where they need it
    mask = (masks.Window(3) | masks.Boolean(table) | masks.Prefix(2) & masks.Window(9)) & masks.Bias(numbers)
    one = Case(one.attention, one.x, one.memory, mask, one.queries, one.keys, f"{kernel}, {layout}")
    assert unsupported(kernel, one.problem()) is None
    check(one, kernel, FLOAT32_OUTPUT, FLOAT32_GRADIENT)
    found, wanted = (
        torch.autograd.grad(one.output(each).square().sum(), numbers)[0] for each in (kernel, "reference")
    )
    assert relative_error(found, wanted) < FLOAT32_GRADIENT


@pytest.mark.parametrize("mask", ["none", "causal", "window", "window & causal"])
@pytest.mark.parametrize("score", ["scaled_dot", "bilinear"])
@pytest.mark.parametrize("layout", ["packed", "packed cross"])
def test_varlen(score: str, mask: str, layout: str) -> None:
    one = case(score, "none", mask, LARGE[layout], torch.bfloat16, device="cuda")
    reason = unsupported("varlen", one.problem())
    if mask != "none" and layout == "packed cross":  # it counts from the end where lengths differ
        assert reason is not None
        assert choose(one.problem()) == "sdpa"
        return
    assert reason is None
    plain = mask in ("none", "causal") and score == "scaled_dot" and layout == "packed"
    assert choose(one.problem()) == ("short" if plain else "varlen")
    if plain:
        check(one, "short", BFLOAT16_OUTPUT, BFLOAT16_GRADIENT)
    # The bilinear score is not divided by √d: larger scores, so a rounding of them weighs more.
    wider = 3 if score == "bilinear" else 1
    check(one, "varlen", BFLOAT16_OUTPUT, wider * BFLOAT16_GRADIENT)


@pytest.mark.parametrize("layout", ["multi-head", "grouped", "cross, more keys", "packed"])
@pytest.mark.parametrize("mask", ["none", "causal", "causal & padding", "rows that see nothing"])
def test_bfloat16(mask: str, layout: str) -> None:
    for kernel in ("reference", "tiled", "sdpa"):
        one = case("scaled_dot", "alibi", mask, LARGE[layout], torch.bfloat16, device="cuda")
        check(one, kernel, BFLOAT16_OUTPUT, BFLOAT16_GRADIENT)


@pytest.mark.parametrize("scheme", ["none", "rotary", "alibi"])
def test_auto_on_long_rows(scheme: str) -> None:
    """Long enough that auto compiles: the same numbers as the tiled kernel, and no n × n matrix."""
    layout = Layout(SIZES, queries=4096)
    one = case("scaled_dot", scheme, "causal & padding", layout, torch.bfloat16, device="cuda")
    problem = one.problem()
    assert choose(problem) == "flex"
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = attend(problem, "auto")
    needed = torch.cuda.max_memory_allocated() - before
    assert relative_error(found, attend(problem, "tiled")) < BFLOAT16_OUTPUT
    assert needed < 2 * 4096 * 4096 / 2, f"{needed >> 20} MiB"  # half a byte for each of the rows' pairs


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_packed_models_in_half_precision(family: str) -> None:
    """Whole models: packed (varlen) against padded (sdpa)."""
    plain = {
        "family": family,
        "vocabulary": 50,
        "width": 64,
        "layers": 2,
        "attention": {"heads": 4, "kv_heads": 2},
    }
    torch.manual_seed(0)
    model = build(ModelConfig.from_dict(plain)).cuda().to(torch.bfloat16).eval()
    lengths, ids = [9, 1, 30], torch.randint(50, (3, 30), device="cuda")
    flat = pack(ids, lengths)
    if family == "encoder-decoder":
        wide = model(ids, ids, source_lengths=lengths, target_lengths=lengths).hidden
        tight = model(flat, flat, source_lengths=lengths, target_lengths=lengths).hidden
    else:
        wide, tight = model(ids, lengths=lengths).hidden, model(flat, lengths=lengths).hidden
    assert relative_error(tight, pack(wide, lengths)) < BFLOAT16_OUTPUT


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
def test_causal_rows_that_end_in_padding_go_to_flash(family: str) -> None:
    """The old kernels' place is taken by flash, and real tokens get what the reference gives them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    plain = {"family": family, "vocabulary": 50, "width": 64, "layers": 2, "attention": {"heads": 1}}
    torch.manual_seed(0)
    model = build(ModelConfig.from_dict({**plain, "dropout": 0.0})).cuda().to(torch.bfloat16).train()
    lengths, ids = torch.tensor([9, 0, 30], device="cuda"), torch.randint(50, (3, 30), device="cuda")
    given = {"lengths": lengths}
    if family == "encoder-decoder":
        given = {"source_lengths": lengths, "target_lengths": lengths}
    layers = model.decoder.layers
    ours = model(*[ids] * (2 if family == "encoder-decoder" else 1), **given).hidden
    assert {layer.attention.served_by for layer in layers} == {"flash"}
    if family == "decoder":
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):  # refuses whatever else would be needed
            model(ids, **given)
    for layer in [*layers, *getattr(model, "encoder", model.decoder).layers]:
        layer.attention.kernel = "reference"
    wanted = model(*[ids] * (2 if family == "encoder-decoder" else 1), **given).hidden
    sizes = lengths.tolist()
    assert relative_error(pack(ours, sizes), pack(wanted, sizes)) < BFLOAT16_OUTPUT
