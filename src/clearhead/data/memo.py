"""Texts to ids with a memory for words: exactly what the tokenizer gives, many times faster.

Most of a corpus is the same words over and over. Our own subword vocabularies cut a text into words before
anything else, so the ids of a text with single spaces are the ids of its words, one after another; each word
is encoded once and then remembered. Every other text, and every text of a tokenizer that works differently,
is encoded whole. Knows nothing about tasks or filters.

Shapes: W different words (or whole texts) that are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from clearhead.data.ragged import Integers, Ragged, take
from clearhead.text.parts import space_between_words
from clearhead.text.tokenizer import Tokenizer

_MOST_CHARACTERS = 8_000_000  # remembered, about a million words; then the less frequent half is forgotten

# A word without a space on the side where the tokenizer expects one is remembered with this suffix; no other
# key can end with it. It is the first word of a text, or the last; whole texts are stored this way too.
_BARE = " "


class WordMemo:
    """A tokenizer that remembers words.

    >>> memo = WordMemo(Tokenizer.words("the cat sleeps"))
    >>> memo.encode(["the cat", "sleeps"]).rows()
    [[4, 5], [6]]
    """

    def __init__(self, tokenizer: Tokenizer, most_characters: int = _MOST_CHARACTERS) -> None:
        self._tokenizer = tokenizer
        self._space = space_between_words(tokenizer.backend) if tokenizer.literal else None
        self._most = most_characters
        self._numbers: dict[str, int] = {}  # each key's index in the arrays below, in ascending order
        self._items: Integers = np.zeros(0, np.int32)  # all ids
        self._begins: Integers = np.zeros(0, np.int64)  # (W,)
        self._lengths: Integers = np.zeros(0, np.int64)  # (W,)
        self._uses: Integers = np.zeros(0, np.int64)  # (W,) how often each was requested
        self._characters = 0

    def encode(self, texts: Sequence[str]) -> Ragged:
        """The ids of many texts, the same as from `Tokenizer.encode_batch`."""
        if self._space is None:
            return Ragged.of(self._tokenizer.encode_batch(texts))
        if self._characters > self._most:
            self._forget_the_rare()
        keys: list[str] = []
        counts = np.empty(len(texts), np.int64)
        bare = 0 if self._space == "before" else -1  # the word without a space
        for place, text in enumerate(texts):
            words = text.split()
            if not words or " ".join(words) != text:
                words = [text]
            words[bare] += _BARE
            counts[place] = len(words)
            keys += words
        numbers = np.fromiter(map(self._numbers.get, keys, repeat(-1)), np.int64, len(keys))
        unknown = np.flatnonzero(numbers < 0).tolist()
        if unknown:
            self._learn(sorted({keys[place] for place in unknown}))
            numbers[unknown] = [self._numbers[keys[place]] for place in unknown]
        self._uses += np.bincount(numbers, minlength=len(self._uses))
        lengths = self._lengths[numbers]
        ends = np.concatenate([[0], np.cumsum(lengths)])[np.concatenate([[0], np.cumsum(counts)])]
        return Ragged(take(self._items, self._begins[numbers], lengths).items, np.diff(ends))

    def _learn(self, keys: Sequence[str]) -> None:
        before, after = (" ", "") if self._space == "before" else ("", " ")
        texts = [key[:-1] if key.endswith(_BARE) else before + key + after for key in keys]
        found = Ragged.of(self._tokenizer.encode_batch(texts))
        known = len(self._numbers)
        self._numbers.update(zip(keys, range(known, known + len(keys)), strict=True))
        self._begins = np.concatenate([self._begins, len(self._items) + found.begins])
        self._lengths = np.concatenate([self._lengths, found.lengths])
        self._items = np.concatenate([self._items, found.items.astype(np.int32)])
        self._uses = np.concatenate([self._uses, np.zeros(len(keys), np.int64)])
        self._characters += sum(map(len, keys))

    def _forget_the_rare(self) -> None:
        """Keep the half that was used most; older uses count for less and less."""
        most_used = np.argsort(-self._uses, kind="stable")[: len(self._uses) // 2]
        keys = list(self._numbers)
        kept = [keys[number] for number in most_used.tolist()]
        found = take(self._items, self._begins[most_used], self._lengths[most_used])
        self._numbers = {key: number for number, key in enumerate(kept)}
        self._items, self._begins, self._lengths = found.items, found.begins, found.lengths
        self._uses = self._uses[most_used] // 2
        self._characters = sum(map(len, kept))
