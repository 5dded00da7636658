"""The vision Transformer: patches of an image as tokens, alone or under a classifier.

What is special: the class token and the positions carry axes of size one; the
classifier reads the first token without the pooler that the bare model has.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family, Setting, read_rows, write_rows
from clearhead.interop.mapping import ONE_AXIS_MORE, TWO_AXES_MORE, Names, Row, linear
from clearhead.interop.settings import Settings, labels
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


_SETTINGS = (
    Setting("hidden_size", "width"),
    Setting("num_hidden_layers", "layers"),
    Setting("num_attention_heads", "attention.heads"),
    Setting("intermediate_size", "feedforward.width"),
    Setting("hidden_act", "feedforward.activation", "activation", "gelu"),
    Setting("hidden_dropout_prob", "dropout", "number", 0.0),
    Setting("attention_probs_dropout_prob", "attention.dropout", "number", 0.0),
    Setting("layer_norm_eps", "norm.eps", "number", 1e-12),
    Setting("num_channels", "image.channels", default=3),
    Setting("qkv_bias", "attention.bias", "flag", True),
)
_FIXED = {
    "family": "vision",
    "attention.output_bias": True,
    "position.name": "learned",
    "norm.place": "pre",
    "initialisation": "scaled",
}


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    settings.fixed({"pooler_act": "tanh", "pooler_output_size": settings.whole("hidden_size")})
    kind = _HEADS[(settings.plain.get("architectures") or ["ViTModel"])[0]]
    plain = read_rows(settings, _SETTINGS, _FIXED)
    plain["embedding"] = {"dropout": plain["dropout"]}
    plain["head"] = {
        "kind": kind,
        "classes": len(labels(settings)) if kind in ("classify", "tag") else 2,
        "pooler": kind == "none" and "vit.pooler.dense.weight" in names,
        "dropout": 0.0,
    }
    plain["image"] |= {
        "size": _side(settings, "image_size", 224),
        "patch": _side(settings, "patch_size", 16),
    }
    return ModelConfig.from_dict(plain)


def _side(settings: Settings, name: str, default: int) -> int:
    """The side of a square, given once or twice."""
    value = settings.plain.get(name, default)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    return Settings({name: value}, settings.where).whole(name, default)


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json."""
    plain = write_rows(_SETTINGS, config)
    plain |= {"image_size": config.image.size, "patch_size": config.image.patch}
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
