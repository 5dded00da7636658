"""What a training step computes never waits for a GPU: nothing is read from it, or copied to it.

A step that does cannot be recorded as a CUDA graph, and every layer of it costs a round trip. There is no
GPU here: tensors on the device "meta" have no values to read, and are called a GPU's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clearhead.models.build import build
from clearhead.training.objectives import LabelObjective

from .making import a_batch, model_config

META = torch.device("meta")
WINDOW = {"kind": "sparse", "window": 64}
KINDS: dict[str, dict[str, Any]] = {
    "exact": {},
    "grouped": {"kv_heads": 1},
    "dropout": {"dropout": 0.1},
    "window": WINDOW,
    "window, global": {**WINDOW, "global_tokens": 16},
    "blocks": {"kind": "sparse", "local": 128},
    "blocks, strides": {"kind": "sparse", "local": 64, "stride": 8, "unit": 16},
    "latent": {"kind": "latent"},
    "compressed": {"kind": "compressed"},
    "linear": {"kind": "linear"},
    "performer": {"kind": "performer"},
    "reformer": {"kind": "reformer", "buckets": [4]},
}
ENCODERS = {"linformer": {"kind": "linformer"}, "nystrom": {"kind": "nystrom"}}
POSITIONS = ("sinusoidal", "learned", "rotary", "t5", "alibi", "shaw", "music", "transformer_xl")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"tag, {name}": ("tag", {"attention": own}) for name, own in {**KINDS, **ENCODERS}.items()},
    **{f"generate, {name}": ("generate", {"attention": own}) for name, own in KINDS.items()},
    **{f"translate, {name}": ("translate", {"position__name": name}) for name in POSITIONS},
    "classify": ("classify", {}),
    "translate, recurrent": (
        "translate",
        {"family": "recurrent", "recurrent__cell": "gru", "recurrent__attention": "additive"},
    ),
    "translate, convolutional": ("translate", {"family": "convolutional"}),
}


class NoCopies(TorchDispatchMode):
    """Refuses copies between the host and the device; numbers are no tensors, and are given to kernels."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {
            one.device.type for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and one.dim()
        }
        made = {one.device.type for one in tree_leaves(out) if isinstance(one, Tensor)}
        assert len(given | made) < 2, f"{func} copies from {given} to {made}"
        return out


@pytest.mark.parametrize("case", CASES)
def test_a_step_reads_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, changes = CASES[case]
    attention = {"attention": {"heads": 2, **changes.get("attention", {})}}
    batch = a_batch(task, rows=4, wider=3 if "recurrent" in case else 300)  # whose steps are a loop
    config = model_config(task, width=64, dropout=0.1, **{**changes, **attention})

    def there(table: dict[str, Any]) -> dict[str, Any]:
        return {name: one.to(META) if isinstance(one, Tensor) else one for name, one in table.items()}

    model = build(config, device=META).to(torch.bfloat16)
    batch = replace(batch, fields=there(batch.fields), sizes=there(batch.sizes))
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: self.device == META), raising=False)
    cast = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda kind, **more: cast("cpu", **more))  # meta has none
    with NoCopies():
        LabelObjective(0.0)(model, batch).objective.backward()
    assert all(one.grad is not None for one in model.parameters())
