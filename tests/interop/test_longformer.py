"""Longformer with copied weights: windows, a global token with projections of its own, real tokens alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.interop import export_folder, import_folder
from clearhead.models import ModelConfig, build

from .conftest import VOCABULARY, Spec, save_random
from .test_battery import close, ids, real

SETTINGS = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "type_vocab_size": 2,
    "attention_window": [4, 8],
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
LENGTHS = [23, 11, 2]


def pair(transformers: Any, folder: Path, kind: str, **settings: Any) -> tuple[Any, Any]:
    save_random(transformers, Spec("longformer", "encoder", kind, SETTINGS | settings), folder)
    return getattr(transformers, kind).from_pretrained(folder).eval(), import_folder(folder)


@pytest.mark.parametrize("kind", ["LongformerModel", "LongformerForMaskedLM"])
def test_hidden_states_and_gradients(transformers: Any, tmp_path: Path, kind: str) -> None:
    theirs, bundle = pair(transformers, tmp_path / "model", kind)
    ours, mask = bundle.model, real(23, LENGTHS)
    tokens = ids(23, LENGTHS, VOCABULARY, 1)
    first = torch.zeros_like(tokens)
    first[:, 0] = 1
    there = theirs(tokens, attention_mask=mask.long(), global_attention_mask=first, output_hidden_states=True)
    here = ours(tokens, lengths=LENGTHS)
    close(here.hidden[mask], there.hidden_states[-1][mask], "hidden")
    if kind == "LongformerForMaskedLM":
        close(here.logits[mask], there.logits[mask], "logits")
    else:
        close(here.pooled, there.pooler_output, "pooled")
    weight = torch.randn(here.hidden.shape, generator=torch.Generator().manual_seed(3))[mask]
    for hidden in (here.hidden, there.hidden_states[-1]):
        (hidden[mask] * weight).sum().backward()
    own = getattr(theirs, "longformer", theirs)
    for layer, other in zip(ours.encoder.layers, own.encoder.layer, strict=True):
        for name in ("query", "key", "value"):
            wanted = getattr(other.attention.self, f"{name}_global").weight.grad
            close(getattr(layer.attention, f"global_{name}").weight.grad, wanted, f"global {name}")
            wanted = getattr(other.attention.self, name).weight.grad
            close(getattr(layer.attention, name).weight.grad, wanted, name, at_least=1.0)


def test_a_refused_layer_pattern_is_named_and_not_written_out(tmp_path: Path) -> None:
    rule = {"stack": "encoder", "attention": {"kind": "sparse", "heads": 2, "window": 3}}
    plain = {"width": 8, "layers": 1, "vocabulary": 9, "attention": {"heads": 2}, "layer_pattern": [rule]}
    bundle = Bundle(build(ModelConfig.from_dict(plain)))
    with pytest.raises(UserError, match=r"has no layer_pattern[,.]") as refusal:
        export_folder(bundle, tmp_path / "out")
    assert len(str(refusal.value)) < 300


def test_what_cannot_be_carried_over(transformers: Any, tmp_path: Path) -> None:
    _, bundle = pair(transformers, tmp_path / "model", "LongformerModel", attention_window=4)
    assert bundle.config.attention.window == 3  # w/2 on either side, and itself
    assert bundle.config.position.max_length == 38
    with pytest.raises(UserError, match=r"cannot be exported: .* padding token"):
        export_folder(bundle, tmp_path / "out")
    file = tmp_path / "model" / "config.json"
    for name, value in (("attention_window", [4]), ("attention_window", 5), ("pad_token_id", 0)):
        plain = json.loads(file.read_text())
        changed = tmp_path / "model" / "config.json"
        changed.write_text(json.dumps(plain | {name: value}))
        with pytest.raises(UserError, match=rf"{name}=.* cannot be imported"):
            import_folder(tmp_path / "model")
        changed.write_text(json.dumps(plain))
