"""BERT and the vision Transformer: encoders alone or with a head, which the class in config.json names.

What is special: old BERT checkpoints call a norm's weight and bias gamma and
beta. ViT has patches of an image as tokens; its class token and positions have
axes of size one, and its classifier reads the first token without the pooler that
the bare model has.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family, Flat, Setting
from clearhead.interop.mapping import (
    ONE_AXIS_MORE,
    TWO_AXES_MORE,
    Copy,
    Names,
    Row,
    Table,
    linear,
    linears,
    output,
)
from clearhead.interop.settings import Settings, labels
from clearhead.models.config import ModelConfig

_WORDS = "bert.embeddings.word_embeddings.weight"
_QKV = ("query", "key", "value")
_LAYER = {
    "attention.output.dense": "attention.output",
    "intermediate.dense": "feedforward.inner",
    "output.dense": "feedforward.output",
}
BERT_LAYER = _LAYER | {
    **{f"attention.self.{name}": f"attention.{name}" for name in _QKV},
    "attention.output.LayerNorm": "attention_residual.norm",
    "output.LayerNorm": "feedforward_residual.norm",
}
_VIT_LAYER = _LAYER | {
    "layernorm_before": "attention_residual.norm",
    "layernorm_after": "feedforward_residual.norm",
}


def _bert(config: ModelConfig) -> Table:
    head, tied = config.head, config.embedding.tie_output
    table: Table = [
        Row(_WORDS, "embedding.table.weight"),
        Row("bert.embeddings.position_embeddings.weight", "embedding.position.table"),
        Row("bert.embeddings.token_type_embeddings.weight", "embedding.types.weight"),
        *linear("bert.embeddings.LayerNorm", "embedding.norm"),
        *linears("bert.encoder.layer.{i}", "encoder.layers.{i}", BERT_LAYER),
    ]
    if head.pooler:
        table += linear("bert.pooler.dense", "head.pooler")
    if head.kind == "mlm":
        table += linear("cls.predictions.transform.dense", "head.transform.dense")
        table += linear("cls.predictions.transform.LayerNorm", "head.transform.norm")
        table.append(Row("cls.predictions.bias", "head.words.bias"))
        # the vocabulary bias has two names there, and a tied output may be stored again
        table.append(Copy("cls.predictions.decoder.bias", "cls.predictions.bias", written=not tied))
        table.append(output(config, _WORDS, "cls.predictions.decoder.weight", "head.words.weight"))
    elif head.kind != "none":
        table += linear("classifier", "head.classifier")
    return table


def _vit(config: ModelConfig) -> Table:
    there, here = "vit.encoder.layer.{i}", "encoder.layers.{i}"
    attention = {name: name for name in _QKV}
    return [
        Row("vit.embeddings.cls_token", "class_token", TWO_AXES_MORE),
        Row("vit.embeddings.position_embeddings", "position.table", ONE_AXIS_MORE),
        *linear("vit.embeddings.patch_embeddings.projection", "patches"),
        *linears(f"{there}.attention.attention", f"{here}.attention", attention, config.attention.bias),
        *linears(there, here, _VIT_LAYER),
        *linear("vit.layernorm", "encoder.norm"),
        *(linear("vit.pooler.dense", "head.pooler") if config.head.pooler else []),
        *(linear("classifier", "head.classifier") if config.head.kind == "classify" else []),
    ]


def encoder_settings(dropout: float) -> tuple[Setting, ...]:
    """The names of the settings that all encoder configs share."""
    return (
        Setting("hidden_size", "width"),
        Setting("num_hidden_layers", "layers"),
        Setting("num_attention_heads", "attention.heads"),
        Setting("intermediate_size", "feedforward.width"),
        Setting("hidden_act", "feedforward.activation", "activation", "gelu"),
        Setting("hidden_dropout_prob", ("dropout", "embedding.dropout"), "number", dropout),
        Setting("attention_probs_dropout_prob", "attention.dropout", "number", dropout),
        Setting("layer_norm_eps", "norm.eps", "number", 1e-12),
    )


def _head(settings: Settings, heads: dict[str, str]) -> Flat:
    kind = heads[(settings.plain.get("architectures") or list(heads))[0]]
    if kind not in ("classify", "tag"):
        return {"head.kind": kind}
    classes = len(labels(settings))
    if kind == "classify" and classes == 1 and "BertModel" in heads:
        return {"head.kind": "number"}  # one label is a regression there, whatever its name
    return {"head.kind": kind, "head.classes": classes}


def _read_bert(settings: Settings, names: Names, flat: Flat) -> Flat:
    head = _head(settings, _BERT_HEADS)
    kind = head["head.kind"]
    return head | {
        "head.pooler": kind in ("classify", "number") or "bert.pooler.dense.weight" in names,
        "head.dropout": settings.number("classifier_dropout", flat["dropout"]),
        "embedding.output_bias": kind == "mlm",
    }


def _write_bert(config: ModelConfig) -> dict[str, Any]:
    return {
        "classifier_dropout": config.head.dropout,
        "type_vocab_size": max(config.embedding.token_types, 1),
        "position_embedding_type": "absolute",
    }


def _read_vit(settings: Settings, names: Names, flat: Flat) -> Flat:
    settings.fixed({"pooler_output_size": flat["width"]})
    head = _head(settings, _VIT_HEADS)
    return head | {
        "head.pooler": head["head.kind"] == "none" and "vit.pooler.dense.weight" in names,
        "image.size": _side(settings, "image_size", 224),
        "image.patch": _side(settings, "patch_size", 16),
    }


def _side(settings: Settings, name: str, default: int) -> int:
    """The side of a square, given once or twice."""
    value = settings.plain.get(name, default)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    return Settings({name: value}, settings.where).whole(name, default)


_BERT_HEADS = {
    "BertModel": "none",
    "BertForMaskedLM": "mlm",
    "BertForSequenceClassification": "classify",
    "BertForTokenClassification": "tag",
}
BERT = Family(
    model_type="bert",
    architectures=_BERT_HEADS,
    prefix="bert.",
    body="BertModel",
    settings=(
        *encoder_settings(dropout=0.1),
        Setting("vocab_size", "vocabulary"),
        Setting("max_position_embeddings", "position.max_length", default=512),
        Setting("type_vocab_size", "embedding.token_types", default=2),
        Setting("tie_word_embeddings", "embedding.tie_output", "flag", True),
    ),
    ours={
        "family": "encoder",
        "position.name": "learned",
        "embedding.scale": False,
        "embedding.norm": True,
        "initialisation": "scaled",
    },
    theirs={"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False},
    read_more=_read_bert,
    write_more=_write_bert,
    table=_bert,
    # 0, 1, 2, … as a tensor, and the next-sentence head that published masked language models still contain
    ignored=("bert.embeddings.position_ids", "cls.seq_relationship.*"),
    older_endings={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
)

_VIT_HEADS = {"ViTModel": "none", "ViTForImageClassification": "classify"}
VIT = Family(
    model_type="vit",
    architectures=_VIT_HEADS,
    prefix="vit.",
    body="ViTModel",
    settings=(
        *encoder_settings(dropout=0.0),
        Setting("num_channels", "image.channels", default=3),
        Setting("qkv_bias", "attention.bias", "flag", True),
    ),
    ours={
        "family": "vision",
        "attention.output_bias": True,
        "position.name": "learned",
        "norm.place": "pre",
        "head.dropout": 0.0,
        "initialisation": "scaled",
    },
    theirs={"pooler_act": "tanh"},
    read_more=_read_vit,
    write_more=lambda config: {"image_size": config.image.size, "patch_size": config.image.patch},
    table=_vit,
    # a pooler that the classifier does not read
    ignored=("vit.pooler.dense.*",),
)
