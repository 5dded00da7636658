"""Weights, config, tokenizer and metadata as one folder on disk, written whole or not at all."""

from __future__ import annotations

from clearhead.bundle.folder import Bundle

__all__ = ["Bundle"]
