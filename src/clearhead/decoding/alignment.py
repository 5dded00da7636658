"""Which source words a model attended to while it wrote each target word, as numbers and as a picture.

The weights are those of one decoder layer's cross-attention, averaged over its
heads and computed exactly. Row t belongs to the step that chose target token t,
that is, to the position that had read everything before it.

Shapes: T target tokens, S source tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle, framings_of, tokenizers_of
from clearhead.decoding.batches import at_work, padded, refuse_too_long
from clearhead.decoding.options import WITH_SOURCE, Options
from clearhead.decoding.run import translate
from clearhead.decoding.text_requests import read_sources, symbols_of
from clearhead.nn.attention.picture import heat_text
from clearhead.nn.look import Look
from clearhead.text.tokenizer import Tokenizer

SHADES = " ░▒▓█"
EDGES = (
    0.1,
    0.25,
    0.5,
    0.75,
)  # thresholds of the shades; diffuse attention gets no mark
END = "⏹"  # the stop symbol in a picture


@dataclass(frozen=True)
class Alignment:
    """Tokens of both sides and the weights between them; each row of weights sums to 1."""

    source: tuple[str, ...]  # S; the last is the stop symbol
    target: tuple[str, ...]  # T; likewise
    weights: tuple[tuple[float, ...], ...]  # (T, S)
    layer: int


def alignment(
    bundle: Bundle,
    source: str,
    target: str | None = None,
    *,
    layer: int | None = None,
    words: bool = False,
    beam: int = 1,
    device: str | torch.device | None = None,
) -> Alignment:
    """How the model's cross-attention aligns a text and its translation (None: the model's own).

    `layer` counts from 0; None is the last but one, which follows words best in trained models (Garg et
    al. 2019). `words` merges the pieces of words: weights are summed over a source word's pieces and
    averaged over a target word's.
    """
    config = bundle.config
    if config.family not in WITH_SOURCE:
        raise UserError(f"A model of the family '{config.family}' has no source to align with.")
    if not config.cross_attention or (config.family, config.recurrent.attention) == ("recurrent", "none"):
        raise UserError("This model has no cross-attention, so there is nothing to align.")
    layers = 1 if config.family == "recurrent" else config.depth_of_decoder
    chosen = max(layers - 2, 0) if layer is None else layer
    if not 0 <= chosen < layers:
        raise UserError(f"There is no decoder layer {layer}: this model has layers 0 to {layers - 1}.")
    reader, writer = tokenizers_of(bundle)
    if not source.strip():
        raise UserError("An empty text cannot be aligned.")
    symbols, [read] = symbols_of(bundle), read_sources(bundle, [source])
    if target is None:
        [own] = translate(bundle, [source], Options(beam=beam), device=device, way="torch")
        written = [*(writer.id(token) for token in own.tokens), symbols.stop]
    else:
        written = [*framings_of(bundle).target.before, *writer.encode(target), symbols.stop]
    if symbols.start is None:
        raise UserError("This vocabulary has no start token, which every target needs.")
    refuse_too_long(bundle, [len(read), len(written)])
    name = f"decoder.{chosen}.cross.weights"
    look = Look(name)
    with at_work(bundle.model, device) as place:
        given, _ = padded([read], reader.pad, place)
        inputs, _ = padded([[symbols.start, *written[:-1]]], writer.pad, place)
        bundle.model(given, inputs, look=look)
    weights = look[name][0].cpu().double().mean(0).tolist()  # over the heads: (T, S)
    columns, rows = _groups(reader, read, words), _groups(writer, written, words)
    weights = [[sum(row[i] for i in group) for group in columns] for row in weights]
    weights = [_average([weights[i] for i in group]) for group in rows]
    return Alignment(
        source=tuple(_readable(reader, [read[i] for i in group]) for group in columns),
        target=tuple(_readable(writer, [written[i] for i in group]) for group in rows),
        weights=tuple(tuple(row) for row in weights),
        layer=chosen,
    )


def draw_alignment(found: Alignment, *, numbers: bool = False) -> str:
    """A picture for the terminal: one row per target word, darker where it attended to a source word.

    `numbers` prints the weights instead, for terminals without block characters.

    >>> print(draw_alignment(Alignment(("the", "cat"), ("le", "chat"), ((0.9, 0.1), (0.3, 0.7)), 0)))
         the cat
    le   ███ ░░░
    chat ▒▒▒ ▓▓▓
    """
    if numbers:
        return heat_text(found.weights, rows=found.target, columns=found.source)
    margin = max(_width(name) for name in found.target)
    widths = [max(_width(name), 2) for name in found.source]
    lines = [" " * margin + " " + " ".join(_fill(*pair) for pair in zip(found.source, widths, strict=True))]
    for name, row in zip(found.target, found.weights, strict=True):
        cells = [_shade(weight) * width for weight, width in zip(row, widths, strict=True)]
        lines.append(f"{_fill(name, margin)} {' '.join(cells)}")
    return "\n".join(line.rstrip() for line in lines)


def _shade(weight: float) -> str:
    return SHADES[sum(weight >= edge for edge in EDGES)]


def _groups(tokenizer: Tokenizer, ids: Sequence[int], words: bool) -> list[list[int]]:
    """Positions of tokens that belong together: each by itself, or the pieces of a word.

    A piece begins a word if the decoded text before it ends in white space, or if the piece itself begins
    with white space. The stop symbol is always by itself.
    """
    groups: list[list[int]] = []
    text, begun = "", 0  # decoded so far, and where the last group begins in it
    for place, id in enumerate(ids):
        whole = tokenizer.decode(ids[: place + 1])
        blank = not text[begun:].strip()  # a lone space belongs to the word after it
        fresh = text[-1:].isspace() or whole[len(text) : len(text) + 1].isspace()
        if groups and words and id != tokenizer.stop and (blank or not fresh):
            groups[-1].append(place)
        else:
            groups.append([place])
            begun = len(text)
        text = whole
    return groups


def _readable(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """How some tokens look in text; a lone space or an unfinished byte keeps its token's name."""
    if list(ids) == [tokenizer.stop]:
        return END
    text = tokenizer.decode(ids).strip()
    if text and "\ufffd" not in text and text.isprintable():
        return text
    return "".join(tokenizer.token(id) for id in ids)


def _average(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def _width(text: str) -> int:
    """Terminal columns that a text takes: two for an East Asian letter, none for a combining mark."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) > 0 for letter in text)


def _fill(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
