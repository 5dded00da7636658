"""When batches are packed: where a GPU's kernels for that serve the model, and nobody said otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clearhead.jobs.recipe import laid_out, packs, padded_if_need_be
from clearhead.training.config import TrainConfig
from clearhead.training.sizing import Choice

GPU, CPU = torch.device("cuda"), torch.device("cpu")
CHOICES = [Choice("batch.tokens", 4096, "large enough"), Choice("batch.shapes", "fixed", "recorded")]


def config(**changes: Any) -> TrainConfig:
    return TrainConfig().replace(batch__shapes="fixed", batch__tokens=4096, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model__attention__dropout": 0.1},
        {"model__attention__softcap": 5.0},
        {"model__attention__kernel": "sdpa"},
        {"model__attention__score": "additive"},
        {"model__position__name": "alibi"},
        {"model__family": "recurrent"},
        {"task": "generate"},
        {"batch__shapes": "free"},
    ],
    ids=str,
)
def test_models_that_padded_rows_serve_better(changes: dict[str, Any]) -> None:
    assert packs(config(), GPU, torch.bfloat16)
    assert not packs(config().replace(**changes), GPU, torch.bfloat16)


def test_only_on_a_gpu_in_half_precision() -> None:
    assert not packs(config(), GPU, torch.float32)
    assert not packs(config(), CPU, torch.bfloat16)


def test_a_packed_batch_holds_the_real_tokens_of_a_padded_one() -> None:
    chosen = {choice.name: choice.value for choice in laid_out(CHOICES, {}, config(), GPU, torch.bfloat16)}
    assert chosen["batch.layout"] == "packed"
    assert chosen["batch.tokens"] == 3328  # 85 % of 4,096


@pytest.mark.parametrize("said", [{"tokens": 8192}, {"layout": "padded"}], ids=str)
def test_what_a_user_says_stands(said: dict[str, Any]) -> None:
    assert laid_out(CHOICES, {"batch": said}, config(), GPU, torch.bfloat16) == CHOICES


def test_a_recipe_that_packs_pads_elsewhere() -> None:
    packed = config(batch__layout="packed")
    assert padded_if_need_be(packed, GPU, torch.bfloat16) is packed
    assert padded_if_need_be(packed, CPU, torch.float32).batch.layout == "padded"
    free = packed.replace(batch__shapes="free")
    assert padded_if_need_be(free, CPU, torch.float32) is free
