"""The parts of the `tokenizers` library that our vocabularies are built from.

The normalisers, splitters and decoders are chosen so that a text of any Unicode
characters is cut into pieces that join to exactly that text again. Every subword
vocabulary works on bytes, each written as one visible letter of an alphabet of
256. Knows nothing about learning. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

Subwords = Literal["bpe", "unigram", "wordpiece"]
Tokenisation = Literal["13a", "none", "intl", "char", "zh"]  # how BLEU splits a text; "none": at its spaces

SPECIALS = ("<pad>", "<start>", "<stop>", "<unknown>")  # ids 0 to 3 of every vocabulary made here
UNKNOWN = SPECIALS[3]
MASK = "<mask>"  # replaces a hidden token
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))  # each replaces a span, named as in T5
_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}  # bytes that are their own letter
_SHIFTED = [byte for byte in range(256) if byte not in _VISIBLE]  # these get the letters from U+0100 on
BYTE_LETTERS = tuple(chr(byte if byte in _VISIBLE else 0x100 + _SHIFTED.index(byte)) for byte in range(256))
CONTINUED = "##"  # how WordPiece marks a piece that continues a word
WORDPIECE_BYTES = 64  # longer words are cut: WordPiece's search is quadratic in a word's length

_RUN = "{1,256}"  # characters of one kind; longer runs are cut, because merging is quadratic too
# Letters with their marks, single digits, and the rest, each with the space before it; English endings are
# separate. Single digits, so that unseen numbers consist of seen pieces: they can be copied and compared.
_WORDS = (
    r"'(?:s|t|re|ve|m|ll|d)(?![\p{L}\p{M}])"
    rf"| ?[\p{{L}}\p{{M}}]{_RUN}| ?\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]{_RUN}"
    rf"|\s{_RUN}(?!\S)|\s{_RUN}"
)
# A word keeps the space after it: in tokenised text all words but the last have one, so the first word of a
# sentence is the same token as elsewhere, and the last is nearly always a full stop.
_SPACES = rf"\S{_RUN} ?|\s{_RUN}"
# Cut after the "<" of a special token's name, so no piece of text can spell one.
_NAMES = "<(?=(?:" + "|".join(name[1:-1] for name in SPECIALS) + ")>)"
_MORE_NAMES = _NAMES.replace("unknown", r"unknown|mask|extra_id_\d+")  # if there are more of them
_ONE_CHARACTER = r"[\s\S]"


def character_level(characters: Iterable[str], more: Sequence[str] = ()) -> tokenizers.Tokenizer:
    """A backend that knows these characters, in this order, after the special tokens: four, and `more`."""
    backend = word_level(characters, _isolated(_ONE_CHARACTER), more)
    backend.decoder = decoders.Fuse()
    return backend


def word_level(
    words: Iterable[str], splitter: pre_tokenizers.PreTokenizer, more: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """A backend that knows these words, in this order, after the special tokens: four, and `more`."""
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys([*SPECIALS, *more, *words]))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = splitter
    return backend


def words_apart(more: bool = False, lines: bool = False) -> pre_tokenizers.PreTokenizer:
    """Split at white space, which is lost; with `lines`, line ends are kept as words.

    No word can spell a special token's name; `more`: there are more of them than the four.
    """
    names = _isolated(_MORE_NAMES if more else _NAMES)
    if not lines:
        return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), names])
    spaces = pre_tokenizers.Split(tokenizers.Regex(r"[^\S\n]+"), "removed")
    return pre_tokenizers.Sequence([spaces, _isolated(r"\n"), names])


def bytes_of_words(
    kind: Subwords, split: Literal["words", "spaces"], more: bool = False
) -> pre_tokenizers.PreTokenizer:
    """Cut into words, or at white space only, without loss; then each byte becomes a letter.

    `more`: there are more special tokens than the four.
    """
    # "words" separates punctuation from letters, so a special token's name can occur only between "spaces"
    names = _isolated(_MORE_NAMES if more else _NAMES)
    steps = [_isolated(_WORDS)] if split == "words" else [_isolated(_SPACES), names]
    if kind == "wordpiece":
        steps.append(_isolated("#"))  # so that "##" in a text cannot spell a continued piece
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    if kind == "wordpiece":
        steps.append(_isolated(_ONE_CHARACTER + f"{{{WORDPIECE_BYTES}}}"))
    return pre_tokenizers.Sequence(steps)


def space_between_words(backend: tokenizers.Tokenizer) -> Literal["before", "after"] | None:
    """Which word the single space between two belongs to, if each word is encoded by itself; else None.

    This holds for the subword vocabularies made here, for texts without other white space. It does not hold
    for NFKC, which turns other characters into white space.
    """
    plain = [normaliser(form, lowercase) for form in ("none", "nfc") for lowercase in (False, True)]
    if _state(backend.normalizer) not in [_state(one) for one in plain]:
        return None
    for kind in get_args(Subwords):
        if _state(backend.pre_tokenizer) == _state(bytes_of_words(kind, "words")):
            return "before"
        spaces = [_state(bytes_of_words(kind, "spaces", more)) for more in (False, True)]
        if _state(backend.pre_tokenizer) in spaces:
            return "after"
    return None


def text_of_bytes(kind: Subwords) -> decoders.Decoder:
    """Pieces back to text; invalid UTF-8 becomes U+FFFD."""
    if kind == "wordpiece":
        unmarked = decoders.Replace(tokenizers.Regex("^" + CONTINUED), "")
        return decoders.Sequence([unmarked, decoders.ByteLevel()])
    return decoders.ByteLevel()


def normaliser(form: Literal["none", "nfc", "nfkc"], lowercase: bool) -> normalizers.Normalizer | None:
    """The steps of a normalisation; None if there are none.

    The form is applied before and after lower-casing: some capitals are two
    characters where the small letter is one (J with a caron), and some characters
    have a capital only in the form (the script H).
    """
    forms: dict[str, list[normalizers.Normalizer]]
    forms = {"none": [], "nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()]}
    unicode = forms[form]
    steps = [*unicode, normalizers.Lowercase(), *unicode] if lowercase else unicode
    if len(steps) > 1:
        return normalizers.Sequence(steps)
    return steps[0] if steps else None


def _isolated(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")


def _state(part: Any) -> bytes | None:
    """The state of a library part, for comparing it with another."""
    return None if part is None else part.__getstate__()
