"""A model in PyTorch writes, in one call: the likeliest token each time, or one drawn by chance.

The short way to what the engine does with `Line`, for models without a bundle.

Shapes: B rows, S given tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from clearhead.decoding.backend import Batch, Request
from clearhead.decoding.batches import requests_of
from clearhead.decoding.engine import Engine
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.steps import WITH_SOURCE, Hypothesis, Symbols, config_of


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
    return _written(model, requests_of(model, given, lengths, Options(max_length=max_length)), symbols)


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
    return _written(model, seeded, symbols)


def _written(model: nn.Module, requests: list[Request], symbols: Symbols) -> list[Hypothesis]:
    has_source = config_of(model).family in WITH_SOURCE

    def search(batch: Batch) -> GreedyOrSampling:
        return GreedyOrSampling(batch, pipeline(batch.options, symbols, batch.vocabulary, has_source))

    found = dict(Engine(TorchRows(model, symbols), symbols, search, room=len(requests)).run(requests))
    return [found[number][0] for number in range(len(requests))]
