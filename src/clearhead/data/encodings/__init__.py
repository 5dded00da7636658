"""The kinds of examples, each in its file.

These files define what our own models are fed. The conventions are stored with a trained model as its
framing, so decoding follows the model and not these files.
"""

from __future__ import annotations

from clearhead.data.encodings.denoised import Denoised
from clearhead.data.encodings.labels import SKIP, Labels, Scores, Tags
from clearhead.data.encodings.masked import Hiding, Masked
from clearhead.data.encodings.music import Pieces
from clearhead.data.encodings.pairs import JoinedPairs, Pairs
from clearhead.data.encodings.pictures import Pictures
from clearhead.data.encodings.stream import Stream

__all__ = [
    "SKIP",
    "Denoised",
    "Hiding",
    "JoinedPairs",
    "Labels",
    "Masked",
    "Pairs",
    "Pictures",
    "Pieces",
    "Scores",
    "Stream",
    "Tags",
]
