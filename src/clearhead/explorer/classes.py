"""View 3, by token class: how much of each head's attention goes to which kind of token.

Every column of a map belongs to one class, the first of these that fits:

    special       start, stop, padding, [CLS], …
    punctuation   anything without a letter or a digit
    neighbours    the attending token itself and the tokens next to it (self-attention only)
    others        all the rest

A head's mass on a class is the mean over its rows, so the four sum to 1.
In cross-attention no token is next to another, and the neighbours have 0.

Shapes: L layers, H heads, R rows, C columns, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.decoding.run import translate
from clearhead.explorer.session import Session
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import Plain, Word, packed

CLASSES = ("special", "punctuation", "neighbours", "others")
REACH = 1  # positions to either side that count as next to it
MOST_TEXTS = 64


def classes(
    session: Session, text: str | None = None, target: str | None = None, texts: Sequence[str] | None = None
) -> Plain:
    """Attention mass by layer, head and class: of one text, or the mean over all rows of several.

    Without a text, `texts`; without those, the session's example sentences.
    """
    if session.family == "vision":
        raise UserError(
            "The patches of a picture do not fall into token classes: look at the heads, or at their summary."
        )
    if text is not None:
        return _counted(session, [session.trace(text, target)])
    several = tuple(session.examples if texts is None else texts)
    if len(several) > MOST_TEXTS:
        raise UserError(f"Classes are counted over at most {MOST_TEXTS} texts, not {len(several)}.")
    return _of_several(session, several)


@lru_cache(maxsize=8)  # so that reopening a page is fast
def _of_several(session: Session, texts: tuple[str, ...]) -> Plain:
    return _counted(session, _traces(session, texts))


def _traces(session: Session, texts: Sequence[str]) -> list[Trace]:
    """Traces of several texts with the model's own translations, all written together for speed.

    They are not among the few that the session keeps: those are of what a user is looking at.
    """
    targets: list[str | None] = [None] * len(texts)
    if session.has_source:
        targets = [found.text for found in translate(session.bundle, texts, way="torch")]
    vocabularies = session.source_vocabulary, session.vocabulary
    return [Trace(session.bundle, *pair, vocabularies) for pair in zip(texts, targets, strict=True)]


def _counted(session: Session, traces: Sequence[Trace]) -> Plain:
    for trace in traces:
        trace.ask(["*.weights"])
    return {
        "texts": len(traces),
        "classes": list(CLASSES),
        "kinds": [{"kind": kind, "mass": packed(_mean_mass(traces, kind))} for kind in session.kinds],
    }


def _mean_mass(traces: Sequence[Trace], kind: str) -> Tensor:
    """(L, H, K): over all rows of all texts."""
    total, rows = torch.zeros(()), torch.zeros(())
    for trace in traces:
        mass, looking = mass_by_row(trace, kind)
        total, rows = total + mass.sum(2), rows + looking.sum(2, keepdim=True)
    return total / rows.clamp(min=1)


def mass_by_row(trace: Trace, kind: str) -> tuple[Tensor, Tensor]:
    """Each row's mass on each class (L, H, R, K), and 1 for rows that attend to anything (L, H, R).

    Rows are scaled by their sum, which is 1 up to rounding, so classes sum exactly. Weights below 0, which
    some cheaper attentions have, count by their size.
    """
    rows, columns = trace.sides(kind)
    weights = trace.attention(kind).to("cpu", torch.float64).abs()  # (L,H,R,C)
    members = F.one_hot(class_of(columns, len(rows), kind), len(CLASSES)).to(weights.dtype)  # (R,C,K)
    mass = torch.einsum("lhrc,rck->lhrk", weights, members)
    sums = weights.sum(-1)
    looking = (sums > 0).to(weights.dtype)
    return mass / sums.clamp(min=torch.finfo(sums.dtype).tiny).unsqueeze(-1), looking


def class_of(columns: Sequence[Word], rows: int, kind: str) -> Tensor:
    """The class of each column as each row sees it, (R, C)."""
    fixed = {"special": 0, "punctuation": 1}
    by_column = torch.tensor([fixed.get(word["kind"], 3) for word in columns])
    found = by_column.expand(rows, len(columns)).clone()
    if kind.endswith(".self"):
        distance = torch.arange(len(columns)) - torch.arange(rows).unsqueeze(1)
        found[(distance.abs() <= REACH) & (found == 3)] = 2
    return found
