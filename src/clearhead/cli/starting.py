"""How a command that uses a bundle starts fast: imports and reading are most of the wait."""

from __future__ import annotations

import gc
from pathlib import Path

from clearhead.base import preload
from clearhead.base.memory import trim


def hurry(bundle: Path, *, keep: bool = True) -> None:
    """Call before the imports: reads the weights in parallel, since importing torch uses only one core.

    Weights that the C++ engine will map are not kept, only checked.

    The imports leave hundreds of thousands of permanent objects. Collecting garbage among them again and
    again takes a tenth of a second and finds nothing, so collection is off until `settle`.
    """
    preload.begin(bundle / "model.safetensors", keep=keep)
    gc.disable()


def settle() -> None:
    """Call after loading: existing objects are permanent, and new ones are collected as usual."""
    trim()
    gc.freeze()
    gc.enable()
