"""Training in bf16 on a CPU: each C++ kernel equals its PyTorch twin, whatever the shapes."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead
from clearhead.base.compiler import TRAINING
from clearhead.data.batch import IGNORED, Batch
from clearhead.data.layouts import REAL, pack_batch, without_filler
from clearhead.models.config import ModelConfig
from clearhead.nn import layers as plain
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, masks
from clearhead.nn.attention.kernels import reference
from clearhead.nn.attention.masks import Mask
from clearhead.nn.attention.problem import Problem
from clearhead.nn.tokens import Boundaries, Tokens
from clearhead.training.cpu import attention, binding, layers, worker
from clearhead.training.cpu.worker import prepare
from clearhead.training.objectives import LabelObjective, plain_cross_entropy
from clearhead.training.optimiser import OptimiserConfig, build_optimiser
from clearhead.training.projected_loss import projected_cross_entropy
from clearhead.training.step import Precision, Stepper

ROOT = Path(__file__).parent.parent.parent
needs_kernels = pytest.mark.skipif(binding.why_not() is not None, reason=str(binding.why_not()))

few = settings(max_examples=12, deadline=None, derandomize=True)
BF16 = 2.0**-8  # of a number, what rounding to bf16 may change


def near(found: Tensor, wanted: Tensor, units: float = 4.0) -> None:
    """Equal up to a few roundings of the largest number."""
    wanted = wanted.detach().float()
    size = float(wanted.abs().max()) if wanted.numel() else 0.0
    torch.testing.assert_close(found.detach().float(), wanted, rtol=0, atol=units * BF16 * size + 1e-6)


def exact(*tensors: Tensor) -> list[Tensor]:
    return [one.detach().float().requires_grad_() for one in tensors]


def rough(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16().requires_grad_()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


# -- attention ---------------------------------------------------------------------------------------------


def compare(problem: Problem, real: Tensor | None) -> None:
    """Output and gradients beside those of `reference` in float32; `real` (R, T): queries that count."""
    assert attention.supports(problem)
    q, k, v = exact(problem.q, problem.k, problem.v)
    wanted = reference(dataclasses.replace(problem, q=q, k=k, v=v, memo=None))
    found = attention.short(problem)
    slopes = torch.randn(found.shape).bfloat16()
    if real is not None:
        shown = real[:, None, :, None]
        wanted, slopes = wanted * shown, slopes * shown
    near(found, wanted)
    mine = torch.autograd.grad(found, (problem.q, problem.k, problem.v), slopes)
    theirs = torch.autograd.grad(wanted, (q, k, v), slopes.float())
    for one, other in zip(mine, theirs, strict=True):
        near(one, other)


def attend(heads: int, groups: int, size: int, **given: object) -> Problem:
    part = MultiHeadAttention(AttentionConfig(width=heads * size, heads=heads, kv_heads=groups)).bfloat16()
    return part.problem(**given)  # type: ignore[arg-type]


LENGTHS = st.lists(st.sampled_from([0, 1, 2, 5, 15, 16, 17, 33]), min_size=1, max_size=4)
HEADS = st.sampled_from([(1, 1), (4, 4), (4, 2), (3, 1)])


@needs_kernels
@few
@given(LENGTHS, HEADS, st.sampled_from([4, 16, 20, 64]), st.booleans())
def test_attention_within_padded_rows(
    lengths: list[int], heads: tuple[int, int], size: int, causal: bool
) -> None:
    real = torch.tensor(lengths)
    width = max(*lengths, 1)
    tokens, mask = Tokens.padded(width, real=real), masks.Padding(real)
    x = torch.randn(len(lengths), width, heads[0] * size).bfloat16()
    seen: Mask = masks.Causal() & mask if causal else mask
    compare(attend(*heads, size, x=x, mask=seen, queries=tokens), torch.arange(width) < real[:, None])


@needs_kernels
@few
@given(LENGTHS, st.integers(0, 3), st.booleans(), st.booleans())
def test_attention_within_packed_sequences(
    lengths: list[int], turn: int, across: bool, bounded: bool
) -> None:
    lengths = [*lengths, 3]
    others = lengths[turn % len(lengths) :] + lengths[: turn % len(lengths)]
    tokens, others_tokens = (_packed(each, bounded) for each in (lengths, others))
    given: dict[str, object] = {"x": torch.randn(sum(lengths), 32).bfloat16(), "queries": tokens}
    if across:
        given |= {"memory": torch.randn(sum(others), 32).bfloat16(), "keys": others_tokens}
    else:
        given |= {"mask": masks.Causal()}
    compare(attend(2, 2, 16, **given), None)


def _packed(lengths: list[int], bounded: bool) -> Tokens:
    if not bounded:
        return Tokens.packed(lengths)
    offsets = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    return Tokens.bounded(Boundaries(offsets, max(lengths)), sum(lengths))


@needs_kernels
def test_what_the_kernel_does_not_know_goes_the_usual_way() -> None:
    x = torch.randn(2, 6, 32).bfloat16()
    for mask in (masks.Window(before=2), masks.Padding(keep=torch.ones(2, 6))):
        problem = attend(2, 2, 16, x=x, mask=mask)
        assert not attention.supports(problem)
        near(attention.short(problem), reference(problem))
    assert not attention.supports(attend(2, 2, 16, x=torch.randn(1, attention.LONGEST + 1, 32).bfloat16()))


# -- between the products ---------------------------------------------------------------------------------

ROWS, WIDTHS = st.sampled_from([1, 2, 17, 40]), st.sampled_from([3, 7, 16, 40, 256])


@needs_kernels
@few
@given(ROWS, WIDTHS)
def test_norm(rows: int, width: int) -> None:
    own = nn.LayerNorm(width).bfloat16()
    x, slopes = rough(2, rows, width), torch.randn(2, rows, width).bfloat16()
    found = layers.LayerNorm(own)(x)
    [same] = exact(x)
    wanted = F.layer_norm(same, (width,))
    near(found, wanted)
    near(torch.autograd.grad(found, x, slopes)[0], torch.autograd.grad(wanted, same, slopes.float())[0], 8)


@needs_kernels
@few
@given(ROWS, WIDTHS)
def test_sum_and_norm(rows: int, width: int) -> None:
    given = rough(rows, width), rough(rows, width), rough(width), rough(width)
    found, slopes = layers.add_norm(*given, 0.0, 1e-5), torch.randn(rows, width).bfloat16()
    x, added, weight, bias = exact(*given)
    wanted = F.layer_norm((x + added).bfloat16().float(), (width,), weight, bias, 1e-5)
    near(found, wanted)
    mine = torch.autograd.grad(found, given, slopes)
    for one, other in zip(
        mine, torch.autograd.grad(wanted, (x, added, weight, bias), slopes.float()), strict=True
    ):
        near(one, other, 8)


@needs_kernels
@few
@given(ROWS, st.sampled_from([1, 7, 256, 300]), st.sampled_from([0.1, 0.5]))
def test_dropout_keeps_its_share_and_draws_by_seed(rows: int, width: int, p: float) -> None:
    part = layers.Dropout(p).train()
    x = torch.full((rows, 4, width), 2.0, dtype=torch.bfloat16, requires_grad=True)
    torch.manual_seed(5)
    found = part(x)
    torch.manual_seed(5)
    assert torch.equal(found, part(x))
    assert torch.equal(part.eval()(x), x)
    kept = found != 0
    near(found[kept], torch.full((int(kept.sum()),), 2 / (1 - p)))
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-4
    [slope] = torch.autograd.grad(found, x, torch.ones_like(found))
    assert torch.equal(slope != 0, kept)


@needs_kernels
def test_dropout_draws_alike_in_every_place() -> None:
    kept = layers.Dropout(0.25).train()(torch.ones(4000, 300).bfloat16()) != 0
    for side in (0, 1):
        share = kept.double().mean(side)
        spread = (0.25 * 0.75 / kept.shape[side]) ** 0.5
        assert float((share - 0.75).abs().max()) < 6 * spread
    following = (kept[:, 1:] & kept[:, :-1]).double().mean()
    assert abs(float(following) - 0.75**2) < 0.005


@needs_kernels
@few
@given(ROWS, st.booleans())
def test_dropout_inside_the_norm_is_the_same_in_both_passes(rows: int, shifted: bool) -> None:
    x, added = torch.zeros(rows, 48).bfloat16(), rough(rows, 48)
    weight, bias = torch.ones(48).bfloat16(), torch.full((48,), float(shifted)).bfloat16()
    found = layers.add_norm(x, added, weight, bias, 0.5, 1e-5)
    [slope] = torch.autograd.grad(found, added, torch.randn(rows, 48).bfloat16())
    kept = slope != 0
    wanted = F.layer_norm(added.detach().float() * kept * 2, (48,), weight.float(), bias.float())
    near(found, wanted, 8)


@needs_kernels
def test_a_norm_that_comes_first_adds_what_dropout_leaves() -> None:
    part = layers.Residual(plain.Residual(48, plain.NormConfig(place="pre"), 0.5).bfloat16()).train()
    part.norm = layers.LayerNorm(part.norm)  # type: ignore[arg-type]
    x, more = rough(5, 2, 48), rough(5, 2, 48)
    found = part(x, lambda y: more)
    d_x, d_more = torch.autograd.grad(found, (x, more), torch.ones_like(found))
    assert torch.equal(d_x, torch.ones_like(x))
    assert 0.2 < float((d_more != 0).double().mean()) < 0.8
    near(found, x.float() + more.float() * d_more.float())


@needs_kernels
@few
@given(ROWS, WIDTHS, st.booleans())
def test_product_with_bias(rows: int, width: int, relu: bool) -> None:
    own = nn.Linear(24, width).bfloat16()
    x = rough(rows, 24)
    found, slopes = layers.Linear(own)(x, relu), torch.randn(rows, width).bfloat16()
    wanted = F.linear(*exact(x, own.weight, own.bias))
    near(found, wanted.relu() if relu else wanted)
    alive = found.detach() > 0 if relu else torch.ones_like(slopes)
    inner = (slopes * alive).float()
    mine = torch.autograd.grad(found, (x, own.weight, own.bias), slopes)
    theirs = inner @ own.weight.float(), inner.t() @ x.float(), inner.sum(0)
    for one, other in zip(mine, theirs, strict=True):
        near(one, other)


@needs_kernels
@few
@given(ROWS, WIDTHS, st.booleans())
def test_norm_by_the_root_mean_square(rows: int, width: int, adds: bool) -> None:
    x, added, weight = rough(rows, width), rough(rows, width), rough(width)
    given = (x, added, weight) if adds else (x, weight)
    found = layers.add_norm(x, added if adds else None, weight, None, 0.0, 1e-5)
    same = exact(*given)
    total = (same[0] + same[1]).bfloat16().float() if adds else same[0]
    wanted = total / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt() * same[-1]
    near(found, wanted)
    slopes = torch.randn(rows, width).bfloat16()
    mine, theirs = (
        torch.autograd.grad(found, given, slopes),
        torch.autograd.grad(wanted, same, slopes.float()),
    )
    for one, other in zip(mine, theirs, strict=True):
        near(one, other, 8)


@needs_kernels
@pytest.mark.parametrize("name", plain.ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_activations(name: str, gated: bool) -> None:
    far = torch.cat([torch.linspace(-12, 12, 601), torch.tensor([-100.0, 100.0])]).bfloat16()
    x, factor = far.view(3, -1).requires_grad_(), rough(3, 201)
    given = (x, factor) if gated else (x,)
    found, slopes = layers.activated(x, factor if gated else None, name), torch.randn(3, 201).bfloat16()
    same = exact(*given)
    wanted = plain.ACTIVATIONS[name](same[0]) * (same[1] if gated else 1.0)
    torch.testing.assert_close(found.float(), wanted, rtol=BF16, atol=1e-6)
    mine, theirs = (
        torch.autograd.grad(found, given, slopes),
        torch.autograd.grad(wanted, same, slopes.float()),
    )
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=2 * BF16, atol=1e-5)
    with torch.no_grad():
        x[0, 0] = float("nan")
    assert layers.activated(x, None, name)[0, 0].isnan()


# -- the loss --------------------------------------------------------------------------------------------


@needs_kernels
@few
@given(ROWS, st.sampled_from([2, 15, 16, 17, 1000]), st.sampled_from([0.0, 0.1]), st.integers(1, 40))
def test_projected_loss(rows: int, classes: int, smoothing: float, run: int) -> None:
    hidden, weight = rough(rows, 24), rough(classes, 24)
    labels = torch.randint(classes, (rows,))
    labels[::3] = IGNORED
    found = projected_cross_entropy(hidden, weight, None, labels, smoothing, run=run)
    h, w = exact(hidden, weight)
    wanted = plain_cross_entropy((h @ w.t()).bfloat16().float(), labels, smoothing)  # of the same scores
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.01, atol=0.01)
    mine = torch.autograd.grad(found[0], (hidden, weight))
    theirs = torch.autograd.grad(wanted[0], (h, w))
    for one, other in zip(mine, theirs, strict=True):
        near(one, other, 8)


@needs_kernels
def test_a_loss_that_is_not_finite_stays_so() -> None:
    hidden, weight = rough(3, 8), rough(5, 8)
    with torch.no_grad():
        hidden[1, 0] = float("nan")
    assert not projected_cross_entropy(hidden, weight, None, torch.tensor([1, 2, 3]), 0.1)[0].isfinite()
    assert not projected_cross_entropy(rough(1, 8), weight, None, torch.tensor([7]), 0.1)[0].isfinite()


# -- a whole step ----------------------------------------------------------------------------------------


def small(**settings: object) -> nn.Module:
    given = {"vocabulary": 50, "width": 32, "layers": 2, "attention": {"heads": 2}, **settings}
    return clearhead.build(ModelConfig.from_dict(given)).train()


def batch() -> Batch:
    lengths, sources = torch.tensor([7, 1, 4]), torch.tensor([5, 9, 2])
    labels = torch.randint(50, (3, 7)).masked_fill(torch.arange(7) >= lengths[:, None], IGNORED)
    return Batch.of(
        inputs=torch.randint(50, (3, 7)),
        lengths=lengths,
        labels=labels,
        rows=3,
        source=torch.randint(50, (3, 9)),
        source_lengths=sources,
    )


@needs_kernels
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm": {"place": "pre"}},
        {"norm": {"kind": "rms"}, "feedforward": {"gated": True, "activation": "silu"}},
        {"norm": {"kind": "rms", "place": "pre"}, "feedforward": {"activation": "gelu_tanh", "bias": False}},
        {"position": {"name": "rotary"}, "attention": {"heads": 2, "bias": False}},
    ],
)
def test_a_prepared_model_is_the_same_model(settings: dict[str, object]) -> None:
    torch.manual_seed(2)
    model = small(dropout=0.0, **settings)
    rounded = copy.deepcopy(model).bfloat16()
    prepared = prepare(copy.deepcopy(rounded))
    assert [tuple(one.shape) for one in prepared.parameters()] == [
        tuple(one.shape) for one in model.parameters()
    ]
    given, objective = batch(), LabelObjective(0.1)
    results = {}
    for name, one in (("exact", model), ("torch", rounded), ("ours", prepared)):
        losses = objective(one, given)
        slopes = torch.autograd.grad(losses.objective, list(one.parameters()))
        results[name] = losses.objective.detach(), torch.cat([slope.flatten().float() for slope in slopes])
    loss, slopes = results["exact"]
    ours = results["ours"]
    assert abs(float(ours[0] - loss)) < 0.02 * float(loss)
    away, usual = (float((results[name][1] - slopes).norm()) for name in ("ours", "torch"))
    assert away < 1.2 * usual + 0.01 * float(slopes.norm())  # no further than PyTorch's own bf16


def stepper_of(model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> Stepper:
    optimiser = build_optimiser(model, OptimiserConfig(), "cpu")
    return Stepper(model, LabelObjective(0.1), optimiser, Precision(torch.device("cpu"), dtype))


@given(LENGTHS, st.booleans())
@few
def test_batches_without_padding_come_in_few_shapes(lengths: list[int], pair: bool) -> None:
    sizes = torch.tensor([40, *lengths])
    ids = torch.randint(50, (len(sizes), 40))
    sides = {"source": ids.flip(1), "source_lengths": sizes} if pair else {}
    given = Batch.of(inputs=ids, lengths=sizes, labels=ids, rows=len(sizes), tokens=0, **sides)  # type: ignore[arg-type]
    found = worker.without_padding(given)
    for field in (found.fields[name] for name in found.fields if name != REAL):
        assert len(field) % worker.ROUND == 0
        assert len(field) - int(sizes.sum()) < worker.ROUND
    assert int((found.labels != IGNORED).sum()) == int(sizes.sum())
    again = without_filler(found)
    assert torch.equal(again.inputs, pack_batch(given).inputs)


@needs_kernels
def test_a_step_takes_padding_out_and_has_the_same_gradient() -> None:
    model, given = small(dropout=0.0), batch()
    stepper = stepper_of(model)
    assert stepper.packs
    sums = stepper.gradients([given])
    found = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
    losses = LabelObjective(0.1)(model, given)
    wanted = torch.autograd.grad(losses.objective / given.tokens, list(model.parameters()))
    slopes = torch.cat([one.flatten() for one in wanted])
    assert abs(float(sums[0] / losses.objective.detach()) - 1) < 0.01
    assert float(sums[2]) == given.tokens
    assert float((found - slopes).norm()) < 0.05 * float(slopes.norm())


@needs_kernels
def test_a_step_is_the_same_with_any_number_of_threads() -> None:
    found, threads = [], torch.get_num_threads()
    for count in (1, 2):
        torch.manual_seed(3)
        torch.set_num_threads(count)
        model = small(dropout=0.1, layers=1)
        stepper_of(model).step([batch()], 0.01)
        found.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    torch.set_num_threads(threads)
    near(found[0], found[1], 1)


def test_without_a_compiler_pytorch_serves_and_it_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "why_not", lambda: "There is no C++ compiler here.")
    monkeypatch.setattr(binding, "multiplies_bf16", lambda: True)
    binding.available.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore")  # such as of files that earlier tests left to be collected
        warnings.simplefilter("always", UserWarning)
        for _ in range(2):
            stepper = stepper_of(small())
            stepper.step([batch()], 0.01)
    binding.available.cache_clear()
    [only] = [str(one.message) for one in said]
    assert only == "Training uses a slower path. There is no C++ compiler here."
    assert not any(isinstance(part, layers.Linear) for part in stepper.worker.modules())
    assert stepper.meter.read()["steps"] == 1


def test_float32_is_left_alone() -> None:
    model = small()
    assert stepper_of(model, torch.float32).worker is model
    assert any(type(part) is plain.Residual for part in model.modules())


def test_sources_are_short_and_travel_with_the_package() -> None:
    sources = list(TRAINING.folder.iterdir())
    assert {path.suffix for path in sources} == {".h", ".cpp"}
    assert all(len(path.read_text().splitlines()) < 400 for path in sources)
    assert "training/cpu/source/*" in (ROOT / "pyproject.toml").read_text()


def test_what_auto_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for has in (True, False):
        monkeypatch.setattr(worker, "multiplies_bf16", lambda has=has: has)
        wide, narrow = (Precision.chosen("auto", cpu, width).dtype for width in (128, 127))
        assert wide is (torch.bfloat16 if has else torch.float32)
        assert narrow is torch.float32
        assert Precision.chosen("float32", cpu, 512).dtype is torch.float32
        assert Precision.chosen("bf16", cpu, 32).dtype is torch.bfloat16
