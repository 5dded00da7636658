"""What can be recorded: which models, and which settings of a request."""

from __future__ import annotations

import importlib.util

import torch
from torch import nn

from clearhead.decoding.native.dials import supports
from clearhead.decoding.options import Options
from clearhead.decoding.steps import config_of

WIDEST = 8192  # a row of the model is one block of a kernel
LARGEST_HEAD = 256
WIDEST_BEAM = 16


def why_not(model: nn.Module, device: torch.device) -> str | None:
    """Why steps of this model cannot be recorded on this device, as the end of a sentence; None: they can."""
    if device.type != "cuda":
        return "graphs are recorded on CUDA devices."
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed."
    reason = supports(model, device.type)
    if reason is not None:
        return reason
    config = config_of(model)
    attention = config.attention.replace(width=config.width)
    if config.width > WIDEST or max(attention.key_size, attention.value_size) > LARGEST_HEAD:
        return "it is too wide for these kernels."
    return None


def why_not_options(options: Options) -> str | None:
    """Why requests with these settings need the general engine; None: the device can keep their state.

    >>> why_not_options(Options(beam=4))
    >>> why_not_options(Options(frequency=0.5))
    'what was written before changes what is chosen.'
    """
    shaped = options.repetition != 1 or options.frequency or options.presence or options.no_repeat
    begun = options.prefix or options.not_first
    if shaped or options.banned or begun or options.must_include or options.contrastive:
        return "what was written before changes what is chosen."
    if options.bias or options.choices or options.regex is not None or options.stop_texts:
        return "scores are changed or constrained."
    if options.coverage or options.groups > 1:
        return "coverage and diverse groups have a state of their own."
    if options.beam > 1 and (options.min_length or options.beam > WIDEST_BEAM):
        return "so wide a beam, or a least length with a beam, has a state of its own."
    if options.beam > 1 and (options.early_stopping != "never" or options.forced != "scored"):
        return "beams are stopped and scored by one rule there."
    if options.sample and options.nbest > 1:
        return "several texts are drawn for one request."
    return None
