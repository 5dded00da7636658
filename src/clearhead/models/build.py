"""From a config to a model: the table of families, and published models by name (shapes, no weights)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.base.errors import UserError, nearest, shown
from clearhead.models.config import ModelConfig
from clearhead.models.convolutional import Convolutional
from clearhead.models.decoder import Decoder
from clearhead.models.encoder import Encoder, Vision
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.recurrent import Recurrent
from clearhead.nn.attention.linformer import share_between_layers
from clearhead.nn.initialise import initialise

FAMILIES: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "encoder-decoder": EncoderDecoder,
    "encoder": Encoder,
    "decoder": Decoder,
    "vision": Vision,
    "recurrent": Recurrent,
    "convolutional": Convolutional,
}


class _NoInitialValues(TorchFunctionMode):
    """Leaves tensors uninitialised.

    On "meta" there is nothing to fill, but filling with random numbers still loads torch's compiler,
    which takes seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_) or getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def build(what: str | ModelConfig, *, device: str | torch.device | None = None, **changes: Any) -> nn.Module:
    """Build a model from a preset's name or a config, with any settings changed.

    `device="meta"` builds without allocating memory, to count parameters or to plan. `a__b=1` changes the
    setting b of part a.

    >>> import clearhead, torch
    >>> model = clearhead.build("tiny", layers=1, attention__heads=2)
    >>> model(torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]])).logits.shape
    torch.Size([1, 2, 100])
    """
    config = preset(what) if isinstance(what, str) else what
    config = config.replace(**changes)
    if config.family not in FAMILIES:
        raise UserError(f"There is no model family '{config.family}': {nearest(config.family, FAMILIES)}")
    place = torch.device(device) if device is not None else torch.get_default_device()
    with place, _NoInitialValues() if place.type == "meta" else nullcontext():
        try:
            model = FAMILIES[config.family](config)
            share_between_layers(model)
        except RuntimeError as error:
            if place.type != "meta":
                raise
            raise UserError(  # "meta" cannot run out of memory: a size exceeds 64 bits
                f"No machine can hold a model of this size (width {config.width}, vocabulary "
                f"{config.vocabulary}, {config.layers} layers): make it smaller."
            ) from error
        initialise(model, config.initialisation, config.layers)
    return model


def count_parameters(what: nn.Module | str | ModelConfig) -> int:
    """The number of trainable parameters; shared ones count once. Names and configs need no memory.

    >>> import clearhead
    >>> clearhead.count_parameters("base")
    63082496
    """
    model = what if isinstance(what, nn.Module) else build(what, device="meta")
    return sum(parameter.numel() for parameter in model.parameters())


def presets() -> list[str]:
    """The names of the presets for `clearhead.build`.

    >>> import clearhead
    >>> "base" in clearhead.presets()
    True
    """
    return list(PRESETS)


def preset(name: str) -> ModelConfig:
    """The config of a published model."""
    if name not in PRESETS:
        raise UserError(f"There is no preset {shown(name)}: {nearest(name, PRESETS)}")
    return ModelConfig.from_dict(PRESETS[name])


# --- published shapes ----------------------------------------------------------------------------


def _transformer(
    layers: int, width: int, inner: int, heads: int, dropout: float, vocabulary: int
) -> dict[str, Any]:
    return {
        "vocabulary": vocabulary,
        "width": width,
        "layers": layers,
        "dropout": dropout,
        "attention": {"heads": heads},
        "feedforward": {"width": inner},
        "embedding": {"dropout": dropout},
    }


def _gpt(layers: int, width: int, heads: int, head_dim: int, context: int = 2048) -> dict[str, Any]:
    return {
        "family": "decoder",
        "vocabulary": 50_257,
        "width": width,
        "layers": layers,
        "attention": {"heads": heads, "key_dim": head_dim},
        "feedforward": {"activation": "gelu_tanh"},
        "position": {"name": "learned", "max_length": context},
        "norm": {"place": "pre"},
        "embedding": {"scale": False, "dropout": 0.1},
        "initialisation": "scaled",
    }


def _bert(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {
        "family": "encoder",
        "vocabulary": 30_522,
        "width": width,
        "layers": layers,
        "attention": {"heads": heads, "dropout": 0.1},
        "feedforward": {"activation": "gelu"},
        "position": {"name": "learned", "max_length": 512},
        "norm": {"eps": 1e-12},
        "embedding": {"scale": False, "norm": True, "token_types": 2, "dropout": 0.1},
        "head": {"pooler": True},
        "initialisation": "scaled",
    }


def _t5(layers: int, width: int, inner: int, heads: int) -> dict[str, Any]:
    return {
        "vocabulary": 32_128,
        "width": width,
        "layers": layers,
        "attention": {"heads": heads, "key_dim": 64, "score": "dot", "bias": False},
        "feedforward": {"width": inner, "bias": False},
        "position": {"name": "t5"},
        "norm": {"kind": "rms", "place": "pre", "eps": 1e-6},
        "embedding": {"scale": False, "output_scale": width**-0.5, "dropout": 0.1},
    }


def _llama(
    layers: int, width: int, inner: int, heads: int, kv_heads: int, vocabulary: int, base: float = 10_000.0
) -> dict[str, Any]:
    return {
        "family": "decoder",
        "vocabulary": vocabulary,
        "width": width,
        "layers": layers,
        "dropout": 0.0,
        "attention": {"heads": heads, "kv_heads": kv_heads, "bias": False},
        "feedforward": {"width": inner, "activation": "silu", "gated": True, "bias": False},
        "position": {"name": "rotary", "base": base},
        "norm": {"kind": "rms", "place": "pre"},
        "embedding": {"scale": False, "tie_output": False},
        "initialisation": "scaled",
    }


# GPT-3's table has two known quirks: XL's 24 heads of 128 do not multiply to its width of 2,048, nor give its
# 1.3 billion parameters (16 heads do, and are used here); 13B's width of 5,140 is not 40 heads of 128, but
# free head sizes allow it to be built exactly as printed.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _transformer(2, 32, 64, 4, 0.0, 100),  # for examples and tests: builds instantly
    "base": _transformer(6, 512, 2048, 8, 0.1, 37_000),
    "big": _transformer(6, 1024, 4096, 16, 0.3, 37_000),
    "gpt3-small": _gpt(12, 768, 12, 64),
    "gpt3-medium": _gpt(24, 1024, 16, 64),
    "gpt3-large": _gpt(24, 1536, 16, 96),
    "gpt3-xl": _gpt(24, 2048, 16, 128),
    "gpt3-2.7b": _gpt(32, 2560, 32, 80),
    "gpt3-6.7b": _gpt(32, 4096, 32, 128),
    "gpt3-13b": _gpt(40, 5140, 40, 128),
    "gpt3-175b": _gpt(96, 12_288, 96, 128),
    "gpt2": _gpt(12, 768, 12, 64, context=1024),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "t5-small": _t5(6, 512, 2048, 8),
    "t5-base": _t5(12, 768, 3072, 12),
    "vit-b16": {
        "family": "vision",
        "width": 768,
        "layers": 12,
        "dropout": 0.0,
        "attention": {"heads": 12},
        "feedforward": {"activation": "gelu"},
        "position": {"name": "learned"},
        "norm": {"place": "pre", "eps": 1e-12},
        "head": {"kind": "classify", "classes": 1000, "dropout": 0.0},
        "initialisation": "scaled",
    },
    "llama-7b": _llama(32, 4096, 11_008, 32, 32, 32_000),
    "llama3-8b": _llama(32, 4096, 14_336, 32, 8, 128_256, base=500_000.0),
    "rnn": {
        "family": "recurrent",
        "vocabulary": 37_000,
        "width": 512,
        "layers": 1,
        "embedding": {"scale": False},
    },
}
