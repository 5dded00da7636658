"""Models of llama2.c: one `.bin` with a header of seven numbers, and a `tok*.bin` next to it.

The file holds plain float32 numbers in a fixed order, without names: `Header.blocks`
is the order. Rotary features are in pairs, as here. The header has no magic
number, so a file counts as a model only if its size is exactly what its header
says. Nothing is unpickled.

Shapes: L layers, E width, F inner width of the feed-forward, K width of all keys,
V vocabulary, P positions, D size of a head.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, processors
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.base.reading import Unreadable, open_regular, read_bytes
from clearhead.bundle import Bundle
from clearhead.bundle.weights import fill_with
from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.text.framing import Framing, Framings, template_of
from clearhead.text.tokenizer import Tokenizer

_HEADER = struct.Struct("<7i")
_NEWER_MAGIC = 0x616B3432  # "ak42": version 1 and later of the format
_UNKNOWN, _START, _STOP = 0, 1, 2
_NAMES = {_UNKNOWN: "<unk>", _START: "<s>", _STOP: "</s>"}  # the file adds line breaks to some of them
_SPACE = "▁"  # how SentencePiece writes a space; the file has plain ones
_LONGEST = 1 << 16  # bytes of a piece; with more, it is not a tokenizer

Piece = tuple[str, float]


@dataclass(frozen=True)
class Header:
    """The seven numbers; a negative vocabulary means that the output has a separate matrix."""

    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    signed_vocabulary: int
    positions: int

    @property
    def vocabulary(self) -> int:
        """Pieces of the vocabulary."""
        return abs(self.signed_vocabulary)

    @property
    def tied(self) -> bool:
        """Whether the output shares the embedding."""
        return self.signed_vocabulary > 0

    def sensible(self) -> bool:
        """Whether these can be the sizes of a model at all."""
        sizes = (self.width, self.inner, self.layers, self.heads, self.kv_heads, self.vocabulary)
        return (
            min(*sizes, self.positions) > 0
            and self.width % self.heads == 0
            and self.heads % self.kv_heads == 0
        )

    def blocks(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Our name and the shape of each tensor, in the file's order; `*`: one for every layer."""
        width, inner = self.width, self.inner
        head = width // self.heads
        keys = head * self.kv_heads
        yield "embedding.table.weight", (self.vocabulary, width)
        yield "*attention_residual.norm.weight", (width,)
        yield "*attention.query.weight", (width, width)
        yield "*attention.key.weight", (keys, width)
        yield "*attention.value.weight", (keys, width)
        yield "*attention.output.weight", (width, width)
        yield "*feedforward_residual.norm.weight", (width,)
        yield "*feedforward.gate.weight", (inner, width)
        yield "*feedforward.output.weight", (width, inner)
        yield "*feedforward.inner.weight", (inner, width)
        yield "decoder.norm.weight", (width,)
        yield "cosines", (self.positions, head // 2)  # computed here, so not read
        yield "sines", (self.positions, head // 2)
        if not self.tied:
            yield "output.weight", (self.vocabulary, width)

    @property
    def file_size(self) -> int:
        """The size in bytes of a file with this header."""
        sizes = ((self.layers if "*" in name else 1) * math.prod(shape) for name, shape in self.blocks())
        return _HEADER.size + 4 * sum(sizes)

    def config(self) -> ModelConfig:
        """The model these sizes describe; everything else is the same in all models of the format."""
        return ModelConfig.from_dict(
            {
                "family": "decoder",
                "vocabulary": self.vocabulary,
                "width": self.width,
                "layers": self.layers,
                "dropout": 0.0,
                "attention": {"heads": self.heads, "kv_heads": self.kv_heads, "bias": False},
                "feedforward": {"width": self.inner, "activation": "silu", "gated": True, "bias": False},
                "position": {"name": "rotary", "layout": "interleaved", "max_length": self.positions},
                "norm": {"kind": "rms", "place": "pre", "eps": 1e-5},
                "embedding": {"scale": False, "tie_output": self.tied},
                "initialisation": "scaled",
            }
        )


def find_llama2c(folder: Path) -> tuple[Path, Path | None] | None:
    """The model and the tokenizer in a folder; None if no file is a llama2.c model."""
    tokenizers = sorted(folder.glob("tok*.bin"))
    models = [path for path in sorted(folder.glob("*.bin")) if path not in tokenizers]
    models = [path for path in models if _header(path) is not None]
    if len(models) != 1:
        return None
    return models[0], tokenizers[0] if len(tokenizers) == 1 else None


def import_llama2c(model_file: Path, tokenizer_file: Path | None) -> Bundle:
    """A model file and its tokenizer as a bundle."""
    header = _header(model_file)
    if header is None:
        raise UserError(f"'{model_file}' is not a readable llama2.c model: export it again.")
    if tokenizer_file is None:
        raise UserError(f"'{model_file.parent}' must hold exactly one 'tok*.bin' beside '{model_file.name}'.")
    tensors = _tensors(model_file, header)
    model = build(header.config(), device="meta").eval()
    fill_with(model, lambda name: tensors[name].clone())
    tokenizer = read_tokenizer(tokenizer_file, header.vocabulary)
    return Bundle(
        model=model,
        tokenizer=tokenizer,
        metadata={
            "source": {"format": "llama2.c", "model_type": "llama2.c", "architecture": "Transformer"},
            # These models are trained on texts that begin with the start token and have no end token,
            # so the start token of the next text marks the end of a text.
            "special": {"pad": None, "start": _START, "stop": _START},
            "framing": Framings(target=template_of(tokenizer) or Framing()).to_dict(),
        },
    )


def _header(path: Path) -> Header | None:
    """The header of a file whose size agrees with it; None for any other file."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            start = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
    except (OSError, UserError):
        return None
    if len(start) < _HEADER.size:
        return None
    numbers = _HEADER.unpack(start)
    if numbers[0] == _NEWER_MAGIC:
        raise UserError(
            f"'{path}' is in a newer llama2.c format: export it with version 0, which its run.c reads."
        )
    header = Header(*numbers)
    return header if header.sensible() and header.file_size == size else None


def _tensors(path: Path, header: Header) -> dict[str, Tensor]:
    """The numbers of the file as named tensors, which are views until they are copied."""
    numbers = numpy.fromfile(path, dtype="<f4", offset=_HEADER.size)
    found: dict[str, Tensor] = {}
    begin = 0
    for name, shape in header.blocks():
        for layer in range(header.layers if "*" in name else 1):
            size = math.prod(shape)
            piece = torch.from_numpy(numbers[begin : begin + size]).view(shape)
            found[name.replace("*", f"decoder.layers.{layer}.")] = piece
            begin += size
    return found


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """The tokenizer in a llama2.c file, which must hold `vocabulary` pieces."""
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
            decoders.Strip(content=" ", left=1),  # the space that encoding added
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
    """Each piece and its score: (score, length, bytes), after the length of the longest."""
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
                raise ValueError("a piece extends past the end of the file")
            place += length
            yield _NAMES.get(id) or raw.decode("utf-8").replace(" ", _SPACE), score
    except (struct.error, ValueError) as error:
        raise UserError(
            f"The tokenizer file '{path}' is damaged: it does not hold {count} whole pieces."
        ) from error
    if place != len(data):
        raise UserError(f"The tokenizer file '{path}' does not belong to a vocabulary of {count} pieces.")


def _merges(pieces: list[Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces that forms a piece, the best result first."""
    found = [
        (-score, id, (text[:cut], text[cut:]))
        for id, (text, score) in enumerate(pieces)
        if id not in _NAMES
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    return [pair for _, _, pair in sorted(found)]
