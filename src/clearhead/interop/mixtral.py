"""Experts of other toolkits, and Mixtral: Llama with experts instead of its feed-forward nets.

What is special: each expert's matrices are separate tensors there, and one tensor of all experts here.
Mixtral balances only by a loss, so it has no routing bias: ours is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clearhead.interop.family import Setting
from clearhead.interop.llama import LLAMA
from clearhead.interop.mapping import Row, Table
from clearhead.models.config import ModelConfig
from clearhead.nn.experts import ExpertsConfig

_OWN = (
    "num_key_value_heads",
    "intermediate_size",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "rope_theta",
    "rms_norm_eps",
)
_MATRICES = {"w1": "gate", "w3": "inner", "w2": "output"}


def expert_rows(
    there: str, here: str, matrices: Mapping[str, str], experts: int, first: int = 0
) -> list[Row]:
    """Rows of router and experts; `there` and `here` are the part's names, from layer `first` on."""
    layers = (first, None)
    stacked = [
        Row(f"{there}.experts.{{e}}.{name}.weight", f"{here}.{ours}", experts=experts, layers=layers)
        for name, ours in matrices.items()
    ]
    return [Row(f"{there}.gate.weight", f"{here}.router.project.weight", layers=layers), *stacked]


def _table(config: ModelConfig) -> Table:
    there, here = "model.layers.{i}.block_sparse_moe", "decoder.layers.{i}.feedforward"
    own = config.feedforward
    count = own.experts if isinstance(own, ExpertsConfig) else 0
    shared = [row for row in LLAMA.table(config) if not (isinstance(row, Row) and ".mlp." in row.theirs)]
    return [*shared, *expert_rows(there, here, _MATRICES, count), Row("", f"{here}.router.balance")]


MIXTRAL = replace(
    LLAMA,
    model_type="mixtral",
    architectures={"MixtralForCausalLM": "none", "MixtralModel": "none"},
    settings=(
        *(setting for setting in LLAMA.settings if setting.theirs not in _OWN),
        Setting("num_key_value_heads", "attention.kv_heads", default=8),
        Setting("intermediate_size", "feedforward.width", default=14_336),
        Setting("hidden_act", "feedforward.activation", "activation", "silu"),
        Setting("num_local_experts", "feedforward.experts", default=8),
        Setting("num_experts_per_tok", "feedforward.chosen", default=2),
        Setting("rope_theta", "position.base", "number", 1_000_000.0),
        Setting("rms_norm_eps", "norm.eps", "number", 1e-5),
    ),
    ours={
        **LLAMA.ours,
        "attention.bias": False,
        "feedforward.kind": "experts",
        "feedforward.bias": False,
        "feedforward.score": "softmax",
        "feedforward.normalise": True,
        "feedforward.bias_rate": 0.0,  # so that a fine-tuned model is still a Mixtral
    },
    theirs={"sliding_window": None},
    table=_table,
    training_only=("router_jitter_noise",),
)
