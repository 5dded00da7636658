"""Text to labels with a bundle: the class or number of a text or of a pair, the tags of its words.

The bundle's metadata holds the names of the labels, in the order of the model's
scores, and the scale of its numbers.

Shapes: B texts, T tokens of a text, C labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.base.exiting import in_compiled_work
from clearhead.bundle.folder import Bundle, framings_of, is_imported, tokenizers_of
from clearhead.data.encoding import encode_words
from clearhead.data.pictures import is_picture
from clearhead.data.tag_columns import MARK
from clearhead.decoding.batches import at_work, by_length, padded, refuse_too_long
from clearhead.decoding.pictures import picture_scores, picture_text
from clearhead.decoding.text_requests import heads_read, read_sources
from clearhead.text.framing import Framed

Texts = Sequence[str | tuple[str, str]]  # one text each, or two to be judged together


def classify(
    bundle: Bundle,
    texts: Texts,
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[tuple[str, float]]:
    """The most probable class of each text, pair of texts, or picture file, and its probability."""
    return [
        (max(shares, key=lambda name: shares[name]), max(shares.values()))
        for shares in class_probabilities(bundle, texts, batch_tokens=batch_tokens, device=device)
    ]


@in_compiled_work
def class_probabilities(
    bundle: Bundle,
    texts: Texts,
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[dict[str, float]]:
    """The probability of every class for each text, pair of texts, or picture file."""
    names = labels_of(bundle, "classify")
    if bundle.config.family == "vision":
        pictures = [str(one) for one in texts]
        pictures = [one if is_picture(one) else picture_text(bundle, one) for one in pictures]
        each = picture_scores(bundle, pictures, batch_tokens, device)
    else:
        each = scores_of(bundle, read_texts(bundle, texts), batch_tokens, device)
    return [dict(zip(names, scores.softmax(-1).tolist(), strict=True)) for scores in each]


@in_compiled_work
def regress(
    bundle: Bundle,
    texts: Texts,
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[float]:
    """The number that the model gives each text, or each pair of texts."""
    _refuse_other_head(bundle, "number")
    rows, (mean, deviation) = read_texts(bundle, texts), scale_of(bundle)
    return [mean + deviation * float(one) for one in scores_of(bundle, rows, batch_tokens, device)]


def scale_of(bundle: Bundle) -> tuple[float, float]:
    """The mean and standard deviation of the training targets, by which the model's outputs are scaled."""
    noted = bundle.metadata.get("numbers") or {}
    return float(noted.get("mean", 0.0)), float(noted.get("deviation", 1.0))


def reads_two(bundle: Bundle) -> bool | None:
    """Whether the model judges two texts together; None: one or two, as an imported tokenizer allows."""
    if not framings_of(bundle).source.pair:
        return False
    return None if is_imported(bundle) else True


def unread_sentence(bundle: Bundle, texts: Texts, before: int = 0) -> str | None:
    """A sentence if the model reads only the beginning of a text; `before` counts earlier texts."""
    if "source_limit" not in bundle.metadata:
        return None
    each = [(at, one) for at, both in enumerate(texts) for one in ([both] if isinstance(both, str) else both)]
    parts = [one for _, one in each]
    heads = heads_read(bundle, parts, read_sources(bundle, parts))
    for (at, _), head in zip(each, heads, strict=True):
        if head is not None:
            number = before + at + 1
            return (
                f"line {number} has {head[1]:,} tokens, and this model only reads the first {head[0]:,}, as "
                "in training: the rest is ignored. Other such lines are treated the same way."
            )
    return None


def tag(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[list[str]]:
    """The most probable tag of each word; words are separated by spaces. Several are joined by "|"."""
    found = tag_names(bundle, texts, batch_tokens=batch_tokens, device=device)
    if not bundle.config.head.columns:
        return [[name for names in words for name in names] for words in found]
    return [["|".join(name.partition(MARK)[2] for name in names) for names in words] for words in found]


@in_compiled_work
def tag_names(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[list[list[str]]]:
    """The most probable tags of each word of each text, as the bundle's labels name them: one per column."""
    names = _names_by_column(bundle)
    each = _word_scores(bundle, texts, batch_tokens, device)
    return [
        [[own[best] for own, best in zip(names, word, strict=True)] for word in scores.argmax(-1).tolist()]
        for scores in each
    ]


@in_compiled_work
def tag_probabilities(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
) -> list[list[dict[str, float]]]:
    """The probability of every tag for each word of each text; those of a column sum to 1."""
    names = _names_by_column(bundle)

    def shares(word: list[list[float]]) -> dict[str, float]:
        pairs = (zip(own, given, strict=False) for own, given in zip(names, word, strict=True))
        return dict(chain.from_iterable(pairs))  # padding of short columns has no name

    each = _word_scores(bundle, texts, batch_tokens, device)
    return [[shares(word) for word in scores.softmax(-1).tolist()] for scores in each]


def _names_by_column(bundle: Bundle) -> list[list[str]]:
    """The names of the labels, column by column."""
    names = iter(labels_of(bundle, "tag"))
    sizes = bundle.config.head.columns or (bundle.config.head.classes,)
    return [list(islice(names, size)) for size in sizes]


def _word_scores(
    bundle: Bundle, texts: Sequence[str], batch_tokens: int, device: str | torch.device | None
) -> list[Tensor]:
    """The scores (words, columns, C) of each text's words, taken at each word's first piece."""
    tokenizer, framing, head = tokenizers_of(bundle)[0], framings_of(bundle).source, bundle.config.head
    words = [encode_words(tokenizer, text.split()) for text in texts]
    rows = [framing.frame(list(chain.from_iterable(pieces))) for pieces in words if pieces]
    each = iter(scores_of(bundle, rows, batch_tokens, device))
    found: list[Tensor] = []
    for pieces in words:
        if not pieces:
            found.append(torch.empty(0, len(head.columns) or 1, max(head.columns, default=head.classes)))
            continue
        scores = next(each)[list(first_pieces(pieces, len(framing.before)))]
        found.append(scores if head.columns else scores.unsqueeze(1))
    return found


def first_pieces(words: Sequence[Sequence[int]], before: int) -> Iterator[int]:
    """The position of each word's first piece, where its tag is predicted; `before` ids precede them all.

    >>> list(first_pieces([[7], [8, 9], [10]], 1))
    [1, 2, 4]
    """
    return islice(accumulate((len(pieces) for pieces in words), initial=before), len(words))


def read_texts(bundle: Bundle, texts: Texts) -> list[Framed]:
    """Texts, and pairs of texts, as the model reads them; cut where training cut them."""
    if reads_two(bundle) and any(isinstance(one, str) for one in texts):
        raise UserError("This model labels pairs of texts: give the second text as well.")
    reader, framing = tokenizers_of(bundle)[0], framings_of(bundle).source
    limit = bundle.metadata.get("source_limit")
    most = max(limit - framing.extra, 0) if isinstance(limit, int) else None
    both = [(one, None) if isinstance(one, str) else one for one in texts]
    firsts = reader.encode_batch([first for first, _ in both])
    seconds = reader.encode_batch([second or "" for _, second in both])
    return [
        framing.frame(first[:most], None if text is None else second[:most])
        for (_, text), first, second in zip(both, firsts, seconds, strict=True)
    ]


def labels_of(bundle: Bundle, kind: str) -> list[str]:
    """The names of the model's labels; raises an error if the bundle does not do this."""
    _refuse_other_head(bundle, kind)
    config, names = bundle.config, bundle.metadata.get("labels")
    if not isinstance(names, list) or len(names) != config.head.classes:
        raise UserError(
            f"This bundle does not name the {config.head.classes} labels of its model: add a list "
            "'labels' of that length to its metadata."
        )
    return [str(name) for name in names]


def _refuse_other_head(bundle: Bundle, kind: str) -> None:
    """Raise an error for a bundle whose model does not predict this for texts."""
    vision = bundle.config.family == "vision"  # classifies whole pictures, and nothing else
    if bundle.config.head.kind != kind or (vision and kind != "classify"):
        does, task = ("give numbers", "regress") if kind == "number" else (kind, kind)
        raise UserError(f"The model in this bundle does not {does}: train one with --task {task}.")


def scores_of(
    bundle: Bundle, rows: Sequence[Framed], batch_tokens: int, device: str | torch.device | None = None
) -> list[Tensor]:
    """The model's scores for each row, (C,) or (T, C), in float64 on the host."""
    sizes = [len(row.ids) for row in rows]
    refuse_too_long(bundle, sizes)
    pad, kinds = tokenizers_of(bundle)[0].pad, bundle.config.embedding.token_types
    highest = max((max(row.segments, default=0) for row in rows), default=0)
    if highest >= kinds > 0:
        raise UserError(
            f"The text has a segment {highest}, but this model only has segments 0 to {kinds - 1}."
        )
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    with at_work(bundle.model, device) as place:
        for group in by_length(sizes, batch_tokens):
            ids, lengths = padded([rows[number].ids for number in group], pad, place)
            types = padded([rows[number].segments for number in group], 0, place)[0] if kinds else None
            for number, scores in zip(group, _logits(bundle, ids, lengths, types), strict=True):
                found[number] = scores
    return found


def _logits(bundle: Bundle, ids: Tensor, lengths: Tensor, segments: Tensor | None) -> Tensor:
    """(B, C) or (B, T, C)."""
    if bundle.config.family == "encoder":
        found = bundle.model(ids, lengths=lengths, token_types=segments)
    elif bundle.config.family == "decoder":
        found = bundle.model(ids, lengths=lengths)
    else:  # an encoder-decoder reads a text on both sides
        found = bundle.model(ids, ids, source_lengths=lengths, target_lengths=lengths)
    logits: Tensor = found.logits
    return logits.cpu().double()
