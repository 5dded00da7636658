"""GPT-2: a decoder with learned positions, norms before the sub-layers and a tied output.

What is special: weights are stored transposed, and queries, keys and values in
one matrix.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family
from clearhead.interop.mapping import (
    SPLIT_IN_3,
    SPLIT_IN_3_TRANSPOSED,
    TRANSPOSED,
    Copy,
    Names,
    Row,
    linear,
)
from clearhead.interop.settings import THEIR_ACTIVATIONS, Settings
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


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    settings.fixed({"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False})
    width = settings.whole("n_embd")
    return ModelConfig.from_dict(
        {
            "family": "decoder",
            "vocabulary": settings.whole("vocab_size"),
            "width": width,
            "layers": settings.whole("n_layer"),
            "dropout": settings.number("resid_pdrop", 0.1),
            "attention": {
                "heads": settings.whole("n_head"),
                "score": "scaled_dot" if settings.flag("scale_attn_weights", True) else "dot",
                "dropout": settings.number("attn_pdrop", 0.1),
            },
            "feedforward": {
                "width": settings.whole("n_inner", 4 * width),
                "activation": settings.activation("activation_function", "gelu_new"),
            },
            "position": {"name": "learned", "max_length": settings.whole("n_positions", 1024)},
            "norm": {"place": "pre", "eps": settings.number("layer_norm_epsilon", 1e-5)},
            "embedding": {
                "scale": False,
                "tie_output": settings.flag("tie_word_embeddings", True),
                "dropout": settings.number("embd_pdrop", 0.1),
            },
            "initialisation": "scaled",
        }
    )


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json."""
    return {
        "vocab_size": config.vocabulary,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.attention.heads,
        "n_inner": config.feedforward.width or 4 * config.width,
        "n_positions": config.position.max_length,
        "activation_function": THEIR_ACTIVATIONS[config.feedforward.activation],
        "scale_attn_weights": config.attention.score == "scaled_dot",
        "layer_norm_epsilon": config.norm.eps,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention.dropout,
        "embd_pdrop": config.embedding.dropout,
        "tie_word_embeddings": config.embedding.tie_output,
    }


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
