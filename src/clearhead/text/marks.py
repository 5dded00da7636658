"""The special tokens of pre-training: a mask that hides one token, and sentinels that each replace a span.

They are found by the names that BERT, RoBERTa and T5 gave them, so that imported vocabularies work too. In
a text that a person typed, a gap is written as `[MASK]` whatever the vocabulary calls it. No torch; knows
nothing about batches or models.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import NamedTuple

from tokenizers import decoders

from clearhead.text import parts
from clearhead.text.tokenizer import Tokenizer

_MASKS = (parts.MASK, "[MASK]")
# a gap with the spaces around it, and a sentinel's number
_GAP = re.compile(r"(\s?)(?:\[MASK\]|<mask>|<extra_id_\d{1,3}>)(\s?)")


class Marks(NamedTuple):
    """The tokens of a vocabulary that hide others, and which of its ids are ordinary."""

    mask: int | None
    sentinels: tuple[int, ...]
    special: frozenset[int]  # every special token: none is ever hidden, or drawn as a replacement
    vocabulary: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Marks | None:
        """Those of a tokenizer; None if it has neither a mask nor sentinels.

        >>> Marks.of(Tokenizer.words("a b")) is None
        True
        """
        backend = tokenizer.backend
        special = frozenset(id for id, one in backend.get_added_tokens_decoder().items() if one.special)

        def known(name: str) -> int | None:
            id: int | None = backend.token_to_id(name)
            return id if id in special else None

        mask = next((id for id in map(known, _MASKS) if id is not None), None)
        sentinels = tuple(takewhile(lambda id: id is not None, map(known, parts.SENTINELS)))
        if mask is None and not sentinels:
            return None
        return cls(mask, tuple(id for id in sentinels if id is not None), special, tokenizer.vocabulary_size)


def around_gaps(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """The ids of the text before, between and after the gaps.

    The space next to a gap belongs to the missing word, wherever this vocabulary keeps spaces.

    >>> around_gaps(Tokenizer.words("the cat sat"), "the [MASK] sat")
    [[4], [6]]
    """
    after = parts.space_between_words(tokenizer.backend) == "after"
    single = isinstance(tokenizer.backend.decoder, decoders.Fuse)  # characters, and a space is one of them
    pieces, begin, left_over = [], 0, ""
    for gap in _GAP.finditer(text):
        left, right = gap.groups()
        pieces.append(left_over + text[begin : gap.start()] + (left if after or single else ""))
        left_over, begin = ("" if after else right), gap.end()
    return tokenizer.encode_batch([*pieces, left_over + text[begin:]])
