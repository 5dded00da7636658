"""Texts of requests that have ended, from what the rows wrote.

Shapes: B requests that ended, K rows of each, N texts kept, L tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from clearhead.decoding.finished import hypothesis
from clearhead.decoding.graphs.buffers import Buffers
from clearhead.decoding.steps import Hypothesis, refuse_not_finite


def finished(buffers: Buffers, slots: Sequence[int]) -> list[list[Hypothesis]]:
    """The texts of the requests in these slots, best first."""
    at = torch.tensor(list(slots), device=buffers.done.device)
    return _beams(buffers, at) if buffers.size.beam > 1 else _lines(buffers, at)


def _lines(buffers: Buffers, at: Tensor) -> list[list[Hypothesis]]:
    counts = buffers.written[at]
    told = torch.stack([counts, buffers.willing[at, 0]]).tolist()
    span = max(told[0]) + 1
    tables = (buffers.ids[at, :span], buffers.logps[at, :span])
    ids, logps = (one.cpu().numpy().tolist() for one in tables)  # numpy's lists cost half of torch's
    found = []
    for count, willing, line, each in zip(*told, ids, logps, strict=True):
        own = tuple(each[: count + 1])
        total = refuse_not_finite(min(math.fsum(own), 0.0))
        found.append([Hypothesis(tuple(line[:count]), total, bool(willing), total, own, line[count])])
    return found


def _beams(buffers: Buffers, at: Tensor) -> list[list[Hypothesis]]:
    """Follows each finished text from its end to its beginning, by whom each token came after."""
    beam = buffers.size.beam
    texts_found = (buffers.pool, buffers.pool_count, buffers.pool_row)
    their_ends = (buffers.pool_stop, buffers.pool_logp, buffers.willing)
    fields = (*texts_found, *their_ends)  # (B, N) each
    score, count, row, stop, last, willing = (one[at].cpu().numpy() for one in fields)
    span = int(count.max()) if count.size else 0
    rows = (at.unsqueeze(1) * beam + torch.arange(beam, device=at.device)).flatten()
    tables = (buffers.ids, buffers.logps, buffers.parents)
    ids, logps, parents = (
        one[rows, :span].cpu().numpy().reshape(len(at), beam, span) for one in tables
    )  # (B, K, L)
    # every text of every request at once, by its place in the flat tables
    first = (np.arange(len(at))[:, None] * beam * span).repeat(row.shape[1], 1).ravel()
    where, ends = row.ravel().astype(np.int64), count.ravel()
    flat = [one.reshape(-1) for one in (ids, logps, parents)]
    texts, own = np.zeros((span, len(where)), np.int64), np.zeros((span, len(where)))
    for place in range(span - 1, -1, -1):
        at_row = first + where * span + place
        texts[place], own[place] = flat[0][at_row], flat[1][at_row]
        where = np.where(place < ends, flat[2][at_row], where)
    written, thought = texts.T.tolist(), own.T.tolist()
    kept, scores, counts = row.shape[1], score.tolist(), count.tolist()
    found = []
    for b in range(len(at)):
        order = sorted(range(kept), key=lambda n: -scores[b][n])
        some = [
            hypothesis(
                [*written[b * kept + n][: counts[b][n]], int(stop[b, n])],
                [*thought[b * kept + n][: counts[b][n]], float(last[b, n])],
                bool(willing[b, n]),
                scores[b][n],
            )
            for n in order
            if scores[b][n] > -math.inf
        ]
        if not some:
            refuse_not_finite(math.nan)
        found.append(some)
    return found
