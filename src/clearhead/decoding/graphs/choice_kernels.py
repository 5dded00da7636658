"""Triton kernels of the choice: the best tokens of a row, which texts end, which beams continue.

`fused` launches them. The comment above each says what one program of its grid does. Shapes as in `fused`.
Arguments in lower case are known only at run time; compile-time constants are in capitals.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


# scores of one row that may be written, others −∞; the second row of `allowed` is for texts too short to end
@triton.jit
def _allowed(x, id, ok, row, allowed, written, least, vocabulary, K: tl.constexpr):
    request = row // K
    line = tl.where(tl.load(written + request) < tl.load(least + request), vocabulary, 0)
    return x + tl.load(allowed + line + id, ok, -float("inf"))


# one row and LINES parts of the vocabulary: the best of each (ties: the lowest id), and its mass
@triton.jit
def peaks(
    logits, allowed, written, least, score, token, peak, mass, vocabulary, parts,
    K: tl.constexpr, LINES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.program_id(1) * LINES + tl.arange(0, LINES)
    id = part[:, None] * PART + tl.arange(0, PART)[None, :]
    ok = id < vocabulary
    x = tl.load(logits + row.to(tl.int64) * vocabulary + id, ok, -float("inf")).to(tl.float32)
    here = row.to(tl.int64) * parts + part
    high = tl.max(x, 1)
    level = tl.where(high == -float("inf"), 0.0, high)
    tl.store(peak + here, high, part < parts)
    tl.store(mass + here, tl.sum(tl.exp(x - level[:, None]), 1), part < parts)
    y = _allowed(x, id, ok, row, allowed, written, least, vocabulary, K)
    best = tl.max(y, 1)
    which = tl.min(tl.where(y == best[:, None], id, vocabulary), 1)
    which = tl.minimum(which, vocabulary - 1)  # some valid id if no score is finite
    tl.store(score + here, best, part < parts)
    tl.store(token + here, which, part < parts)


# one row: its C best (ties: the lowest id first), from the C parts with the highest peaks
@triton.jit
def candidates(
    logits, allowed, written, least, peak, score, token, vocabulary, parts,
    K: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at, c = tl.arange(0, PARTS), tl.arange(0, CP)
    high = tl.load(peak + row.to(tl.int64) * parts + at, at < parts, -float("inf"))
    chosen = tl.full((CP,), PARTS, tl.int32)  # no part at all
    left = tl.where(at < parts, 1, 0)
    for i in tl.static_range(C):
        best = tl.max(tl.where(left > 0, high, -float("inf")), 0)
        where = tl.min(tl.where((left > 0) & (high == best), at, PARTS), 0)
        chosen = tl.where(c == i, where, chosen)
        left = tl.where(at == where, 0, left)
    id = chosen[:, None] * PART + tl.arange(0, PART)[None, :]
    ok = (chosen < parts)[:, None] & (id < vocabulary)
    x = tl.load(logits + row.to(tl.int64) * vocabulary + id, ok, -float("inf")).to(tl.float32)
    y = _allowed(x, id, ok, row, allowed, written, least, vocabulary, K)
    for i in tl.static_range(C):
        best = tl.max(tl.max(y, 1), 0)
        which = tl.min(tl.min(tl.where((y == best) & ok, id, vocabulary), 1), 0)
        tl.store(score + row.to(tl.int64) * C + i, best)
        tl.store(token + row.to(tl.int64) * C + i, tl.minimum(which, vocabulary - 1))
        y = tl.where(id == which, -float("inf"), y)
        ok = ok & (id != which)


# log Σ exp of a row's scores, from its parts
@triton.jit
def _total(peak, mass, row, parts, PARTS: tl.constexpr):
    at = tl.arange(0, PARTS)
    ok = at < parts
    high = tl.load(peak + row * parts + at, ok, -float("inf"))
    some = tl.load(mass + row * parts + at, ok, 0.0)
    top = tl.max(high, 0)
    level = tl.where(high == -float("inf"), top, high)
    return top + tl.log(tl.sum(some * tl.exp(level - top), 0))


# one row
@triton.jit
def choose_token(
    score, token, peak, mass, logits, drawn, next_token, length, written, limit, done, willing, ids, logps,
    ends, stop, vocabulary, positions, parts,
    N: tl.constexpr, DRAWN: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    total = _total(peak, mass, row, parts, PARTS)
    if DRAWN:
        best = tl.load(drawn + row).to(tl.int32)
    else:
        at = tl.arange(0, PARTS)
        ok = at < parts
        each = tl.load(score + row * parts + at, ok, -float("inf"))
        tokens = tl.load(token + row * parts + at, ok, vocabulary - 1)
        best = tl.min(tl.where(each == tl.max(each, 0), tokens, vocabulary - 1), 0)
    count = tl.load(written + row)
    forced = count >= tl.load(limit + row)
    asked = tl.load(ends + best) > 0  # whether it would end by choice
    chosen = tl.where(forced & (asked == 0), stop, best)
    logp = tl.load(logits + row * vocabulary + chosen).to(tl.float32) - total
    alive = tl.load(done + row) == 0
    stops = forced | asked
    tl.store(ids + row * positions + count, chosen, alive)
    tl.store(logps + row * positions + count, logp, alive)
    tl.store(willing + row * N, asked.to(tl.int32), alive & stops)
    goes = alive & (stops == 0)
    tl.store(done + row, tl.where(goes, 0, 1))
    tl.store(next_token + row, tl.where(goes, chosen, 0).to(tl.int64))
    tl.store(written + row, count + tl.where(goes, 1, 0))
    tl.store(length + row, tl.where(goes, tl.load(length + row) + 1, 0))


# the extensions of K rows: what each adds, its token, the score of the whole text, and whether a row would
# end by choice, which matters for rows that must end
@triton.jit
def _extensions(
    score, token, peak, mass, logits, live, row, in_beam, forced, c, columns, parts, ends, stop, vocabulary,
    PARTS: tl.constexpr,
):  # fmt: skip
    none = -float("inf")
    at = tl.arange(0, PARTS)
    ok = in_beam[:, None] & (at < parts)[None, :]
    high = tl.load(peak + row[:, None] * parts + at[None, :], ok, none)
    some = tl.load(mass + row[:, None] * parts + at[None, :], ok, 0.0)
    top = tl.where(in_beam, tl.max(high, 1), 0.0)
    level = tl.where(high == none, top[:, None], high)
    sums = tl.sum(some * tl.exp(level - top[:, None]), 1)
    total = top + tl.log(tl.where(in_beam, sums, 1.0))  # (K,)
    ok = in_beam[:, None] & (c < columns)[None, :]
    own = tl.load(score + row[:, None] * columns + c[None, :], ok, none) - total[:, None]
    words = tl.load(token + row[:, None] * columns + c[None, :], ok, 0)
    favourite = tl.min(tl.where(own == tl.max(own, 1)[:, None], words, vocabulary - 1), 1)
    asked = tl.load(ends + favourite, in_beam, 0) > 0
    willing = asked | (forced == 0)
    last = tl.where(asked, favourite, stop)  # (K,) the stop symbol of a row that must end
    end = tl.load(logits + row * vocabulary + last, in_beam, 0.0).to(tl.float32) - total
    only = (c == 0)[None, :]
    own = tl.where(forced[:, None], tl.where(only, end[:, None], none), own)
    words = tl.where(forced[:, None] & only, last[:, None], words)
    was = tl.load(live + row, in_beam, none)
    text = tl.where(ok, was[:, None] + own.to(tl.float64), none)
    return own, words, text, willing


# the best remaining text: its score, its index, its last token, and what that added
@triton.jit
def _best(text, own, words, flat, BEYOND: tl.constexpr):
    pick = tl.max(tl.max(text, 1), 0)
    where = tl.min(tl.min(tl.where(text == pick, flat, BEYOND), 1), 0)
    here = flat == where
    word = tl.sum(tl.sum(tl.where(here, words, 0), 1), 0)
    logp = tl.sum(tl.sum(tl.where(here, own, 0.0), 1), 0)
    return pick, where, word, logp


# one request: its K rows' candidates become K live texts and finished ones
@triton.jit
def advance_beam(
    score, token, peak, mass, logits, divisors, next_token, length, written, limit, done,
    live, pool, pool_count, pool_row, pool_stop, pool_logp, willing, ids, logps, parents,
    ends, stop, vocabulary, positions, parts, columns,
    STOPS: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, N: tl.constexpr, NP: tl.constexpr,
    PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    if tl.load(done + request) == 0:
        i, c, n = tl.arange(0, KP), tl.arange(0, COLUMNS), tl.arange(0, NP)
        in_beam, row, shelf = i < K, request * K + i, request * N + n
        count = tl.load(written + request)
        forced = count + i * 0 >= tl.load(limit + request)  # (K,), the same for all
        own, words, text, asked = _extensions(
            score, token, peak, mass, logits, live, row, in_beam, forced, c, columns, parts, ends,
            stop, vocabulary, PARTS,
        )  # fmt: skip
        flat = i[:, None] * COLUMNS + c[None, :]
        finished = tl.load(pool + shelf, n < N, float("inf"))
        divisor = tl.load(divisors + count + 1)
        new_live = tl.full((KP,), -float("inf"), tl.float64)
        new_token, new_parent, filled = tl.zeros((KP,), tl.int32), tl.zeros((KP,), tl.int32), 0
        new_logp = tl.zeros((KP,), tl.float32)
        for rank in tl.static_range((1 + STOPS) * K):
            pick, where, word, logp = _best(text, own, words, flat, KP * COLUMNS)
            parent = where // COLUMNS
            real = pick > -float("inf")
            stops = tl.load(ends + word) > 0
            if rank < K:  # an end among the first K replaces the worst finished text
                worst = tl.min(finished, 0)
                place = tl.min(tl.where(finished == worst, n, NP), 0)
                better = real & stops & (pick / divisor > worst)
                finished = tl.where(n == tl.where(better, place, NP), pick / divisor, finished)
                tl.store(pool_count + request * N + place, count, better)
                tl.store(pool_row + request * N + place, parent, better)
                tl.store(pool_stop + request * N + place, word, better)
                tl.store(pool_logp + request * N + place, logp, better)
                by_itself = tl.sum(tl.where(i == parent, asked.to(tl.int32), 0), 0)
                tl.store(willing + request * N + place, by_itself, better)
            goes_on = i == tl.where(real & (stops == 0), filled, KP)
            new_live = tl.where(goes_on, pick, new_live)
            new_token, new_parent = tl.where(goes_on, word, new_token), tl.where(goes_on, parent, new_parent)
            new_logp = tl.where(goes_on, logp, new_logp)
            filled += tl.where(real & (stops == 0) & (filled < K), 1, 0)
            text = tl.where(flat == where, -float("inf"), text)
        tl.store(pool + shelf, finished, n < N)
        # no token increases a log-probability: a live score over the largest divisor to come is a bound
        bound = tl.maximum(tl.load(divisors + tl.load(limit + request) + 1), tl.load(divisors + count + 2))
        best = tl.max(new_live, 0)
        goes = tl.where((best > -float("inf")) & (best / bound > tl.min(finished, 0)), 1, 0)
        _write(next_token, length, live, ids, logps, parents, row, in_beam, count, positions, goes,
               new_live, new_token, new_parent, new_logp)  # fmt: skip
        tl.store(done + request, 1 - goes)
        tl.store(written + request, count + goes)


# what K rows of a request have written, and where they continue
@triton.jit
def _write(
    next_token, length, live, ids, logps, parents, row, in_beam, count, positions, goes,
    new_live, new_token, new_parent, new_logp,
):  # fmt: skip
    going = row * 0 + goes > 0  # (K,), the same for all
    tl.store(ids + row * positions + count, new_token, in_beam)
    tl.store(logps + row * positions + count, new_logp, in_beam)
    tl.store(parents + row * positions + count, new_parent.to(tl.uint8), in_beam)
    tl.store(live + row, tl.where(going, new_live, -float("inf")), in_beam)
    tl.store(next_token + row, tl.where(going, new_token, 0).to(tl.int64), in_beam)
    lengths = tl.load(length + row, in_beam, 0)
    tl.store(length + row, tl.where(going, lengths + 1, 0), in_beam)


# one request that continues: its rows inherit the past of the rows they follow
@triton.jit
def inherit(
    ancestry, parents, length, written, done, positions,
    K: tl.constexpr, KP: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    if tl.load(done + request) == 0:
        i = tl.arange(0, KP)
        row = request * K + i
        count = tl.load(written + request) - 1
        newest = tl.load(length + request * K) - 1  # where the parents wrote in this step
        parent = tl.load(parents + row * positions + count, i < K, 0).to(tl.int64)
        for begin in range(0, newest + 1, SPAN):
            t = begin + tl.arange(0, SPAN)
            ok = (i < K)[:, None] & (t <= newest)[None, :]
            old = tl.load(ancestry + (request * K + parent)[:, None] * positions + t[None, :], ok, 0)
            new = tl.where(t[None, :] == newest, parent[:, None], old)
            tl.debug_barrier()  # a whole block is read before any of it is overwritten
            tl.store(ancestry + row[:, None] * positions + t[None, :], new.to(tl.uint8), ok)
