"""Contrastive search against its formula, recomputed from scratch for every candidate: no cache, no batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Hypothesis, Request, Symbols
from clearhead.decoding.contrastive import Contrastive
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine

from ..models.families import has_source, ids, model_for
from .test_search import stopping

SYMBOLS = Symbols(start=1, stop=2, forbidden=(0, 1))
LENGTHS = [5, 2, 4, 1]


def read(model: nn.Module, row: Sequence[int], written: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Log-probabilities (V,) of the next token, hidden states (T, E) of all that was read, from scratch."""
    with torch.no_grad():
        if has_source(model):
            output = model(torch.tensor([row]), torch.tensor([[SYMBOLS.start, *written]]))
        else:
            output = model(torch.tensor([[*row, *written]]))
    return output.logits[0, -1].float().log_softmax(-1), output.hidden[0].float()


def plain(
    model: nn.Module,
    row: Sequence[int],
    limit: int,
    alpha: float,
    k: int,
    prompt: bool,
    banned: int | None = None,
) -> Hypothesis:
    """The definition; `prompt` says whether all states of the prompt are compared with, or only its last."""
    ignored = 0 if prompt or has_source(model) else len(row) - 1
    written: list[int] = []
    logps: list[float] = []
    while True:
        logp, states = read(model, row, written)
        scores = logp.clone()
        scores[[*SYMBOLS.forbidden, *([] if banned is None else [banned])]] = -math.inf
        if len(written) == limit:
            logps.append(float(logp[SYMBOLS.stop]))
            willing = int(scores.argmax()) == SYMBOLS.stop
            break
        best, choice = -math.inf, -1
        share = scores.softmax(-1)
        for token in share.argsort(descending=True)[:k].tolist():
            if not float(share[token]) > 0:
                continue
            after = read(model, row, [*written, token])[1][-1]
            alike = torch.cosine_similarity(states[ignored:], after[None], dim=-1).max()
            value = (1 - alpha) * float(share[token]) - alpha * float(alike)
            if value > best:
                best, choice = value, token
        logps.append(float(logp[choice]))
        if choice == SYMBOLS.stop:
            willing = True
            break
        written.append(choice)
    return Hypothesis(tuple(written), math.fsum(logps), willing, math.fsum(logps), tuple(logps), SYMBOLS.stop)


def search(
    model: nn.Module,
    rows: Sequence[Sequence[int]],
    limits: Sequence[int],
    options: Options,
) -> list[Hypothesis]:
    def make(batch: Batch) -> Contrastive:
        return Contrastive(batch, pipeline(batch.options, SYMBOLS, batch.vocabulary, has_source(model)))

    engine = rows_engine(TorchRows(model, SYMBOLS, frozenset({"hidden"})), SYMBOLS, make, room=12)
    requests = [Request(tuple(row), limit, options) for row, limit in zip(rows, limits, strict=True)]
    found = dict(engine.run(requests))
    assert all(len(texts) == 1 for texts in found.values())
    return [found[number][0] for number in range(len(rows))]


def given_rows() -> list[list[int]]:
    return [row[:size].tolist() for row, size in zip(ids(4, 5), LENGTHS, strict=True)]


@pytest.mark.parametrize("alpha, k", [(0.6, 4), (0.3, 2), (1.0, 6)])
@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent", "decoder"])
def test_it_is_its_formula_whatever_the_batch(family: str, alpha: float, k: int) -> None:
    model = stopping(family, dtype=torch.float32)
    rows, limits = given_rows(), [7, 3, 6, 5]
    options = Options(contrastive=alpha, top_k=k)
    found = search(model, rows, limits, options)
    for row, limit, one in zip(rows, limits, found, strict=True):
        wanted = plain(model, row, limit, alpha, k, prompt=family == "decoder")
        assert one.ids == wanted.ids
        assert one.stopped == wanted.stopped
        assert one.token_logps == pytest.approx(wanted.token_logps, abs=1e-4)
        assert one.logp == pytest.approx(wanted.logp, abs=1e-4)
        [alone] = search(model, [row], [limit], options)
        assert alone.ids == one.ids


def test_it_ends_early_late_and_unlike_greedy() -> None:
    """The cases above would prove little if contrast never changed a choice."""
    families = ("encoder-decoder", "decoder", "recurrent")
    models = {family: stopping(family, dtype=torch.float32) for family in families}
    strong, weak = (
        [
            one
            for model in models.values()
            for one in search(model, given_rows(), [7] * 4, Options(contrastive=alpha, top_k=4))
        ]
        for alpha in (0.6, 1e-6)
    )
    assert {one.stopped for one in strong} == {True, False}
    assert sum(a.ids != b.ids for a, b in zip(strong, weak, strict=True)) > 3


def test_processors_shape_the_candidates() -> None:
    model = model_for("decoder", dtype=torch.float32)
    [free] = search(model, [[5, 6]], [5], Options(contrastive=0.5, top_k=3))
    barred = free.ids[0]
    [found] = search(model, [[5, 6]], [5], Options(contrastive=0.5, top_k=3, banned=((barred,),)))
    assert barred not in found.ids
    assert found.ids == plain(model, [5, 6], 5, 0.5, 3, prompt=False, banned=barred).ids


def test_a_token_that_is_ruled_out_is_no_candidate() -> None:
    """With more candidates asked for than tokens are left, contrast must not choose a forbidden one."""
    model = model_for("decoder", dtype=torch.float32)
    banned = tuple((token,) for token in range(3, 12))
    [found] = search(model, [[5, 6]], [4], Options(contrastive=1.0, top_k=13, banned=banned))
    assert set(found.ids) <= {12}
    with pytest.raises(UserError, match="No token is allowed"):
        search(
            model, [[5, 6]], [4], Options(contrastive=1.0, top_k=13, banned=(*banned, (12,)), min_length=2)
        )


def test_rows_must_keep_hidden_states() -> None:
    model = model_for("decoder", dtype=torch.float32)
    engine = rows_engine(TorchRows(model, SYMBOLS), SYMBOLS, Contrastive, room=4)
    with pytest.raises(ValueError, match="hidden"):
        list(engine.run([Request((5, 6), 4, Options(contrastive=0.5, top_k=2))]))
