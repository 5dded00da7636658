"""Llama: a decoder with rotary positions, RMS norms, gated feed-forward and grouped heads.

What is special: rotary features are in halves (our models with features in
pairs are reordered on export), and positions may be stretched to longer texts.
"Dynamic" stretching is refused: it rotates stored keys again as the text grows, so
decoding with and without a cache would differ.
"""

from __future__ import annotations

import math
from typing import Any

from clearhead.interop.family import Family, Flat, Setting, filled
from clearhead.interop.mapping import SAME, Names, Row, Table, linear, linears, output, rotary_halves
from clearhead.interop.settings import Settings
from clearhead.models.config import ModelConfig

_WHY_NOT_DYNAMIC = (
    "dynamic scaling changes the rotation of all earlier positions as the text grows, so cached and "
    "uncached decoding would differ; 'linear', 'yarn' and 'llama3' can be imported"
)
NORMS = {
    "input_layernorm": "attention_residual.norm",
    "post_attention_layernorm": "feedforward_residual.norm",
}
_ATTENTION = {"self_attn.v_proj": "attention.value", "self_attn.o_proj": "attention.output"}
FEEDFORWARD = {
    "mlp.gate_proj": "feedforward.gate",
    "mlp.up_proj": "feedforward.inner",
    "mlp.down_proj": "feedforward.output",
}


def _table(config: ModelConfig) -> Table:
    there, here = "model.layers.{i}", "decoder.layers.{i}"
    attention, pairs = config.attention, config.position.layout == "interleaved"
    bias = attention.bias
    table: Table = [
        Row("model.embed_tokens.weight", "embedding.table.weight"),
        *linears(there, here, NORMS, bias=False),
        *linears(there, here, _ATTENTION, bias),
        *linears(there, here, FEEDFORWARD, config.feedforward.bias),
        *linear("model.norm", "decoder.norm", bias=False),
        output(config, "model.embed_tokens.weight"),
    ]
    for theirs, ours, heads in (("q_proj", "query", attention.heads), ("k_proj", "key", attention.groups)):
        change = rotary_halves(heads) if pairs else SAME
        table += linear(f"{there}.self_attn.{theirs}", f"{here}.attention.{ours}", bias, change)
    return table


def read_rotary(settings: Settings, names: Names, flat: Flat) -> Flat:
    """Rotary settings, as written before (`rope_scaling`) or since (`rope_parameters`) version 5."""
    name = "rope_parameters" if settings.has("rope_parameters") else "rope_scaling"
    rope = Settings(settings.table(name), f"{settings.where} ({name})")
    length = flat["position.max_length"]
    turning = rope.number("partial_rotary_factor", settings.number("partial_rotary_factor", 1.0))
    if turning != 1.0:
        settings.refuse("partial_rotary_factor", turning, "clearhead rotates all features of a head")
    original = settings.whole("original_max_position_embeddings", length)
    return {
        "position.base": rope.number("rope_theta", flat["position.base"]),
        "position.scaling": _read_scaling(rope, original, length),
    }


def _read_scaling(rope: Settings, original: int, length: int) -> dict[str, Any] | None:
    kind = rope.plain.get("rope_type") or rope.plain.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "yarn", "llama3"):
        reason = (
            _WHY_NOT_DYNAMIC
            if kind == "dynamic"
            else "the supported kinds are default, linear, yarn and llama3"
        )
        rope.refuse("rope_type", kind, reason)
    original = rope.whole("original_max_position_embeddings", original)
    factor = rope.number("factor", length / original)
    scaling: dict[str, Any] = {"kind": kind, "factor": factor, "original_length": original}
    if kind == "llama3":
        scaling["low_frequency"] = rope.number("low_freq_factor")
        scaling["high_frequency"] = rope.number("high_freq_factor")
    elif kind == "yarn":
        rope.fixed({"truncate": True})
        scaling["fast_turns"] = rope.number("beta_fast", 32.0)
        scaling["slow_turns"] = rope.number("beta_slow", 1.0)
        scaling["temperature"] = _yarn_temperature(rope, factor)
    return scaling


def _yarn_temperature(rope: Settings, factor: float) -> float | None:
    """Given directly, or as the quotient of two; None: computed from the factor."""
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if not above or not below or factor <= 1:
        return None
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)


def write_rotary(config: ModelConfig) -> dict[str, Any]:
    """The scaling, for readers before and since version 5."""
    names = {
        "kind": "rope_type",
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "low_frequency": "low_freq_factor",
        "high_frequency": "high_freq_factor",
        "fast_turns": "beta_fast",
        "slow_turns": "beta_slow",
        "temperature": "attention_factor",
    }
    scaling = filled(config)["position.scaling"]
    return {"rope_scaling": scaling and {names[name]: x for name, x in scaling.items() if x is not None}}


def _usual_size(flat: Flat) -> int:
    return max(int(flat["width"]) // int(flat["attention.heads"]), 1)


LLAMA = Family(
    model_type="llama",
    architectures={"LlamaForCausalLM": "none", "LlamaModel": "none"},
    prefix="model.",
    settings=(
        Setting("vocab_size", "vocabulary"),
        Setting("hidden_size", "width"),
        Setting("intermediate_size", "feedforward.width"),
        Setting("num_hidden_layers", "layers"),
        Setting("num_attention_heads", "attention.heads"),
        Setting("num_key_value_heads", "attention.kv_heads", default=lambda flat: flat["attention.heads"]),
        Setting("head_dim", "attention.key_dim", default=_usual_size),
        Setting("hidden_act", "feedforward.activation", "activation", "silu"),
        Setting("max_position_embeddings", "position.max_length", default=2048),
        Setting("rope_theta", "position.base", "number", 10_000.0),
        Setting("rms_norm_eps", "norm.eps", "number", 1e-6),
        Setting("attention_bias", "attention.bias", "flag", False),
        Setting("attention_dropout", "attention.dropout", "number", 0.0),
        Setting("mlp_bias", "feedforward.bias", "flag", False),
        Setting("tie_word_embeddings", "embedding.tie_output", "flag", False),
    ),
    ours={
        "family": "decoder",
        "dropout": 0.0,
        "position.name": "rotary",
        "position.layout": "halves",
        "feedforward.gated": True,
        "norm.kind": "rms",
        "norm.place": "pre",
        "embedding.scale": False,
        "initialisation": "scaled",
    },
    read_more=read_rotary,
    write_more=write_rotary,
    table=_table,
    # the rotary frequencies, which are computed here
    ignored=("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
)
