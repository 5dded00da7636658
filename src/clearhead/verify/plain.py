"""What decoding promises, written out plainly a second time: penalties, sets, distributions, beam search.

Slow and simple on purpose, in Python and numpy, one text at a time; shares no code with `decoding`.

Shapes: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = tuple[int, ...]
SLACK = 1e-6  # a sum of probabilities has reached its bound within a millionth


class Wishes(NamedTuple):
    """The settings that shape scores, as decoding's `Options` name them."""

    bias: tuple[tuple[int, float], ...] = ()
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    no_repeat: int | None = None
    banned: tuple[Ids, ...] = ()
    prefix: Ids = ()
    min_length: int = 0
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical: float = 1.0


def shaped(logp: Floats, prompt: Ids, written: Ids, wishes: Wishes, stop: int, forbidden: Ids) -> Floats:
    """(V,) scores of the next token, -inf for what may not follow. `prompt`: () where a source was given."""
    score = logp.astype(np.float64).copy()
    if len(written) < len(wishes.prefix):
        only = np.full_like(score, -np.inf)
        only[wishes.prefix[len(written)]] = score[wishes.prefix[len(written)]]
        return only
    for id, value in wishes.bias:
        score[id] += value
    history = (*prompt, *written)
    for id in set(history):
        score[id] = score[id] * wishes.repetition if score[id] < 0 else score[id] / wishes.repetition
    for id in set(written):
        score[id] -= wishes.frequency * written.count(id) + wishes.presence
    for id in range(len(score)):
        text = (*history, id)
        if wishes.no_repeat is not None and ends_in_repeat(text, wishes.no_repeat):
            score[id] = -np.inf
        if any(text[-len(one) :] == one for one in wishes.banned):
            score[id] = -np.inf
    for id in forbidden:
        score[id] = -np.inf
    if len(written) < wishes.min_length:
        score[stop] = -np.inf
    return score


def ends_in_repeat(text: Ids, size: int) -> bool:
    """Whether the last n-gram of a text stands in it before.

    >>> ends_in_repeat((1, 2, 3, 1, 2), 2), ends_in_repeat((1, 2, 3, 2, 1), 2)
    (True, False)
    """
    last = text[-size:]
    return len(last) == size and any(text[at : at + size] == last for at in range(len(text) - size))


def softmax(score: Floats) -> Floats:
    weights: Floats = np.exp(score - score.max())
    shares: Floats = weights / weights.sum()
    return shares


def narrowed(score: Floats, wishes: Wishes) -> Floats:
    """(V,) the probabilities that a token is drawn by."""
    score = score / wishes.temperature
    if wishes.top_k is not None:
        score = _only(score, by_rank(score)[: wishes.top_k])
    if wishes.top_p < 1:
        score = _only(score, _until(by_rank(score), softmax(score), wishes.top_p))
    if wishes.min_p > 0:
        least = math.log(wishes.min_p) + float(score.max()) - SLACK
        score = _only(score, [id for id in range(len(score)) if score[id] >= least])
    if wishes.typical < 1:
        chance = softmax(score)
        own = np.log(np.where(chance > 0, chance, 1.0))
        entropy = -float((chance * own).sum())
        far = np.where(chance > 0, np.abs(own + entropy), np.inf)
        order = sorted(range(len(score)), key=lambda id: (far[id], id))
        score = _only(score, _until(order, chance, wishes.typical))
    return softmax(score)


def by_rank(score: Floats) -> list[int]:
    """Ids, the best first; of equals the lower id.

    >>> by_rank(np.array([0.1, 0.5, 0.5, 0.2]))
    [1, 2, 3, 0]
    """
    return sorted(range(len(score)), key=lambda id: (-score[id], id))


def _until(order: Sequence[int], chance: Floats, share: float) -> list[int]:
    """The fewest of `order` whose chances reach `share`."""
    kept: list[int] = []
    total = 0.0
    for id in order:
        kept.append(id)
        total += float(chance[id])
        if total >= share - SLACK:
            break
    return kept


def _only(score: Floats, ids: Sequence[int]) -> Floats:
    left = np.full_like(score, -np.inf)
    left[list(ids)] = score[list(ids)]
    return left


# -- beam search -----------------------------------------------------------------------------------------

Divisor = Callable[[int], float]  # by the length, the stop symbol counted


def divisor(alpha: float, kind: Literal["power", "wu"]) -> Divisor:
    """`power`: length^alpha; `wu`: ((5 + length) / 6)^alpha."""
    if kind == "power":
        return lambda length: float(length) ** alpha
    return lambda length: ((5 + length) / 6) ** alpha


# texts that all have written equally much, given as the parent of each among the former texts and its last
# token, to their next log-probabilities (V,)
Extend = Callable[[list[int], list[int]], list[Floats]]


def beam(
    first: Floats, extend: Extend, places: int, limit: int, stop: int, forbidden: Ids
) -> list[tuple[float, Ids]]:
    """Every text that a beam finishes if it always goes on to the very end, with its log-probability.

    At each step all extensions of the live texts are ranked; those that end among the first `places` are
    finished, and the best `places` others live on. With one place the first end is the answer.
    """
    live: list[tuple[float, Ids]] = [(0.0, ())]
    scores = [first]
    finished: list[tuple[float, Ids]] = []
    for length in range(limit + 1):
        found: list[tuple[float, int, int]] = []  # log-probability so far, parent, token
        for parent, (total, _) in enumerate(live):
            own = scores[parent].copy()
            own[list(forbidden)] = -np.inf
            if length == limit:
                own = _only(own, [stop])
            few = np.argsort(-own, kind="stable")[: places + 1]  # more can never be among the first
            found += [(total + float(own[id]), parent, int(id)) for id in few if own[id] > -np.inf]
        found.sort(key=lambda one: -one[0])
        finished += [(total, live[parent][1]) for total, parent, id in found[:places] if id == stop]
        going = [one for one in found if one[2] != stop][:places]
        if not going or (places == 1 and finished):
            break
        live = [(total, (*live[parent][1], id)) for total, parent, id in going]
        scores = extend([parent for _, parent, _ in going], [id for _, _, id in going])
    return finished
