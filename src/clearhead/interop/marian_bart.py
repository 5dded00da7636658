"""Marian, the translation models of OPUS-MT, and BART, which has the same layers.

What is special: norms have ε = 1e-5; the output may have a bias. Marian is the
original Transformer: its sines and cosines are in halves, and source and target
may have one vocabulary or two. BART learns its positions, whose tables begin with
two unused rows, and encoder and decoder have a norm on the embeddings.

Shapes: E model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clearhead.interop.family import Family, Flat, Setting, Tensors
from clearhead.interop.mapping import (
    ONE_AXIS_MORE,
    Copy,
    Names,
    Row,
    Table,
    linears,
    output,
    without_first_rows,
)
from clearhead.interop.settings import Settings
from clearhead.models.config import ModelConfig

_ONE_TABLE = (
    "and can only be imported as one table for both sides, or as one for each side (Marian's "
    "share_encoder_decoder_embeddings=false)"
)
_SHARED = "model.shared.weight"
_SIDES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
_LAYER = {
    **{f"self_attn.{theirs}": f"attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "self_attn_layer_norm": "attention_residual.norm",
    "fc1": "feedforward.inner",
    "fc2": "feedforward.output",
    "final_layer_norm": "feedforward_residual.norm",
}
_CROSS = {
    **{f"encoder_attn.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "encoder_attn_layer_norm": "cross_residual.norm",
}


def _layers(config: ModelConfig) -> Table:
    """All layers, and the parts above the decoder."""
    return [
        *linears("model.encoder.layers.{i}", "encoder.layers.{i}", _LAYER),
        *linears("model.decoder.layers.{i}", "decoder.layers.{i}", _LAYER | _CROSS),
        *([Row("final_logits_bias", "output.bias", ONE_AXIS_MORE)] if config.embedding.output_bias else []),
        output(config, _SHARED if config.source_vocabulary is None else _SIDES[1]),
    ]


def _one_table(config: ModelConfig) -> Table:
    """One embedding for both sides. Without tying, readers since version 5 expect a copy for each side."""
    if config.embedding.tie_output:
        copies = [Copy(name, _SHARED) for name in _SIDES]
    else:
        copies = [Copy(name, _SHARED, written=True, why=_ONE_TABLE) for name in _SIDES]
    return [Row(_SHARED, "source_embedding.table.weight"), *copies]


def _marian(config: ModelConfig) -> Table:
    if config.source_vocabulary is None:
        return [*_one_table(config), *_layers(config)]
    ours = ("source_embedding.table.weight", "target_embedding.table.weight")
    return [*map(Row, _SIDES, ours), *_layers(config)]


def _bart(config: ModelConfig) -> Table:
    table = [*_one_table(config), *_layers(config)]
    for side, ours in (("encoder", "source_embedding"), ("decoder", "target_embedding")):
        positions = f"model.{side}.embed_positions.weight"
        table.append(Row(positions, f"{ours}.position.table", without_first_rows(2)))
        table += linears(f"model.{side}", ours, {"layernorm_embedding": "norm"})
    return table


_SETTINGS = (
    Setting("d_model", "width"),
    Setting("encoder_layers", "layers"),
    Setting("decoder_layers", "decoder_layers"),
    Setting(("encoder_attention_heads", "decoder_attention_heads"), "attention.heads"),
    Setting(("encoder_ffn_dim", "decoder_ffn_dim"), "feedforward.width"),
    Setting("activation_function", "feedforward.activation", "activation", "gelu"),
    Setting("dropout", ("dropout", "embedding.dropout"), "number", 0.1),
    Setting("attention_dropout", "attention.dropout", "number", 0.0),
    Setting("activation_dropout", "feedforward.dropout", "number", 0.0),
    Setting("scale_embedding", "embedding.scale", "flag", False),
    Setting("tie_word_embeddings", "embedding.tie_output", "flag", True),
    Setting("max_position_embeddings", "position.max_length", default=1024),
)
# ε is hard-coded there, not in the config.
_OURS = {"family": "encoder-decoder", "norm.eps": 1e-5}
_THEIRS = {"normalize_before": False, "add_final_layer_norm": False, "is_decoder": False}


def _read_marian(settings: Settings, names: Names, flat: Flat) -> Flat:
    vocabulary = settings.whole("vocab_size")
    target = settings.whole("decoder_vocab_size", vocabulary)
    shared = settings.flag("share_encoder_decoder_embeddings", True)
    if shared and target != vocabulary:
        settings.refuse("decoder_vocab_size", target, f"one shared table has vocab_size={vocabulary} rows")
    return {
        "vocabulary": target,
        "source_vocabulary": None if shared else vocabulary,
        "embedding.output_bias": "final_logits_bias" in names,
    }


def _write_marian(config: ModelConfig) -> dict[str, Any]:
    source = config.source_vocabulary
    return {
        "vocab_size": config.vocabulary if source is None else source,
        "decoder_vocab_size": config.vocabulary,
        "share_encoder_decoder_embeddings": source is None,
        "static_position_embeddings": True,
    }


def _in_halves(config: ModelConfig, tensors: Tensors) -> Tensors:
    """Our tensors as if the sines and cosines of the positions had always been in halves.

    Only the positions fix the order of the residual stream's features: permuting them in everything that
    reads or writes the stream gives the same model.
    """
    if config.position.name != "sinusoidal" or config.position.layout == "halves":
        return tensors
    order = torch.cat([torch.arange(0, config.width, 2), torch.arange(1, config.width, 2)])
    return {name: _reordered(name, tensor, order.to(tensor.device)) for name, tensor in tensors.items()}


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    *_, part, kind = name.split(".")
    if part in ("query", "key", "value", "inner", "gate"):  # (…, E): these read the stream
        return tensor[:, order] if kind == "weight" else tensor
    if name == "output.bias":  # (V,): above the stream
        return tensor
    if name == "output.weight" or part == "table":  # (V, E)
        return tensor[:, order]
    return tensor[order]  # what writes the stream, (E, …) and (E,), and norms, (E,)


MARIAN = Family(
    model_type="marian",
    architectures={"MarianMTModel": "none", "MarianModel": "none"},
    prefix="model.",
    settings=_SETTINGS,
    ours=_OURS | {"position.name": "sinusoidal", "position.layout": "halves"},
    theirs=_THEIRS | {"static_position_embeddings": True, "normalize_embedding": False},
    read_more=_read_marian,
    write_more=_write_marian,
    table=_marian,
    # the sinusoids themselves, which are computed here, and a shared table that neither side reads
    ignored=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight", _SHARED),
    training_only=("encoder_layerdrop", "decoder_layerdrop"),
    prepare=_in_halves,
)

BART = Family(
    model_type="bart",
    architectures={"BartForConditionalGeneration": "none", "BartModel": "none"},
    prefix="model.",
    settings=(*_SETTINGS, Setting("vocab_size", "vocabulary")),
    ours=_OURS | {"position.name": "learned", "embedding.norm": True},
    theirs=_THEIRS | {"static_position_embeddings": False, "normalize_embedding": True},
    read_more=lambda settings, names, flat: {"embedding.output_bias": "final_logits_bias" in names},
    table=_bart,
    ignored=("model.encoder.version", "model.decoder.version"),
    training_only=("encoder_layerdrop", "decoder_layerdrop"),
)
