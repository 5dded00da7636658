"""Text to vectors with a bundle of any family: one vector per text, from any layer; and nearest neighbours.

An encoder-decoder's vectors are its encoder's, a decoder's those of the text as its prompt. Everything that a
model reads counts, special tokens included; padding never does, so a vector does not depend on the other
texts of its batch.

Shapes: B texts, T tokens of a text, E the width of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.base.exiting import in_compiled_work
from clearhead.bundle.folder import Bundle, tokenizers_of
from clearhead.decoding.batches import at_work, by_length, padded, refuse_too_long
from clearhead.decoding.text_requests import opening, read_sources, translates
from clearhead.models.config import NO_TRANSFORMERS
from clearhead.models.heads import pool
from clearhead.models.stack import Surroundings, as_rows
from clearhead.nn.look import Look
from clearhead.nn.tokens import Tokens

Pooling = Literal["mean", "first", "last"]


@in_compiled_work
def embed(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    pooling: Pooling = "mean",
    layer: int | None = None,
    normalise: bool = False,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
    before: int = 0,
) -> Tensor:
    """One vector per text, (B, E), in float32 on the host.

    `pooling` is the mean over all tokens, or the first or last one. `layer` counts from 0, the embedding;
    None and the last number are the output of the whole stack, after its final norm. `normalise` scales
    vectors to length 1. `before` is the number of earlier texts, which messages count as well.

    >>> import clearhead
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> bundle = Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size).eval(), tokenizer)
    >>> embed(bundle, ["the cat", "the cat sleeps"]).shape
    torch.Size([2, 32])
    """
    check_embedding(bundle, pooling, layer)
    rows = _read(bundle, texts)
    for number, row in enumerate(rows, start=before + 1):
        if not row:
            raise UserError(
                f"Line {number} has no tokens, so there is nothing to embed: remove it, or put a text there."
            )
    sizes = [len(row) for row in rows]
    refuse_too_long(bundle, sizes, before)
    pad = tokenizers_of(bundle)[0].pad
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    with at_work(bundle.model, device) as place:
        for group in by_length(sizes, batch_tokens):
            ids, lengths = padded([rows[number] for number in group], pad, place)
            states = _states(bundle, ids, lengths, layer)  # (B,T,E)
            tokens = Tokens.padded(ids.shape[1], device=place, real=lengths)
            vectors = pool(states.float(), tokens, pooling).cpu()
            for number, vector in zip(group, vectors, strict=True):
                found[number] = vector
    whole = torch.stack(found) if found else torch.empty(0, 0)
    return F.normalize(whole, dim=-1) if normalise else whole


def nearest(query: Tensor, vectors: Tensor, count: int) -> list[tuple[int, float]]:
    """The vectors (B, E) with the highest cosine to a query (E,): their indices, and the cosine.

    Ties go to the earlier one.

    >>> nearest(torch.tensor([1.0, 3.0]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]]), 2)
    [(1, 0.9486832980505138), (2, 0.9486832980505138)]
    """
    cosines = F.cosine_similarity(query.double(), vectors.double(), dim=-1)  # (B,)
    order = cosines.argsort(descending=True, stable=True)[:count].tolist()
    return [(number, float(cosines[number])) for number in order]


def check_embedding(bundle: Bundle, pooling: str, layer: int | None) -> None:
    """Raise an error for what this model cannot provide."""
    config = bundle.config
    if config.family == "vision":
        raise UserError("This model reads images and cannot embed text.")
    if pooling not in get_args(Pooling):
        raise UserError(f"There is no pooling '{pooling}': use {', '.join(get_args(Pooling))}.")
    if pooling == "first" and config.family == "decoder":
        raise UserError(
            "The first token of a decoder has read nothing of the text: use --pooling mean or last."
        )
    if layer is not None and not 0 <= layer <= config.layers:
        raise UserError(f"This model has layers 1 to {config.layers}, and 0 for its embedding, not {layer}.")
    if config.family in NO_TRANSFORMERS and layer not in (None, config.layers):
        raise UserError(
            f"A {config.family} model only gives the vectors of its last layer: leave the layer out."
        )


def _read(bundle: Bundle, texts: Sequence[str]) -> list[list[int]]:
    """The ids the model is fed for each text."""
    config = bundle.config
    if config.family == "decoder" and config.head.kind == "none" and not translates(bundle):
        return [opening(bundle, text) for text in texts]
    return read_sources(bundle, texts)


def _states(bundle: Bundle, ids: Tensor, lengths: Tensor, layer: int | None) -> Tensor:
    """The hidden states (B, T, E) at one layer of the stack that reads the text."""
    model: Any = bundle.model
    config = bundle.config
    if config.family in NO_TRANSFORMERS:
        begun = model.begin(ids, lengths)
        memory: Tensor = begun.memory if config.family == "recurrent" else begun.source.memory
        return memory
    stack = "decoder" if config.family == "decoder" else "encoder"
    name = f"{stack}.output"
    if layer is not None and layer < config.layers:
        name = f"{stack}.{layer - 1}.output" if layer else f"{stack}.embedding"
    look = Look([name])
    if config.family == "encoder-decoder":
        model.encode(ids, lengths, look)
    elif config.family == "decoder":
        model(ids, lengths=lengths, look=look, **({"scores": False} if model.projects else {}))
    else:  # without the head, whose scores over a vocabulary would be by far the largest tensor
        ids, where, seen = as_rows(ids, lengths)
        model.encoder(model.embedding(ids, where), Surroundings(where, seen), look=look)
    return look[name]
