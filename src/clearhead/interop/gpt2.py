"""GPT-2: a decoder with learned positions, norms before the sub-layers and a tied output.

What is special: weights are stored transposed, and queries, keys and values in
one matrix.
"""

from __future__ import annotations

from clearhead.interop.family import Family, Setting
from clearhead.interop.mapping import (
    SPLIT_IN_3,
    SPLIT_IN_3_TRANSPOSED,
    TRANSPOSED,
    Row,
    Table,
    linear,
    linears,
    output,
)
from clearhead.models.config import ModelConfig

_THERE, _HERE = "transformer.h.{i}", "decoder.layers.{i}"
_QKV = tuple(f"{_HERE}.attention.{part}" for part in ("query", "key", "value"))
_NORMS = {"ln_1": "attention_residual.norm", "ln_2": "feedforward_residual.norm"}
_LINEARS = {
    "attn.c_proj": "attention.output",
    "mlp.c_fc": "feedforward.inner",
    "mlp.c_proj": "feedforward.output",
}


def _table(config: ModelConfig) -> Table:
    return [
        Row("transformer.wte.weight", "embedding.table.weight"),
        Row("transformer.wpe.weight", "embedding.position.table"),
        *linears(_THERE, _HERE, _NORMS),
        Row(f"{_THERE}.attn.c_attn.weight", tuple(f"{p}.weight" for p in _QKV), SPLIT_IN_3_TRANSPOSED),
        Row(f"{_THERE}.attn.c_attn.bias", tuple(f"{p}.bias" for p in _QKV), SPLIT_IN_3),
        *linears(_THERE, _HERE, _LINEARS, change=TRANSPOSED),
        *linear("transformer.ln_f", "decoder.norm"),
        output(config, "transformer.wte.weight"),
    ]


GPT2 = Family(
    model_type="gpt2",
    architectures={"GPT2LMHeadModel": "none", "GPT2Model": "none"},
    prefix="transformer.",
    settings=(
        Setting("vocab_size", "vocabulary"),
        Setting("n_embd", "width"),
        Setting("n_layer", "layers"),
        Setting("n_head", "attention.heads"),
        Setting("n_inner", "feedforward.width", default=lambda flat: 4 * flat["width"]),
        Setting("n_positions", "position.max_length", default=1024),
        Setting("activation_function", "feedforward.activation", "activation", "gelu_new"),
        Setting("layer_norm_epsilon", "norm.eps", "number", 1e-5),
        Setting("resid_pdrop", "dropout", "number", 0.1),
        Setting("attn_pdrop", "attention.dropout", "number", 0.1),
        Setting("embd_pdrop", "embedding.dropout", "number", 0.1),
        Setting("tie_word_embeddings", "embedding.tie_output", "flag", True),
    ),
    ours={
        "family": "decoder",
        "position.name": "learned",
        "norm.place": "pre",
        "embedding.scale": False,
        "initialisation": "scaled",
    },
    theirs={"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    read_more=lambda settings, names, flat: {
        "attention.score": "scaled_dot" if settings.flag("scale_attn_weights", True) else "dot"
    },
    write_more=lambda config: {"scale_attn_weights": config.attention.score == "scaled_dot"},
    table=_table,
    # the causal mask, which early checkpoints store like a weight
    ignored=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
)
