"""The bytes that each token adds to a text.

Constraints are about text, but a model writes tokens: `pieces_of` returns what each adds, provided that the
tokenizer decodes texts from left to right. Knows nothing about constraints.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clearhead.base.errors import UserError
from clearhead.text.parts import BYTE_LETTERS
from clearhead.text.tokenizer import Tokenizer, checked_text

TRIALS = 64  # random texts that check whether pieces join to what the tokenizer decodes
_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


class Pieces(list[bytes]):
    """For each id the bytes it adds to a text; none for special tokens.

    With `opening_lost`, a text loses one space at its very beginning; `never_first` are ids that would add
    something else there.
    """

    def __init__(
        self,
        pieces: Iterable[bytes],
        opening_lost: bool = False,
        never_first: frozenset[int] = frozenset(),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__(pieces)
        self.opening_lost, self.never_first, self.tokenizer = opening_lost, never_first, tokenizer
        self.prepared: dict[Any, Any] = {}  # prepared for constraints, for the next request

    def text(self, ids: Iterable[int], goes_on: bool = False) -> bytes:
        """What these tokens decode to together; `goes_on`: after other text, where no space is lost."""
        whole = b"".join(self[id] if 0 <= id < len(self) else b"" for id in ids)
        return whole[1:] if self.opening_lost and not goes_on and whole.startswith(b" ") else whole

    def ids(self, text: str) -> tuple[int, ...]:
        """A text as the tokenizer divides it; raises an error if it cannot be written."""
        found = tuple(self.tokenizer.encode(text)) if self.tokenizer is not None else ()
        if self.tokenizer is None or self.tokenizer.unknown in found or (text.strip() and not found):
            raise UserError(f"'{text}' cannot be written with this bundle's vocabulary.")
        return found

    def as_written(self, text: str) -> bytes:
        """A text as the vocabulary writes it, in lower case, say; without spaces at its ends."""
        return self.forms(text.strip())[-1]

    def forms(self, text: str) -> list[bytes]:
        """A text unchanged, and as the vocabulary writes it if that differs."""
        plain, found = text.strip(), [as_bytes(text)]
        if self.tokenizer is not None and self.tokenizer.unknown not in (ids := self.tokenizer.encode(plain)):
            written = self.tokenizer.decode(ids)
            if written.strip() and written != plain:
                found.append(as_bytes(text.replace(plain, written)))
        return found


def as_bytes(text: str) -> bytes:
    """A text as UTF-8; raises an error if it is not valid."""
    return checked_text(text).encode()


def pieces_of(tokenizer: Tokenizer) -> Pieces:
    """What each token of a vocabulary adds; raises an error if that depends on its context.

    >>> pieces_of(Tokenizer.characters("ab"))
    [b'', b'', b'', b'', b'a', b'b']
    >>> pieces_of(Tokenizer.words("to be")).text([4, 5, 4])
    b'to be to'
    """
    backend = tokenizer.backend
    special = {id for id, token in backend.get_added_tokens_decoder().items() if token.special}
    decoder = json.loads(backend.to_str()).get("decoder")
    read, opening_lost, differs_first = _reader(decoder)
    names = [None if id in special else backend.id_to_token(id) for id in range(tokenizer.vocabulary_size)]
    never_first = [id for id, name in enumerate(names) if name is not None and differs_first(name)]
    pieces = [b"" if name is None else read(name) for name in names]
    found = Pieces(pieces, opening_lost, frozenset(never_first), tokenizer)
    _check(tokenizer, found)
    return found


Read = Callable[[str], bytes]


def _reader(decoder: Mapping[str, Any] | None) -> tuple[Read, bool, Callable[[str], bool]]:
    """How a token is read, whether a text loses its first space, and which tokens read differently there."""
    steps = _steps(decoder)
    names = [step["type"] for step in steps]
    if not steps:
        return (lambda token: b" " + token.encode()), True, _never
    if names == ["Fuse"]:
        return str.encode, False, _never
    if names in (["ByteLevel"], ["Replace", "ByteLevel"]):
        marks = [step for step in steps if step["type"] == "Replace"]
        return (lambda token: _bytes_of_letters(_replaced(token, marks))), False, _never
    if names == ["Metaspace"]:
        sign, scheme = steps[0]["replacement"], steps[0].get("prepend_scheme", "always")
        lost = scheme != "never"  # the first token loses the sign whatever it is
        return (
            (lambda token: token.replace(sign, " ").encode()),
            lost,
            lambda token: lost and sign in token[1:],
        )
    if names == ["WordPiece"] and not steps[0].get("cleanup", True):
        prefix = steps[0]["prefix"]
        return (lambda token: _word_piece(token, prefix)), True, lambda token: token.startswith(prefix)
    if names[:2] == ["Replace", "ByteFallback"] and names[2:] in (["Fuse"], ["Fuse", "Strip"]):
        strips = steps[3:]
        if all((one["content"], one["start"], one["stop"]) == (" ", 1, 0) for one in strips):
            return (lambda token: _byte_or(_replaced(token, steps[:1]))), bool(strips), _never
    raise UserError(
        f"In this vocabulary, the text of a token depends on its neighbours ({', '.join(names)}), so "
        "texts cannot be banned, required or matched: use choices, or token ids."
    )


def _never(token: str) -> bool:
    return False


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for one in decoder["decoders"] for step in _steps(one)]
    return [decoder]


def _replaced(token: str, marks: list[Mapping[str, Any]]) -> str:
    """Replace signs that occur anywhere, and remove marks that occur in front ("^##")."""
    for step in marks:
        sign = step["pattern"].get("String")
        if sign is not None:
            token = token.replace(sign, step["content"])
        elif step["pattern"].get("Regex", "").startswith("^") and not step["content"]:
            token = token.removeprefix(step["pattern"]["Regex"][1:])
    return token


def _bytes_of_letters(token: str) -> bytes:
    if all(letter in _BYTES for letter in token):
        return bytes(_BYTES[letter] for letter in token)
    return token.encode()  # an added token, which is literal


def _word_piece(token: str, prefix: str) -> bytes:
    return token.removeprefix(prefix).encode() if token.startswith(prefix) else b" " + token.encode()


def _byte_or(token: str) -> bytes:
    """A token such as <0x0A> is that byte."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.encode()


def _check(tokenizer: Tokenizer, pieces: Pieces) -> None:
    """Random texts must equal what the tokenizer decodes: we cannot know every decoder."""
    whole = [id for id, piece in enumerate(pieces) if piece and _is_text(piece)]
    chance = random.Random(0)
    for _ in range(TRIALS if whole else 0):
        ids = chance.choices(whole, k=chance.randrange(1, 8))
        if ids[0] in pieces.never_first:
            continue
        if pieces.text(ids).decode("utf-8") != tokenizer.decode(ids):
            raise UserError(
                "In this vocabulary, the text of a token depends on its neighbours, so texts cannot be "
                "banned, required or matched: use choices, or token ids."
            )


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
