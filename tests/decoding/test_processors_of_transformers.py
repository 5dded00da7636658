"""Each processor against the class of transformers that does the same.

Shapes: R rows, V vocabulary, L tokens written.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past, Pipeline, pipeline

from .test_processors import NONE, past_of


@pytest.fixture(scope="module")
def theirs() -> Any:
    return pytest.importorskip("transformers.generation.logits_process", reason="needs transformers")


ROWS, WIDE, LONG = 5, 40, 12


def pair(seed: int) -> tuple[Tensor, Tensor]:
    """Distinct scores (R, V) and texts (R, L) in which n-grams come back."""
    random = torch.Generator().manual_seed(seed)
    scores = (torch.randn(ROWS, WIDE, generator=random) * 2).log_softmax(-1)
    return scores, torch.randint(3, 8, (ROWS, LONG), generator=random)


@pytest.mark.parametrize(
    "asked, name, arguments",
    [
        ({"temperature": 0.7}, "TemperatureLogitsWarper", {"temperature": 0.7}),
        ({"temperature": 1.9}, "TemperatureLogitsWarper", {"temperature": 1.9}),
        ({"top_k": 5}, "TopKLogitsWarper", {"top_k": 5}),
        ({"top_k": 99}, "TopKLogitsWarper", {"top_k": 99}),
        ({"top_p": 0.3}, "TopPLogitsWarper", {"top_p": 0.3}),
        ({"top_p": 0.95}, "TopPLogitsWarper", {"top_p": 0.95}),
        ({"min_p": 0.1}, "MinPLogitsWarper", {"min_p": 0.1}),
        ({"typical": 0.6}, "TypicalLogitsWarper", {"mass": 0.6}),
        ({"typical": 0.2}, "TypicalLogitsWarper", {"mass": 0.2}),
        ({"repetition": 1.3}, "RepetitionPenaltyLogitsProcessor", {"penalty": 1.3}),
        ({"repetition": 0.7}, "RepetitionPenaltyLogitsProcessor", {"penalty": 0.7}),
        ({"no_repeat": 1}, "NoRepeatNGramLogitsProcessor", {"ngram_size": 1}),
        ({"no_repeat": 3}, "NoRepeatNGramLogitsProcessor", {"ngram_size": 3}),
        (
            {"banned": ((9,), (3, 4), (4, 5, 6), (5, 6))},
            "NoBadWordsLogitsProcessor",
            {"bad_words_ids": [[9], [3, 4], [4, 5, 6], [5, 6]]},
        ),
        (
            {"bias": ((3, 1.5), (8, -2.0))},
            "SequenceBiasLogitsProcessor",
            {"sequence_bias": {(3,): 1.5, (8,): -2.0}},
        ),
    ],
)
def test_distributions_are_those_of_transformers(
    asked: dict[str, Any], name: str, arguments: dict[str, Any], theirs: Any
) -> None:
    for seed, prompted in itertools.product(range(4), (True, False)):
        scores, ids = pair(seed)
        made = pipeline(Options(sample=True, **asked), NONE, WIDE, has_source=not prompted)
        size = 5 if prompted else 0
        past = past_of(ids[:, size:].tolist(), ids[:, :size].tolist() if prompted else None)
        found = distribution(made, scores, past)
        wanted = getattr(theirs, name)(**arguments)(ids, scores).softmax(-1)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)
        assert torch.equal(found > 0, wanted > 0)


def distribution(made: Pipeline, scores: Tensor, past: Past) -> Tensor:
    narrow, columns = made.narrow(made.shape(scores, past), past)
    if columns is None:
        return narrow.softmax(-1)
    return torch.full_like(scores, -math.inf).scatter(1, columns, narrow).softmax(-1)


def test_all_together_are_theirs_in_their_order(theirs: Any) -> None:
    chain = theirs.LogitsProcessorList(
        [
            theirs.SequenceBiasLogitsProcessor({(3,): 1.5, (8,): 7.0}),
            theirs.RepetitionPenaltyLogitsProcessor(1.2),
            theirs.NoRepeatNGramLogitsProcessor(3),
            theirs.NoBadWordsLogitsProcessor([[9], [3, 4]]),
            theirs.TemperatureLogitsWarper(0.8),
            theirs.TopKLogitsWarper(20),
            theirs.TopPLogitsWarper(0.9),
            theirs.MinPLogitsWarper(0.02),
            theirs.TypicalLogitsWarper(0.9),
        ]
    )
    asked = Options(
        sample=True, bias=((3, 1.5), (8, 7.0)), repetition=1.2, no_repeat=3, banned=((9,), (3, 4)),
        temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, typical=0.9,
    )  # fmt: skip
    for seed in range(10):
        scores, ids = pair(seed)
        found = distribution(pipeline(asked, NONE, WIDE, has_source=True), scores, past_of(ids.tolist()))
        torch.testing.assert_close(found, chain(ids, scores).softmax(-1), rtol=1e-4, atol=1e-6)
