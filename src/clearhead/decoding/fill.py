"""Fill gaps in texts with models that were trained to: score masked tokens, or write hidden spans.

A gap is written `[MASK]` in a text. A masked language model gives the most probable tokens there; an
encoder-decoder that was trained to denoise writes the span of each gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from clearhead.base.errors import UserError
from clearhead.base.exiting import in_compiled_work
from clearhead.bundle.folder import Bundle, framings_of, tokenizers_of
from clearhead.data.encodings.denoised import filled_in
from clearhead.decoding.backend import Request
from clearhead.decoding.labels import scores_of
from clearhead.decoding.options import Options, limit_of
from clearhead.decoding.text_requests import read_sources
from clearhead.decoding.writer import Way, Writer
from clearhead.text.marks import Marks, around_gaps

Device = str | torch.device | None
SPAN = 16  # most tokens written for a gap, its sentinel included


@dataclass(frozen=True)
class Filled:
    """A text with its gaps filled; for a masked model also the most probable words per gap, best first."""

    text: str
    gaps: tuple[tuple[tuple[str, float], ...], ...] = ()  # for each gap: word and probability


@in_compiled_work
def fill(
    bundle: Bundle, texts: Sequence[str], *, top: int = 5, first: int = 1, device: Device = None
) -> list[Filled]:
    """Each text with its gaps, written `[MASK]`, filled; messages count the texts from `first`."""
    marks = Marks.of(tokenizers_of(bundle)[0])
    parts = [around_gaps(tokenizers_of(bundle)[0], text) for text in texts]
    for number, pieces in enumerate(parts, start=first):
        if len(pieces) == 1:
            raise UserError(f"Text {number} has no gap: write [MASK] where a word is missing.")
    if bundle.config.head.kind == "mlm" and marks is not None and marks.mask is not None:
        return _masked(bundle, parts, marks, marks.mask, top, device)
    if bundle.config.family == "encoder-decoder" and marks is not None and marks.sentinels:
        sources = [_with_sentinels(pieces, marks) for pieces in parts]
        return [Filled(text) for text in _denoised(bundle, sources, marks, device)]
    raise UserError("The model in this bundle cannot fill gaps: train one with --task mask or denoise.")


def _masked(
    bundle: Bundle, parts: Sequence[list[list[int]]], marks: Marks, mask: int, top: int, device: Device
) -> list[Filled]:
    """The most probable ordinary tokens at each mask."""
    tokenizer, framing = tokenizers_of(bundle)[0], framings_of(bundle).source
    rows = [framing.frame(_with_masks(pieces, mask)) for pieces in parts]
    words = [id for id in range(marks.vocabulary) if id not in marks.special]  # some models have more rows
    found = []
    for row, scores in zip(rows, scores_of(bundle, rows, 4096, device), strict=True):
        places = [place for place, id in enumerate(row.ids) if id == mask]
        shares = scores[places].softmax(-1)[:, words]  # (gaps, words)
        best = shares.topk(min(top, len(words)))
        chosen = [[words[at] for at in each] for each in best.indices.tolist()]
        ids = list(row.ids)
        for place, each in zip(places, chosen, strict=True):
            ids[place] = each[0]
        gaps = tuple(
            tuple((tokenizer.decode([id]).strip(), share) for id, share in zip(*gap, strict=True))
            for gap in zip(chosen, best.values.tolist(), strict=True)
        )
        found.append(Filled(tokenizer.decode(ids), gaps))
    return found


def read_with_gaps(bundle: Bundle, text: str) -> list[int]:
    """The ids that a model reads for a text; a gap becomes a mask or a sentinel, if the model has them."""
    marks, pieces = Marks.of(tokenizers_of(bundle)[0]), around_gaps(tokenizers_of(bundle)[0], text)
    inner = None
    if marks is not None and len(pieces) > 1:
        if bundle.config.head.kind == "mlm" and marks.mask is not None:
            inner = _with_masks(pieces, marks.mask)
        elif bundle.config.family == "encoder-decoder" and marks.sentinels:
            inner = _with_sentinels(pieces, marks)
    return read_sources(bundle, [text])[0] if inner is None else framings_of(bundle).source.around(inner)


def _with_masks(pieces: list[list[int]], mask: int) -> list[int]:
    """The text around the gaps, and a mask for each gap."""
    return [id for piece in pieces for id in (*piece, mask)][:-1]


def _with_sentinels(pieces: list[list[int]], marks: Marks) -> list[int]:
    """The text around the gaps, and a sentinel for each gap."""
    gaps = len(pieces) - 1
    if gaps > len(marks.sentinels):
        raise UserError(
            f"A text has {gaps} gaps, and this model can fill at most {len(marks.sentinels)}: split the text."
        )
    between = [[id] for id in marks.sentinels[:gaps]]
    return [id for pair in zip(pieces, [*between, []], strict=True) for part in pair for id in part]


def _denoised(
    bundle: Bundle, sources: Sequence[list[int]], marks: Marks, device: Device, way: Way = "auto"
) -> list[str]:
    """What the model writes for each gap, inserted into the text."""
    writer, framing = Writer(bundle, device=device, way=way), framings_of(bundle).source
    whole = writes_whole_text(bundle)
    requests = []
    for inner in sources:
        given = framing.around(inner)
        most = SPAN * sum(id in marks.sentinels for id in inner) + (len(inner) if whole else 0)
        requests.append(Request(tuple(given), limit_of(bundle.config, len(given), most), Options()))
    written = dict(writer.engine.run(requests))
    texts: list[Sequence[int]] = [written[number][0].ids for number in range(len(requests))]
    if not whole:
        texts = [filled_in(inner, ids, marks.sentinels) for inner, ids in zip(sources, texts, strict=True)]
    return [tokenizers_of(bundle)[1].decode(ids) for ids in texts]


def writes_whole_text(bundle: Bundle) -> bool:
    """Whether a model that was trained to denoise writes the whole text, and not only what fills the gaps."""
    found: Any = bundle.metadata.get("recipe")
    for name in ("data", "corruption", "whole_text"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found is True


def filled_source(bundle: Bundle, source: Sequence[int]) -> str:
    """The text that a model makes of a source with gaps, given as ids; for validation samples."""
    marks = Marks.of(tokenizers_of(bundle)[0])
    assert marks is not None  # encoding the source required them
    stop = framings_of(bundle).source.after
    inner = [id for id in source if id not in stop]
    return _denoised(bundle, [inner], marks, None, "torch")[0]
