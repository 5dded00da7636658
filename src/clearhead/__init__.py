"""clearhead: the Transformer, exactly.

The public names of the toolkit, each fetched from its room when it is first
used. Importing this package imports no torch, so that `clearhead --help` and a
misspelt option answer at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearhead.api import load as load
    from clearhead.base.errors import UserError as UserError
    from clearhead.bundle import save as save
    from clearhead.decoding.options import Options as Options
    from clearhead.explorer.session import trace as trace
    from clearhead.jobs.public import compare as compare
    from clearhead.jobs.public import evaluate as evaluate
    from clearhead.jobs.public import generate as generate
    from clearhead.jobs.public import train as train
    from clearhead.jobs.public import translate as translate
    from clearhead.models.build import build as build
    from clearhead.models.build import count_parameters as count_parameters
    from clearhead.models.build import presets as presets
    from clearhead.models.config import ModelConfig as ModelConfig
    from clearhead.nn.attention import AttentionConfig as AttentionConfig
    from clearhead.nn.attention import MultiHeadAttention as MultiHeadAttention
    from clearhead.nn.attention import masks as masks
    from clearhead.nn.look import Look as Look
    from clearhead.nn.positions import check_position as check_position
    from clearhead.nn.positions import position as position
    from clearhead.nn.tokens import Tokens as Tokens
    from clearhead.planner import plan as plan
    from clearhead.text.tokenizer import Tokenizer as Tokenizer

__version__ = "0.2.0"

# public name -> the module it lives in; a module that is itself public maps to its own full name
_HOMES = {
    "AttentionConfig": "clearhead.nn.attention",
    "Look": "clearhead.nn.look",
    "ModelConfig": "clearhead.models.config",
    "MultiHeadAttention": "clearhead.nn.attention",
    "Options": "clearhead.decoding.options",
    "Tokenizer": "clearhead.text.tokenizer",
    "Tokens": "clearhead.nn.tokens",
    "UserError": "clearhead.base.errors",
    "build": "clearhead.models.build",
    "check_position": "clearhead.nn.positions",
    "compare": "clearhead.jobs.public",
    "count_parameters": "clearhead.models.build",
    "evaluate": "clearhead.jobs.public",
    "generate": "clearhead.jobs.public",
    "load": "clearhead.api",
    "masks": "clearhead.nn.attention.masks",
    "plan": "clearhead.planner",
    "position": "clearhead.nn.positions",
    "presets": "clearhead.models.build",
    "save": "clearhead.bundle",
    "trace": "clearhead.explorer.session",
    "train": "clearhead.jobs.public",
    "translate": "clearhead.jobs.public",
}

__all__ = [
    "AttentionConfig",
    "Look",
    "ModelConfig",
    "MultiHeadAttention",
    "Options",
    "Tokenizer",
    "Tokens",
    "UserError",
    "__version__",
    "build",
    "check_position",
    "compare",
    "count_parameters",
    "evaluate",
    "generate",
    "load",
    "masks",
    "plan",
    "position",
    "presets",
    "save",
    "trace",
    "train",
    "translate",
]


def __getattr__(name: str) -> Any:
    """Fetch a public name from its room the first time it is asked for (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'clearhead' has no attribute '{name}'")
    module = importlib.import_module(home)
    value = module if home.endswith(f".{name}") and not hasattr(module, name) else getattr(module, name)
    globals()[name] = value  # so that this function is asked only once per name
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
