"""Music as words: a fixed vocabulary of events, which is a tokenizer like any other.

A chorale is `pitch60` or `rest` for each of four voices, in their order, step by step. A performance (MIDI)
is `on60`, `off60`, `shift10` (time in hundredths of a second, at most one second) and `velocity20` (loudness
of the notes that follow, in 32 bins), as in the Music Transformer. Pitches are MIDI's, 60 is middle C. No
torch.
"""

from __future__ import annotations

import numpy as np
import tokenizers
from numpy.typing import NDArray

from clearhead.base.errors import UserError
from clearhead.text import parts
from clearhead.text.tokenizer import OWN_ROLES, Tokenizer

PITCHES = 128
SHIFTS = 100  # hundredths of a second in the longest shift
BINS = 32  # of velocity
VOICES = 4  # of a chorale
_SOUNDS = ("pitch", "on", "off")  # the events that transposing changes
WORDS = (
    "rest",
    *(f"{sound}{pitch}" for sound in _SOUNDS for pitch in range(PITCHES)),
    *(f"shift{time}" for time in range(1, SHIFTS + 1)),
    *(f"velocity{bin}" for bin in range(BINS)),
)
SIZE = len(parts.SPECIALS) + len(WORDS)
_FIRST = len(parts.SPECIALS) + WORDS.index("pitch0")
_BEHIND = _FIRST + len(_SOUNDS) * PITCHES


def events_backend() -> tokenizers.Tokenizer:
    """The vocabulary as a backend of the library: the four special tokens, then the words."""
    return parts.word_level(WORDS, parts.words_apart())


def events_tokenizer() -> Tokenizer:
    """The vocabulary as a `Tokenizer`.

    >>> events_tokenizer().tokens("pitch60 rest on64")
    ['pitch60', 'rest', 'on64']
    """
    return Tokenizer(events_backend(), OWN_ROLES, literal=True)


def check_events(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer with other words, since we do not know which of them are pitches."""
    known = tokenizer.backend.token_to_id
    if (known("pitch0"), known(WORDS[-1]), tokenizer.vocabulary_size) != (_FIRST, SIZE - 1, SIZE):
        raise UserError(
            "The task 'music' uses a fixed vocabulary of events: leave [tokenizer] out, and if you use "
            "--from, start from a music model."
        )


def pitches(ids: NDArray[np.integer]) -> NDArray[np.int64]:
    """The pitch that each token starts, holds or ends; −1 for every other token.

    >>> pitches(np.array(events_tokenizer().encode("pitch60 rest off64 shift7"))).tolist()
    [60, -1, 64, -1]
    """
    ids = ids.astype(np.int64)  # stores have unsigned ones, which cannot hold −1
    return np.where((ids >= _FIRST) & (ids < _BEHIND), (ids - _FIRST) % PITCHES, -1)
