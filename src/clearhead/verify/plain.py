"""What decoding promises, implemented plainly a second time: penalties, sets, distributions, beam search.

Slow and simple on purpose, in Python and numpy, one text at a time; shares nothing with `decoding` but its
`Options`.

Shapes: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clearhead.decoding.options import Options

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Order = NDArray[np.int64]
Ids = tuple[int, ...]
SLACK = 1e-6  # a sum of probabilities has reached its bound within a millionth
EDGES = (SLACK - 2e-6, SLACK, SLACK + 2e-6)  # float32 scores are no more precise


def shaped(logp: Floats, prompt: Ids, written: Ids, options: Options, stops: Ids, forbidden: Ids) -> Floats:
    """(V,) scores of the next token, -inf for what may not follow.

    `prompt` is what the text follows: a decoder's prompt, or the start symbol after a source.
    """
    score = logp.astype(np.float64).copy()
    if len(written) < len(options.prefix):
        only = np.full_like(score, -np.inf)
        only[options.prefix[len(written)]] = score[options.prefix[len(written)]]
        return only
    for id, value in options.bias:
        score[id] += value
    history = (*prompt, *written)
    for id in set(history):
        score[id] = score[id] * options.repetition if score[id] < 0 else score[id] / options.repetition
    for id in set(written):
        score[id] -= options.frequency * written.count(id) + options.presence
    bans = [one for one in options.banned if not isinstance(one, str)]  # other checks cover texts
    for id in {*history, *(one[-1] for one in bans)}:  # no other id can end a repetition or a ban
        text = (*history, id)
        if options.no_repeat is not None and ends_in_repeat(text, options.no_repeat):
            score[id] = -np.inf
        if any(text[-len(one) :] == one for one in bans):
            score[id] = -np.inf
    for id in forbidden:
        score[id] = -np.inf
    if len(written) < options.min_length:
        score[list(stops)] = -np.inf
    return score


def ends_in_repeat(text: Ids, size: int) -> bool:
    """Whether the last n-gram of a text already occurs in it.

    >>> ends_in_repeat((1, 2, 3, 1, 2), 2), ends_in_repeat((1, 2, 3, 2, 1), 2)
    (True, False)
    """
    last = text[-size:]
    return len(last) == size and any(text[at : at + size] == last for at in range(len(text) - size))


def softmax(score: Floats) -> Floats:
    weights: Floats = np.exp(score - score.max())
    shares: Floats = weights / weights.sum()
    return shares


def narrowed(score: Floats, options: Options, slack: float = SLACK) -> Floats:
    """(V,) the probabilities of drawing each token."""
    score = score / options.temperature
    if options.top_k is not None:
        score = _only(score, by_rank(score)[: options.top_k])
    if options.top_p < 1:
        score = _only(score, _until(by_rank(score), softmax(score), options.top_p - slack))
    if options.min_p > 0:
        least = math.log(options.min_p) + float(score.max()) - slack
        score = _only(score, np.flatnonzero(score >= least))
    if options.typical < 1:
        chance = softmax(score)
        own = np.log(np.where(chance > 0, chance, 1.0))
        entropy = -float((chance * own).sum())
        far = np.where(chance > 0, np.abs(own + entropy), np.inf)
        score = _only(score, _until(np.argsort(far, kind="stable"), chance, options.typical - slack))
    return softmax(score)


def kept(score: Floats, options: Options) -> tuple[Flags, Flags]:
    """(V,) the tokens that must have a nonzero probability, and those that may.

    They differ by tokens that are too near the edge of a set for float32 to tell.
    """
    sets = [narrowed(score, options, slack) > 0 for slack in EDGES]
    return np.logical_and.reduce(sets), np.logical_or.reduce(sets)


def by_rank(score: Floats) -> Order:
    """Ids, the best first; ties by lower id.

    >>> by_rank(np.array([0.1, 0.5, 0.5, 0.2])).tolist()
    [1, 2, 3, 0]
    """
    return np.argsort(-score, kind="stable")


def _until(order: Order, chance: Floats, share: float) -> Order:
    """The fewest of `order` whose probabilities reach `share`."""
    return order[: 1 + int((np.cumsum(chance[order]) < share).sum())]


def _only(score: Floats, ids: Order) -> Floats:
    left = np.full_like(score, -np.inf)
    left[ids] = score[ids]
    return left


# -- beam search -----------------------------------------------------------------------------------------

Divisor = Callable[[int], float]  # by the length, including the stop symbol


def divisor(alpha: float, kind: Literal["power", "wu"]) -> Divisor:
    """`power`: length^alpha; `wu`: ((5 + length) / 6)^alpha."""
    if kind == "power":
        return lambda length: float(length) ** alpha
    return lambda length: ((5 + length) / 6) ** alpha


# texts of equal length, given as the parent of each among the previous texts and its last token, to their
# next log-probabilities (V,)
Extend = Callable[[list[int], list[int]], list[Floats]]


def beam(
    first: Floats, extend: Extend, places: int, limit: int, stops: Ids, forbidden: Ids
) -> list[tuple[float, Ids]]:
    """Every text that a beam finishes if it never stops early, with its log-probability.

    At each step all extensions of the live texts are ranked; those that end among the first `places` are
    finished, and the best `places` others stay live. With one place the first end is the answer. At the limit
    a text gets the stop symbol that it likes best of all tokens, else the first.
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
                best = int(own.argmax())
                own = _only(own, np.array([best if best in stops else stops[0]]))
            few = np.argsort(-own, kind="stable")[: places + len(stops)]  # more are never among the first
            found += [(total + float(own[id]), parent, int(id)) for id in few if own[id] > -np.inf]
        found.sort(key=lambda one: -one[0])
        finished += [(total, live[parent][1]) for total, parent, id in found[:places] if id in stops]
        going = [one for one in found if one[2] not in stops][:places]
        if not going or (places == 1 and finished):
            break
        live = [(total, (*live[parent][1], id)) for total, parent, id in going]
        scores = extend([parent for _, parent, _ in going], [id for _, _, id in going])
    return finished
