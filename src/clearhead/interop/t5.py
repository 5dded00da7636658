"""T5, version 1.0 (ReLU, tied and scaled output) and 1.1 (gated GELU, output of its own).

What is special: no biases anywhere; scores are not scaled; one table of relative
positions in each stack, stored with its first layer; a tied output is scaled by
d^−½, an untied one is not.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family
from clearhead.interop.mapping import Copy, Names, Row
from clearhead.interop.settings import ACTIVATIONS, THEIR_ACTIVATIONS, Settings
from clearhead.models.config import ModelConfig

_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}


def _stack_rows(stack: str, gated: bool, cross: bool) -> list[Row]:
    blocks = [("SelfAttention", "attention")] + ([("EncDecAttention", "cross_attention")] if cross else [])
    inner = {"wi_0": "gate", "wi_1": "inner"} if gated else {"wi": "inner"}
    there, here = f"{stack}.block.{{i}}.layer", f"{stack}.layers.{{i}}"
    rows: list[Row] = []
    for number, (block, attention) in enumerate(blocks):
        for theirs, ours in _ATTENTION.items():
            rows.append(Row(f"{there}.{number}.{block}.{theirs}.weight", f"{here}.{attention}.{ours}.weight"))
        residual = "cross_residual" if attention == "cross_attention" else "attention_residual"
        rows.append(Row(f"{there}.{number}.layer_norm.weight", f"{here}.{residual}.norm.weight"))
    last = f"{there}.{len(blocks)}"
    for theirs, ours in {**inner, "wo": "output"}.items():
        rows.append(Row(f"{last}.DenseReluDense.{theirs}.weight", f"{here}.feedforward.{ours}.weight"))
    rows.append(Row(f"{last}.layer_norm.weight", f"{here}.feedforward_residual.norm.weight"))
    rows.append(
        Row(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            f"{stack}.layers.0.attention.position.table",
        )
    )
    rows.append(Row(f"{stack}.final_layer_norm.weight", f"{stack}.norm.weight"))
    return rows


def rows(config: ModelConfig) -> list[Row]:
    """T5's table."""
    result = [
        Row("shared.weight", "source_embedding.table.weight"),
        *_stack_rows("encoder", config.feedforward.gated, cross=False),
        *_stack_rows("decoder", config.feedforward.gated, cross=True),
    ]
    tied = config.embedding.tie_output
    return result if tied else [*result, Row("lm_head.weight", "output.weight")]


def copies(config: ModelConfig) -> list[Copy]:
    """Where T5 may repeat its embedding."""
    found = [Copy(f"{stack}.embed_tokens.weight", "shared.weight") for stack in ("encoder", "decoder")]
    if config.embedding.tie_output:
        # Readers before version 5 of transformers take an unscaled output for a matrix of its own.
        found.append(Copy("lm_head.weight", "shared.weight", written=not _scaled(config)))
    return found


def _scaled(config: ModelConfig) -> bool:
    return config.embedding.tie_output and config.embedding.output_scale is not None


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    settings.fixed({"is_decoder": False, "is_encoder_decoder": True})
    activation, gated = _read_activation(settings)
    width, dropout = settings.whole("d_model"), settings.number("dropout_rate", 0.1)
    layers = settings.whole("num_layers")
    scaled = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", True))
    return ModelConfig.from_dict(
        {
            "family": "encoder-decoder",
            "vocabulary": settings.whole("vocab_size"),
            "width": width,
            "layers": layers,
            "decoder_layers": settings.whole("num_decoder_layers", layers),
            "dropout": dropout,
            "attention": {
                "heads": settings.whole("num_heads"),
                "key_dim": settings.whole("d_kv"),
                "score": "dot",
                "bias": False,
                "dropout": dropout,
            },
            "feedforward": {
                "width": settings.whole("d_ff"),
                "activation": activation,
                "gated": gated,
                "bias": False,
                "dropout": dropout,
            },
            "position": {
                "name": "t5",
                "buckets": settings.whole("relative_attention_num_buckets", 32),
                "max_distance": settings.whole("relative_attention_max_distance", 128),
            },
            "norm": {"kind": "rms", "place": "pre", "eps": settings.number("layer_norm_epsilon", 1e-6)},
            "embedding": {
                "scale": False,
                "tie_output": scaled or "lm_head.weight" not in names,
                "output_scale": width**-0.5 if scaled else None,
                "dropout": dropout,
            },
        }
    )


def _read_activation(settings: Settings) -> tuple[str, bool]:
    """`relu`, `gated-gelu` and the like; the latter has always meant the tanh form."""
    kind = settings.plain.get("feed_forward_proj") or "relu"
    gate, _, name = str(kind).rpartition("-")
    if gate not in ("", "gated"):
        settings.refuse("feed_forward_proj", kind, "an activation or 'gated-' and an activation is needed")
    name = "gelu_new" if kind == "gated-gelu" else name
    name = settings.plain.get("dense_act_fn") or name
    if name not in ACTIVATIONS:
        settings.refuse("feed_forward_proj", kind, "known activations are " + ", ".join(sorted(ACTIVATIONS)))
    return ACTIVATIONS[name], gate == "gated"


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json."""
    activation = THEIR_ACTIVATIONS[config.feedforward.activation]
    if config.feedforward.gated:
        activation = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
    scaled = _scaled(config)
    return {
        "is_encoder_decoder": True,
        "vocab_size": config.vocabulary,
        "d_model": config.width,
        "d_kv": config.attention.replace(width=config.width).key_size,
        "d_ff": config.feedforward.width or 4 * config.width,
        "num_layers": config.layers,
        "num_decoder_layers": config.depth_of_decoder,
        "num_heads": config.attention.heads,
        "relative_attention_num_buckets": config.position.buckets,
        "relative_attention_max_distance": config.position.max_distance,
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.norm.eps,
        "feed_forward_proj": activation,
        # Readers before and after version 5 of transformers learn of the scale from one or the other.
        "tie_word_embeddings": scaled,
        "scale_decoder_outputs": scaled,
    }


FAMILY = Family(
    model_type="t5",
    architectures=("T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model"),
    prefix="",
    read=read,
    write=write,
    architecture=lambda config: "T5ForConditionalGeneration",
    rows=rows,
    copies=copies,
    # a bias that early checkpoints carry and no version of the model uses
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)
