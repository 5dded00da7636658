"""Weights, config, tokenizer and metadata as one folder on disk, written atomically.

`docs/bundle.md` describes the folder. Sits above `models` and `text`; training,
decoding and interop read and write bundles.
"""

from __future__ import annotations

from clearhead.bundle.describe import Description, describe
from clearhead.bundle.folder import Bundle, load_bundle, save
from clearhead.bundle.metadata import FORMAT, FORMAT_VERSION, is_bundle

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "Bundle",
    "Description",
    "describe",
    "is_bundle",
    "load_bundle",
    "save",
]
