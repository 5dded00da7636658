"""The pieces of a Unigram vocabulary, with their probabilities.

Kudo's method (2018): start from every substring that recurs, estimate the
probability of each by expectation maximisation, drop those whose loss costs the
corpus least, and repeat until few enough are left. Written here because the
library's trainer gives a different result each time (it visits the words in hash
order, and sums in the order in which threads finish); this one depends on its
input alone. Works on bytes written as letters. No torch.

W words, N nodes (a position between two bytes of a word), E edges (a piece that
leads from one node to a later one), P pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from clearhead.text.parts import BYTE_LETTERS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST_PIECE = 24  # bytes
_LONGEST_WORD = 200  # bytes; longer ones are cut for learning
_MOST_BYTES = 2_000_000  # of different words, the most frequent first: bounds time and memory
# Seeds for each wanted piece. With many more, whole words crowd out the stems and endings they are made of;
# with fewer, good pieces are missing. Ten gave the fewest tokens on held-out German.
_SEEDS = 10
_SHRINK = 0.75  # the share of pieces that a round of pruning keeps
_RARE = 0.5  # a piece expected less often than this is dropped at once
_BASE = np.uint64(0x9E3779B97F4A7C15)  # of the rolling hash


def learn_pieces(words: Mapping[str, int], size: int) -> list[tuple[str, float]]:
    """At most `size` pieces with their log probabilities, including the 256 bytes, most probable first.

    `words` counts each word; both words and pieces are written in the letters of bytes.

    >>> pieces = learn_pieces({"low": 5, "lower": 3, "slow": 2}, 300)
    >>> pieces[0][0], len(pieces) >= 256
    ('low', True)
    """
    texts, counts = _commonest(words)
    lattice = _Lattice(texts)
    pieces, scores = _seeds(lattice, counts, most=_SEEDS * (size - 256))
    lattice.connect(pieces)
    alive = np.ones(len(pieces), dtype=bool)
    logs = np.log(scores) - np.log(scores.sum())
    others: _Alternatives | None = None
    while True:
        for _ in range(2):
            logs, alive = _maximised(lattice.expected(logs, counts), alive)
            lattice.forget(alive)
        left = int(alive.sum())
        if left <= size:
            break
        # created late, because the first rounds drop most of the pieces
        others = others or _Alternatives(pieces, alive)
        others.lattice.forget(alive)
        losses = _losses(lattice, others, logs, counts)
        alive &= _best(losses, alive, max(size, int(_SHRINK * left)))
        lattice.forget(alive)
    # rounded, so that the last bits of this machine's logarithm do not reach the file
    found = [(-round(float(logs[i]), 6), pieces[i]) for i in np.flatnonzero(alive)]
    return [(_letters(piece), -score) for score, piece in sorted(found)]


class _Lattice:
    """All segmentations of each of many words, as one graph.

    Words lie end to end in `text` with one unused position after each, so a position
    in `text` and a node have the same number.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        self.words = words
        self.lengths = np.array([len(word) for word in words], dtype=np.int64)  # (W,)
        self.starts = np.cumsum(self.lengths + 1) - self.lengths - 1  # (W,)
        self.ends = self.starts + self.lengths  # (W,)
        self.text = np.frombuffer(b"\0".join(words) + b"\0", dtype=np.uint8)  # (N,)
        self.owner = np.repeat(np.arange(len(words)), self.lengths + 1)  # (N,) the word of each node

    def windows(self) -> list[tuple[Ints, NDArray[np.uint64]]]:
        """For lengths 1, 2, …: where each substring of that length begins, and its hash."""
        room = self.ends[self.owner] - np.arange(len(self.text))  # (N,) bytes up to the word's end
        begins = np.flatnonzero(room >= 1)
        hashes = self.text[begins].astype(np.uint64) + np.uint64(1)
        found = [(begins, hashes)]
        for length in range(2, LONGEST_PIECE + 1):
            fits = room[begins] >= length
            begins, hashes = begins[fits], hashes[fits]
            hashes = hashes * _BASE + (self.text[begins + length - 1].astype(np.uint64) + np.uint64(1))
            found.append((begins, hashes))
        return found

    def connect(self, pieces: Sequence[bytes]) -> None:
        """Find every occurrence of a piece."""
        known = _Lattice(pieces)
        origin: list[Ints] = []
        target: list[Ints] = []
        piece: list[Ints] = []
        for (begins, hashes), (owners, theirs) in zip(self.windows(), known.windows(), strict=True):
            whole = known.starts[known.owner[owners]] == owners
            whole &= known.lengths[known.owner[owners]] == len(origin) + 1
            theirs, ids = theirs[whole], known.owner[owners][whole]
            order = np.argsort(theirs, kind="stable")
            theirs, ids = theirs[order], ids[order]
            place = np.minimum(np.searchsorted(theirs, hashes), max(len(theirs) - 1, 0))
            match = theirs[place] == hashes if len(theirs) else np.zeros(len(hashes), dtype=bool)
            origin.append(begins[match])
            target.append(begins[match] + len(origin))
            piece.append(ids[place[match]])
        self._arrange(*(np.concatenate(part) for part in (origin, target, piece)))

    def forbid_whole(self) -> None:
        """Drop the edges that span a whole word."""
        self._keep(self.target - self.origin < self.lengths[self.owner[self.origin]])

    def _arrange(self, origin: Ints, target: Ints, piece: Ints) -> None:
        """Sort the edges by their end within the word, then by node, so that one pass suffices."""
        depth = target - self.starts[self.owner[target]]
        order = np.argsort(depth * len(self.text) + target, kind="stable")
        self.origin, self.target, self.piece = origin[order], target[order], piece[order]  # (E,)
        self.depth = depth[order]  # (E,)

    def _keep(self, chosen: NDArray[np.bool_]) -> None:
        self.origin, self.target = self.origin[chosen], self.target[chosen]
        self.piece, self.depth = self.piece[chosen], self.depth[chosen]

    def forget(self, alive: NDArray[np.bool_]) -> None:
        """Drop the edges of pieces that have been removed."""
        self._keep(alive[self.piece])

    def _layers(self) -> list[tuple[slice, Ints]]:
        """The edges that end at depth 1, 2, …: their range, and where each node's edges begin within it."""
        cuts = np.searchsorted(self.depth, np.arange(1, self.lengths.max() + 2))
        fresh = np.flatnonzero(np.diff(self.target, prepend=-1))  # the first edge of each node
        bounds = np.searchsorted(fresh, cuts)
        return [
            (slice(low, high), fresh[first:last] - low)
            for low, high, first, last in zip(cuts[:-1], cuts[1:], bounds[:-1], bounds[1:], strict=True)
            if high > low
        ]

    def expected(self, logs: Floats, counts: Floats) -> Floats:
        """The expected count of each piece over all segmentations of every word: (P,)."""
        reach = np.zeros(len(self.text))  # (N,) log probability of all paths from the word's start to here
        layers = self._layers()
        steps = logs[self.piece]  # (E,)
        for edges, segments in layers:
            ways = reach[self.origin[edges]] + steps[edges]
            best = np.maximum.reduceat(ways, segments)
            spread = np.repeat(best, np.diff(segments, append=len(ways)))
            total = best + np.log(np.add.reduceat(np.exp(ways - spread), segments))
            reach[self.target[edges][segments]] = total
        visits = np.zeros(len(self.text))  # (N,) expected visits to a node
        visits[self.ends] = counts
        shares = np.exp(reach[self.origin] + steps - reach[self.target])  # (E,) of the visits to its end
        for edges, _ in reversed(layers):
            shares[edges] *= visits[self.target[edges]]
            np.add.at(visits, self.origin[edges], shares[edges])
        return _sums(self.piece, shares, len(logs))

    def best_cuts(self, logs: Floats) -> tuple[Ints, Ints]:
        """The most probable segmentation of each word: word numbers and pieces, one entry per piece."""
        reach = np.zeros(len(self.text))
        last = np.zeros(len(self.text), dtype=np.int64)  # (N,) the last edge of the best path
        for edges, segments in self._layers():
            ways = reach[self.origin[edges]] + logs[self.piece[edges]]
            best = np.maximum.reduceat(ways, segments)
            reach[self.target[edges][segments]] = best
            spread = np.repeat(best, np.diff(segments, append=len(ways)))
            winners = np.flatnonzero(ways == spread)[::-1] + edges.start
            last[self.target[winners]] = winners  # the first of equals is written last, and wins
        owners, pieces = [], []
        words = np.arange(len(self.words))
        nodes = self.ends
        while len(words):
            arriving = last[nodes]
            owners.append(words)
            pieces.append(self.piece[arriving])
            nodes = self.origin[arriving]
            going = nodes > self.starts[words]
            words, nodes = words[going], nodes[going]
        return np.concatenate(owners), np.concatenate(pieces)


class _Alternatives:
    """How to write each piece of several bytes with other pieces."""

    def __init__(self, pieces: Sequence[bytes], alive: NDArray[np.bool_]) -> None:
        self.numbers = np.flatnonzero(alive[256:]) + 256
        self.lattice = _Lattice([pieces[int(number)] for number in self.numbers])
        self.lattice.connect(pieces)
        self.lattice.forbid_whole()


def _commonest(words: Mapping[str, int]) -> tuple[list[bytes], Floats]:
    """The most frequent words as bytes, cut to a bounded length, and how often each occurs."""
    byte_of = {ord(letter): byte for byte, letter in enumerate(BYTE_LETTERS)}
    counts: dict[bytes, int] = {}
    total = 0
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
        text = bytes(word.translate(byte_of), "latin-1")
        total += len(text)
        if total > _MOST_BYTES and counts:
            break
        for begin in range(0, len(text), _LONGEST_WORD):
            part = text[begin : begin + _LONGEST_WORD]
            counts[part] = counts.get(part, 0) + count
    return list(counts), np.array(list(counts.values()), dtype=np.float64)


def _seeds(lattice: _Lattice, counts: Floats, most: int) -> tuple[list[bytes], Floats]:
    """The 256 bytes and the most valuable substrings (count × length), each with that value.

    A substring starts and ends at character boundaries, and occurs at least twice.
    """
    room_for_end = np.append(lattice.text, 0)
    inside = (room_for_end & 0xC0) == 0x80  # a byte that continues a character
    inside[lattice.ends] = False
    weights = counts[lattice.owner]  # (N,)
    pieces = [bytes([byte]) for byte in range(256)]
    seen = np.bincount(lattice.text, weights=weights, minlength=256)
    seen[0] -= counts.sum()  # the unused positions after the words
    worths = [np.maximum(seen, _RARE)]
    first, length_of = [], []
    for length, (begins, hashes) in enumerate(lattice.windows(), start=1):
        whole = ~inside[begins] & ~inside[begins + length]
        begins, hashes = begins[whole], hashes[whole]
        if length == 1 or not len(begins):
            continue
        _, places, kinds = np.unique(hashes, return_index=True, return_inverse=True)
        often = np.bincount(kinds.reshape(-1), weights=weights[begins])
        recurs = often >= 2
        first.append(begins[places][recurs])
        length_of.append(np.full(int(recurs.sum()), length))
        worths.append(often[recurs] * length)
    if first:
        begins, lengths = np.concatenate(first), np.concatenate(length_of)
        order = np.argsort(-np.concatenate(worths[1:]), kind="stable")[:most]
        raw = lattice.text.tobytes()
        pieces += [raw[begins[i] : begins[i] + lengths[i]] for i in order]
        worths = [worths[0], np.concatenate(worths[1:])[order]]
    return pieces, np.concatenate(worths)


def _maximised(expected: Floats, alive: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """New log probabilities, with a prior that favours few pieces; drops rare ones but keeps single bytes."""
    single = np.arange(len(expected)) < 256
    alive = alive & (single | (expected >= _RARE))
    likely = np.where(single, np.maximum(expected, _RARE), expected)
    logs = np.full(len(expected), -np.inf)
    logs[alive] = _digamma(likely[alive]) - _digamma(likely[alive].sum(keepdims=True))
    return logs, alive


def _losses(lattice: _Lattice, others: _Alternatives, logs: Floats, counts: Floats) -> Floats:
    """Approximate loss in corpus log likelihood if a piece is replaced by its best segmentation: (P,)."""
    owners, pieces = lattice.best_cuts(logs)
    used = _sums(pieces, counts[owners], len(logs))
    total = used.sum()
    owners, parts = others.lattice.best_cuts(logs)
    numbers = others.numbers[owners]
    count = np.bincount(numbers, minlength=len(logs))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.log(used[parts] + used[numbers])
        without = _sums(numbers, terms, len(logs))
        without -= count * np.log(total + used * (count - 1))
        losses = used * (np.log(used) - np.log(total) - without)
    return np.where(used > 0, losses, -np.inf)


def _best(losses: Floats, alive: NDArray[np.bool_], keep: int) -> NDArray[np.bool_]:
    """The single bytes, and of the other pieces those whose removal would cost most."""
    candidates = np.flatnonzero(alive[256:]) + 256
    order = np.argsort(-losses[candidates], kind="stable")
    chosen = np.zeros(len(losses), dtype=bool)
    chosen[:256] = True
    chosen[candidates[order[: max(keep - 256, 0)]]] = True
    return chosen


def _sums(places: Ints, weights: Floats, size: int) -> Floats:
    """The sum of the weights at each index: (size,)."""
    sums: Floats = np.bincount(places, weights=weights, minlength=size).astype(np.float64)
    return sums


def _digamma(x: Floats) -> Floats:
    """The derivative of log Γ: the recurrence up to 6 and the asymptotic series from there."""
    x = np.array(x, dtype=np.float64)
    result = np.zeros_like(x)
    for _ in range(6):
        small = x < 6
        result[small] -= 1 / x[small]
        x[small] += 1
    inverse = 1 / (x * x)
    return result + np.log(x) - 0.5 / x - inverse * (1 / 12 - inverse * (1 / 120 - inverse / 252))


def _letters(piece: bytes) -> str:
    return "".join(BYTE_LETTERS[byte] for byte in piece)
