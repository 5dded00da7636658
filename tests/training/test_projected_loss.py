"""The loss that never holds all scores, against the plain one on whole scores.

Shapes: N places, V classes, E width.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED
from clearhead.training import projected_loss
from clearhead.training.config import ObjectiveConfig
from clearhead.training.objectives import LabelObjective, plain_cross_entropy
from clearhead.training.projected_loss import projected_cross_entropy

from .making import a_batch, a_model

PLACES, CLASSES, WIDTH = 11, 9, 6


def made_up(dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[list[Tensor], Tensor]:
    torch.manual_seed(0)
    shapes = (PLACES, WIDTH), (CLASSES, WIDTH), (CLASSES,)
    labels = torch.randint(CLASSES, (PLACES,))
    labels[3] = IGNORED
    return [torch.randn(s).to(device, dtype).requires_grad_() for s in shapes], labels.to(device)


@pytest.mark.parametrize("run", [None, 1, 4, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_the_loss_of_whole_scores(biased: bool, smoothing: float, run: int | None) -> None:
    given, labels = made_up()
    given = given if biased else given[:2]
    hidden, weight, bias = (*given, None)[:3]
    objective, nll = projected_cross_entropy(hidden, weight, bias, labels, smoothing, run=run)
    scores = F.linear(hidden, weight, bias)
    wanted = F.cross_entropy(scores, labels, label_smoothing=smoothing, reduction="sum", ignore_index=IGNORED)
    torch.testing.assert_close(objective, wanted)
    torch.testing.assert_close(nll, F.cross_entropy(scores, labels, reduction="sum", ignore_index=IGNORED))
    assert not nll.requires_grad
    found, known = (torch.autograd.grad(one * 0.3, given) for one in (objective, wanted))
    for one, two in zip(found, known, strict=True):
        torch.testing.assert_close(one, two)


def test_the_z_loss_and_its_gradient() -> None:
    (hidden, weight, _), labels = made_up()
    plain, _ = projected_cross_entropy(hidden, weight, None, labels, 0.1)
    squared, _ = projected_cross_entropy(hidden, weight, None, labels, 0.1, z_loss=0.01, run=4)
    counted = (labels != IGNORED).double()
    wanted = plain + 0.01 * ((hidden @ weight.t()).logsumexp(-1).square() * counted).sum()
    torch.testing.assert_close(squared, wanted)
    assert torch.autograd.gradcheck(
        lambda h, w: projected_cross_entropy(h, w, None, labels, 0.1, 0.01, 4)[0], (hidden, weight)
    )


@pytest.mark.parametrize("task", ["translate", "generate"])
def test_a_models_losses_and_gradients_without_its_scores(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the model gives hidden states, and the objective makes scores of them run by run."""
    monkeypatch.setitem(projected_loss.RUN_BYTES, "cpu", 8 * 12 * 5)
    model, batch = a_model(task).double(), a_batch(task)
    found = []
    for apart in (True, False):
        monkeypatch.setattr(LabelObjective, "_projects", lambda self, model, batch, apart=apart: apart)
        model.zero_grad()
        losses = LabelObjective(0.1)(model, batch)
        losses.objective.backward()
        found.append([losses.objective.detach(), losses.nll, *(p.grad.clone() for p in model.parameters())])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(
            one.double(), two.double(), rtol=1e-5, atol=1e-5
        )  # the plain one is float32


def test_asked_for_on_a_gpu_or_with_a_z_loss_alone() -> None:
    assert not LabelObjective(0.1)._projects(a_model(), a_batch())
    model, batch = a_model(), a_batch()
    plain, squared = (LabelObjective(0.1, z_loss=weight)(model, batch) for weight in (0.0, 0.01))
    assert squared.objective.item() > plain.objective.item()
    torch.testing.assert_close(squared.nll, plain.nll)
    with pytest.raises(UserError, match="models that write"):
        LabelObjective(0.1, z_loss=0.01)(a_model("classify"), a_batch("classify"))
    with pytest.raises(UserError, match="cannot work together"):
        ObjectiveConfig(z_loss=0.1, consistency=1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_on_a_gpu(z_loss: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(300, 64, device="cuda").to(dtype).requires_grad_()
    weight = (torch.randn(5000, 64, device="cuda") / 8).to(dtype).requires_grad_()
    labels = torch.randint(5000, (300,), device="cuda")
    labels[::7] = IGNORED
    objective, nll = projected_cross_entropy(hidden, weight, None, labels, 0.1, z_loss, run=128)
    own = [one.detach().float().requires_grad_() for one in (hidden, weight)]
    scores = own[0] @ own[1].t()
    wanted, plain = plain_cross_entropy(scores, labels, 0.1)
    wanted = wanted + z_loss * (scores.logsumexp(-1).square() * (labels != IGNORED)).sum()
    torch.testing.assert_close(objective, wanted, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(nll, plain, rtol=1e-3, atol=1e-2)
    gradients = (
        torch.autograd.grad(objective * 0.01, (hidden, weight)),
        torch.autograd.grad(wanted * 0.01, own),
    )
    for one, two in zip(*gradients, strict=True):
        assert float((one.float() - two).norm() / two.norm()) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.gpu
def test_never_holds_all_scores() -> None:
    hidden = torch.randn(8192, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(32_000, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(32_000, (8192,), device="cuda")
    projected_cross_entropy(hidden, weight, None, labels, 0.1, run=512)[0].backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    projected_cross_entropy(hidden, weight, None, labels, 0.1, run=512)[0].backward()
    whole = 2 * hidden.shape[0] * weight.shape[0]
    assert torch.cuda.max_memory_allocated() - before < whole / 4
