"""From a model's scores to ids and text: greedy, sampled and beam search, classes, tags, alignments.

Plain and exact: what is found does not depend on what else is in the batch. Gets
models and bundles; knows nothing about training or about measuring quality.
"""

from __future__ import annotations

from clearhead.decoding.alignment import Alignment, alignment, draw_alignment
from clearhead.decoding.backend import Hypothesis, Symbols
from clearhead.decoding.embed import embed, nearest
from clearhead.decoding.labels import classify, regress, tag
from clearhead.decoding.options import LengthPenalty, Options
from clearhead.decoding.run import beam_search, generate, greedy, sample, stream, translate
from clearhead.decoding.score import Scored, score
from clearhead.decoding.text_requests import Written
from clearhead.decoding.writer import Writer, Writing

__all__ = [
    "Alignment",
    "Hypothesis",
    "LengthPenalty",
    "Options",
    "Scored",
    "Symbols",
    "Writer",
    "Writing",
    "Written",
    "alignment",
    "beam_search",
    "classify",
    "draw_alignment",
    "embed",
    "generate",
    "greedy",
    "nearest",
    "regress",
    "sample",
    "score",
    "stream",
    "tag",
    "translate",
]
