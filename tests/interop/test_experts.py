"""Experts of DeepSeek-V3 with copied weights, and what an export of experts cannot hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.interop import export_folder, import_folder
from clearhead.nn.experts import Experts, ExpertsConfig

SETTINGS = {
    "hidden_size": 32,
    "moe_intermediate_size": 16,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}


@pytest.mark.parametrize("normalised", [True, False])
def test_routing_and_experts_of_deepseek(transformers: Any, normalised: bool) -> None:
    """Shared and fine-grained experts, sigmoid scores, groups, the bias for the choice, with gradients."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    random = torch.Generator().manual_seed(0)
    theirs = DeepseekV3MoE(transformers.DeepseekV3Config(**SETTINGS, norm_topk_prob=normalised))
    with torch.no_grad():
        for tensor in (*theirs.parameters(), *theirs.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.3)
    config = ExpertsConfig(
        width=16,
        activation="silu",
        gated=True,
        experts=12,
        chosen=3,
        shared=2,
        score="sigmoid",
        normalise=normalised,
        scale=2.5,
        groups=4,
        groups_chosen=2,
    )
    ours = Experts(32, config)
    assert ours.shared is not None
    gate, inner = theirs.experts.gate_up_proj.data.chunk(2, 1)
    beside = theirs.shared_experts
    pairs = {
        "router.project.weight": theirs.gate.weight,
        "router.balance": theirs.gate.e_score_correction_bias,
        "gate": gate,
        "inner": inner,
        "output": theirs.experts.down_proj,
        "shared.gate.weight": beside.gate_proj.weight,
        "shared.inner.weight": beside.up_proj.weight,
        "shared.output.weight": beside.down_proj.weight,
    }
    ours.load_state_dict({name: tensor.detach() for name, tensor in pairs.items()})
    x = torch.randn(3, 7, 32, generator=random)
    mine, its = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = ours(mine), theirs(its)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    found.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.router.project.weight.grad, theirs.gate.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.output.grad, theirs.experts.down_proj.grad, rtol=1e-4, atol=1e-4)


def test_a_bias_that_mixtral_has_not_is_refused(saved: Callable[[str], Path], tmp_path: Path) -> None:
    bundle = import_folder(saved("mixtral"))
    assert bundle.config.feedforward.bias_rate == 0  # type: ignore[attr-defined]  # fine-tuning moves none
    bundle.model.decoder.layers[0].feedforward.router.balance[1] = 0.5
    with pytest.raises(UserError, match=r"has no 'decoder\.layers\.0\.feedforward\.router\.balance'"):
        export_folder(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_experts_that_mixtral_has_not_are_refused(saved: Callable[[str], Path], tmp_path: Path) -> None:
    bundle = import_folder(saved("mixtral"))
    bundle.model.config = bundle.config.replace(feedforward__score="sigmoid")
    with pytest.raises(UserError, match=r"feedforward\.score='sigmoid'"):
        export_folder(bundle, tmp_path / "out")


def test_a_window_is_refused_in_the_words_of_the_file(saved: Callable[[str], Path]) -> None:
    folder = saved("mixtral")
    plain = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(plain | {"sliding_window": 3}))
    with pytest.raises(UserError, match=r"sliding_window=3, which cannot be imported: only null can"):
        import_folder(folder)
