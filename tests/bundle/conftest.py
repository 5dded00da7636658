"""Bundles to try things on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clearhead.bundle import Bundle, save
from clearhead.models import build
from clearhead.text.tokenizer import Tokenizer


@pytest.fixture
def small() -> Bundle:
    """A decoder with a tokenizer and notes, as small as can be."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.words("to be or not to be that is the question")
    size = tokenizer.vocabulary_size
    model = build("tiny", family="decoder", vocabulary=size, width=8, layers=1, attention__heads=2)
    return Bundle(model.eval(), tokenizer, {"trained_on": "Hamlet", "metrics": {"loss": 1.5}})


@pytest.fixture
def folder(small: Bundle, tmp_path: Path) -> Path:
    """The same on disk."""
    return save(small, tmp_path / "small")
