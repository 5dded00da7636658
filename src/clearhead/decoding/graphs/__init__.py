"""Decoding on a GPU without waiting for the host: every step is one recorded graph.

Each request has a slot in fixed buffers. The graph of a step reads what the last one left, writes one token
for every row, and keeps all state on the device: which texts have ended, which beams go on from which, what
they score. The host replays it several times, then looks at who is done, takes their texts, and gives their
slots to waiting requests. Greedy search, sampling and beam search are served so; whatever shapes scores by
what was written before is left to the general engine. Knows nothing about text.

`plain` says in PyTorch what each kernel computes, `fused` says it in Triton, and tests hold them together.
"""

from __future__ import annotations

from clearhead.decoding.graphs.backend import GraphBackend, why_not, why_not_options

__all__ = ["GraphBackend", "why_not", "why_not_options"]
