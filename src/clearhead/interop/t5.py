"""T5, version 1.0 (ReLU, tied and scaled output) and 1.1 (gated GELU, untied output).

What is special: no biases anywhere; scores are not scaled; one table of relative
positions in each stack, stored with its first layer; a tied output is scaled by
d^−½, an untied one is not.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family, Flat, Setting
from clearhead.interop.mapping import Copy, Names, Row, Table, linears, output
from clearhead.interop.settings import ACTIVATIONS, THEIR_ACTIVATIONS, Settings
from clearhead.models.config import ModelConfig


def _stack(stack: str, config: ModelConfig, attentions: dict[str, str]) -> Table:
    """The layers of the encoder or the decoder, whose sub-layers are numbered."""
    layer = {}
    for number, (block, attention) in enumerate(attentions.items()):
        for letter, name in {"q": "query", "k": "key", "v": "value", "o": "output"}.items():
            layer[f"{number}.{block}.{letter}"] = f"{attention}.{name}"
        layer[f"{number}.layer_norm"] = f"{attention.removesuffix('_attention')}_residual.norm"
    last = len(attentions)
    inner = {"wi_0": "gate", "wi_1": "inner"} if config.feedforward.gated else {"wi": "inner"}
    for theirs, ours in {**inner, "wo": "output"}.items():
        layer[f"{last}.DenseReluDense.{theirs}"] = f"feedforward.{ours}"
    layer[f"{last}.layer_norm"] = "feedforward_residual.norm"
    positions = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [
        *linears(f"{stack}.block.{{i}}.layer", f"{stack}.layers.{{i}}", layer, bias=False),
        Row(positions, f"{stack}.layers.0.attention.position.table"),
        Row(f"{stack}.final_layer_norm.weight", f"{stack}.norm.weight"),
    ]


def _table(config: ModelConfig) -> Table:
    own = {"SelfAttention": "attention"}
    return [
        Row("shared.weight", "source_embedding.table.weight"),
        *(Copy(f"{stack}.embed_tokens.weight", "shared.weight") for stack in ("encoder", "decoder")),
        *_stack("encoder", config, own),
        *_stack("decoder", config, own | {"EncDecAttention": "cross_attention"}),
        # Before version 5, transformers takes an unscaled output for an untied one.
        output(config, "shared.weight", written=not _scaled(config)),
    ]


def _scaled(config: ModelConfig) -> bool:
    return config.embedding.tie_output and config.embedding.output_scale is not None


def _read(settings: Settings, names: Names, flat: Flat) -> Flat:
    """The output, and `relu`, `gated-gelu` and the like; the latter has always meant the tanh form."""
    kind = settings.plain.get("feed_forward_proj") or "relu"
    gate, _, name = str(kind).rpartition("-")
    if gate not in ("", "gated"):
        settings.refuse("feed_forward_proj", kind, "an activation or 'gated-' and an activation is needed")
    name = "gelu_new" if kind == "gated-gelu" else name
    name = settings.plain.get("dense_act_fn") or name
    if name not in ACTIVATIONS:
        settings.refuse(
            "feed_forward_proj", kind, "the supported activations are " + ", ".join(sorted(ACTIVATIONS))
        )
    scaled = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", True))
    return {
        "feedforward.activation": ACTIVATIONS[name],
        "feedforward.gated": gate == "gated",
        "embedding.tie_output": scaled or "lm_head.weight" not in names,
        "embedding.output_scale": flat["width"] ** -0.5 if scaled else None,
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    activation = THEIR_ACTIVATIONS[config.feedforward.activation]
    if config.feedforward.gated:
        activation = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
    scaled = _scaled(config)
    # Readers before and since version 5 of transformers get the scale from one or the other.
    return {"feed_forward_proj": activation, "tie_word_embeddings": scaled, "scale_decoder_outputs": scaled}


_DROPOUTS = ("dropout", "attention.dropout", "feedforward.dropout", "embedding.dropout")

T5 = Family(
    model_type="t5",
    architectures=dict.fromkeys(("T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model"), "none"),
    prefix="",
    settings=(
        Setting("vocab_size", "vocabulary"),
        Setting("d_model", "width"),
        Setting("d_kv", "attention.key_dim"),
        Setting("d_ff", "feedforward.width"),
        Setting("num_layers", "layers"),
        Setting("num_decoder_layers", "decoder_layers", default=lambda flat: flat["layers"]),
        Setting("num_heads", "attention.heads"),
        Setting("relative_attention_num_buckets", "position.buckets", default=32),
        Setting("relative_attention_max_distance", "position.max_distance", default=128),
        Setting("dropout_rate", _DROPOUTS, "number", 0.1),
        Setting("layer_norm_epsilon", "norm.eps", "number", 1e-6),
    ),
    ours={
        "family": "encoder-decoder",
        "attention.score": "dot",
        "attention.bias": False,
        "feedforward.bias": False,
        "position.name": "t5",
        "norm.kind": "rms",
        "norm.place": "pre",
        "embedding.scale": False,
    },
    theirs={"is_decoder": False, "is_encoder_decoder": True},
    read_more=_read,
    write_more=_write,
    table=_table,
    # a bias that early checkpoints contain and no version of the model uses
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)
