"""How well a model predicts given texts: cross-entropy in nats, perplexity, bits per byte.

Teacher forcing: the model reads the correct text and predicts each next token
(or the class, or the tags). Sums are exact: each position's loss is computed in
float32 at least and summed in float64, whatever the batches are.

Shapes: B rows, T tokens, N packed tokens, V classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from clearhead.base.device import widest
from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle, framings_of, tokenizers_of
from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.encoding import Specials, encode_words
from clearhead.data.encodings import JoinedPairs, Pairs, Stream
from clearhead.data.ragged import Ragged
from clearhead.data.tag_columns import in_column
from clearhead.decoding.batches import at_work, by_length, padded, refuse_too_long
from clearhead.decoding.labels import first_pieces, labels_of, read_texts
from clearhead.decoding.options import positions_of
from clearhead.decoding.pictures import picture_batches
from clearhead.decoding.text_requests import opening, read_sources, symbols_of, translates
from clearhead.text.framing import Framed
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.objectives import run_model

Rows = Sequence[tuple[Any, str]]
CONTEXT = 256  # tokens of a chunk of a long text, by default


@dataclass(frozen=True)
class Loss:
    """Sums over a corpus, and the usual figures derived from them.

    Stop symbols are predicted like any token: their loss is in the sum, and they count as tokens but
    not as characters or bytes, of which the text has none for them.

    >>> loss = Loss(nats=13.862943611198906, tokens=10, characters=20, bytes=20, correct=4)
    >>> round(loss.perplexity, 3), round(loss.per_character, 3), round(loss.bits_per_byte, 3)
    (4.0, 0.693, 1.0)
    """

    nats: float  # −Σ ln p(label)
    tokens: int  # labels
    characters: int = 0  # of the text they encode; 0: unknown
    bytes: int = 0  # of the same text in UTF-8
    correct: int = 0  # labels that had the highest score

    @property
    def per_token(self) -> float:
        """Cross-entropy in nats per token."""
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """e to the power of the nats per token."""
        return math.exp(self.per_token) if self.per_token < 700 else math.inf

    @property
    def per_character(self) -> float:
        """Nats per character, comparable between vocabularies."""
        return self.nats / self.characters if self.characters else math.nan

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of UTF-8, comparable between vocabularies and scripts."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def accuracy(self) -> float:
        """Share of labels that had the highest score."""
        return self.correct / self.tokens if self.tokens else math.nan

    def metrics(self) -> dict[str, float]:
        """The figures that are defined, by name."""
        found = {
            "nats per token": self.per_token,
            "perplexity": self.perplexity,
            "nats per character": self.per_character,
            "bits per byte": self.bits_per_byte,
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}


def batches_loss(
    model: nn.Module,
    batches: Iterable[Batch],
    device: str | torch.device | None = None,
    ranks: Ranks | None = None,
) -> Loss:
    """The loss over batches of any task, padded or packed; each rank takes its share of them."""
    each = (ranks or Ranks()).shared(batches, lambda some: _sums(model, some, device))
    nats, tokens, correct = 0.0, 0, 0
    for its_nats, its_tokens, its_correct in each:  # in order: any number of ranks gives the same bits
        nats, tokens, correct = nats + its_nats, tokens + its_tokens, correct + its_correct
    return Loss(nats, tokens, correct=correct)


def _sums(
    model: nn.Module, batches: Iterable[Batch], device: str | torch.device | None
) -> Iterator[tuple[float, int, int]]:
    """Nats, labels and correct answers of each batch; waits for the device once for all of them."""
    sums, tokens = [], []
    with at_work(model, device) as place:
        for batch in batches:
            there = batch.to(place)
            logits, labels = run_model(model, there), there.labels.reshape(-1)
            flat = logits.reshape(-1, logits.shape[-1])  # (B·T, V), (N, V) or (B, V)
            wide = flat if flat.dtype == torch.float64 else flat.float()
            each = F.cross_entropy(wide, labels, ignore_index=IGNORED, reduction="none")
            right = (wide.argmax(-1) == labels).sum()  # an ignored label equals no class
            sums.append(torch.stack([each.to(widest(place)).sum(), right.to(widest(place))]))
            tokens.append(batch.tokens)
        found = torch.stack(sums).tolist() if sums else []
    return ((nats, count, int(right)) for (nats, right), count in zip(found, tokens, strict=True))


def corpus_loss(
    bundle: Bundle,
    rows: Rows,
    *,
    batch_tokens: int = 4096,
    context: int | None = None,
    stride: int | None = None,
    documents: bool | None = None,
    device: str | torch.device | None = None,
    ranks: Ranks | None = None,
) -> Loss:
    """The loss of a bundle on rows of (source, target), whatever its model predicts.

    A language model reads its targets as one long text in chunks of `context` tokens (by default as many as
    in training, if the bundle says so, or as the model has learned positions for, or 256), or each as a
    separate document (None: as in training). Each window begins `stride` tokens after the one before; with
    fewer than `context` (the default) windows overlap, and a token is predicted in the first window that
    contains it, from at least `context` − `stride` tokens.
    """
    texts = [target for _, target in rows]
    if not texts:
        raise UserError("There are no texts to compute the loss of: give at least one.")
    batches = batches_of(
        bundle, rows, batch_tokens=batch_tokens, context=context, stride=stride, documents=documents
    )
    found = batches_loss(bundle.model, batches, device, ranks)
    if bundle.config.head.kind != "none":
        return found
    sizes = sum(map(len, texts)), sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return Loss(found.nats, found.tokens, *sizes, correct=found.correct)


def batches_of(
    bundle: Bundle,
    rows: Rows,
    *,
    batch_tokens: int = 4096,
    context: int | None = None,
    stride: int | None = None,
    documents: bool | None = None,
) -> Iterator[Batch]:
    """The ids that `corpus_loss` is computed from, in padded batches."""
    if stride is not None and (bundle.config.head.kind != "none" or translates(bundle)):
        raise UserError("A stride is for models that continue a text: leave it out for this one.")
    if bundle.config.family == "vision":
        return _pictures(bundle, rows, batch_tokens)
    if bundle.config.head.kind != "none":
        return _labelled(bundle, rows, batch_tokens)
    if translates(bundle):
        return _pairs(bundle, rows, batch_tokens)
    whole = bool(bundle.metadata.get("documents", False)) if documents is None else documents
    width = context or context_of(bundle)
    if stride is not None and not 1 <= stride <= width:
        raise UserError(f"Windows of {width} tokens need a stride of 1 to {width}; it is {stride}.")
    return _windows(bundle, [target for _, target in rows], batch_tokens, width, stride or width, whole)


def _pairs(bundle: Bundle, rows: Rows, batch_tokens: int) -> Iterator[Batch]:
    """Batches of sources with their targets; a decoder has both in one row."""
    sources = read_sources(bundle, [source for source, _ in rows])
    before = framings_of(bundle).target.before
    encoded = tokenizers_of(bundle)[1].encode_batch([target for _, target in rows])
    columns = {"source": sources, "target": [[*before, *ids] for ids in encoded]}
    encoding = JoinedPairs() if bundle.config.family == "decoder" else Pairs()
    lengths = {name: np.array([len(ids) for ids in column]) for name, column in columns.items()}
    sizes = encoding.sizes(lengths)
    refuse_too_long(bundle, sizes.longer().tolist())
    specials = specials_of(bundle)
    for group in by_length(sizes.longer().tolist(), batch_tokens):
        source = 0 if sizes.source is None else int(sizes.source[group].max())
        widths = Widths(len(group), source, int(sizes.target[group].max()))
        some = {name: Ragged.of([column[i] for i in group]) for name, column in columns.items()}
        yield encoding.collate(some, widths, specials)


def _labelled(bundle: Bundle, rows: Rows, batch_tokens: int) -> Iterator[Batch]:
    """Batches of texts with a class each, or with a tag on each word's first piece."""
    kind, cpu, pad = bundle.config.head.kind, torch.device("cpu"), tokenizers_of(bundle)[0].pad
    names = {name: number for number, name in enumerate(labels_of(bundle, kind))}
    several = max(len(bundle.config.head.columns), 1)
    texts = [source for source, _ in rows]
    if kind == "tag":
        read = [Framed(ids, [0] * len(ids)) for ids in read_sources(bundle, texts)]
        pairs = enumerate(zip(rows, read, strict=True), start=1)
        labels = [_tags(bundle, *row, len(one.ids), names, n) for n, (row, one) in pairs]
    else:
        read = read_texts(bundle, texts)
        labels = [[names[_known(names, target, n)]] for n, (_, target) in enumerate(rows, start=1)]
    sizes = [len(one.ids) for one in read]
    refuse_too_long(bundle, sizes)
    for group in by_length(sizes, batch_tokens):
        inputs, lengths = padded([read[i].ids for i in group], pad, cpu)
        wanted, _ = padded([labels[i] for i in group], IGNORED, cpu)
        if several > 1:
            wanted = wanted.view(len(group), -1, several)
        types = bundle.config.embedding.token_types
        both = bundle.config.family == "encoder-decoder"  # reads the text on both sides
        yield Batch.of(
            source=inputs if both else None,
            source_lengths=lengths if both else None,
            inputs=inputs,
            lengths=lengths,
            segments=padded([read[i].segments for i in group], 0, cpu)[0] if types else None,
            labels=wanted if kind == "tag" else wanted.squeeze(1),
            rows=len(group),
        )


def _pictures(bundle: Bundle, rows: Rows, batch_tokens: int) -> Iterator[Batch]:
    """Batches of pictures with a class each."""
    names = {name: number for number, name in enumerate(labels_of(bundle, "classify"))}
    labels = torch.tensor([names[_known(names, target, n)] for n, (_, target) in enumerate(rows, start=1)])
    start = 0
    for images in picture_batches(bundle, [source for source, _ in rows], batch_tokens):
        count = len(images)
        yield Batch({"inputs": images, "labels": labels[start : start + count]}, {}, count, count)
        start += count


def specials_of(bundle: Bundle) -> Specials:
    """The symbols around a target and its padding, as the model itself defines them."""
    reader, writer = tokenizers_of(bundle)
    symbols = symbols_of(bundle)
    start = symbols.start
    if bundle.config.family == "decoder":
        # A start is read and never predicted, a stop is both: a symbol that serves as both is the stop.
        start = -1 if start is None or start == symbols.stop else start
    elif start is None:
        raise UserError("This vocabulary has no start token, which every target needs.")
    return Specials(writer.pad or 0, start, symbols.stop, reader.pad or 0)


def context_of(bundle: Bundle) -> int:
    """Tokens of a long text read at once: as many as in training, or as there are positions for."""
    noted = bundle.metadata.get("context")  # beyond this, a model has not been trained
    trained = noted if isinstance(noted, int) and noted > 0 else None
    return trained or positions_of(bundle.config) or CONTEXT


def _windows(
    bundle: Bundle, texts: Sequence[str], batch_tokens: int, width: int, stride: int, documents: bool
) -> Iterator[Batch]:
    """A long text, or documents, as one stream in windows; every token is predicted once."""
    specials, rows = specials_of(bundle), Ragged.of(tokenizers_of(bundle)[1].encode_batch(texts))
    first = opening(bundle, "") if specials.start < 0 else [specials.start]
    if not documents:
        stream = np.concatenate([first, rows.items])  # so that the first token is predicted, too
    elif specials.start < 0:  # the end of a text is all that precedes the next
        stream = np.concatenate([first, rows.framed(after=specials.stop).items])
    else:
        stream = rows.framed(specials.start, specials.stop).items
    last = max(len(stream) - 1 - (width - stride), 1)  # a window from there on would predict nothing new
    begins = range(0, last, stride)
    lengths = [min(width, len(stream) - 1 - begin) for begin in begins]
    for group in by_length(lengths, batch_tokens):
        chosen = Ragged.of([stream[begins[i] : begins[i] + lengths[i] + 1].tolist() for i in group])
        widths = Widths(len(group), 0, int(chosen.lengths.max()) - 1)
        batch = Stream().collate({"target": chosen}, widths, specials)
        seen = torch.tensor([width - stride if i else 0 for i in group])  # predicted in an earlier window
        labels = batch.labels.masked_fill(torch.arange(widths.target) < seen[:, None], IGNORED)
        yield Batch.of(inputs=batch.inputs, lengths=batch.lengths, labels=labels, rows=len(group))


def _tags(
    bundle: Bundle, source: str, target: str, size: int, names: Mapping[str, int], row: int
) -> list[int]:
    """For `size` ids, the numbers of each word's tags on its first piece, IGNORED on all others."""
    words, tags, columns = source.split(), target.split(), bundle.config.head.columns
    several = max(len(columns), 1)
    if several * len(words) != len(tags):
        raise UserError(f"'{source[:60]}' has {len(words)} words but {len(tags)} tags.")
    numbers = [names[_known(names, name, row)] for name in tags]
    places = [in_column(number, columns or (len(names),)) for number in numbers]
    pieces = encode_words(tokenizers_of(bundle)[0], words)
    found = [IGNORED] * (size * several)
    framing = framings_of(bundle).source
    for word, place in enumerate(first_pieces(pieces, len(framing.before))):
        if place < size - len(framing.after):  # a long text may have been cut
            for column, number in places[several * word : several * (word + 1)]:
                found[several * place + column] = number
    return found


def _known(names: Iterable[str], name: str, row: int) -> str:
    known = list(names)
    if name not in known:
        raise UserError(
            f"In row {row}, the label '{name}' is not one of the model's labels: {', '.join(known[:20])}."
        )
    return name
