"""A string to token ids and back.

`Tokenizer` is a thin, stable wrapper around the `tokenizers` library: it reads and
writes that library's `tokenizer.json`, knows which ids mean padding, start,
stop and unknown, and makes two tiny vocabularies for teaching. `learn` trains one
on a corpus. Padding and truncation belong to `data`, so a file's settings for
either are ignored. No torch; knows nothing about batches or models.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from clearhead.base import reading
from clearhead.base.atomic import atomic_write_text
from clearhead.base.errors import UserError, nearest
from clearhead.text import parts

ROLES = ("pad", "start", "stop", "unknown")
OWN_ROLES = {role: id for id, role in enumerate(ROLES)}  # in every vocabulary made here
FILE_NAME = "tokenizer.json"
LARGEST = 256 << 20  # bytes of such a file; those of the largest vocabularies have 35 million

# The names of special tokens in well-known vocabularies, for files that do not state them.
_USUAL_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "start": ("<start>", "<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "[BOS]"),
    "stop": ("<stop>", "</s>", "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[EOS]"),
    "unknown": ("<unknown>", "<unk>", "[UNK]"),
}
# The parts of a normalisation, in words.
_IN_WORDS = {"NFC": "Unicode NFC", "NFKC": "Unicode NFKC", "Lowercase": "lower case"}


class Tokenizer:
    """Text to ids and back, with the special ids named.

    `specials` maps roles (`pad`, `start`, `stop`, `unknown`) to ids; without it
    they are found by the names that well-known vocabularies use. One token may have
    two roles. With `literal`, the name of a special token inside a text ("<stop>"
    in a page about tokenizers) is ordinary text; without it, such a name becomes
    the special token, as in the library.

    >>> import clearhead
    >>> tokenizer = clearhead.Tokenizer.words(["the cat sleeps", "the dog eats"])
    >>> tokenizer.tokens("the dog sleeps")
    ['the', 'dog', 'sleeps']
    >>> tokenizer.decode(tokenizer.encode("the dog sleeps"))
    'the dog sleeps'
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        specials: Mapping[str, int] | None = None,
        literal: bool = False,
    ) -> None:
        # A copy, so that the changes below do not reach the caller's object.
        self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
        self._backend.no_padding()
        self._backend.no_truncation()
        self._size = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._specials = self._usual_specials() if specials is None else self._checked(specials)
        self._literal = literal
        self._backend.encode_special_tokens = literal

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._backend.encode_special_tokens = self._literal  # not part of the library's own state

    # -- from and to disk ---------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a `tokenizer.json`, or the one in a folder: ours, or any plain one of the library."""
        path = Path(path)
        if path.is_dir():
            path = path / FILE_NAME
        try:
            text = reading.read_text(path, LARGEST)
        except reading.Unreadable as error:
            verb = "is damaged" if error.reason.startswith("it ") else "cannot be read"
            raise UserError(f"The tokenizer file '{path}' {verb}: {error.reason}.") from error
        try:
            return cls.from_json(text)
        except UserError as error:
            raise UserError(f"The tokenizer file '{path}' is damaged: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write a `tokenizer.json` (into `path` if that is a folder) that the library can read too."""
        path = Path(path)
        atomic_write_text(path / FILE_NAME if path.is_dir() else path, self.to_json())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote, or any plain `tokenizer.json` of the library."""
        try:
            plain = reading.parse_json(text)
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises a bare Exception for a file it cannot use
            raise UserError(f"it does not describe a tokenizer ({_one_line(error)}).") from error
        entries = plain.get("added_tokens") or []  # a list of tables, or the library would have refused it
        return cls(
            backend, _roles_in(entries), literal=any(entry.get("literal") is True for entry in entries)
        )

    def to_json(self) -> str:
        """The library's own description, with each special token's entry naming its roles.

        In such an entry, and nowhere else at this level, the library ignores unknown
        keys, which is why the roles and `literal` are stored there.

        >>> again = Tokenizer.from_json(Tokenizer.words("to be or not").to_json())
        >>> again.stop, again.decode(again.encode("not to be"))
        (2, 'not to be')
        """
        plain = json.loads(self._backend.to_str())
        for entry in plain["added_tokens"]:
            roles = [role for role in ROLES if self._specials.get(role) == entry["id"]]
            if roles:
                entry["roles"] = roles
            if self._literal and entry["special"]:
                entry["literal"] = True
        return json.dumps(plain, ensure_ascii=False, indent=2)

    # -- for teaching -------------------------------------------------------

    @classmethod
    def characters(cls, texts: str | Iterable[str]) -> Self:
        """A vocabulary of the characters in `texts`, in order of appearance, after four special tokens.

        >>> tokenizer = Tokenizer.characters("abba")
        >>> tokenizer.encode("ab?")
        [4, 5, 3]
        >>> tokenizer.decode([5, 4, 5])
        'bab'
        """
        return cls(parts.character_level(letter for text in _several(texts) for letter in text), OWN_ROLES)

    @classmethod
    def words(cls, texts: str | Iterable[str]) -> Self:
        """A vocabulary of the words in `texts` (split at white space), after four special tokens.

        >>> tokenizer = Tokenizer.words(["the cat sat", "the dog sat"])
        >>> tokenizer.encode("the dog ran")
        [4, 7, 3]
        >>> tokenizer.tokens("the dog ran")
        ['the', 'dog', '<unknown>']
        """
        splitter = tokenizers.pre_tokenizers.WhitespaceSplit()
        # split by the library, whose idea of white space differs from Python's in rare characters
        seen = [word for text in _several(texts) for word, _ in splitter.pre_tokenize_str(text)]
        return cls(parts.word_level(seen, splitter), OWN_ROLES)

    # -- text and ids -------------------------------------------------------

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """The ids of a text; `specials` adds the tokens the file's own template puts around it.

        >>> Tokenizer.words("a b").encode("b a")
        [5, 4]
        """
        ids: list[int] = self._backend.encode(checked_text(text), add_special_tokens=specials).ids
        return ids

    def encode_batch(self, texts: Sequence[str], specials: bool = False) -> list[list[int]]:
        """The ids of many texts at once, none of them padded.

        >>> Tokenizer.words("a b").encode_batch(["b", "a a"])
        [[5], [4, 4]]
        """
        plain = [checked_text(text) for text in texts]
        # the fast variant omits the offsets of tokens, which are not needed here
        encodings = self._backend.encode_batch_fast(plain, add_special_tokens=specials)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """The text of some ids; special tokens are left out unless `specials` keeps them.

        Any ids give a text. If a learned vocabulary writes a rare letter as bytes and
        some of them are missing, U+FFFD replaces the incomplete letter.

        >>> tokenizer = Tokenizer.words("a b")
        >>> tokenizer.decode([1, 4, 5, 2]), tokenizer.decode([1, 4, 5, 2], specials=True)
        ('a b', '<start> a b <stop>')
        """
        plain = list(ids)
        if plain and not (set(map(type, plain)) == {int} and 0 <= min(plain) <= max(plain) < self._size):
            plain = [self._in_range(one) for one in plain]  # which reports the wrong one
        text: str = self._backend.decode(plain, skip_special_tokens=not specials)
        return text

    def tokens(self, text: str, specials: bool = False) -> list[str]:
        """The tokens of a text as strings, for inspection.

        >>> Tokenizer.characters("no").tokens("on")
        ['o', 'n']
        """
        tokens: list[str] = self._backend.encode(checked_text(text), add_special_tokens=specials).tokens
        return tokens

    def token(self, id: int) -> str:
        """The token with an id.

        >>> Tokenizer.words("a b").token(5)
        'b'
        """
        token: str | None = self._backend.id_to_token(self._in_range(id))
        if token is None:  # some vocabularies have holes
            raise UserError(f"There is no token with the id {id} in this vocabulary.")
        return token

    def id(self, token: str) -> int:
        """The id of a token.

        >>> Tokenizer.words("a b").id("b")
        5
        """
        found: int | None = self._backend.token_to_id(token)
        if found is None:
            raise UserError(f"There is no token '{token}' in this vocabulary.")
        return found

    def normalise(self, text: str) -> str:
        """The text after the stored normalisation, before it is cut into tokens.

        For the subword vocabularies that `learn_tokenizer` makes, `decode(encode(text))`
        returns exactly this.

        >>> Tokenizer.words("a b").normalise("A  b")
        'A  b'
        """
        normaliser = self._backend.normalizer
        plain: str = checked_text(text)
        return plain if normaliser is None else str(normaliser.normalize_str(plain))

    # -- what it is ---------------------------------------------------------

    @property
    def normalisation(self) -> str:
        """The stored normalisation in words; parts that only the library has keep its names.

        >>> Tokenizer.words("a").normalisation
        'none'
        """
        parts = _flat(json.loads(self._backend.to_str()).get("normalizer"))
        return ", then ".join(_IN_WORDS.get(part, part) for part in parts) or "none"

    @property
    def literal(self) -> bool:
        """Whether a special token's name inside a text is ordinary text.

        >>> Tokenizer.words("a").literal
        False
        """
        return self._literal

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id, which is the number of rows an embedding needs.

        >>> Tokenizer.words("a b").vocabulary_size
        6
        """
        return self._size

    @property
    def specials(self) -> dict[str, int]:
        """The roles that have an id, with their ids.

        >>> Tokenizer.words("a").specials
        {'pad': 0, 'start': 1, 'stop': 2, 'unknown': 3}
        """
        return dict(self._specials)

    @property
    def pad(self) -> int | None:
        """The id that pads short rows."""
        return self._specials.get("pad")

    @property
    def start(self) -> int | None:
        """The id a sequence starts with."""
        return self._specials.get("start")

    @property
    def stop(self) -> int | None:
        """The id a sequence ends with."""
        return self._specials.get("stop")

    @property
    def unknown(self) -> int | None:
        """The id of anything not in the vocabulary."""
        return self._specials.get("unknown")

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's object, for `interop`; changing it changes this tokenizer."""
        return self._backend

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary_size} tokens, {self._specials})"

    def _in_range(self, id: int) -> int:
        """The id as a plain int; integers of numpy and torch are accepted."""
        try:
            plain = operator.index(id)
        except TypeError:
            plain = -1
        if not 0 <= plain < self._size:
            raise UserError(f"There is no token with the id {id!r} in this vocabulary.")
        return plain

    def _checked(self, specials: Mapping[str, int]) -> dict[str, int]:
        """Refuse unknown roles and ids, and make the library treat each of these tokens as special."""
        for role in specials:
            if role not in ROLES:
                raise UserError(f"Unknown role '{role}' of a special token: {nearest(role, ROLES)}")
        self._backend.add_special_tokens([self.token(id) for id in specials.values()])
        return {role: specials[role] for role in ROLES if role in specials}

    def _usual_specials(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for role, names in _USUAL_NAMES.items():
            ids = (self._backend.token_to_id(name) for name in names)
            id = next((id for id in ids if id is not None), None)
            if id is not None:
                found[role] = id
        return self._checked(found)


def checked_text(text: str) -> str:
    """Check that this is a text; a lone surrogate has no UTF-8 and so no tokens."""
    if not isinstance(text, str):
        raise UserError(f"A text to encode must be a string, not {text!r}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"A text to encode must be valid Unicode, but character {error.start + 1} of {text[:40]!r} "
            "is half of a surrogate pair."
        ) from error
    return text


def _roles_in(entries: Iterable[Mapping[str, Any]]) -> dict[str, int] | None:
    """The roles that `to_json` wrote into the special tokens' entries; None for a plain file."""
    listed = [(role, entry["id"]) for entry in entries for role in _strings(entry.get("roles", []))]
    found = dict(listed)
    if len(found) != len(listed):
        raise UserError("its special tokens share a role.")
    return found or None


def _strings(plain: Any) -> list[str]:
    if not isinstance(plain, list) or not all(isinstance(one, str) for one in plain):
        raise UserError(f"the 'roles' of its special tokens are not a list of names ({plain!r:.60}).")
    return plain


def _flat(part: Mapping[str, Any] | None) -> list[str]:
    """The names of a normaliser's parts, in order."""
    if part is None:
        return []
    if "normalizers" in part:
        return [name for one in part["normalizers"] for name in _flat(one)]
    return [str(part["type"])]


def _several(texts: str | Iterable[str]) -> Iterable[str]:
    return [texts] if isinstance(texts, str) else texts


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:199]}…"
