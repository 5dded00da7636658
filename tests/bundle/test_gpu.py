"""Bundles to and from a CUDA device."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.bundle import load_bundle, save
from clearhead.models import build

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["tiny", "rnn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_on_the_device(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocabulary": 20, "width": 32, "layers": 2}
    model = build(name, **sizes).to("cuda", dtype).eval()
    path = save(model, tmp_path / "b")
    ids = torch.tensor([[3, 4, 5]], device="cuda")
    with warnings.catch_warnings(), torch.no_grad():
        if dtype == torch.float32:  # in bfloat16 PyTorch warns of its own recurrent layers in any case
            warnings.simplefilter("error")  # recurrent layers warn where their weights lie scattered
        back = load_bundle(path, device="cuda").model
        assert torch.equal(back(ids, ids).logits, model(ids, ids).logits)
    assert {(p.device.type, p.dtype) for p in back.parameters()} == {("cuda", dtype)}
    assert len(list(back.parameters())) == len(list(model.parameters()))
    again = load_bundle(save(back, tmp_path / "b")).model
    assert all(torch.equal(a, b.cpu()) for a, b in zip(again.parameters(), model.parameters(), strict=True))
