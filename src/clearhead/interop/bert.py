"""BERT: an encoder with token types and a norm on the embeddings, alone or under one of three heads.

What is special: the class named in config.json decides which head there is; old
checkpoints call a norm's weight and bias gamma and beta.
"""

from __future__ import annotations

from typing import Any

from clearhead.interop.family import Family, Setting, read_rows, write_rows
from clearhead.interop.mapping import Copy, Names, Row, linear
from clearhead.interop.settings import Settings, labels
from clearhead.models.config import ModelConfig

_HEADS = {
    "BertModel": "none",
    "BertForMaskedLM": "mlm",
    "BertForSequenceClassification": "classify",
    "BertForTokenClassification": "tag",
}
_ARCHITECTURES = {head: name for name, head in _HEADS.items()} | {"number": "BertForSequenceClassification"}
_THERE, _HERE = "bert.encoder.layer.{i}", "encoder.layers.{i}"

_BODY = (
    Row("bert.embeddings.word_embeddings.weight", "embedding.table.weight"),
    Row("bert.embeddings.position_embeddings.weight", "embedding.position.table"),
    Row("bert.embeddings.token_type_embeddings.weight", "embedding.types.weight"),
    *linear("bert.embeddings.LayerNorm", "embedding.norm"),
    *linear(f"{_THERE}.attention.self.query", f"{_HERE}.attention.query"),
    *linear(f"{_THERE}.attention.self.key", f"{_HERE}.attention.key"),
    *linear(f"{_THERE}.attention.self.value", f"{_HERE}.attention.value"),
    *linear(f"{_THERE}.attention.output.dense", f"{_HERE}.attention.output"),
    *linear(f"{_THERE}.attention.output.LayerNorm", f"{_HERE}.attention_residual.norm"),
    *linear(f"{_THERE}.intermediate.dense", f"{_HERE}.feedforward.inner"),
    *linear(f"{_THERE}.output.dense", f"{_HERE}.feedforward.output"),
    *linear(f"{_THERE}.output.LayerNorm", f"{_HERE}.feedforward_residual.norm"),
)
_WORDS = (
    *linear("cls.predictions.transform.dense", "head.transform.dense"),
    *linear("cls.predictions.transform.LayerNorm", "head.transform.norm"),
    Row("cls.predictions.bias", "head.words.bias"),
)


def rows(config: ModelConfig) -> list[Row]:
    """BERT's table."""
    result = [*_BODY]
    if config.head.pooler:
        result += linear("bert.pooler.dense", "head.pooler")
    if config.head.kind == "mlm":
        result += _WORDS
        if not config.embedding.tie_output:
            result.append(Row("cls.predictions.decoder.weight", "head.words.weight"))
    elif config.head.kind != "none":
        result += linear("classifier", "head.classifier")
    return result


def copies(config: ModelConfig) -> list[Copy]:
    """The words' bias has two names there, and a tied output may be stored again."""
    if config.head.kind != "mlm":
        return []
    tied = config.embedding.tie_output
    bias = Copy("cls.predictions.decoder.bias", "cls.predictions.bias", written=not tied)
    weight = Copy("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")
    return [bias, weight] if tied else [bias]


_SETTINGS = (
    Setting("vocab_size", "vocabulary"),
    Setting("hidden_size", "width"),
    Setting("num_hidden_layers", "layers"),
    Setting("num_attention_heads", "attention.heads"),
    Setting("intermediate_size", "feedforward.width"),
    Setting("hidden_act", "feedforward.activation", "activation", "gelu"),
    Setting("hidden_dropout_prob", "dropout", "number", 0.1),
    Setting("attention_probs_dropout_prob", "attention.dropout", "number", 0.1),
    Setting("max_position_embeddings", "position.max_length", default=512),
    Setting("layer_norm_eps", "norm.eps", "number", 1e-12),
    Setting("tie_word_embeddings", "embedding.tie_output", "flag", True),
)
_FIXED = {
    "family": "encoder",
    "position.name": "learned",
    "embedding.scale": False,
    "embedding.norm": True,
    "initialisation": "scaled",
}


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    settings.fixed({"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False})
    kind = _HEADS[(settings.plain.get("architectures") or ["BertModel"])[0]]
    if kind == "classify" and len(labels(settings)) == 1:
        kind = "number"  # one label is a regression there, whatever it is called
    plain = read_rows(settings, _SETTINGS, _FIXED)
    plain["embedding"] |= {
        "token_types": settings.whole("type_vocab_size", 2),
        "output_bias": kind == "mlm",
        "dropout": plain["dropout"],
    }
    plain["head"] = {
        "kind": kind,
        "classes": len(labels(settings)) if kind in ("classify", "tag") else 2,
        "pooler": kind in ("classify", "number") or "bert.pooler.dense.weight" in names,
        "dropout": settings.number("classifier_dropout", plain["dropout"]),
    }
    return ModelConfig.from_dict(plain)


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json."""
    plain = write_rows(_SETTINGS, config) | {
        "classifier_dropout": config.head.dropout,
        "type_vocab_size": max(config.embedding.token_types, 1),
        "position_embedding_type": "absolute",
    }
    if config.head.kind in ("classify", "tag"):
        plain["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.head.classes)}
    if config.head.kind == "number":
        plain |= {"id2label": {"0": "LABEL_0"}, "problem_type": "regression"}
    return plain


FAMILY = Family(
    model_type="bert",
    architectures=tuple(_HEADS),
    prefix="bert.",
    body="BertModel",
    read=read,
    write=write,
    architecture=lambda config: _ARCHITECTURES[config.head.kind],
    rows=rows,
    copies=copies,
    # 0, 1, 2, … as a tensor, and the next-sentence head that published masked language models still carry
    ignored=("bert.embeddings.position_ids", "cls.seq_relationship.*"),
    older_endings={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
)
