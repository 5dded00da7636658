"""The view "contexts": one word in several sentences, and how its vectors diverge from layer to layer.

The word's vector in a sentence is the mean over the tokens that cover it. At the bottom it is the word's
embedding, the same in every sentence (plus its position, if the scheme adds one); above, it depends on the
sentence.

One word may have several encodings in a model: "apple", "Apple" and "apple" at the start of a text can have
different ids, and then different vectors from the start, whatever the context. So each occurrence says which
of the `spellings`, as ids, it has, and only those of one spelling are one word in two contexts.

Shapes: L heights (embedding and layers), n sentences, E model width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.bundle.folder import framings_of
from clearhead.explorer.reading import read_text
from clearhead.explorer.session import Session
from clearhead.explorer.words import Plain, Word, packed
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.nn.layers import InputEmbedding
from clearhead.nn.look import Look
from clearhead.text.tokenizer import Tokenizer

FEWEST, MOST = 2, 12  # sentences
LONGEST_WORD = 100  # characters
STACK = {"encoder-decoder": "encoder", "encoder": "encoder", "decoder": "decoder"}  # where a text is read


def contexts(session: Session, word: str, sentences: list[str]) -> Plain:
    """Cosines with the static embedding and between the sentences, and a plane to draw them in, by layer."""
    if session.family == "recurrent":
        raise UserError(
            "Contexts can only be compared in a Transformer, layer by layer, and this model is recurrent."
        )
    if session.family == "vision":
        raise UserError("Contexts can only be compared in text, and this model reads pictures.")
    if not FEWEST <= len(sentences) <= MOST:
        raise UserError(
            f"A word can be compared in {FEWEST} to {MOST} sentences, not {len(sentences)}: "
            f"{'add some' if len(sentences) < FEWEST else 'leave out some'}."
        )
    word = word.strip()
    if not word or len(word) > LONGEST_WORD:
        raise UserError(f"Give a word of 1 to {LONGEST_WORD} characters.")
    seen = [_one(session, word, number, sentence) for number, sentence in enumerate(sentences, start=1)]
    vectors = torch.stack([one.vectors for one in seen], dim=1)  # (L,n,E)
    static = torch.stack([one.static for one in seen])  # (n,E)
    layers = len(vectors) - 1
    planes = [plane(one) for one in vectors]
    spellings = list(dict.fromkeys(one.ids for one in seen))
    return {
        "word": word,
        "occurrences": [
            {
                "sentence": sentence,
                "words": one.words,
                "at": [one.places[0], one.places[-1]],
                "spelling": spellings.index(one.ids),
            }
            for sentence, one in zip(sentences, seen, strict=True)
        ],
        "spellings": [session.source_vocabulary.words(ids) for ids in spellings],
        "layers": ["embedding", *(f"layer {number + 1}" for number in range(layers))],
        "static": packed(F.cosine_similarity(vectors, static.unsqueeze(0), dim=-1)),
        "between": packed(F.cosine_similarity(vectors.unsqueeze(2), vectors.unsqueeze(1), dim=-1)),
        "projection": packed(torch.stack([points for points, _ in planes])),
        "explained": [share for _, share in planes],
    }


@dataclass(frozen=True)
class Occurrence:
    """The word in one sentence."""

    words: list[Word]
    places: list[int]  # positions of the tokens that cover it
    ids: tuple[int, ...]  # of those tokens
    vectors: Tensor  # (L, E) the mean over those tokens at each height
    static: Tensor  # (E,) the embedding of those tokens, whatever the context


def plane(vectors: Tensor) -> tuple[Tensor, float]:
    """The two directions in which n vectors (n, E) differ most: (n, 2), and their share of the variance.

    Principal components by singular values. The sign of a direction is arbitrary: the first vector that is
    off centre goes to the positive side, so a picture does not depend on the machine.

    >>> points, share = plane(torch.tensor([[0.0, 0.0, 5.0], [2.0, 0.0, 5.0], [7.0, 0.0, 5.0]]))
    >>> points[:, 0].tolist(), round(share, 6)
    ([3.0, 1.0, -4.0], 1.0)
    """
    centred = (vectors - vectors.mean(0)).double()
    left, sizes, _ = torch.linalg.svd(centred, full_matrices=False)
    points = F.pad(left * sizes, (0, max(0, 2 - len(sizes))))[:, :2]  # (n,2)
    for axis in points.unbind(1):
        off = axis[axis.abs() > 1e-6 * sizes[0]]
        if len(off) and off[0] < 0:
            axis.neg_()
    total = float(sizes.square().sum())
    return points.float(), float(sizes[:2].square().sum()) / total if total > 0 else 1.0


def find_word(tokenizer: Tokenizer, text: str, word: str) -> tuple[int, int] | None:
    """The first and last of `encode`'s tokens that cover the first occurrence of a word; or None.

    A whole word, ignoring case: "apple" is not found in "pineapple". If no whole word is found, any
    occurrence of the letters counts.

    >>> find_word(Tokenizer.words("the cat sleeps"), "the cat sleeps", "Cat")
    (1, 1)
    """
    offsets = tokenizer.backend.encode(text, add_special_tokens=False).offsets
    # A lookahead consumes no letters, so overlapping occurrences are all found.
    found = [one.span(1) for one in re.finditer(f"(?=({re.escape(word)}))", text, re.IGNORECASE)]
    whole = [(a, b) for a, b in found if not (text[a - 1 : a].isalnum() or text[b : b + 1].isalnum())]
    for begin, end in whole or found:
        # A token may begin with the space before the word: it counts if it covers letters of the word.
        covering = [
            number
            for number, (first, last) in enumerate(offsets)
            if first < end and last > begin and text[max(first, begin) : min(last, end)].strip()
        ]
        if covering:
            return covering[0], covering[-1]
    return None


def _one(session: Session, word: str, number: int, sentence: str) -> Occurrence:
    """Read a sentence as far as the word's vectors need it: nothing is written."""
    if not isinstance(sentence, str) or not sentence.strip():
        raise UserError(f"Sentence {number} is empty: write one, or leave it out.")
    ids = read_text(session.bundle, sentence)
    found = find_word(session.reader, sentence, word)
    if found is None:
        raise UserError(f"The word '{word}' does not occur in sentence {number}: change one of the two.")
    framings = framings_of(session.bundle)
    prompted = session.family == "decoder" and session.config.head.kind == "none" and not session.has_source
    shift = len((framings.target if prompted else framings.source).before)
    if found[1] + shift >= len(ids):
        raise UserError(
            f"The word '{word}' comes after the part of sentence {number} that the model reads: shorten "
            "the sentence."
        )
    places = list(range(found[0] + shift, found[1] + shift + 1))
    read = torch.tensor([ids], device=session.device)
    heights = [f"{STACK[session.family]}.embedding"]
    heights += [f"{STACK[session.family]}.{i}.output" for i in range(session.config.layers)]
    look, model = Look(heights), session.model
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            model.encode(read, look=look)
        else:
            model(read, look=look)
    vectors = torch.stack([look[name][0, places].mean(0) for name in heights])
    return Occurrence(
        session.source_vocabulary.words(ids),
        places,
        tuple(ids[place] for place in places),
        vectors,
        _static(model, read[0, places]),
    )


def _static(model: nn.Module, ids: Tensor) -> Tensor:
    embedding = model.source_embedding if isinstance(model, EncoderDecoder) else model.embedding
    assert isinstance(embedding, InputEmbedding)
    return embedding.table.weight.detach()[ids].mean(0)
