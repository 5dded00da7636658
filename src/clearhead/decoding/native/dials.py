"""Which models the native engine can run: every setting it does not know is named, never guessed.

A setting that is not listed here may only stand as it does by default, so that what is added to models later
is left to PyTorch until an engine has learned it. Looks at the modules themselves, too: so is a model whose
parts somebody has replaced (adapters, hooks, quantised layers).
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import nn

from clearhead.base.config import Config
from clearhead.models.config import ModelConfig
from clearhead.models.decoder import Decoder
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.attention.scores import Dot, ScaledDot
from clearhead.nn.layers import (
    Dropout,
    FeedForward,
    InputEmbedding,
    Output,
    Residual,
    RMSNorm,
    TokenEmbedding,
)
from clearhead.nn.positions.absolute import Learned, Sinusoidal
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.relative import ALiBi, T5Bias
from clearhead.nn.positions.rotary import Rotary

KNOWN: set[type[nn.Module]] = {
    *(EncoderDecoder, Decoder, Stack, Layer, nn.ModuleList),
    *(MultiHeadAttention, ScaledDot, Dot, FeedForward, nn.Linear),
    *(InputEmbedding, TokenEmbedding, Output, Residual, nn.LayerNorm, RMSNorm, Dropout, nn.Dropout),
    *(Position, Sinusoidal, Learned, Rotary, T5Bias, ALiBi),
}
# Settings that the engines read, or that decoding does not depend on: the values they know; None: all.
SETTINGS: dict[str, tuple[str, ...] | None] = {
    "position.name": ("none", "sinusoidal", "learned", "rotary", "t5", "alibi"),
    "position.layout": ("interleaved", "halves"),
    "attention.score": ("scaled_dot", "dot"),
    "feedforward.activation": ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"),
    "norm.kind": ("layer", "rms"),
    "norm.place": ("post", "pre"),
    **dict.fromkeys(
        f"{part}{name}"
        for part, names in {
            "": "family vocabulary source_vocabulary width layers decoder_layers dropout initialisation "
            "image recurrent",  # the last two are other families' own
            "attention.": "width heads kv_heads query_dim key_dim value_dim memory_width score_rank bias "
            "output_bias scale softcap dropout kernel",
            "feedforward.": "width gated bias dropout",
            "position.": "max_length base scaling buckets max_distance values",
            "norm.": "eps final",
            "embedding.": "scale norm token_types tie_output output_bias output_scale dropout",
            "head.": "classes pooling pooler transform dropout",  # of heads that are not there
        }.items()
        for name in names.split()
    ),
}
NAMES = {"position.name": "position scheme", "attention.score": "score"}  # where a sentence has another word


def supports(model: nn.Module, device: str = "cpu") -> str | None:
    """Why an engine of ours cannot run this model on such a device, as the end of a sentence; None: it can.

    >>> import clearhead
    >>> supports(clearhead.build("tiny"))
    >>> supports(clearhead.build("tiny", position__name="shaw"))
    "it does not know the position scheme 'shaw'."
    """
    config = getattr(model, "config", None)
    if not isinstance(config, ModelConfig) or type(model) not in (EncoderDecoder, Decoder):
        family = config.family if isinstance(config, ModelConfig) else type(model).__name__
        return f"it does not know the model family '{family}'."
    dial = _config(config) or _modules(model) or _weights(model, device) or _shapes(model, config)
    return None if dial is None else f"it does not know {dial}."


USUAL = ModelConfig()


def _config(config: Config, usual: Config = USUAL, path: str = "") -> str | None:
    """The first setting that is not known, of a config and those inside it; `usual` has the defaults."""
    for name in (one.name for one in fields(config)):
        value, default, where = getattr(config, name), getattr(usual, name), path + name
        known = SETTINGS.get(where, ())
        if value == default or known is None or value in known:
            continue
        if isinstance(value, Config) and type(value) is type(default):
            if (inside := _config(value, default, f"{where}.")) is not None:
                return inside
            continue
        shown = getattr(value, "kind", value)  # of a part that is of another kind
        name = NAMES.get(where, f"setting {where}")
        return f"the {name} '{shown}'" if isinstance(shown, str | int | float) else f"the {name}"
    return None


def _modules(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        if type(module) not in KNOWN:
            return f"the module '{name}' ({type(module).__name__})"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"a hook on the module '{name}'"
    return None


def _weights(model: nn.Module, device: str) -> str | None:
    for name, weight in model.named_parameters():
        if weight.device.type != device:
            return f"weights on '{weight.device.type}'"
        if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"the weight '{name}' in {weight.dtype}"
    return None


def _shapes(model: nn.Module, config: ModelConfig) -> str | None:
    """Somebody may have replaced a part by one of another size, which PyTorch does not mind."""
    attention, width = config.attention, config.width
    key = attention.key_dim or width // attention.heads
    value, groups = attention.value_dim or key, attention.kv_heads or attention.heads
    wide, mixed = config.feedforward.width or 4 * width, attention.heads * value
    wanted = {
        "query": (attention.heads * key, width),
        "key": (groups * key, width),
        "value": (groups * value, width),
        "attention.output": (width, mixed),
        "cross_attention.output": (width, mixed),
        "gate": (wide, width),
        "inner": (wide, width),
        "feedforward.output": (width, wide),
        "output": (config.vocabulary, width),
        "source_embedding.table": (config.source_vocabulary or config.vocabulary, width),
        "target_embedding.table": (config.vocabulary, width),
        "embedding.table": (config.vocabulary, width),
    }
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        ends = name.split(".")
        shape = wanted.get(".".join(ends[-2:])) or wanted.get(ends[-1])
        if weight is not None and shape is not None and weight.shape != shape:
            return f"a weight of the shape {tuple(weight.shape)} in '{name}'"
    return None
