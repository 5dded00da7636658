"""Decoding on a GPU without waiting for the host: every step is one CUDA graph.

Each request has a slot in fixed buffers. The graph of a step reads what the last one left, writes one token
for every row, and keeps all state on the device: which texts have ended, which beams continue which, and
their scores. The host replays it several times, then checks which requests are done, reads their texts, and
gives their slots to waiting requests. This serves greedy search, sampling and beam search; options that shape
scores by earlier tokens are left to the general engine. Knows nothing about text.

`plain` defines in PyTorch what each kernel computes, `fused` implements it in Triton, and tests compare them.
"""

from __future__ import annotations

from clearhead.decoding.graphs.backend import GraphBackend, why_not, why_not_options

__all__ = ["GraphBackend", "why_not", "why_not_options"]
