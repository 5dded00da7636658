"""The CPU engine: a model's whole forward pass in C++, compiled at first use.

`why_not()` says whether it can run on this machine, `supports(model)` whether it can run a model; if both
agree, `NativeRows` replaces `TorchRows`, otherwise decoding uses PyTorch.
"""

from __future__ import annotations

from clearhead.base.compiler import NoLibrary
from clearhead.decoding.native.binding import why_not
from clearhead.decoding.native.pack import Dtype, Packed, pack
from clearhead.decoding.native.rows import NativeRows, supports
from clearhead.decoding.native.scores import NativeScores
from clearhead.decoding.native.weight_memory import Sharing

__all__ = [
    "Dtype",
    "NativeRows",
    "NativeScores",
    "NoLibrary",
    "Packed",
    "Sharing",
    "pack",
    "supports",
    "why_not",
]
