"""Activations computed again in the backward pass: the same gradients from less memory."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clearhead
from clearhead.models import ModelConfig, build
from clearhead.models.stack import recompute_activations
from clearhead.nn.extras import Extras

EXPERTS = {"kind": "experts", "width": 8, "shared": 1, "balance_loss": 0.5, "z_loss": 0.1}


def a_model(
    family: str, position: str = "sinusoidal", feedforward: dict[str, Any] | None = None
) -> nn.Module:
    plain = {
        "family": family, "vocabulary": 40, "width": 16, "layers": 3, "dropout": 0.2,
        "attention": {"heads": 2}, "position": {"name": position}, "feedforward": feedforward or {},
    }  # fmt: skip
    torch.manual_seed(0)
    return build(ModelConfig.from_dict(plain))


def gradients(model: nn.Module, family: str) -> list[Tensor]:
    ids = torch.arange(24).reshape(4, 6)
    lengths = torch.tensor([6, 2, 5, 3])
    torch.manual_seed(3)
    model.zero_grad()
    if family == "encoder-decoder":
        out = model(ids, ids, source_lengths=lengths, target_lengths=lengths)
    else:
        out = model(ids, lengths=lengths)
    extras = out.extras or Extras()
    told = {**extras.counts, **{name: loss.detach() for name, (loss, _) in extras.losses.items()}}
    (out.hidden.sin().sum() + sum(weight * loss for loss, weight in extras.losses.values())).backward()
    return [out.hidden.detach(), *told.values(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("feedforward", [{}, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize(
    ("family", "position"),
    [("encoder-decoder", "sinusoidal"), ("decoder", "t5"), ("encoder", "rotary"), ("decoder", "alibi")],
)
def test_the_same_gradients(family: str, position: str, feedforward: dict[str, Any]) -> None:
    """What experts report is that of one pass."""
    model = a_model(family, position, feedforward)
    wanted = gradients(model, family)
    recompute_activations(model)
    for one, two in zip(gradients(model, family), wanted, strict=True):
        if (
            position == "t5"
        ):  # a bias that all layers share is made by each of them, and summed in another order
            torch.testing.assert_close(one, two)
        else:
            assert torch.equal(one, two)


@pytest.mark.parametrize("feedforward", [{}, EXPERTS], ids=["dense", "experts"])
def test_what_is_kept_for_the_backward_pass_is_less(feedforward: dict[str, Any]) -> None:
    kept = []
    for again in (False, True):
        model, saved = a_model("decoder", feedforward=feedforward), 0

        def note(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += tensor.numel()
            return tensor

        if again:
            recompute_activations(model)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(torch.arange(24).reshape(4, 6))
        kept.append(saved)
    assert kept[1] < kept[0] / 2


def test_not_in_evaluation() -> None:
    model = a_model("decoder").eval()
    wanted = model(torch.arange(6)[None]).logits
    recompute_activations(model)
    with torch.no_grad():
        assert torch.equal(model(torch.arange(6)[None]).logits, wanted)


def test_backward_passes_read_what_they_saved_once() -> None:
    """What is computed again can be unpacked only once: a second look at it raises amid a step."""
    twice = []
    for path in sorted(Path(clearhead.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                looks = [one for one in ast.walk(node) if getattr(one, "attr", "") == "saved_tensors"]
                twice += [f"{path.name}: {node.name}"] * (len(looks) > 1)
    assert twice == []
