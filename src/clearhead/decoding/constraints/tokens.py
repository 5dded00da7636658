"""An automaton over bytes, walked by the tokens of a vocabulary.

Which state each token leads to is found for all tokens at once, along the tree of their common beginnings.
From that: which states the tokens can reach at all, and how few of them lead to an end.

Shapes: S states, V vocabulary, N nodes of the tree of pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy
from numpy.typing import NDArray

from clearhead.decoding.constraints.automaton import Automaton, Flags, Ints

TOGETHER = 32  # states from which the tokens are walked at a time
KEPT = 128  # states whose tokens' ways are remembered
FAR = numpy.iinfo(numpy.int32).max  # tokens to an end that cannot be reached


Numbers = NDArray[numpy.int64]


class PieceTree:
    """Pieces by their common beginnings: each node one byte behind its parent, level by level."""

    def __init__(self, pieces: Sequence[bytes], usable: Iterable[int]) -> None:
        ids = [id for id in usable if id < len(pieces) and pieces[id]]
        self.ids = numpy.array(ids, dtype=numpy.int64)
        self.vocabulary = len(pieces)
        at = numpy.zeros(len(ids), dtype=numpy.int64)  # the node each piece has come to
        sizes = numpy.array([len(pieces[id]) for id in ids])
        joined = numpy.frombuffer(b"".join(pieces[id] for id in ids), dtype=numpy.uint8).astype(numpy.int64)
        begins = numpy.cumsum(sizes) - sizes
        self.nodes = 1
        letters, parents = [numpy.zeros(1, dtype=numpy.int64)], [numpy.zeros(0, dtype=numpy.int64)]
        for depth in range(int(sizes.max(initial=0))):
            deep = numpy.flatnonzero(sizes > depth)
            steps = at[deep] * 256 + joined[begins[deep] + depth]
            fresh, numbers = numpy.unique(steps, return_inverse=True)
            letters.append(fresh % 256)
            parents.append(fresh // 256)
            at[deep] = self.nodes + numbers
            self.nodes += len(fresh)
        self.letters = numpy.concatenate(letters)  # (N,) the byte that leads to each node
        # children of a node stand together, for nodes are numbered by their parents
        self.children = numpy.bincount(numpy.concatenate(parents), minlength=self.nodes)  # (N,) how many
        self.first_child = numpy.cumsum(self.children) - self.children + 1
        self.ends = at  # the node at which each usable piece ends
        self.is_end = numpy.zeros(self.nodes, dtype=bool)
        self.is_end[at] = True

    def walk(self, table: Ints, states: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Where pieces and their beginnings lead: the node, which of the states it began in, the new state.

        Only what fits is told.
        """
        nodes, rows, here = numpy.zeros_like(states), numpy.arange(len(states)), states
        flat, found = table.ravel(), []
        while len(nodes):
            counts = self.children[nodes]
            behind = numpy.repeat(numpy.cumsum(counts) - counts, counts)
            nodes = numpy.repeat(self.first_child[nodes], counts) + numpy.arange(len(behind)) - behind
            rows = numpy.repeat(rows, counts)
            here = flat[numpy.repeat(here, counts) * 256 + self.letters[nodes]].astype(numpy.int64)
            live = numpy.flatnonzero(here)  # most ways end after a byte or two
            nodes, rows, here = nodes[live], rows[live], here[live]
            found.append((nodes, rows, here))
        whole = [numpy.concatenate(parts) for parts in zip(*found, strict=True)]
        return whole[0], whole[1], whole[2]


class TokenAutomaton:
    """An automaton whose moves are tokens, with the fewest tokens from each state to an end."""

    def __init__(self, automaton: Automaton, tree: PieceTree, never_first: frozenset[int]) -> None:
        self.tree, self.table, self.accepts = tree, automaton.table, automaton.accepts
        self.never_first = numpy.isin(tree.ids, list(never_first))
        self._ways: dict[int, Ints] = {}
        self.sources, self.targets = self._reachable()
        self.distance = self._distances()
        reached = self.distance[self.distance < FAR]
        self.farthest = int(reached.max(initial=0))  # with more room than this every live state can still end

    def ways(self, state: int) -> Ints:
        """(usable,): the state after each usable token (`tree.ids`), 0 where it does not fit."""
        if state not in self._ways:
            if len(self._ways) >= KEPT:
                self._ways.pop(next(iter(self._ways)))
            leads = numpy.zeros(self.tree.nodes, dtype=numpy.int32)
            nodes, _, states = self.tree.walk(self.table, numpy.array([state]))
            leads[nodes] = states
            found = leads[self.tree.ends]
            if state == 1:  # to which nothing leads back where a text loses its opening
                found[self.never_first] = 0
            self._ways[state] = found
        return self._ways[state]

    def _reachable(self) -> tuple[Numbers, Numbers]:
        """Every pair of states, of those that tokens reach from the start, between which a token leads."""
        size = len(self.table)
        seen = numpy.zeros(size, dtype=bool)
        seen[[0, 1]] = True
        first = numpy.unique(self.ways(1)).astype(numpy.int64)
        first = first[first > 0]
        pairs = [first + size]  # from state 1
        seen[first] = True
        ahead = first[first != 1]
        while len(ahead):
            states, ahead = ahead[:TOGETHER], ahead[TOGETHER:]
            nodes, rows, targets = self.tree.walk(self.table, states)
            ending = self.tree.is_end[nodes]
            met = numpy.unique(states[rows[ending]] * size + targets[ending])
            pairs.append(met)
            fresh = numpy.unique(met % size)
            fresh = fresh[~seen[fresh]]
            seen[fresh] = True
            ahead = numpy.concatenate([ahead, fresh])
        every = numpy.concatenate(pairs)
        return every // size, every % size

    def _distances(self) -> Ints:
        """The fewest tokens from each state to an end."""
        found = numpy.where(self.accepts, 0, FAR).astype(numpy.int32)
        found[0] = FAR
        steps = 0
        while True:
            near = self.sources[found[self.targets] == steps]
            steps += 1
            fresh = near[found[near] > steps]
            if not len(fresh):
                return found
            found[fresh] = steps

    def can_end(self, written: int, least: int, limit: int) -> Flags:
        """(S,): the states that a row may stand in once it has written so many tokens.

        Those from which a text of at least `least` and at most `limit` tokens can still be ended.
        """
        late = max(written, least)
        live: Flags = self.distance <= limit - late
        for _ in range(late - written):
            before = numpy.zeros_like(live)
            before[self.sources[live[self.targets]]] = True
            live = before
        return live
