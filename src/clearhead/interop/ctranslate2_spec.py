"""Our weights in CTranslate2's description of a Transformer, layer by layer.

What is special there: the queries, keys and values of self-attention are one
matrix, the keys and values of cross-attention another; positions that are added are
stored as a table, whatever their scheme; a norm belongs to its sub-layer. Only
called for models that fit (`ctranslate2.py` checks that).

Shapes: N positions, E model width, D head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.interop.family import rotary_base
from clearhead.models.config import ModelConfig
from clearhead.nn.positions import Position
from clearhead.nn.positions.absolute import Learned, sinusoid
from clearhead.nn.positions.relative import Shaw, T5Bias
from clearhead.nn.positions.rotary import Rotary, frequencies

LEAST_POSITIONS = 2048  # rows of a table for schemes that have none


def encoder_spec(model: Any, config: ModelConfig) -> Any:
    """The encoder of an encoder-decoder."""
    from ctranslate2 import specs  # an optional extra

    spec = specs.TransformerEncoderSpec(config.layers, config.attention.heads, **_stack_settings(config))
    spec.pre_norm = config.norm.place == "pre"
    _embedding(spec, spec.embeddings[0], model.source_embedding, config)
    _stack(spec, model.encoder, config)
    return spec


def decoder_spec(model: Any, config: ModelConfig) -> Any:
    """The decoder of an encoder-decoder, or a decoder-only model."""
    from ctranslate2 import specs  # an optional extra

    alone = config.family == "decoder"
    attention, rotary = config.attention.replace(width=config.width), config.position.name == "rotary"
    spec = specs.TransformerDecoderSpec(
        config.layers if alone else config.depth_of_decoder,
        config.attention.heads,
        with_encoder_attention=not alone,
        alibi=config.position.name == "alibi",
        rotary_dim=attention.key_size if rotary else None,
        num_heads_kv=attention.groups,
        **_stack_settings(config),
    )
    spec.pre_norm = config.norm.place == "pre"
    _embedding(spec, spec.embeddings, model.embedding if alone else model.target_embedding, config)
    _stack(spec, model.decoder, config)
    spec.projection.weight = _numbers(model.output.weight)
    if model.output.bias is not None:
        spec.projection.bias = _numbers(model.output.bias)
    if model.output.factor != 1.0:
        spec.scale_outputs = np.float32(model.output.factor)
    return spec


def _stack_settings(config: ModelConfig) -> dict[str, Any]:
    """Settings of both stacks. `pre_norm` here only says that a final norm is possible."""
    from ctranslate2.specs.common_spec import Activation  # an optional extra

    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "gelu_tanh": Activation.GELUTanh,
        "quick_gelu": Activation.GELUSigmoid,
        "silu": Activation.SWISH,
        "tanh": Activation.Tanh,
    }
    final = config.norm.place == "pre" if config.norm.final is None else config.norm.final
    return {
        "pre_norm": True,
        "no_final_norm": not final,
        "activation": activations[config.feedforward.activation],
        "layernorm_embedding": config.embedding.norm,
        "relative_position": config.position.name == "shaw",
        "relative_attention_bias": config.position.name == "t5",
        "ffn_glu": config.feedforward.gated,
        "rms_norm": config.norm.kind == "rms",
    }


def _embedding(spec: Any, table: Any, ours: Any, config: ModelConfig) -> None:
    """Words, positions and norm, as the first layer sees them."""
    table.weight = _numbers(ours.table.weight)
    spec.scale_embeddings = config.embedding.scale
    if ours.norm is not None:
        _norm(spec.layernorm_embedding, ours.norm)
    encodings = position_table(ours.position, config)
    if encodings is not None:
        spec.position_encodings.encodings = _numbers(encodings)


def position_table(position: Position, config: ModelConfig) -> Tensor | None:
    """What is added to the embedding at each position, (N, E); None for schemes that act in attention.

    A model without positions gets a table of zeros: without one CTranslate2 would add its own sinusoids.
    """
    if isinstance(position, Learned):
        return position.table
    rows = max(config.position.max_length, LEAST_POSITIONS)
    if config.position.name == "sinusoidal":
        return sinusoid(torch.arange(rows), config.width, config.position.base, config.position.layout)
    return torch.zeros(rows, config.width) if config.position.name == "none" else None


def _stack(spec: Any, ours: Any, config: ModelConfig) -> None:
    for theirs, layer in zip(spec.layer, ours.layers, strict=True):
        theirs.self_attention = _attention(layer.attention, layer.attention_residual.norm, config, own=True)
        if layer.cross_attention is not None:
            theirs.attention = _attention(layer.cross_attention, layer.cross_residual.norm, config, own=False)
        _norm(theirs.ffn.layer_norm, layer.feedforward_residual.norm)
        net = layer.feedforward
        _linear(theirs.ffn.linear_0, net.inner if net.gate is None else net.gate)
        if net.gate is not None:
            _linear(theirs.ffn.linear_0_noact, net.inner)
        _linear(theirs.ffn.linear_1, net.output)
    if ours.norm is not None:
        _norm(spec.layer_norm, ours.norm)


def _attention(ours: Any, norm: Any, config: ModelConfig, *, own: bool) -> Any:
    """One attention layer; positions act only in self-attention (`own`)."""
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec  # an optional extra

    attention, position = ours.config, ours.position
    scale = attention.factor
    spec = MultiHeadAttentionSpec(
        self_attention=own,
        relative_position=own and isinstance(position, Shaw),
        relative_attention_bias=own and isinstance(position, T5Bias),
        rms_norm=config.norm.kind == "rms",
        num_heads_kv=attention.groups,
        head_dim=attention.key_size,
        **(_rotary(position, config) if own and isinstance(position, Rotary) else {}),
    )
    _norm(spec.layer_norm, norm)
    if own:
        _linear(spec.linear[0], ours.query, ours.key, ours.value)
    else:
        _linear(spec.linear[0], ours.query)
        _linear(spec.linear[1], ours.key, ours.value)
    _linear(spec.linear[-1], ours.output)
    if own and isinstance(position, Rotary):
        # Our temperature scales queries and keys; there only queries have a factor.
        scale *= position.temperature**2
        _scaling(spec, position)
    if own and isinstance(position, T5Bias):
        spec.relative_attention_bias = _numbers(position.table)
        spec.relative_attention_max_distance = np.int32(position.max_distance)
    if own and isinstance(position, Shaw):
        spec.relative_position_keys = _both_ways(position.vectors, position)
        if position.value_vectors is None:
            del spec.relative_position_values
        else:
            spec.relative_position_values = _both_ways(position.value_vectors, position)
    spec.queries_scale = np.float32(scale)
    return spec


def _rotary(position: Rotary, config: ModelConfig) -> dict[str, Any]:
    """Settings of rotary positions. `ntk` is a larger base; other scalings have a factor per frequency."""
    from ctranslate2.specs.attention_spec import RotaryScalingType  # an optional extra

    plain: dict[str, Any] = {
        "rotary_dim": position.head_dim,
        "rotary_interleave": position.layout == "interleaved",
        "rotary_base": rotary_base(config),
    }
    scaling = position.scaling
    if scaling is None or scaling.kind == "ntk":
        return plain
    if scaling.kind == "linear":
        linear = {"rotary_scaling_type": RotaryScalingType.Linear, "rotary_scaling_factor": scaling.factor}
        return plain | linear
    return plain | {"rotary_scaling_type": RotaryScalingType.Su}


def _scaling(spec: Any, position: Rotary) -> None:
    """The divisor of each frequency, if the settings above declare one.

    There are two tables there, for short and for long texts; ours is the same for both. (CTranslate2 also has
    a scaling named after Llama 3, but no place in its description for the factor.)
    """
    if position.scaling is not None and position.scaling.kind in ("yarn", "llama3"):
        plain = frequencies(position.head_dim, position.base, None)
        factors = _numbers(plain / frequencies(position.head_dim, position.base, position.scaling))
        spec.rotary_scaling_long_factor = spec.rotary_scaling_short_factor = factors


def _both_ways(vectors: Tensor, position: Shaw) -> Any:
    """A vector for each distance from −m to m; a causal scheme has none ahead, where they are never used."""
    ahead = -position.first - position.last
    return _numbers(torch.cat([vectors, vectors.new_zeros(ahead, vectors.shape[1])]))


def _linear(spec: Any, *ours: Any) -> None:
    """One matrix there, one or several here, stacked."""
    spec.weight = _numbers(torch.cat([one.weight for one in ours]))
    if ours[0].bias is not None:
        spec.bias = _numbers(torch.cat([one.bias for one in ours]))


def _norm(spec: Any, ours: Any) -> None:
    spec.gamma = _numbers(ours.weight)
    if getattr(ours, "bias", None) is not None:
        spec.beta = _numbers(ours.bias)


def _numbers(tensor: Tensor) -> Any:
    """A float32 copy on the host: quantisation there works in place."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()
