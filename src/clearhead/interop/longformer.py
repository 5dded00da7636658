"""Longformer: BERT whose tokens see a window, and whose first token sees all, with separate projections.

What is special: a window of w there is w/2 positions on either side, and may differ by layer; positions are
counted from the id of the padding token, which is 1 in all published models, so the table begins with two
unused rows. There, each text says which tokens are global; here it is the first one, as in their classifiers.
Import only: our models have another padding token.
"""

from __future__ import annotations

from typing import Any

from clearhead.base.errors import UserError
from clearhead.interop.bert_vit import BERT_LAYER, encoder_settings
from clearhead.interop.family import Family, Flat, Setting
from clearhead.interop.mapping import Copy, Names, Row, Table, linear, linears, output, without_first_rows
from clearhead.interop.settings import Settings
from clearhead.models.config import ModelConfig

_WORDS = "longformer.embeddings.word_embeddings.weight"
_PADDING = 1
_HEADS = {"LongformerModel": "none", "LongformerForMaskedLM": "mlm"}
_LAYER = BERT_LAYER | {
    f"attention.self.{name}_global": f"attention.global_{name}" for name in ("query", "key", "value")
}


def _table(config: ModelConfig) -> Table:
    embeddings = "longformer.embeddings"
    positions = f"{embeddings}.position_embeddings.weight"
    table: Table = [
        Row(_WORDS, "embedding.table.weight"),
        Row(positions, "embedding.position.table", without_first_rows(_PADDING + 1)),
        Row(f"{embeddings}.token_type_embeddings.weight", "embedding.types.weight"),
        *linear(f"{embeddings}.LayerNorm", "embedding.norm"),
        *linears("longformer.encoder.layer.{i}", "encoder.layers.{i}", _LAYER),
    ]
    if config.head.pooler:
        table += linear("longformer.pooler.dense", "head.pooler")
    if config.head.kind == "mlm":
        table += linear("lm_head.dense", "head.transform.dense")
        table += linear("lm_head.layer_norm", "head.transform.norm")
        table.append(Row("lm_head.bias", "head.words.bias"))
        table.append(Copy("lm_head.decoder.bias", "lm_head.bias"))
        table.append(output(config, _WORDS, "lm_head.decoder.weight", "head.words.weight"))
    return table


def _read(settings: Settings, names: Names, flat: Flat) -> Flat:
    kind = _HEADS[(settings.plain.get("architectures") or list(_HEADS))[0]]
    windows = _windows(settings, flat["layers"])
    attention = {
        **{name.partition(".")[2]: value for name, value in flat.items() if name.startswith("attention.")},
        "window": windows[0],
    }
    rules = [
        {"first": layer, "last": layer, "attention": attention | {"window": window}}
        for layer, window in enumerate(windows)
        if window != windows[0]
    ]
    positions = settings.whole("max_position_embeddings", 512, _PADDING + 2)
    return {
        "head.kind": kind,
        "head.pooler": "longformer.pooler.dense.weight" in names,
        "embedding.output_bias": kind == "mlm",
        "position.max_length": positions - _PADDING - 1,
        "attention.window": windows[0],
        "layer_pattern": rules,
    }


def _windows(settings: Settings, layers: int) -> list[int]:
    """How many positions each layer sees backwards, including its own."""
    given = settings.plain.get("attention_window", 512)
    each = given if isinstance(given, list) else [given] * layers
    if len(each) != layers or any(type(one) is not int or one < 2 or one % 2 for one in each):
        settings.refuse("attention_window", given, "an even number is needed, or one per layer")
    return [one // 2 + 1 for one in each]


def _write(config: ModelConfig) -> dict[str, Any]:
    raise UserError("export here, because its positions are counted from the number of its padding token")


LONGFORMER = Family(
    model_type="longformer",
    architectures=_HEADS,
    prefix="longformer.",
    body="LongformerModel",
    settings=(
        *encoder_settings(dropout=0.1),
        Setting("vocab_size", "vocabulary"),
        Setting("type_vocab_size", "embedding.token_types", default=2),
        Setting("tie_word_embeddings", "embedding.tie_output", "flag", True),
    ),
    ours={
        "family": "encoder",
        "attention.kind": "sparse",
        "attention.global_tokens": 1,
        "attention.global_projections": True,
        "position.name": "learned",
        "embedding.scale": False,
        "embedding.norm": True,
        "initialisation": "scaled",
    },
    theirs={"pad_token_id": _PADDING},
    read_more=_read,
    write_more=_write,
    table=_table,
    ignored=("longformer.embeddings.position_ids",),
)
