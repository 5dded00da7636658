"""Marian, the translation models of OPUS-MT: the original Transformer with sinusoidal positions.

What is special: sines and cosines stand in halves; the decoder's output has a
bias; source and target may have one vocabulary or two; norms have ε = 1e-5.

Shapes: E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clearhead.interop.family import Family, Setting, Tensors, read_rows, write_rows
from clearhead.interop.mapping import ONE_AXIS_MORE, Copy, Names, Row, linear
from clearhead.interop.settings import Settings
from clearhead.models.config import ModelConfig

_ONE_TABLE = (
    "and can only be imported as one table for both sides, or else as one for each "
    "(Marian's share_encoder_decoder_embeddings=false)"
)
NORM_EPS = 1e-5  # written into the code there, not into the config


def layer_rows(theirs: str, ours: str, cross: bool) -> list[Row]:
    """The rows of a layer of Marian and BART."""
    there, here = f"{theirs}.layers.{{i}}", f"{ours}.layers.{{i}}"
    blocks = [("self_attn", "attention")] + ([("encoder_attn", "cross_attention")] if cross else [])
    rows: list[Row] = []
    for block, attention in blocks:
        rows += linear(f"{there}.{block}.q_proj", f"{here}.{attention}.query")
        rows += linear(f"{there}.{block}.k_proj", f"{here}.{attention}.key")
        rows += linear(f"{there}.{block}.v_proj", f"{here}.{attention}.value")
        rows += linear(f"{there}.{block}.out_proj", f"{here}.{attention}.output")
        residual = "cross_residual" if attention == "cross_attention" else "attention_residual"
        rows += linear(f"{there}.{block}_layer_norm", f"{here}.{residual}.norm")
    rows += linear(f"{there}.fc1", f"{here}.feedforward.inner")
    rows += linear(f"{there}.fc2", f"{here}.feedforward.output")
    rows += linear(f"{there}.final_layer_norm", f"{here}.feedforward_residual.norm")
    return rows


def output_rows(config: ModelConfig) -> list[Row]:
    """What stands above the decoder in Marian and BART."""
    rows = []
    if config.embedding.output_bias:
        rows.append(Row("final_logits_bias", "output.bias", ONE_AXIS_MORE))
    if not config.embedding.tie_output:
        rows.append(Row("lm_head.weight", "output.weight"))
    return rows


def rows(config: ModelConfig) -> list[Row]:
    """Marian's table."""
    if config.source_vocabulary is None:
        tables = [Row("model.shared.weight", "source_embedding.table.weight")]
    else:
        tables = [
            Row("model.encoder.embed_tokens.weight", "source_embedding.table.weight"),
            Row("model.decoder.embed_tokens.weight", "target_embedding.table.weight"),
        ]
    return [
        *tables,
        *layer_rows("model.encoder", "encoder", cross=False),
        *layer_rows("model.decoder", "decoder", cross=True),
        *output_rows(config),
    ]


def shared_copies(config: ModelConfig) -> list[Copy]:
    """Where Marian and BART may repeat an embedding; without tying, recent readers need the copies."""
    untied = not config.embedding.tie_output
    if config.source_vocabulary is not None:
        return [] if untied else [Copy("lm_head.weight", "model.decoder.embed_tokens.weight")]
    shared = "model.shared.weight"
    sides = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    if untied:  # which readers since version 5 take to mean these tables as well
        return [Copy(name, shared, written=True, why=_ONE_TABLE) for name in sides]
    return [*(Copy(name, shared) for name in sides), Copy("lm_head.weight", shared)]


_STACKS = (
    Setting("d_model", "width"),
    Setting("encoder_layers", "layers"),
    Setting("decoder_layers", "decoder_layers"),
    Setting("encoder_attention_heads", "attention.heads"),
    Setting("encoder_ffn_dim", "feedforward.width"),
    Setting("activation_function", "feedforward.activation", "activation", "gelu"),
    Setting("dropout", "dropout", "number", 0.1),
    Setting("attention_dropout", "attention.dropout", "number", 0.0),
    Setting("activation_dropout", "feedforward.dropout", "number", 0.0),
    Setting("scale_embedding", "embedding.scale", "flag", False),
    Setting("tie_word_embeddings", "embedding.tie_output", "flag", True),
    Setting("max_position_embeddings", "position.max_length", default=1024),
)


def read_stacks(settings: Settings, position: Mapping[str, Any]) -> dict[str, Any]:
    """What the configs of Marian and BART have in common."""
    settings.equal("encoder_attention_heads", "decoder_attention_heads")
    settings.equal("encoder_ffn_dim", "decoder_ffn_dim")
    settings.fixed({"normalize_before": False, "add_final_layer_norm": False, "is_decoder": False})
    plain = read_rows(settings, _STACKS, {"family": "encoder-decoder", "norm.eps": NORM_EPS})
    plain["embedding"]["dropout"] = plain["dropout"]
    plain["position"] |= position
    return plain


def write_stacks(config: ModelConfig) -> dict[str, Any]:
    """The way back of `read_stacks`."""
    plain = write_rows(_STACKS, config)
    heads, inner = plain["encoder_attention_heads"], plain["encoder_ffn_dim"]
    return plain | {
        "is_encoder_decoder": True,
        "decoder_attention_heads": heads,
        "decoder_ffn_dim": inner,
    }


def read(settings: Settings, names: Names) -> ModelConfig:
    """config.json to our config."""
    settings.fixed({"static_position_embeddings": True, "normalize_embedding": False})
    plain = read_stacks(settings, {"name": "sinusoidal", "layout": "halves"})
    vocabulary = settings.whole("vocab_size")
    target = settings.whole("decoder_vocab_size", vocabulary)
    shared = settings.flag("share_encoder_decoder_embeddings", True)
    if shared and target != vocabulary:
        settings.refuse("decoder_vocab_size", target, f"one shared table has vocab_size={vocabulary} rows")
    plain["vocabulary"] = target
    plain["source_vocabulary"] = None if shared else vocabulary
    plain["embedding"]["output_bias"] = "final_logits_bias" in names
    return ModelConfig.from_dict(plain)


def write(config: ModelConfig) -> dict[str, Any]:
    """Our config to config.json."""
    source = config.source_vocabulary
    return write_stacks(config) | {
        "vocab_size": config.vocabulary if source is None else source,
        "decoder_vocab_size": config.vocabulary,
        "share_encoder_decoder_embeddings": source is None,
        "static_position_embeddings": True,
    }


def in_halves(config: ModelConfig, tensors: Tensors) -> Tensors:
    """Our tensors as if the sines and cosines of the positions had always stood in halves.

    The order of the features of the residual stream is nobody's business but the positions': putting
    them in another order in everything that reads or writes the stream gives the same model.
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


FAMILY = Family(
    model_type="marian",
    architectures=("MarianMTModel", "MarianModel"),
    prefix="model.",
    read=read,
    write=write,
    architecture=lambda config: "MarianMTModel",
    rows=rows,
    copies=shared_copies,
    # the sinusoids themselves, which are computed here, and a shared table that neither side reads
    ignored=(
        "model.encoder.embed_positions.weight",
        "model.decoder.embed_positions.weight",
        "model.shared.weight",
    ),
    training_only=("encoder_layerdrop", "decoder_layerdrop"),
    prepare=in_halves,
)
