"""A bundle: a model, its tokenizer and what is known about them, as one folder on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn

from clearhead.models.config import ModelConfig
from clearhead.text.tokenizer import Tokenizer


@dataclass
class Bundle:
    """A model with its tokenizer and metadata."""

    model: nn.Module
    tokenizer: Tokenizer | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        """The settings the model was built from."""
        return cast(ModelConfig, self.model.config)
