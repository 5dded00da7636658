"""How a command that uses a bundle starts quickly: imports and reading are most of the wait."""

from __future__ import annotations

import gc
from pathlib import Path

from clearhead.base import preload
from clearhead.base.memory import trim


def hurry(bundle: Path, *, keep: bool = True) -> None:
    """Before the imports: read the weights beside them, since importing torch takes one core only.

    Those that the C++ engine will map are not kept, only checked.

    The imports leave hundreds of thousands of objects that stay. Looking through them for garbage again and
    again takes a tenth of a second and finds nothing, so that rests until `settle`.
    """
    preload.begin(bundle / "model.safetensors", keep=keep)
    gc.disable()


def settle() -> None:
    """Behind the loading: what is there now stays, and what comes is looked through as usual."""
    trim()
    gc.freeze()
    gc.enable()
