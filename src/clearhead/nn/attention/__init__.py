"""Attention: one module, five dials. Start with `multihead.py`, then `problem.py` and `kernels.py`."""

from __future__ import annotations

from clearhead.nn.attention import masks
from clearhead.nn.attention.kernels import KERNELS, attend, reference
from clearhead.nn.attention.multihead import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.scores import SCORES, Score, build_score
from clearhead.nn.attention.state import KeyValues, Memory

__all__ = [
    "KERNELS",
    "SCORES",
    "AttentionConfig",
    "KeyValues",
    "Memory",
    "MultiHeadAttention",
    "Problem",
    "Score",
    "attend",
    "build_score",
    "masks",
    "reference",
]
