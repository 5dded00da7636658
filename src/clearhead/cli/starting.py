"""How a command that uses a bundle starts quickly: imports and reading are most of the wait."""

from __future__ import annotations

import gc
from pathlib import Path

from clearhead.base import early


def hurry(bundle: Path) -> None:
    """Before the imports: read the weights beside them, since importing torch takes one core only.

    The imports leave hundreds of thousands of objects that stay. Looking through them for garbage again and
    again takes a tenth of a second and finds nothing, so that rests until `settle`.
    """
    early.begin(bundle / "model.safetensors")
    gc.disable()


def settle() -> None:
    """Behind the loading: what is there now stays, and what comes is looked through as usual."""
    gc.freeze()
    gc.enable()
