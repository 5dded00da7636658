"""A model's prediction at a position as one answer: a word, a class, or a tag from each of several columns.

The columns of a tagger are independent of each other, so the probability of several tags together is the
product of theirs. An answer of several tags is a number whose mixed-radix digits are the columns' tags.

Shapes: T positions, C classes of a column, k most probable answers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.data.tag_columns import MARK


def by_column(scores: Tensor, columns: Sequence[int]) -> list[Tensor]:
    """Scores (T, C) unchanged, or those of several columns (T, columns, most C) split, without padding."""
    return [scores[:, i, :size] for i, size in enumerate(columns)] if columns else [scores]


def side_by_side(scores: Tensor, columns: Sequence[int]) -> Tensor:
    """The same with the classes of all columns in one row, (T, all C)."""
    return torch.cat(by_column(scores, columns), -1) if columns else scores


def likeliest(scores: Tensor, columns: Sequence[int], most: int) -> tuple[Tensor, Tensor]:
    """The numbers of the most probable answers at each position, best first, and their probabilities, (T, k).

    >>> scores = torch.tensor([[0.75, 0.25, 0.0], [0.1, 0.3, 0.6]]).log()  # of two tags, and of three
    >>> ids, chances = likeliest(scores.unsqueeze(0), (2, 3), 3)
    >>> ids.tolist(), [round(p, 3) for p in chances[0].tolist()]
    ([[2, 1, 5]], [0.45, 0.225, 0.15])
    """
    # The best answers extend the best of the columns so far: no more need be kept.
    ids, chances = torch.zeros(len(scores), 1, dtype=torch.long, device=scores.device), None
    for own in by_column(scores, columns):
        shares, size = own.softmax(-1), own.shape[-1]
        every = shares if chances is None else (chances.unsqueeze(-1) * shares.unsqueeze(1)).flatten(1)
        best = every.topk(min(most, every.shape[-1]), dim=-1)
        ids = ids.gather(1, best.indices // size) * size + best.indices % size
        chances = best.values
    assert chances is not None
    return ids, chances


def answer_name(id: int, names: Sequence[str], columns: Sequence[int]) -> str:
    """The name of an answer: a label's, or the tags of all columns, as `clearhead label` writes them.

    >>> answer_name(4, ["pos=A", "pos=B", "ner=O", "ner=X", "ner=Y"], (2, 3))
    'B|X'
    """
    if not columns:
        return names[id]
    found, end = [], len(names)
    for size in reversed(columns):
        id, digit = divmod(id, size)
        end -= size
        found.append(names[end + digit].partition(MARK)[2] or names[end + digit])
    return "|".join(reversed(found))
