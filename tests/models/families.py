"""Small models of every family for the tests of this room, and one way to run those that decode.

Shapes: B rows, S source tokens, T target tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.models import ModelConfig, build
from clearhead.nn.attention import SCORES
from clearhead.nn.positions import POSITIONS

from ..nn.builders import NEEDS_DIRECT, POSITION_ROWS
from ..nn.builders import SCORE_ROWS as BATTERY_SCORES

VOCABULARY = 13
SOURCE = 5  # tokens of a source row

# The attention battery's own rows; queries of another size are met here through the bilinear score.
SCORE_ROWS: dict[str, dict[str, Any]] = {**BATTERY_SCORES, "bilinear": {"query_dim": 3}}
HEAD_ROWS: dict[str, dict[str, Any]] = {
    "multi-head": {"heads": 4},
    "grouped": {"heads": 4, "kv_heads": 2, "value_dim": 3},
    "multi-query": {"heads": 4, "kv_heads": 1, "softcap": 3.0},
}
# Name → settings of the recurrent part.
RECURRENT_ROWS: dict[str, dict[str, Any]] = {
    "gru, additive": {},
    "lstm, bilinear": {"cell": "lstm", "attention": "bilinear"},
    "gru, dot": {"attention": "dot", "bidirectional": False},
    "rnn, additive": {"cell": "rnn"},
    "lstm, none": {"cell": "lstm", "attention": "none"},
    "rnn, none, one way": {"cell": "rnn", "attention": "none", "bidirectional": False},
}


def pairs() -> Iterator[tuple[str, str]]:
    """Every score with every position scheme it can work with."""
    assert set(SCORE_ROWS) == set(SCORES), "a score has no row in SCORE_ROWS"
    assert set(POSITION_ROWS) == set(POSITIONS), "a scheme has no row in POSITION_ROWS"
    for score, scheme in itertools.product(SCORE_ROWS, POSITION_ROWS):
        if score in ("dot", "scaled_dot") or scheme not in NEEDS_DIRECT:
            yield score, scheme


def model_for(
    family: str,
    *,
    score: str = "scaled_dot",
    scheme: str = "sinusoidal",
    heads: str = "multi-head",
    recurrent: str = "gru, additive",
    dtype: torch.dtype = torch.float64,
    **changes: Any,
) -> nn.Module:
    """A model with random parameters everywhere, so that nothing hides behind a 0 or a 1."""
    plain = {
        "family": family,
        "vocabulary": VOCABULARY,
        "width": 8,
        "layers": 2,
        "dropout": 0.0,
        "attention": {"score": score, "key_dim": 2, **SCORE_ROWS[score], **HEAD_ROWS[heads]},
        "feedforward": {"width": 10, "activation": "gelu"},
        "position": {"name": scheme, **POSITION_ROWS[scheme]},
        "recurrent": RECURRENT_ROWS[recurrent],
        "image": {"size": 6, "patch": 2},
    }
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = build(ModelConfig.from_dict(plain), **changes).to(dtype)
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return model.eval()


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def has_source(model: nn.Module) -> bool:
    return model.config.family in ("encoder-decoder", "recurrent", "convolutional")


def one_pass(model: nn.Module, source: Tensor, target: Tensor, source_lengths: Any = None) -> Tensor:
    """Logits (B, T, V) of a whole target at once."""
    if has_source(model):
        out = model(source, target, source_lengths=source_lengths)
    else:
        out = model(target)
    logits: Tensor = out.logits
    return logits


def begin(model: nn.Module, source: Tensor, source_lengths: Any = None) -> Any:
    return model.begin(source, source_lengths) if has_source(model) else model.begin()


def step(model: nn.Module, tokens: Tensor, state: Any, lengths: Any = None) -> Tensor:
    """Logits (B, count, V) of the next tokens of each row."""
    if has_source(model):
        out = model(None, tokens, target_lengths=lengths, state=state)
    else:
        out = model(tokens, lengths=lengths, state=state)
    assert out.state is state
    logits: Tensor = out.logits
    return logits


def in_chunks(
    model: nn.Module, source: Tensor, target: Tensor, sizes: list[int], source_lengths: Any = None
) -> Tensor:
    """Logits of a target handed over in pieces."""
    state = begin(model, source, source_lengths)
    found = [step(model, piece, state) for piece in target.split(sizes, dim=1)]
    return torch.cat(found, dim=1)
