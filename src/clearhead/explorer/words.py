"""Tokens in readable form, the kind of each, and tensors as JSON.

A space is shown as ␣, a line break as ⏎, and a token that is only part of a letter as the bytes it holds,
⟨C3⟩: whatever a vocabulary consists of, the text is valid and visible. Knows nothing about models.
"""

from __future__ import annotations

import base64
import json
import unicodedata
from collections.abc import Iterable
from typing import Any, Literal, TypedDict

import numpy as np
import tokenizers
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Symbols
from clearhead.text.parts import BYTE_LETTERS
from clearhead.text.tokenizer import Tokenizer

Plain = dict[str, Any]  # a view's answer: JSON
Kind = Literal["special", "punctuation", "word"]

_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}
_VISIBLE = {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"}


class Word(TypedDict):
    """One token of a text."""

    id: int
    text: str  # readable
    kind: Kind  # punctuation: anything without a letter or a digit


class Vocabulary:
    """The tokens of a tokenizer as words; each is computed once.

    >>> vocabulary = Vocabulary(Tokenizer.words("the cat ."))
    >>> [word["kind"] for word in vocabulary.words([1, 4, 5, 6])]
    ['special', 'word', 'word', 'punctuation']
    >>> vocabulary.word(4)
    {'id': 4, 'text': 'the', 'kind': 'word'}
    """

    def __init__(self, tokenizer: Tokenizer, symbols: Symbols | None = None) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {id for id, token in added.items() if token.special} | set(
            tokenizer.specials.values()
        )
        if symbols is not None:
            self._special |= {one for one in (symbols.start, *symbols.stops) if one is not None}
            self._special |= set(symbols.forbidden)
        self._signs = _signs_of(tokenizer.backend)
        self._known: dict[int, Word] = {}

    def word(self, id: int) -> Word:
        """One token; an id without one (some models have more rows than their vocabulary) is ⟨id⟩."""
        if id not in self._known:
            self._known[id] = self._read(id)
        return self._known[id].copy()

    def text(self, id: int) -> str:
        """The readable form of one token."""
        return self.word(id)["text"]

    def words(self, ids: Iterable[int]) -> list[Word]:
        """The tokens of a text, in order."""
        return [self.word(id) for id in ids]

    def _read(self, id: int) -> Word:
        try:
            name = self.tokenizer.token(id)
        except UserError:
            return {"id": id, "text": f"⟨{id}⟩", "kind": "special"}
        if id in self._special:
            return {"id": id, "text": _visible(name), "kind": "special"}
        piece = _bytes_of(name, self._signs)
        text = _readable(piece)
        unfinished = "\ufffd" in piece.decode("utf-8", "replace")
        known = unfinished or any(unicodedata.category(letter)[0] in "LMN" for letter in text)
        return {"id": id, "text": text, "kind": "word" if known else "punctuation"}


def texts(row: Iterable[Word]) -> list[str]:
    """The readable texts alone, as labels of rows and columns."""
    return [word["text"] for word in row]


def _signs_of(backend: tokenizers.Tokenizer) -> dict[str, str]:
    """How this vocabulary writes what it cannot write plainly: bytes as letters, spaces as a sign."""
    if backend.decoder is None:
        return {}
    found: dict[str, str] = {}
    for step in _steps(json.loads(backend.decoder.__getstate__())):
        if step["type"] == "ByteLevel":
            found["bytes"] = "letters"
        elif step["type"] == "ByteFallback":
            found.setdefault("bytes", "names")
        elif step["type"] == "Metaspace":
            found["space"] = step["replacement"]
        elif step["type"] == "Replace" and step["content"] == " " and "String" in step["pattern"]:
            found["space"] = step["pattern"]["String"]
        elif step["type"] == "Replace" and step["pattern"].get("Regex", "").startswith("^"):
            found["continued"] = step["pattern"]["Regex"][1:]
    return found


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return [step for one in decoder["decoders"] for step in _steps(one)]
    return [decoder]


def _bytes_of(name: str, signs: dict[str, str]) -> bytes:
    """The bytes of a token in a text."""
    if "continued" in signs:
        name = name.removeprefix(signs["continued"])
    if signs.get("bytes") == "letters" and all(letter in _BYTES for letter in name):
        return bytes(_BYTES[letter] for letter in name)
    if signs.get("bytes") == "names" and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            pass  # a token that only looks like a byte's name
    if "space" in signs:
        name = name.replace(signs["space"], " ")
    return name.encode("utf-8", "replace")


def _readable(piece: bytes) -> str:
    """Bytes as visible text; those that are not whole letters by their numbers.

    >>> _readable(b" caf\\xc3")
    '␣caf⟨C3⟩'
    """
    text = piece.decode("utf-8", "surrogateescape")
    shown = "".join(
        f"⟨{ord(letter) - 0xDC00:02X}⟩" if 0xDC80 <= ord(letter) <= 0xDCFF else letter for letter in text
    )
    return _visible(shown)


def _visible(text: str) -> str:
    """Without anything that is invisible or that a page would display differently."""
    shown = "".join(
        _VISIBLE.get(letter, letter if letter.isprintable() else f"⟨U+{ord(letter):04X}⟩") for letter in text
    )
    return shown or "⟨⟩"


LITTLE = np.dtype("<f4")  # whatever the machine's byte order


class Packed(TypedDict):
    """A tensor as plain data: its shape, and its numbers row by row as base64 of little-endian float32."""

    shape: list[int]
    data: str


def packed(tensor: Tensor) -> Packed:
    """A tensor as plain data; truth values become 1 and 0.

    >>> packed(torch.tensor([[1.0, -2.0]]))
    {'shape': [1, 2], 'data': 'AACAPwAAAMA='}
    """
    exact = tensor.detach().to("cpu", torch.float32).contiguous()
    return {
        "shape": list(exact.shape),
        "data": base64.b64encode(exact.numpy().astype(LITTLE, copy=False).tobytes()).decode("ascii"),
    }


def unpacked(plain: Packed) -> Tensor:
    """What `packed` wrote, bit for bit.

    >>> unpacked({"shape": [1, 2], "data": "AACAPwAAAMA="})
    tensor([[ 1., -2.]])
    """
    try:
        numbers = np.frombuffer(base64.b64decode(plain["data"], validate=True), LITTLE)
        return torch.from_numpy(numbers.astype(np.float32)).reshape(plain["shape"])
    except (ValueError, RuntimeError) as error:
        raise UserError(f"This data does not have the size of a tensor of shape {plain['shape']}.") from error


def extent(tensor: Tensor) -> tuple[float, float]:
    """The smallest and the largest finite number; (0, 0) if there are none.

    >>> extent(torch.tensor([0.5, float("-inf"), 2.0]))
    (0.5, 2.0)
    """
    finite = tensor.detach().float()
    finite = finite[torch.isfinite(finite)]
    return (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
