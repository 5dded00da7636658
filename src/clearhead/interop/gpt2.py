"""GPT-2: a decoder with learned positions, norms before the sub-layers and a tied output.

What is special: weights are stored transposed, and queries, keys and values in
one matrix.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family, Setting, read_rows, write_rows
from clearhead.interop.mapping import (
    SPLIT_IN_3,
    SPLIT_IN_3_TRANSPOSED,
    TRANSPOSED,
    Copy,
    Names,
    Row,
    linear,
)
from clearhead.interop.settings import Settings
from clearhead.models.config import ModelConfig

_THERE, _HERE = "transformer.h.{i}", "decoder.layers.{i}"
_QKV = tuple(f"{_HERE}.attention.{part}" for part in ("query", "key", "value"))

_ROWS = (
    Row("transformer.wte.weight", "embedding.table.weight"),
    Row("transformer.wpe.weight", "embedding.position.table"),
    *linear(f"{_THERE}.ln_1", f"{_HERE}.attention_residual.norm"),
    Row(f"{_THERE}.attn.c_attn.weight", tuple(f"{p}.weight" for p in _QKV), SPLIT_IN_3_TRANSPOSED),
    Row(f"{_THERE}.attn.c_attn.bias", tuple(f"{p}.bias" for p in _QKV), SPLIT_IN_3),
    *linear(f"{_THERE}.attn.c_proj", f"{_HERE}.attention.output", change=TRANSPOSED),
    *linear(f"{_THERE}.ln_2", f"{_HERE}.feedforward_residual.norm"),
    *linear(f"{_THERE}.mlp.c_fc", f"{_HERE}.feedforward.inner", change=TRANSPOSED),
    *linear(f"{_THERE}.mlp.c_proj", f"{_HERE}.feedforward.output", change=TRANSPOSED),
    *linear("transformer.ln_f", "decoder.norm"),
)


def rows(config: ModelConfig) -> list[Row]:
    """GPT-2's table."""
    tied = config.embedding.tie_output
    return [*_ROWS] if tied else [*_ROWS, Row("lm_head.weight", "output.weight")]


def copies(config: ModelConfig) -> list[Copy]:
    """A tied output may be stored again."""
    return [Copy("lm_head.weight", "transformer.wte.weight")] if config.embedding.tie_output else []


_SETTINGS = (
    Setting("vocab_size", "vocabulary"),
    Setting("n_embd", "width"),
    Setting("n_layer", "layers"),
    Setting("n_head", "attention.heads"),
    Setting("n_positions", "position.max_length", default=1024),
    Setting("activation_function", "feedforward.activation", "activation", "gelu_new"),
    Setting("layer_norm_epsilon", "norm.eps", "number", 1e-5),
    Setting("resid_pdrop", "dropout", "number", 0.1),
    Setting("attn_pdrop", "attention.dropout", "number", 0.1),
    Setting("embd_pdrop", "embedding.dropout", "number", 0.1),
    Setting("tie_word_embeddings", "embedding.tie_output", "flag", True),
)
_FIXED = {
    "family": "decoder",
    "position.name": "learned",
    "norm.place": "pre",
    "embedding.scale": False,
    "initialisation": "scaled",
}


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    settings.fixed({"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False})
    plain = read_rows(settings, _SETTINGS, _FIXED)
    plain["attention"]["score"] = "scaled_dot" if settings.flag("scale_attn_weights", True) else "dot"
    plain["feedforward"]["width"] = settings.whole("n_inner", 4 * plain["width"])
    return ModelConfig.from_dict(plain)


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json."""
    scaled = config.attention.score == "scaled_dot"
    inner = config.feedforward.width or 4 * config.width
    return write_rows(_SETTINGS, config) | {"n_inner": inner, "scale_attn_weights": scaled}


FAMILY = Family(
    model_type="gpt2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    prefix="transformer.",
    read=read,
    write=write,
    architecture=lambda config: "GPT2LMHeadModel",
    rows=rows,
    copies=copies,
    # the causal mask, which early checkpoints carry as if it were a weight
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
)
