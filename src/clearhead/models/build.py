"""From a config to a model: the one table of families."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clearhead.base.errors import UserError, nearest
from clearhead.models.config import ModelConfig
from clearhead.models.decoder import Decoder
from clearhead.models.encoder import Encoder
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.presets import preset
from clearhead.models.recurrent import Recurrent
from clearhead.models.vision import Vision
from clearhead.nn.layers import initialise

FAMILIES: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "encoder-decoder": EncoderDecoder,
    "encoder": Encoder,
    "decoder": Decoder,
    "vision": Vision,
    "recurrent": Recurrent,
}


class _NoInitialValues(TorchFunctionMode):
    """Leaves tensors as they are made.

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
    """A model from a preset's name or a config, with settings changed as you like.

    `device="meta"` builds without memory, to count parameters or to plan. `a__b=1` changes the setting b
    of part a.

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
        except RuntimeError as error:
            if place.type != "meta":
                raise
            raise UserError(  # "meta" has no memory that could be short: a size is beyond 64 bits
                f"No machine can hold a model of these sizes (width {config.width}, vocabulary "
                f"{config.vocabulary}, {config.layers} layers): make it smaller."
            ) from error
        initialise(model, config.initialisation, config.layers)
    return model


def count_parameters(what: nn.Module | str | ModelConfig) -> int:
    """How many numbers a model learns; shared ones count once. Names and configs cost no memory.

    >>> import clearhead
    >>> clearhead.count_parameters("base")
    63082496
    """
    model = what if isinstance(what, nn.Module) else build(what, device="meta")
    return sum(parameter.numel() for parameter in model.parameters())
