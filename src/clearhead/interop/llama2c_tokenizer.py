"""The tokenizer file of llama2.c as a tokenizer of ours.

A SentencePiece vocabulary with scores: text gets a space in front, is cut into
characters (bytes where a character has no piece), and the neighbours whose union
has the best score are joined, again and again. That is byte-pair encoding with
the merges in order of score, which is what is built here. No torch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, processors

from clearhead.base.errors import UserError
from clearhead.base.reading import Unreadable, read_bytes
from clearhead.text.tokenizer import Tokenizer

_UNKNOWN, _START, _STOP = 0, 1, 2
_NAMES = {_UNKNOWN: "<unk>", _START: "<s>", _STOP: "</s>"}  # the file decorates some of them with line breaks
_SPACE = "▁"  # how SentencePiece writes a space; the file has plain ones
_LONGEST = 1 << 16  # bytes of a piece; more is no tokenizer

Piece = tuple[str, float]


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """The tokenizer in a file of llama2.c, which must hold `vocabulary` pieces."""
    pieces = list(_pieces(path, vocabulary))
    ids = {text: id for id, (text, _) in enumerate(pieces)}
    if len(ids) != len(pieces):
        raise UserError(f"The tokenizer file '{path}' is damaged: a piece occurs twice.")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(pieces, ids),
            unk_token=_NAMES[_UNKNOWN],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),  # the space that encoding put in front
        ]
    )
    start = _NAMES[_START]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", pair=f"{start} $A {start} $B", special_tokens=[(start, _START)]
    )
    backend.add_special_tokens(list(_NAMES.values()))
    # A text ends where the next one would start: the models never learn to write the stop token.
    return Tokenizer(backend, {"start": _START, "stop": _START, "unknown": _UNKNOWN})


def _pieces(path: Path, count: int) -> Iterator[Piece]:
    """Each piece and its score: after the length of the longest come (score, length, bytes)."""
    try:
        data = read_bytes(path)
    except Unreadable as error:
        raise UserError(f"The tokenizer file {error}") from error
    try:
        place = struct.calcsize("<i")
        for id in range(count):
            score, length = struct.unpack_from("<fi", data, place)
            place += struct.calcsize("<fi")
            raw = data[place : place + length]
            if not 0 <= length <= _LONGEST or len(raw) != length:
                raise ValueError("a piece runs past the end")
            place += length
            yield _NAMES.get(id) or raw.decode("utf-8").replace(" ", _SPACE), score
    except (struct.error, ValueError) as error:
        raise UserError(
            f"The tokenizer file '{path}' is damaged: it does not hold {count} whole pieces."
        ) from error
    if place != len(data):
        raise UserError(f"The tokenizer file '{path}' does not belong to a vocabulary of {count} pieces.")


def _merges(pieces: list[Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the best result first."""
    found: list[tuple[float, int, tuple[str, str]]] = []
    for id, (text, score) in enumerate(pieces):
        if id in _NAMES:
            continue
        for cut in range(1, len(text)):
            pair = text[:cut], text[cut:]
            if pair[0] in ids and pair[1] in ids:
                found.append((-score, id, pair))
    return [pair for _, _, pair in sorted(found)]
