"""T5, version 1.0 (ReLU, tied and scaled output) and 1.1 (gated GELU, output of its own).

What is special: no biases anywhere; scores are not scaled; one table of relative
positions in each stack, stored with its first layer; a tied output is scaled by
d^−½, an untied one is not.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family, Setting, read_rows, write_rows
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


_SETTINGS = (
    Setting("vocab_size", "vocabulary"),
    Setting("d_model", "width"),
    Setting("d_kv", "attention.key_dim"),
    Setting("d_ff", "feedforward.width"),
    Setting("num_layers", "layers"),
    Setting("num_heads", "attention.heads"),
    Setting("relative_attention_num_buckets", "position.buckets", default=32),
    Setting("relative_attention_max_distance", "position.max_distance", default=128),
    Setting("dropout_rate", "dropout", "number", 0.1),
    Setting("layer_norm_epsilon", "norm.eps", "number", 1e-6),
)
_FIXED = {
    "family": "encoder-decoder",
    "attention.score": "dot",
    "attention.bias": False,
    "feedforward.bias": False,
    "position.name": "t5",
    "norm.kind": "rms",
    "norm.place": "pre",
    "embedding.scale": False,
}


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    settings.fixed({"is_decoder": False, "is_encoder_decoder": True})
    activation, gated = _read_activation(settings)
    plain = read_rows(settings, _SETTINGS, _FIXED)
    scaled = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", True))
    plain["decoder_layers"] = settings.whole("num_decoder_layers", plain["layers"])
    plain["feedforward"] |= {"activation": activation, "gated": gated}
    plain["embedding"] |= {
        "tie_output": scaled or "lm_head.weight" not in names,
        "output_scale": plain["width"] ** -0.5 if scaled else None,
    }
    for table in ("attention", "feedforward", "embedding"):
        plain[table]["dropout"] = plain["dropout"]
    return ModelConfig.from_dict(plain)


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
    return write_rows(_SETTINGS, config) | {
        "is_encoder_decoder": True,
        "num_decoder_layers": config.depth_of_decoder,
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
