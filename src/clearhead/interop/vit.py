"""The vision Transformer: patches of an image as tokens, alone or under a classifier.

What is special: the class token and the positions carry axes of size one; the
classifier reads the first token without the pooler that the bare model has.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family
from clearhead.interop.mapping import ONE_AXIS_MORE, TWO_AXES_MORE, Names, Row, linear
from clearhead.interop.settings import THEIR_ACTIVATIONS, Settings, labels
from clearhead.models.config import ModelConfig

_HEADS = {"ViTModel": "none", "ViTForImageClassification": "classify"}
_THERE, _HERE = "vit.encoder.layer.{i}", "encoder.layers.{i}"


def rows(config: ModelConfig) -> list[Row]:
    """ViT's table."""
    bias = config.attention.bias
    result = [
        Row("vit.embeddings.cls_token", "class_token", TWO_AXES_MORE),
        Row("vit.embeddings.position_embeddings", "position.table", ONE_AXIS_MORE),
        *linear("vit.embeddings.patch_embeddings.projection", "patches"),
        *linear(f"{_THERE}.layernorm_before", f"{_HERE}.attention_residual.norm"),
        *linear(f"{_THERE}.attention.attention.query", f"{_HERE}.attention.query", bias),
        *linear(f"{_THERE}.attention.attention.key", f"{_HERE}.attention.key", bias),
        *linear(f"{_THERE}.attention.attention.value", f"{_HERE}.attention.value", bias),
        *linear(f"{_THERE}.attention.output.dense", f"{_HERE}.attention.output"),
        *linear(f"{_THERE}.layernorm_after", f"{_HERE}.feedforward_residual.norm"),
        *linear(f"{_THERE}.intermediate.dense", f"{_HERE}.feedforward.inner"),
        *linear(f"{_THERE}.output.dense", f"{_HERE}.feedforward.output"),
        *linear("vit.layernorm", "encoder.norm"),
    ]
    if config.head.pooler:
        result += linear("vit.pooler.dense", "head.pooler")
    return [*result, *linear("classifier", "head.classifier")] if config.head.kind == "classify" else result


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    width = settings.whole("hidden_size")
    settings.fixed({"pooler_act": "tanh", "pooler_output_size": width})
    kind = _HEADS[(settings.plain.get("architectures") or ["ViTModel"])[0]]
    dropout = settings.number("hidden_dropout_prob", 0.0)
    return ModelConfig.from_dict(
        {
            "family": "vision",
            "width": width,
            "layers": settings.whole("num_hidden_layers"),
            "dropout": dropout,
            "attention": {
                "heads": settings.whole("num_attention_heads"),
                "bias": settings.flag("qkv_bias", True),
                "output_bias": True,
                "dropout": settings.number("attention_probs_dropout_prob", 0.0),
            },
            "feedforward": {
                "width": settings.whole("intermediate_size"),
                "activation": settings.activation("hidden_act", "gelu"),
            },
            "position": {"name": "learned"},
            "norm": {"place": "pre", "eps": settings.number("layer_norm_eps", 1e-12)},
            "embedding": {"dropout": dropout},
            "head": {
                "kind": kind,
                "classes": len(labels(settings)) if kind in ("classify", "tag") else 2,
                "pooler": kind == "none" and "vit.pooler.dense.weight" in names,
                "dropout": 0.0,
            },
            "image": {
                "size": _side(settings, "image_size", 224),
                "patch": _side(settings, "patch_size", 16),
                "channels": settings.whole("num_channels", 3),
            },
            "initialisation": "scaled",
        }
    )


def _side(settings: Settings, name: str, default: int) -> int:
    """The side of a square, given once or twice."""
    value = settings.plain.get(name, default)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    return Settings({name: value}, settings.where).whole(name, default)


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json."""
    plain: dict[str, Any] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.attention.heads,
        "intermediate_size": config.feedforward.width or 4 * config.width,
        "hidden_act": THEIR_ACTIVATIONS[config.feedforward.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention.dropout,
        "layer_norm_eps": config.norm.eps,
        "image_size": config.image.size,
        "patch_size": config.image.patch,
        "num_channels": config.image.channels,
        "qkv_bias": config.attention.bias,
    }
    if config.head.kind == "classify":
        plain["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.head.classes)}
    return plain


FAMILY = Family(
    model_type="vit",
    architectures=tuple(_HEADS),
    prefix="vit.",
    body="ViTModel",
    read=read,
    write=write,
    architecture=lambda config: "ViTForImageClassification" if config.head.kind == "classify" else "ViTModel",
    rows=rows,
    # a pooler under a classifier that does not read it
    ignored=("vit.pooler.dense.*",),
)
