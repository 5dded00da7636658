"""The quick count of a step's FLOPs against the planner's own, for every family that is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.data import batch as data
from clearhead.data.layouts import pack_batch
from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.planner.batch import Batch
from clearhead.planner.totals import count_flops
from clearhead.training.flops import StepFlops, peak_of

from .making import a_batch, model_config

SMALL: dict[str, Any] = {
    "vocabulary": 50,
    "width": 16,
    "layers": 2,
    "attention": {"heads": 4},
    "feedforward": {"width": 40},
}
MODELS: dict[str, dict[str, Any]] = {
    "encoder-decoder": {},
    "deep encoder": {"layers": 3, "decoder_layers": 1},
    "grouped": {"attention": {"heads": 4, "kv_heads": 2, "value_dim": 3}},
    "gated": {"feedforward": {"width": 24, "activation": "silu", "gated": True}},
    "relative": {"position": {"name": "shaw"}},
    "recurrent": {"family": "recurrent"},
    "recurrent, bilinear": {"family": "recurrent", "recurrent": {"attention": "bilinear"}},
    "decoder": {"family": "decoder"},
    "classifier": {"family": "encoder", "head": {"kind": "classify", "classes": 3, "pooler": True}},
    "tagger": {"family": "encoder", "head": {"kind": "tag", "classes": 7}},
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_planners_count(name: str) -> None:
    config = ModelConfig.from_dict(SMALL | MODELS[name])
    model, quick = build(config, device="meta"), StepFlops(config)

    @settings(deadline=None, max_examples=20)
    @given(rows=st.integers(1, 200), source=st.integers(1, 600), target=st.integers(1, 600))
    def check(rows: int, source: int, target: int) -> None:
        if config.family in ("encoder-decoder", "recurrent"):
            wanted = count_flops(model, Batch(rows, source, target), 1).step
            found = quick(rows, source, target)
        else:
            shape = Batch(rows, 0, target) if config.family == "decoder" else Batch(rows, target, 0)
            wanted = count_flops(model, shape, 1).step
            found = quick(rows, 0, target)
        assert found == pytest.approx(wanted, rel=1e-6)

    check()


@pytest.mark.parametrize("task", ["translate", "generate", "classify", "tag"])
def test_of_a_batch(task: str) -> None:
    """Padded: what is computed, padding included; packed: each row as long as it is."""
    quick = StepFlops(model_config(task))
    padded = a_batch(task, rows=4, empty=2, wider=3)
    source = 0 if padded.source is None else padded.source.shape[1]
    assert quick.of(padded) == quick(6, source, padded.inputs.shape[1])
    rows = [a_batch(task, rows=1, seed=seed) for seed in range(3)]
    for row in rows:  # a row by itself has no padding
        assert quick.of(pack_batch(row)) == pytest.approx(quick.of(row))
    assert quick.of(pack_batch(padded)) < quick.of(padded)


def test_the_peak_of_this_machine() -> None:
    """By the table: the same whenever it is asked for, and less with fewer threads."""
    one, two = (peak_of(torch.device("cpu"), torch.float32, threads) for threads in (1, 2))
    assert one is not None
    assert two is not None
    assert 1e9 < one <= two < 1e13


@pytest.mark.gpu
def test_the_peak_of_a_gpu_is_known_or_none() -> None:
    device = torch.device("cuda")
    half, full = peak_of(device, torch.bfloat16), peak_of(device, torch.float32)
    if "h200" in torch.cuda.get_device_name(device).lower():
        assert (half, full) == (990e12, 67e12)


def test_a_masked_language_model_scores_its_hidden_tokens_alone() -> None:
    words = ModelConfig.from_dict({**SMALL, "family": "encoder", "head": {"kind": "mlm"}})
    rows, length, hidden = 3, 20, 4
    ids, places = torch.ones(rows, length, dtype=torch.long), torch.zeros(rows, hidden, dtype=torch.long)
    fields = {"inputs": ids, "labels": places, "places": places}
    batch = data.Batch(fields, {"inputs": torch.full((rows,), length)}, rows, rows * hidden)
    bare = StepFlops(words.replace(head__kind="none"))(rows, 0, length)
    assert StepFlops(words).of(batch) == pytest.approx(bare + rows * hidden * 6 * 16 * (50 + 16))
