"""DeepSeek-V3: Llama's layers with latent attention, and experts in all but the first layers.

What is special: one matrix computes the keys and values of each head, one after the other; rotated features
are in pairs; and stretched positions (YaRN) also sharpen the scores.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.interop.family import Family, Flat, Setting
from clearhead.interop.llama import FEEDFORWARD, NORMS, read_rotary, write_rotary
from clearhead.interop.mapping import Change, Names, Row, Table, linear, linears, output
from clearhead.interop.mixtral import expert_rows
from clearhead.interop.settings import Settings
from clearhead.models.config import ModelConfig
from clearhead.nn.attention.latent import LatentConfig
from clearhead.nn.experts import ExpertsConfig

_WITH_BIAS = {"self_attn.kv_a_proj_with_mqa": "attention.latent", "self_attn.o_proj": "attention.output"}


def _keys_and_values(config: LatentConfig) -> Change:
    """Theirs has the rows of each head's keys, then its values; ours has all keys and all values."""
    heads, sizes = config.heads, [config.content_size, config.value_size]

    def to_ours(t: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.flatten(0, 1) for part in t.unflatten(0, (heads, sum(sizes))).split(sizes, 1))

    def to_theirs(key: Tensor, value: Tensor) -> Tensor:
        by_head = [part.unflatten(0, (heads, -1)) for part in (key, value)]
        joined: Tensor = torch.cat(by_head, 1).flatten(0, 1)
        return joined

    return Change(to_ours, to_theirs)


def _experts_of(config: ModelConfig) -> tuple[int, ExpertsConfig | None]:
    """The first layer with experts, and their settings; the number of layers if there are none."""
    if isinstance(config.feedforward, ExpertsConfig):
        return 0, config.feedforward
    for rule in config.layer_pattern:
        if isinstance(rule.feedforward, ExpertsConfig):
            return rule.first, rule.feedforward
    return config.layers, None


def _feedforward_rows(config: ModelConfig) -> list[Row]:
    """Dense layers, then experts: the routed ones, the bias for routing, and the shared ones."""
    there, here = "model.layers.{i}", "decoder.layers.{i}"
    first, experts = _experts_of(config)
    dense = linears(there, here, FEEDFORWARD, bias=False)
    rows = [replace(row, layers=(0, first)) for row in dense if isinstance(row, Row)]
    if experts is None:
        return rows
    mlp, own = f"{there}.mlp", f"{here}.feedforward"
    matrices = {"gate_proj": "gate", "up_proj": "inner", "down_proj": "output"}
    bias = Row(f"{mlp}.gate.e_score_correction_bias", f"{own}.router.balance", layers=(first, None))
    shared = [
        Row(f"{mlp}.shared_experts.{name}.weight", f"{own}.shared.{ours}.weight", layers=(first, None))
        for name, ours in matrices.items()
        if experts.shared
    ]
    return [*rows, *expert_rows(mlp, own, matrices, experts.experts, first), bias, *shared]


def _table(config: ModelConfig) -> Table:
    there, here = "model.layers.{i}", "decoder.layers.{i}"
    attention = config.attention.replace(width=config.width)
    assert isinstance(attention, LatentConfig)
    own = f"{there}.self_attn"
    table: Table = [
        Row("model.embed_tokens.weight", "embedding.table.weight"),
        *linears(there, here, NORMS, bias=False),
        *linears(there, here, _WITH_BIAS, attention.bias),
        *linear(f"{own}.kv_a_layernorm", f"{here}.attention.norm", bias=False),
        Row(
            f"{own}.kv_b_proj.weight",
            (f"{here}.attention.key.weight", f"{here}.attention.value.weight"),
            _keys_and_values(attention),
        ),
        *_feedforward_rows(config),
        *linear("model.norm", "decoder.norm", bias=False),
        output(config, "model.embed_tokens.weight"),
    ]
    if attention.query_latent_dim is None:
        return [*table, *linear(f"{own}.q_proj", f"{here}.attention.query", bias=False)]
    return [
        *table,
        *linear(f"{own}.q_a_proj", f"{here}.attention.query_latent", attention.bias),
        *linear(f"{own}.q_a_layernorm", f"{here}.attention.query_norm", bias=False),
        *linear(f"{own}.q_b_proj", f"{here}.attention.query", bias=False),
    ]


def _read(settings: Settings, names: Names, flat: Flat) -> Flat:
    """Rotary settings, how much they sharpen the scores, and whether queries are compressed."""
    if settings.whole("num_key_value_heads", flat["attention.heads"]) != flat["attention.heads"]:
        settings.refuse(
            "num_key_value_heads", settings.plain["num_key_value_heads"], "every head has its own"
        )
    found = read_rotary(settings, names, flat) | _read_experts(settings, flat)
    found["position.layout"] = "interleaved" if settings.flag("rope_interleave", True) else "halves"
    compressed = settings.has("q_lora_rank")
    found["attention.query_latent_dim"] = settings.whole("q_lora_rank") if compressed else None
    sharper = _sharper(settings, found["position.scaling"])
    if sharper != 1.0:
        size = flat["attention.key_dim"] + flat["attention.rotary_dim"]
        found["attention.scale"] = sharper * size**-0.5
    return found


def _read_experts(settings: Settings, flat: Flat) -> Flat:
    """Experts instead of the dense nets, in all layers or all but the first; empty if all are dense."""
    first = settings.whole("first_k_dense_replace", 3, least=0)
    if first >= flat["layers"]:
        return {}
    experts = {
        "kind": "experts",
        "width": settings.whole("moe_intermediate_size", 2048),
        "activation": flat["feedforward.activation"],
        "gated": True,
        "experts": settings.whole("n_routed_experts", 256),
        "chosen": settings.whole("num_experts_per_tok", 8),
        "shared": settings.whole("n_shared_experts", 1, least=0),
        "score": "sigmoid",
        "normalise": settings.flag("norm_topk_prob", True),
        "scale": settings.number("routed_scaling_factor", 2.5),
        "groups": settings.whole("n_group", 8),
        "groups_chosen": settings.whole("topk_group", 4),
    }
    if first == 0:
        return {f"feedforward.{name}": value for name, value in experts.items()}
    return {"layer_pattern": [{"first": first, "feedforward": experts}]}


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    first, experts = _experts_of(config)
    plain: dict[str, Any] = {"first_k_dense_replace": first}
    if experts is None:
        return plain
    return plain | {
        "moe_intermediate_size": experts.inner(config.width),
        "n_routed_experts": experts.experts,
        "num_experts_per_tok": experts.chosen,
        "n_shared_experts": experts.shared,
        "norm_topk_prob": experts.normalise,
        "routed_scaling_factor": experts.scale,
        "n_group": experts.groups,
        "topk_group": experts.groups_chosen,
    }


def _sharper(settings: Settings, scaling: dict[str, Any] | None) -> float:
    """The factor on scores that accompanies stretched positions."""
    name = "rope_parameters" if settings.has("rope_parameters") else "rope_scaling"
    share = Settings(settings.table(name), settings.where).number("mscale_all_dim", 0.0)
    if scaling is None or scaling["factor"] <= 1:
        return 1.0
    return float((0.1 * share * math.log(scaling["factor"]) + 1) ** 2)


def _write(config: ModelConfig) -> dict[str, Any]:
    attention = config.attention.replace(width=config.width)
    assert isinstance(attention, LatentConfig)
    plain = write_rotary(config)
    scaling = config.position.scaling
    if scaling is not None and scaling.factor > 1:
        sharper = math.sqrt(attention.factor * math.sqrt(attention.key_size))
        share = (sharper - 1) / (0.1 * math.log(scaling.factor))
        plain["rope_scaling"]["mscale_all_dim"] = round(share, 9)  # as it was written, not as computed
    return plain | {
        "q_lora_rank": attention.query_latent_dim,
        "qk_nope_head_dim": attention.content_size,
        "rope_interleave": config.position.layout == "interleaved",
        "num_key_value_heads": attention.heads,
        **_write_experts(config),
    }


DEEPSEEK = Family(
    model_type="deepseek_v3",
    architectures={"DeepseekV3ForCausalLM": "none", "DeepseekV3Model": "none"},
    prefix="model.",
    settings=(
        Setting("vocab_size", "vocabulary", default=129_280),
        Setting("hidden_size", "width", default=7168),
        Setting("intermediate_size", "feedforward.width", default=18_432),
        Setting("num_hidden_layers", "layers", default=61),
        Setting("num_attention_heads", "attention.heads", default=128),
        Setting("kv_lora_rank", "attention.latent_dim", default=512),
        Setting("qk_rope_head_dim", "attention.rotary_dim", default=64),
        Setting("qk_nope_head_dim", "attention.key_dim", default=128),
        Setting("v_head_dim", "attention.value_dim", default=128),
        Setting("hidden_act", "feedforward.activation", "activation", "silu"),
        Setting("max_position_embeddings", "position.max_length", default=4096),
        Setting("rope_theta", "position.base", "number", 10_000.0),
        Setting("rms_norm_eps", "norm.eps", "number", 1e-6),
        Setting("attention_bias", "attention.bias", "flag", False),
        Setting("attention_dropout", "attention.dropout", "number", 0.0),
        Setting("tie_word_embeddings", "embedding.tie_output", "flag", False),
    ),
    ours={
        "family": "decoder",
        "dropout": 0.0,
        "attention.kind": "latent",
        "position.name": "rotary",
        "feedforward.gated": True,
        "feedforward.bias": False,
        "norm.kind": "rms",
        "norm.place": "pre",
        "embedding.scale": False,
        "initialisation": "scaled",
    },
    # which transformers does not read, but whose other values other programs compute differently
    theirs={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1},
    read_more=_read,
    write_more=_write,
    table=_table,
    # the rotary frequencies, which are computed here, and layers that predict further tokens, which
    # transformers ignores too
    ignored=("model.layers.*.self_attn.rotary_emb.inv_freq", "model.layers.61.*"),
)
