"""Every kernel with every score, position scheme, mask and layout it can work with equals the reference.

The rows are in `builders.py`. The float64 tests walk the whole cross product with
gradients; float32 and bfloat16 walk each mask and layout once for every pair of
score and scheme.

Shapes: R rows, H heads, G key/value heads, T queries, S keys.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from clearhead.nn.attention import KERNELS, SCORES, AttentionConfig, Problem, attend
from clearhead.nn.positions import POSITIONS, Position
from clearhead.nn.tokens import Tokens

from .builders import (
    BIAS,
    CPU_KERNELS,
    DIRECT,
    DISTANCE_BIAS,
    IN_EMBEDDING,
    KERNEL_ROWS,
    LAYOUT_ROWS,
    MASK_ROWS,
    NEEDS_DIRECT,
    NO_PRODUCT,
    POSITION_ROWS,
    SCORE_ROWS,
    WIDTH,
    Case,
    case,
    cycle_cases,
    kernel_allows,
    layer_for,
    pairs,
    position_for,
    visibility,
)

EXACT = {torch.float64: 1e-10, torch.float32: 1e-5}
# bfloat16 keeps 8 bits: one rounding is off by up to 2⁻⁸ = 0.4 %, and a layer rounds some ten times. The
# bounds are on the length of the error against float32, relative to the length of the result.
BFLOAT16_OUTPUT = 0.02
BFLOAT16_GRADIENT = 0.05

IN_ATTENTION = [pair for pair in pairs() if pair[1] not in IN_EMBEDDING]


def close(found: Tensor, wanted: Tensor, bound: float, name: str) -> None:
    assert torch.isfinite(found).all(), f"{name}: not finite"
    error = (found - wanted).abs().max().item() if wanted.numel() else 0.0
    scale = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
    assert error <= bound * scale, f"{name}: off by {error:.2g} where {bound * scale:.2g} is allowed"


def same_gradients(one: Case, found: Tensor, wanted: tuple[Tensor, ...], bound: float, name: str) -> None:
    """Of the inputs and all parameters; compared together first, because that is quick."""
    gradients = one.gradients(found)
    joined, expected = (torch.cat([x.flatten() for x in side]) for side in (gradients, wanted))
    if not (joined - expected).abs().max() <= bound:  # also true for NaN
        for label, a, b in zip(one.input_names(), gradients, wanted, strict=True):
            close(a, b, bound, f"{name}: gradient of {label}")


# --- the tables ---------------------------------------------------------------------------------


def test_every_variant_has_a_row() -> None:
    assert set(SCORE_ROWS) == set(SCORES), "a score is missing from builders.SCORE_ROWS"
    assert set(POSITION_ROWS) == set(POSITIONS), "a scheme is missing from builders.POSITION_ROWS"
    assert set(KERNEL_ROWS) == set(KERNELS), "a kernel is missing from builders.KERNEL_ROWS"
    anywhere = {name for name, where in KERNEL_ROWS.items() if where == "anywhere"}
    assert {"reference", *CPU_KERNELS} == anywhere, "a kernel for the CPU is not run by the battery"


def test_the_rows_say_what_the_classes_say() -> None:
    config = AttentionConfig(width=WIDTH, heads=2, key_dim=2)
    for name in POSITION_ROWS:
        scheme = position_for(name, config)
        assert scheme.in_embedding == (name in IN_EMBEDDING), name
        assert scheme.needs_comparable == (name in NEEDS_DIRECT), name
        assert scheme.has_bias == (name in BIAS), name
        if scheme.has_bias:
            assert scheme.elementwise_bias == (name in DISTANCE_BIAS), name
    for name in SCORE_ROWS:
        score = layer_for(name, "none", LAYOUT_ROWS["multi-head"], torch.float32).score
        assert score.compares_directly == (name in DIRECT), name
        assert score.is_product == (name not in NO_PRODUCT), name


@pytest.mark.parametrize("name", IN_EMBEDDING)
def test_schemes_of_the_embedding_leave_attention_alone(name: str) -> None:
    scheme = position_for(name, AttentionConfig(width=WIDTH, heads=2))
    q, tokens = torch.randn(1, 2, 4, 3), Tokens.padded(4)
    assert scheme.rotate(q, tokens) is q
    assert scheme.bias(q, q, tokens, tokens, 1.0, slice(None)) is None
    assert type(scheme).rotate is Position.rotate


# --- the whole product, float64 -----------------------------------------------------------------


@pytest.mark.parametrize("score, scheme", IN_ATTENTION)
def test_kernels_equal_the_reference(score: str, scheme: str) -> None:
    for layout, shape in LAYOUT_ROWS.items():
        if score not in shape.scores:
            continue
        attention = layer_for(score, scheme, shape, torch.float64)
        for mask in MASK_ROWS:
            one = case(score, scheme, mask, layout, attention=attention)
            problem = one.problem()
            mixed = attend(problem, "reference")
            check_weights(problem, mixed, one.name)
            wanted = one.finish(mixed)
            gradients = one.gradients(wanted)
            for name, kernel in CPU_KERNELS.items():
                if not kernel_allows(name, score, shape):
                    continue
                found = one.output(kernel, problem)
                close(found, wanted, EXACT[torch.float64], f"{one.name}, {name}: output")
                same_gradients(one, found, gradients, EXACT[torch.float64], f"{one.name}, {name}")


def check_weights(problem: Problem, mixed: Tensor, name: str) -> None:
    """Rows of weights sum to 1, or are 0 where nothing may be seen; what is hidden has weight 0."""
    with torch.no_grad():
        weights = problem.weights()
        visible = visibility(problem)
        assert weights.shape == visible.shape, name
        assert (weights[~visible] == 0).all(), f"{name}: a hidden key has a weight"
        assert (weights >= 0).all(), name
        close(weights.sum(-1), visible.any(-1).to(weights), 1e-12, f"{name}: sum of weights")
        close(mixed, weights @ problem.spread(problem.v), 1e-12, f"{name}: weights times values")


@pytest.mark.parametrize("score, scheme", IN_ATTENTION)
def test_what_is_hidden_changes_nothing(score: str, scheme: str) -> None:
    """Keys and values hidden from one query are replaced by large noise; its result stays."""
    generator = torch.Generator().manual_seed(11)
    hidden_somewhere = 0
    for one, layout in cycle_cases(score, scheme, torch.float64):
        kernels = {
            name: kernel
            for name, kernel in {"reference": "reference", **CPU_KERNELS}.items()
            if kernel_allows(name, score, LAYOUT_ROWS[layout])
        }
        with torch.no_grad():
            problem = one.problem()
            before = {name: attend(problem, kernel) for name, kernel in kernels.items()}
            for query in range(problem.q.shape[2]):
                visible = visibility(problem)[:, :, query]  # (R,H,S)
                hidden = ~visible.unflatten(1, (problem.k.shape[1], -1)).any(2)  # (R,G,S): from a whole group
                hidden_somewhere += int(hidden.any())
                changed = dataclasses.replace(
                    problem, k=_noisy(problem.k, hidden, generator), v=_noisy(problem.v, hidden, generator)
                )
                for name, kernel in kernels.items():
                    after = attend(changed, kernel)[:, :, query]
                    close(after, before[name][:, :, query], 1e-10, f"{one.name}, {name}, query {query}")
    assert hidden_somewhere > 15  # the test looks at something


def _noisy(kv: Tensor, hidden: Tensor, generator: torch.Generator) -> Tensor:
    noise = 50 * torch.randn(kv.shape, generator=generator, dtype=kv.dtype)
    return torch.where(hidden.unsqueeze(-1), noise, kv)


# --- other precisions ---------------------------------------------------------------------------


@pytest.mark.parametrize("score, scheme", list(pairs()))
def test_float32(score: str, scheme: str) -> None:
    for one, layout in cycle_cases(score, scheme, torch.float32):
        problem = one.problem()
        wanted = one.output("reference", problem)
        gradients = one.gradients(wanted)
        for name, kernel in CPU_KERNELS.items():
            if kernel_allows(name, score, LAYOUT_ROWS[layout]):
                found = one.output(kernel, problem)
                close(found, wanted, EXACT[torch.float32], f"{one.name}, {name}: output")
                same_gradients(one, found, gradients, EXACT[torch.float32], f"{one.name}, {name}")


@pytest.mark.parametrize("score, scheme", IN_ATTENTION)
def test_bfloat16_is_within_its_bound(score: str, scheme: str) -> None:
    halves = cycle_cases(score, scheme, torch.bfloat16)
    for (half, layout), (full, _) in zip(halves, cycle_cases(score, scheme, torch.float32), strict=True):
        # the same rounded numbers on both sides: only the computation differs
        full.attention.load_state_dict(half.attention.state_dict())
        full.x.data.copy_(half.x)
        if full.memory is not None and half.memory is not None:
            full.memory.data.copy_(half.memory)
        wanted = full.output("reference")
        gradients = _joined(full.gradients(wanted))
        for name, kernel in {"reference": "reference", **CPU_KERNELS}.items():
            if kernel_allows(name, score, LAYOUT_ROWS[layout]):
                found = half.output(kernel)
                assert found.dtype == torch.bfloat16
                assert _relative_error(found, wanted) < BFLOAT16_OUTPUT, f"{half.name}, {name}: output"
                error = _relative_error(_joined(half.gradients(found)), gradients)
                assert error < BFLOAT16_GRADIENT, f"{half.name}, {name}: gradients"


def _joined(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.flatten().float() for tensor in tensors])


def _relative_error(found: Tensor, wanted: Tensor) -> float:
    return ((found.float() - wanted).norm() / wanted.norm()).item()
