"""Text to text with a bundle: translate (or summarise) and generate.

Texts are decoded in batches of like length and come back in their own order;
what becomes of a text does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from clearhead.base.errors import UserError
from clearhead.base.progress import Bar, progress
from clearhead.bundle.folder import Bundle
from clearhead.data.tokenise import encode_source
from clearhead.decoding.batches import (
    NUMBERS,
    at_work,
    by_length,
    padded,
    read_sources,
    refuse_too_long,
    tokenizers_of,
)
from clearhead.decoding.beam import LengthPenalty, beam_search
from clearhead.decoding.greedy import greedy, sample
from clearhead.decoding.steps import WITH_SOURCE, Hypothesis, Symbols, positions_of
from clearhead.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Translation:
    """What a model wrote for one text."""

    text: str
    score: float = 0.0  # log-probability over the length penalty; for comparing, not for trusting
    tokens: tuple[str, ...] = ()
    logp: float = 0.0  # natural log-probability, the stop symbol's included
    stopped: bool = True  # False: it was cut at the limit of length


def translate(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    beam: int = 1,
    length_penalty: float = 1.0,
    max_length: int | None = None,
    batch_tokens: int = 4096,
    device: str | torch.device | None = None,
    show: bool = False,
) -> list[Translation]:
    """Each text as the model renders it, in the order given; an empty line stays an empty line.

    `beam=1` is greedy. `length_penalty` is the power of the length that log-probabilities are divided
    by. `max_length` bounds the tokens written; without it, 2·source + 20. `batch_tokens` bounds source
    tokens in a batch, padding included. `show`: a progress line where there is a terminal.

    >>> import clearhead
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> bundle = Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size), tokenizer)
    >>> [one.text for one in translate(bundle, ["", "  "])]
    ['', '']
    """
    reader, tokenizer = tokenizers_of(bundle)
    if bundle.config.family not in WITH_SOURCE:
        raise UserError(
            f"This bundle holds a model of the family '{bundle.config.family}', which does not translate."
        )
    symbols = Symbols.of(tokenizer)
    found = [Translation("")] * len(texts)
    real = [number for number, text in enumerate(texts) if text.strip()]
    sources = read_sources(bundle, [texts[number] for number in real], "translate")
    refuse_too_long(bundle, [len(ids) for ids in sources])
    rows = max(1, NUMBERS // (beam * bundle.config.vocabulary))
    line = progress("Translating", len(real), "texts") if show else nullcontext(Bar(None, None))
    with at_work(bundle.model, device) as place, line as bar:
        for group in by_length([len(ids) for ids in sources], batch_tokens, rows):
            source, lengths = padded([sources[i] for i in group], reader.pad, place)
            penalty = LengthPenalty(length_penalty)
            if beam == 1:
                best = greedy(bundle.model, source, lengths, symbols=symbols, max_length=max_length)
            else:
                several = beam_search(
                    bundle.model,
                    source,
                    lengths,
                    symbols=symbols,
                    beams=beam,
                    penalty=penalty,
                    max_length=max_length,
                )
                best = [texts[0] for texts in several]
            for i, one in zip(group, best, strict=True):
                found[real[i]] = _translation(tokenizer, one, penalty)
            bar.advance(len(group))
    return found


def generate(
    bundle: Bundle,
    prompt: str = "",
    max_tokens: int = 200,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> str:
    """The prompt and how the model goes on from it; temperature 0 takes the likeliest token each time.

    Ends at the stop symbol, after `max_tokens`, or where the model has no more positions.
    """
    _, tokenizer = tokenizers_of(bundle)
    if bundle.config.family != "decoder":
        raise UserError(
            f"This bundle holds a model of the family '{bundle.config.family}', which does not continue text."
        )
    ids = opening(bundle, tokenizer, prompt)
    positions = positions_of(bundle.config)
    if positions is not None and len(ids) >= positions:
        raise UserError(
            f"The prompt has {len(ids)} tokens, and this model has learned positions for {positions}, "
            f"its continuation included: shorten it."
        )
    with at_work(bundle.model, device) as place:
        given, _ = padded([ids], tokenizer.pad, place)
        symbols = Symbols.of(tokenizer)
        if temperature == 0.0:
            [one] = greedy(bundle.model, given, symbols=symbols, max_length=max_tokens)
        else:
            [one] = sample(
                bundle.model,
                given,
                symbols=symbols,
                max_length=max_tokens,
                temperature=temperature,
                seed=seed,
            )
    return tokenizer.decode([*ids, *one.ids])


def opening(bundle: Bundle, tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids a decoder starts from.

    Where the texts of training were documents of their own (the bundle's metadata says `documents`), the
    start symbol and the prompt. A model of one long text has met that symbol only once: it starts from
    the prompt alone, and from a new line where there is none.
    """
    if bundle.metadata.get("documents", False):
        return encode_source(tokenizer, prompt, "generate")
    return tokenizer.encode(prompt or "\n") or encode_source(tokenizer, "", "generate")


def _translation(tokenizer: Tokenizer, one: Hypothesis, penalty: LengthPenalty) -> Translation:
    return Translation(
        text=tokenizer.decode(one.ids),
        score=one.logp / penalty.at(len(one.ids) + 1),
        tokens=tuple(tokenizer.token(id) for id in one.ids),
        logp=one.logp,
        stopped=one.stopped,
    )
