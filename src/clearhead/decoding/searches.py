"""Which search a batch needs, and models without a bundle that write in one call.

`make_search` is the one place where strategies are told apart. `greedy`, `sample` and `beam_search` are short
ways to what the engine does.

Shapes: B rows, S given tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, MakeSearch, Request, Search, width_of
from clearhead.decoding.batches import requests_of
from clearhead.decoding.beam import Beam
from clearhead.decoding.constraints import Pieces, constraint_processors
from clearhead.decoding.contrastive import Contrastive
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.native.beam import NativeBeam
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.steps import WITH_SOURCE, Hypothesis, LengthPenalty, Symbols, config_of


def make_search(
    batch: Batch, has_source: bool, pieces: Pieces | None = None, *, compiled: bool = False
) -> Search:
    """The search that a batch's options ask for.

    `pieces` are the bytes that each token adds to a text; constraints on texts need them. `compiled`:
    the rows are the compiled engine's, which can keep a plain beam's state as well.
    """
    options = batch.options
    prompts = None if has_source else batch.prompts
    asked = options.about_text or options.choices
    more = constraint_processors(options, batch.symbols, pieces, batch.limits, prompts) if asked else []
    ready = pipeline(options, batch.symbols, batch.vocabulary, has_source, more=more)
    if options.contrastive:
        return Contrastive(batch, ready.before)
    if options.beam > 1:
        if compiled and ready.plain(0) and NativeBeam.fits(batch):
            return NativeBeam(batch)
        return Beam(batch, ready.before)
    return GreedyOrSampling(batch, ready)


def greedy(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    max_length: int | None = None,
) -> list[Hypothesis]:
    """The likeliest token at each step; one hypothesis for each row of `given` (B, S).

    `given` is the source of an encoder-decoder or the prompt of a decoder, `lengths` say where its rows
    end. `max_length`: see `limit_of`; at the limit the stop symbol is written whatever the model prefers.

    >>> import clearhead, torch
    >>> model = clearhead.build("tiny").eval()
    >>> found = greedy(model, torch.tensor([[5, 6, 2]]), symbols=Symbols(1, 2, (0, 1)), max_length=4)
    >>> len(found), len(found[0].ids) <= 4
    (1, True)
    """
    requests = requests_of(model, given, lengths, Options(max_length=max_length))
    return [texts[0] for texts in _written(model, requests, symbols)]


def sample(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    max_length: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[Hypothesis]:
    """As `greedy`, each token drawn with its probability to the power 1/temperature, normalised.

    The log-probabilities returned are the model's own, at temperature 1. Row i has the seed `seed` + i, and
    what is drawn for it depends on nothing else.
    """
    options = Options(sample=True, temperature=temperature, max_length=max_length)
    asked = requests_of(model, given, lengths, options)
    seeded = [replace(one, options=options.replace(seed=seed + row)) for row, one in enumerate(asked)]
    return [texts[0] for texts in _written(model, seeded, symbols)]


def beam_search(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    beams: int = 5,
    penalty: LengthPenalty | None = None,
    max_length: int | None = None,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """For each row of `given` (B, S) its `nbest` best texts, best first; fewer where there are no more.

    `given`, `lengths` and `max_length` are as for `greedy`. The default penalty is the plain average.

    >>> import clearhead, torch
    >>> model = clearhead.build("tiny").eval()
    >>> row = torch.tensor([[5, 6, 2]])
    >>> [texts] = beam_search(model, row, symbols=Symbols(1, 2, (0, 1)), beams=3, nbest=2)
    >>> len(texts), texts[0].score >= texts[1].score
    (2, True)
    """
    if beams < 1:
        raise UserError(f"A beam has at least one place, not {beams}.")
    divisor = penalty or LengthPenalty()
    options = Options(
        beam=beams,
        nbest=nbest,
        length_penalty=divisor.alpha,
        length_kind=divisor.kind,
        max_length=max_length,
    )
    return _written(model, requests_of(model, given, lengths, options), symbols, Beam)


def _written(
    model: nn.Module, requests: list[Request], symbols: Symbols, make: MakeSearch | None = None
) -> list[list[Hypothesis]]:
    has_source = config_of(model).family in WITH_SOURCE
    room = sum(width_of(one.options) for one in requests)
    make = make or (lambda one: make_search(one, has_source))
    engine = rows_engine(TorchRows(model, symbols), symbols, make, room)
    found = dict(engine.run(requests))
    return [found[number] for number in range(len(requests))]
