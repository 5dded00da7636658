"""Text to labels with a bundle: the class of a text, the tags of its words.

The names of the labels stand in the bundle's metadata, in the order of the
model's scores.

Shapes: B texts, T tokens of a text, C labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.base.exiting import compiled_work
from clearhead.bundle.folder import Bundle
from clearhead.data.tokenise import encode_words
from clearhead.decoding.batches import (
    at_work,
    by_length,
    heads_read,
    padded,
    read_sources,
    refuse_too_long,
    tokenizers_of,
)


def classify(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[tuple[str, float]]:
    """The likeliest class of each text, and its probability."""
    return [
        (max(shares, key=lambda name: shares[name]), max(shares.values()))
        for shares in class_probabilities(bundle, texts, batch_tokens=batch_tokens, device=device)
    ]


def class_probabilities(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[dict[str, float]]:
    """The probability of every class for each text."""
    names, rows = labels_of(bundle, "classify"), read_sources(bundle, texts, "classify")
    found: list[dict[str, float]] = [{}] * len(rows)
    for group, logits in _scores(bundle, rows, batch_tokens, device):
        shares = logits.cpu().double().softmax(-1).tolist()  # (B,C)
        for number, share in zip(group, shares, strict=True):
            found[number] = dict(zip(names, share, strict=True))
    return found


def unread_sentence(bundle: Bundle, texts: Sequence[str], before: int = 0) -> str | None:
    """What to say where a classifier reads only the head of one of these texts; `before` came others."""
    heads = heads_read(bundle, texts, read_sources(bundle, texts, "classify"), "classify")
    for number, head in enumerate(heads, start=before + 1):
        if head is not None:
            return (
                f"line {number} has {head[1]:,} tokens, and this model reads the first {head[0]:,} of a "
                f"text, as in its training: the rest is not read. Other such lines are treated alike."
            )
    return None


def tag(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[list[str]]:
    """The likeliest tag of each word; words are what stands between spaces."""
    names, tokenizer = labels_of(bundle, "tag"), tokenizers_of(bundle)[0]
    found: list[list[str]] = [[] for _ in texts]
    words = [encode_words(tokenizer, text.split()) for text in texts]
    real = [number for number, pieces in enumerate(words) if pieces]
    rows = [list(chain.from_iterable(words[number])) for number in real]
    for group, logits in _scores(bundle, rows, batch_tokens, device):
        best = logits.argmax(-1).tolist()  # (B,T)
        for i, tags in zip(group, best, strict=True):
            sizes = [len(pieces) for pieces in words[real[i]]]
            firsts = accumulate(sizes[:-1], initial=0)  # a word's tag is read off its first piece
            found[real[i]] = [names[tags[first]] for first in firsts]
    return found


def labels_of(bundle: Bundle, kind: str) -> list[str]:
    """The names of the model's labels; a sentence for a bundle that does not do this."""
    config = bundle.config
    if config.family != "encoder" or config.head.kind != kind:
        raise UserError(f"This bundle holds a model that does not {kind}: train one with --task {kind}.")
    names = bundle.metadata.get("labels")
    if not isinstance(names, list) or len(names) != config.head.classes:
        raise UserError(
            f"This bundle does not name the {config.head.classes} labels of its model: its metadata lacks "
            f"a list 'labels' of that length."
        )
    return [str(name) for name in names]


def _scores(
    bundle: Bundle, rows: Sequence[Sequence[int]], batch_tokens: int, device: str | torch.device | None
) -> Iterator[tuple[list[int], Tensor]]:
    """Groups of rows and the model's scores for them, (B, C) or (B, T, C), in float32 at least."""
    sizes = [len(row) for row in rows]
    refuse_too_long(bundle, sizes)
    pad = tokenizers_of(bundle)[0].pad
    with at_work(bundle.model, device) as place:
        for group in by_length(sizes, batch_tokens):
            with compiled_work():
                ids, lengths = padded([rows[number] for number in group], pad, place)
                logits = bundle.model(ids, lengths=lengths).logits
            yield group, logits if logits.dtype == torch.float64 else logits.float()
