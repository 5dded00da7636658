"""Llama: a decoder with rotary positions, RMS norms, gated feed-forward and grouped heads.

What is special: rotary features stand in halves (models of ours whose features
stand in pairs are reordered on the way out), and positions may be stretched to
longer texts. "Dynamic" stretching is refused: it turns stored keys anew as the
text grows, so that decoding with and without a cache would differ.
"""

from __future__ import annotations

import math
from typing import Any

from clearhead.interop.family import Family, Setting, read_rows, rotary_base, write_rows
from clearhead.interop.mapping import SAME, Copy, Names, Row, linear, rotary_halves
from clearhead.interop.settings import Settings
from clearhead.models.config import ModelConfig

_WHY_NOT_DYNAMIC = (
    "dynamic scaling turns all earlier positions anew as the text grows, so cached and uncached decoding "
    "would differ; 'linear', 'yarn' and 'llama3' can be imported"
)


def rows(config: ModelConfig) -> list[Row]:
    """Llama's table."""
    there, here = "model.layers.{i}", "decoder.layers.{i}"
    attention, pairs = config.attention, config.position.layout == "interleaved"
    bias, inner_bias = attention.bias, config.feedforward.bias
    result = [Row("model.embed_tokens.weight", "embedding.table.weight")]
    result += linear(f"{there}.input_layernorm", f"{here}.attention_residual.norm", bias=False)
    for theirs, ours, heads in (("q_proj", "query", attention.heads), ("k_proj", "key", attention.groups)):
        change = rotary_halves(heads) if pairs else SAME
        for kind in ("weight", "bias") if bias else ("weight",):
            name = f"{here}.attention.{ours}.{kind}"
            result.append(Row(f"{there}.self_attn.{theirs}.{kind}", name, change))
    result += linear(f"{there}.self_attn.v_proj", f"{here}.attention.value", bias)
    result += linear(f"{there}.self_attn.o_proj", f"{here}.attention.output", bias)
    result += linear(f"{there}.post_attention_layernorm", f"{here}.feedforward_residual.norm", bias=False)
    for theirs, ours in (("gate_proj", "gate"), ("up_proj", "inner"), ("down_proj", "output")):
        result += linear(f"{there}.mlp.{theirs}", f"{here}.feedforward.{ours}", inner_bias)
    result += linear("model.norm", "decoder.norm", bias=False)
    return result if config.embedding.tie_output else [*result, Row("lm_head.weight", "output.weight")]


def copies(config: ModelConfig) -> list[Copy]:
    """A tied output may be stored again."""
    return [Copy("lm_head.weight", "model.embed_tokens.weight")] if config.embedding.tie_output else []


_SETTINGS = (
    Setting("vocab_size", "vocabulary"),
    Setting("hidden_size", "width"),
    Setting("intermediate_size", "feedforward.width"),
    Setting("num_hidden_layers", "layers"),
    Setting("num_attention_heads", "attention.heads"),
    Setting("hidden_act", "feedforward.activation", "activation", "silu"),
    Setting("rms_norm_eps", "norm.eps", "number", 1e-6),
    Setting("attention_bias", "attention.bias", "flag", False),
    Setting("attention_dropout", "attention.dropout", "number", 0.0),
    Setting("mlp_bias", "feedforward.bias", "flag", False),
    Setting("tie_word_embeddings", "embedding.tie_output", "flag", False),
)
_FIXED = {
    "family": "decoder",
    "dropout": 0.0,
    "feedforward.gated": True,
    "norm.kind": "rms",
    "norm.place": "pre",
    "embedding.scale": False,
    "initialisation": "scaled",
}


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    plain = read_rows(settings, _SETTINGS, _FIXED)
    heads = plain["attention"]["heads"]
    plain["attention"] |= {
        "kv_heads": settings.whole("num_key_value_heads", heads),
        "key_dim": settings.whole("head_dim", max(plain["width"] // heads, 1)),
    }
    plain["position"] = _read_position(settings)
    return ModelConfig.from_dict(plain)


def _read_position(settings: Settings) -> dict[str, Any]:
    """Rotary settings, as written before (`rope_scaling`) or since (`rope_parameters`) version 5."""
    name = "rope_parameters" if settings.has("rope_parameters") else "rope_scaling"
    rope = Settings(settings.table(name), f"{settings.where} ({name})")
    length = settings.whole("max_position_embeddings", 2048)
    turning = rope.number("partial_rotary_factor", settings.number("partial_rotary_factor", 1.0))
    if turning != 1.0:
        settings.refuse("partial_rotary_factor", turning, "here all features of a head are turned")
    return {
        "name": "rotary",
        "layout": "halves",
        "base": rope.number("rope_theta", settings.number("rope_theta", 10_000.0)),
        "max_length": length,
        "scaling": _read_scaling(rope, settings.whole("original_max_position_embeddings", length), length),
    }


def _read_scaling(rope: Settings, original: int, length: int) -> dict[str, Any] | None:
    kind = rope.plain.get("rope_type") or rope.plain.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "yarn", "llama3"):
        reason = _WHY_NOT_DYNAMIC if kind == "dynamic" else "known kinds are default, linear, yarn and llama3"
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
    """Given outright, or as the quotient of two; None leaves it to the factor."""
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    above, below = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    if not above or not below or factor <= 1:
        return None
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json, with rotary settings that readers before and since version 5 know."""
    attention = config.attention.replace(width=config.width)
    return write_rows(_SETTINGS, config) | {
        "num_key_value_heads": attention.groups,
        "head_dim": attention.key_size,
        "max_position_embeddings": config.position.max_length,
        "rope_theta": rotary_base(config),
        "rope_scaling": _write_scaling(config),
    }


def _write_scaling(config: ModelConfig) -> dict[str, Any] | None:
    scaling = config.position.scaling
    if scaling is None or scaling.kind == "ntk":
        return None
    plain: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        plain["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "llama3":
        plain["low_freq_factor"] = scaling.low_frequency
        plain["high_freq_factor"] = scaling.high_frequency
    elif scaling.kind == "yarn":
        plain["beta_fast"], plain["beta_slow"] = scaling.fast_turns, scaling.slow_turns
        if scaling.temperature is not None:
            plain["attention_factor"] = scaling.temperature
    return plain


FAMILY = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM", "LlamaModel"),
    prefix="model.",
    read=read,
    write=write,
    architecture=lambda config: "LlamaForCausalLM",
    rows=rows,
    copies=copies,
    # the angles' speeds, which are computed here
    ignored=("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
)
