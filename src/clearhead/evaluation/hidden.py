"""How well models that learned to fill gaps recover hidden tokens and spans of long texts.

What is hidden depends only on the text (15 %, one seed), so two bundles with one vocabulary are asked for the
same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import ClassVar

import numpy as np

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle, tokenizers_of
from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.config import CorruptionConfig
from clearhead.data.encoding import Encoder, Tokenizers
from clearhead.data.encodings import Denoised, Hiding, Masked
from clearhead.data.plan import Draw
from clearhead.data.ragged import take
from clearhead.decoding.batches import at_work, by_length
from clearhead.decoding.fill import filled_source, writes_whole_text
from clearhead.evaluation.evaluate import Asked, Evaluation, Judge, Rows, Validated
from clearhead.evaluation.loss import batches_loss, context_of, specials_of
from clearhead.text.marks import Marks
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.distributed.ranks import Ranks

SEED = 1
SHOWN = 60  # tokens of a text that a validation shows


def hidden_batches(bundle: Bundle, texts: Sequence[str], batch_tokens: int = 4096) -> Iterator[Batch]:
    """Long texts, or documents, in padded batches of chunks with gaps; every token is in one of them."""
    encoding = encoding_of(bundle)
    tokenizers = Tokenizers(*tokenizers_of(bundle))
    specials = specials_of(bundle)._replace(marks=Marks.of(tokenizers.target))
    documents = bool(bundle.metadata.get("documents", False))
    rows = [Row("", text, line) for line, text in enumerate(texts, start=1)]
    stream = encoding.encode(rows, Encoder(encoding, tokenizers, documents=documents))["target"].items
    width = max(context_of(bundle) - encoding.around, 1)
    begins = np.arange(0, len(stream), width)
    chunks = take(stream, begins, np.minimum(begins + width, len(stream)) - begins)
    sizes = encoding.sizes({"target": chunks.lengths})
    for group in by_length(sizes.longer().tolist(), batch_tokens):
        chosen = np.isin(np.arange(len(begins)), group)
        source = 0 if sizes.source is None else int(sizes.source[chosen].max())
        widths = Widths(len(group), source, int(sizes.target[chosen].max()))
        draw = Draw(SEED, 0, np.flatnonzero(chosen))
        yield encoding.collate({"target": chunks.keep(chosen)}, widths, specials, draw)


def encoding_of(bundle: Bundle) -> Hiding:
    """How texts with gaps are encoded for a bundle; raises an error for one that fills none."""
    marks = Marks.of(tokenizers_of(bundle)[1])
    if bundle.config.head.kind == "mlm" and marks is not None and marks.mask is not None:
        return Masked()
    if bundle.config.family == "encoder-decoder" and marks is not None and marks.sentinels:
        return Denoised(corruption=CorruptionConfig(whole_text=writes_whole_text(bundle)))
    raise UserError("The model in this bundle cannot fill gaps: train one with --task mask or denoise.")


@dataclass(frozen=True)
class HiddenTokens(Judge):
    """How often the hidden token is the most probable one, and its probability."""

    has_loss: ClassVar[bool] = False

    def judged(self, bundle: Bundle, rows: Rows, asked: Asked) -> Evaluation:
        batches = hidden_batches(bundle, [text for _, text in rows], asked.config.batch_tokens)
        found = batches_loss(bundle.model, batches, asked.device, asked.ranks)
        metrics = {
            "accuracy": 100.0 * found.accuracy,
            "perplexity": found.perplexity,
            "nats per token": found.per_token,
        }
        return Evaluation(self, metrics, {"accuracy": self._signature(found.tokens, bundle)})

    def _signature(self, tokens: int, bundle: Bundle) -> str:
        return f"of {tokens:,} hidden tokens, 15 % of the text, drawn with the seed {SEED}"

    def validate(self, bundle: Bundle, rows: Rows, seed: int, ranks: Ranks | None = None) -> Validated:
        """No figures but the loss, and the beginning of a text with its gaps filled."""
        texts = [text for _, text in rows if text.strip()]
        first = islice(hidden_batches(bundle, texts), 1)
        shown = (ranks or Ranks()).shared(first, lambda some: [self.sample(bundle, batch) for batch in some])
        return Validated({}, shown)

    def sample(self, bundle: Bundle, batch: Batch) -> str:
        """The first row of a batch, with the model's fillings in brackets."""
        with at_work(bundle.model, None) as device:
            inputs = batch.inputs[:1, :SHOWN]
            best = bundle.model(inputs.to(device)).logits[0].argmax(-1).tolist()
        hidden = {
            int(place)
            for place, label in zip(batch.fields["places"][0], batch.labels[0], strict=True)
            if int(label) != IGNORED
        }
        ids = [best[place] if place in hidden else id for place, id in enumerate(inputs[0].tolist())]
        return _in_brackets(tokenizers_of(bundle)[0], ids, hidden)


@dataclass(frozen=True)
class HiddenSpans(HiddenTokens):
    """The same for the tokens of hidden spans, which are written one after the other."""

    def _signature(self, tokens: int, bundle: Bundle) -> str:
        spans = f"15 % of the text in spans, drawn with the seed {SEED}"
        if writes_whole_text(bundle):
            return f"of {tokens:,} tokens, the whole text; hidden from the encoder: {spans}"
        return f"of {tokens:,} tokens, sentinels included: {spans}"

    def sample(self, bundle: Bundle, batch: Batch) -> str:
        assert batch.source is not None
        assert batch.source_lengths is not None
        return filled_source(bundle, batch.source[0, : min(SHOWN, int(batch.source_lengths[0]))].tolist())


def _in_brackets(tokenizer: Tokenizer, ids: Sequence[int], places: set[int]) -> str:
    """The text of some ids, those at the given positions in brackets."""
    found = ""
    for inside, run in groupby(range(len(ids)), key=lambda place: place in places):
        text = tokenizer.decode([ids[place] for place in run])
        space = " " if text.startswith(" ") else ""
        found += f"{space}[{text.strip()}]" if inside else text
    return found
