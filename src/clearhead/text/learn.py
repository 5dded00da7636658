"""Learn a vocabulary from texts.

`learn_tokenizer` turns texts and a `TokenizerConfig` into a `Tokenizer`. The
three subword kinds work on bytes, so no input is ever unknown or lost. The
result depends on the texts and the config alone, not on threads or chance.
Knows nothing about files, languages or models. No torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

import tokenizers
from tokenizers import models, trainers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from clearhead.base.config import Config, Count
from clearhead.base.errors import UserError
from clearhead.text import parts
from clearhead.text.events import WORDS, events_backend
from clearhead.text.tokenizer import OWN_ROLES, Tokenizer, checked_text
from clearhead.text.unigram import learn_pieces


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Config):
    """How a tokenizer is trained.

    >>> TokenizerConfig(kind="unigram", vocabulary=4000).smallest
    260
    """

    _noun: ClassVar[str] = "tokenizer"

    # the subword method; "characters" and "words" are for teaching, and know only what they have seen;
    # "events" are those of music, which need no training
    kind: Literal["bpe", "unigram", "wordpiece", "characters", "words", "events"] = "bpe"
    # largest number of tokens, including the four special ones; a small corpus gives fewer
    vocabulary: Count = 8000
    # one vocabulary for both sides of a pair of texts, or one for each
    shared: bool = True
    # convert to lower case first; the original case is lost
    lowercase: bool = False
    # the Unicode normalisation form of texts
    normalisation: Literal["none", "nfc", "nfkc"] = "none"
    # subwords stay within "words" (letters and punctuation apart, digits one by one), or within the text
    # between "spaces", for text that is already tokenised
    split: Literal["words", "spaces"] = "words"
    # special tokens besides the four: the mask of --task mask, or the hundred sentinels that replace spans in
    # --task denoise
    extra: Literal["none", "mask", "sentinels"] = "none"
    # largest number of lines to learn from
    sample: Count = 1_000_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary < self.smallest:
            raise UserError(
                f"A vocabulary of {self.vocabulary} is too small for the tokenizer kind '{self.kind}': "
                f"the smallest possible is {self.smallest}."
            )

    @property
    def smallest(self) -> int:
        """The smallest vocabulary of this kind: the special tokens and the required pieces."""
        needed = {"bpe": 256, "unigram": 256, "wordpiece": 2 * 256, "events": len(WORDS)}
        return len(self.specials) + needed.get(self.kind, 1)

    @property
    def more(self) -> tuple[str, ...]:
        """The special tokens besides the four."""
        return {"none": (), "mask": (parts.MASK,), "sentinels": parts.SENTINELS}[self.extra]

    @property
    def specials(self) -> list[str]:
        """All special tokens, in the order of their ids."""
        return [*parts.SPECIALS, *self.more]


def learn_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Learn a vocabulary from the first `config.sample` texts; reads no further than that.

    For "bpe", "unigram" and "wordpiece", `decode(encode(text)) == normalise(text)` for
    any text. "characters" and "words" map anything unknown to `<unknown>`, and "words"
    loses white space, except line ends inside a text.

    >>> tokenizer = learn_tokenizer(["low lower lowest"] * 9, TokenizerConfig(vocabulary=266))
    >>> tokenizer.tokens("slowly")
    ['s', 'low', 'l', 'y']
    >>> tokenizer.decode(tokenizer.encode("日本 <stop>"))
    '日本 <stop>'
    """
    if isinstance(texts, str):
        raise UserError("A tokenizer is trained on many texts, not on one string: pass a list of lines.")
    lines = _checked(texts, config.sample)
    if config.kind == "events":
        for _ in lines:  # exhaust them, so that the corpus is measured
            pass
        backend = events_backend()
    elif config.kind == "characters" or config.kind == "words":
        backend = _learn_seen(lines, config)
    else:
        backend = _learn_subwords(lines, config, config.kind)
    if config.more:
        backend.add_special_tokens(list(config.more))
    return Tokenizer(backend, OWN_ROLES, literal=True)


def _checked(texts: Iterable[str], most: int) -> Iterator[str]:
    """The training texts, checked one by one as they stream by."""
    empty = True
    for text in islice(texts, most):
        empty = not checked_text(text).strip() and empty
        yield text
    if empty:
        raise UserError("There is no text to train a tokenizer on: every line is empty.")


def _words(
    lines: Iterable[str], normaliser: Normalizer | None, splitter: PreTokenizer | None
) -> Counter[str]:
    """How often each word occurs, or each character if there is no splitter, in order of appearance."""
    seen: Counter[str] = Counter()
    for line in lines:
        plain = line if normaliser is None else normaliser.normalize_str(line)
        seen.update(plain if splitter is None else [word for word, _ in splitter.pre_tokenize_str(plain)])
    return seen


def _learn_seen(lines: Iterable[str], config: TokenizerConfig) -> tokenizers.Tokenizer:
    """The most frequent characters or words, in order of first appearance."""
    splitter = None if config.kind == "characters" else parts.words_apart(bool(config.more), lines=True)
    normaliser = parts.normaliser(config.normalisation, config.lowercase)
    seen = _words(lines, normaliser, splitter)
    # `most_common` keeps the order of appearance among equals, so the result is deterministic
    kept = {item for item, _ in seen.most_common(config.vocabulary - len(config.specials))}
    known = [item for item in seen if item in kept]
    if splitter is None:
        backend = parts.character_level(known, config.more)
    else:
        backend = parts.word_level(known, splitter, config.more)
    if normaliser is not None:
        backend.normalizer = normaliser
    return backend


def _learn_subwords(
    lines: Iterable[str], config: TokenizerConfig, kind: parts.Subwords
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    normaliser = parts.normaliser(config.normalisation, config.lowercase)
    if normaliser is not None:
        backend.normalizer = normaliser
    backend.pre_tokenizer = parts.bytes_of_words(kind, config.split, bool(config.more))
    learn = {"bpe": _learn_bpe, "wordpiece": _learn_wordpiece, "unigram": _learn_unigram}[kind]
    backend.model = learn(backend, lines, config.vocabulary, config.specials)
    backend.decoder = parts.text_of_bytes(kind)
    return backend


def _learn_bpe(
    backend: tokenizers.Tokenizer, lines: Iterable[str], size: int, specials: list[str]
) -> models.Model:
    """Merge the most frequent pair of neighbours repeatedly; the library's trainer is deterministic."""
    backend.train_from_iterator(lines, _merging(size, specials=specials))
    model: models.Model = backend.model
    return model


def _learn_wordpiece(
    backend: tokenizers.Tokenizer, lines: Iterable[str], size: int, specials: list[str]
) -> models.Model:
    """Pieces found by merging, as in the library's WordPiece trainer; the longest match wins.

    That trainer numbers the continued letters in random order and leaves out those
    it has not seen. Naming all of them beforehand fixes both.
    """
    continued = [parts.CONTINUED + letter for letter in parts.BYTE_LETTERS]
    merging = _merging(size, specials=[*specials, *continued], continued=parts.CONTINUED)
    merger = tokenizers.Tokenizer(models.BPE(continuing_subword_prefix=parts.CONTINUED))
    merger.normalizer, merger.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    merger.train_from_iterator(lines, merging)
    return models.WordPiece(
        merger.get_vocab(),
        unk_token=parts.UNKNOWN,
        continuing_subword_prefix=parts.CONTINUED,
        max_input_chars_per_word=parts.WORDPIECE_BYTES,
    )


def _learn_unigram(
    backend: tokenizers.Tokenizer, lines: Iterable[str], size: int, specials: list[str]
) -> models.Model:
    """Pieces with probabilities, from our own trainer: the library's depends on chance and on threads."""
    words = _words(lines, backend.normalizer, backend.pre_tokenizer)
    pieces = learn_pieces(words, size - len(specials))
    return models.Unigram([*((name, 0.0) for name in specials), *pieces], specials.index(parts.UNKNOWN))


def _merging(size: int, specials: list[str], continued: str = "") -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,  # a pair seen once is not a pattern
        special_tokens=specials,
        initial_alphabet=list(parts.BYTE_LETTERS),
        continuing_subword_prefix=continued,
        show_progress=False,
    )
