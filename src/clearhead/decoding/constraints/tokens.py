"""An automaton over bytes, traversed by the tokens of a vocabulary.

The state that each token leads to is computed for all tokens at once, along the trie of their common
prefixes. That gives the states that tokens can reach at all, and how few tokens lead to an end with
everything met that is searched for. Sets of what has been met are bits.

Shapes: S states, M sets, V vocabulary, N nodes of the tree of pieces, E edges.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy
from numpy.typing import NDArray

from clearhead.base.errors import UserError
from clearhead.decoding.constraints.automaton import Automaton, Flags, Ints

TOGETHER = 32  # states from which the tokens are traversed at a time
KEPT = 128  # states whose transitions are cached, and limits whose ends are
SETS = 2**23  # states, times the sets of what may have been met
FAR = numpy.iinfo(numpy.int32).max  # tokens to an end that cannot be reached


Numbers = NDArray[numpy.int64]


class PieceTree:
    """Pieces in a trie: each node is one byte after its parent, level by level."""

    def __init__(self, pieces: Sequence[bytes], usable: Iterable[int]) -> None:
        ids = [id for id in usable if id < len(pieces) and pieces[id]]
        self.ids = numpy.array(ids, dtype=numpy.int64)
        self.vocabulary = len(pieces)
        at = numpy.zeros(len(ids), dtype=numpy.int64)  # the node each piece has reached
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
        # children of a node are adjacent, for nodes are numbered by their parents
        self.children = numpy.bincount(numpy.concatenate(parents), minlength=self.nodes)  # (N,) how many
        self.first_child = numpy.cumsum(self.children) - self.children + 1
        self.ends = at  # the node at which each usable piece ends
        self.is_end = numpy.zeros(self.nodes, dtype=bool)
        self.is_end[at] = True

    def walk(
        self, automaton: Automaton, states: Numbers, like: tuple[Numbers, Numbers]
    ) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Where pieces and their prefixes lead: the node, which of the states it started from, the new state.

        And what was met on the way. Only what differs from `like` is returned: (N,) states and what was met,
        all 0 for "does not match", or those of another state. Where two paths reach the same state with the
        same met, so do all continuations: searches soon forget their past, so little is traversed.
        """
        nodes, rows, here = numpy.zeros_like(states), numpy.arange(len(states)), states
        met = numpy.zeros_like(states)
        flat, found = automaton.table.ravel(), []
        while len(nodes):
            counts = self.children[nodes]
            behind = numpy.repeat(numpy.cumsum(counts) - counts, counts)
            nodes = numpy.repeat(self.first_child[nodes], counts) + numpy.arange(len(behind)) - behind
            here = flat[numpy.repeat(here, counts) * 256 + self.letters[nodes]].astype(numpy.int64)
            met = numpy.where(here > 0, numpy.repeat(met, counts) | automaton.met[here], 0)
            differs = numpy.flatnonzero((here != like[0][nodes]) | (met != like[1][nodes]))
            rows = numpy.repeat(rows, counts)[differs]
            nodes, here, met = nodes[differs], here[differs], met[differs]
            found.append((nodes, rows, here, met))
        whole = [numpy.concatenate(parts) for parts in zip(*found, strict=True)]
        return whole[0], whole[1], whole[2], whole[3]


class TokenAutomaton:
    """An automaton whose moves are tokens, with the fewest of them from each state and set to an end.

    A text begins in one of `starts`, and there not with the tokens `never_first`. Without `look_ahead` every
    state counts as a possible end. `alike`: most tokens lead to the same state from anywhere.
    """

    def __init__(
        self,
        automaton: Automaton,
        tree: PieceTree,
        starts: Sequence[int] = (1,),
        never_first: frozenset[int] = frozenset(),
        everything: int = 0,
        look_ahead: bool = True,
        alike: bool = False,
    ) -> None:
        self.tree, self.automaton, self.starts = tree, automaton, frozenset(starts)
        self.never_first = numpy.isin(tree.ids, list(never_first))
        self.everything = everything  # that is looked for, as bits
        self.ways = functools.lru_cache(KEPT)(self._ways)
        self.can_end = functools.lru_cache(KEPT)(self._can_end)
        self.alike = alike
        nothing = numpy.zeros(tree.nodes, dtype=numpy.int64)
        self._like = nothing, nothing
        self._like = self._walked(starts[0]) if alike else self._like
        self.need: Ints = numpy.zeros((1, len(automaton.table)), dtype=numpy.int32)  # (M, S)
        self.need[:, 0] = FAR
        if look_ahead:
            if (self.everything + 1) * len(automaton.table) > SETS:
                raise UserError("The constraints are too complex together: require fewer texts.")
            self.sources, self.targets, self.met = self._edges()
            self.need = self._needs()
        self.farthest = int(self.need[self.need < FAR].max(initial=0))

    def _ways(self, state: int) -> tuple[Numbers, Numbers]:
        """The state after each usable token (`tree.ids`), 0 if it does not match, and what it meets."""
        leads, meets = self._walked(state)
        found = leads[self.tree.ends]
        if state in self.starts:  # nothing leads back to these if a text loses its opening
            found[self.never_first] = 0
        return found, meets[self.tree.ends]

    def _walked(self, state: int) -> tuple[Numbers, Numbers]:
        """(N,) the state at every node of the trie, and what was met on the way there."""
        leads, meets = self._like[0].copy(), self._like[1].copy()
        nodes, _, states, met = self.tree.walk(self.automaton, numpy.array([state]), self._like)
        leads[nodes], meets[nodes] = states, met
        return leads, meets

    def _edges(self) -> tuple[Numbers, Numbers, Numbers]:
        """All transitions by tokens, from the starts on: state, next state, and what is met; by state."""
        size, sets = len(self.automaton.table), self.everything + 1
        seen = numpy.zeros(size, dtype=bool)
        seen[[0, *self.starts]] = True
        every: list[Numbers] = []
        ahead = numpy.array(sorted(self.starts - {0}), dtype=numpy.int64)
        begun = bool(self.never_first.any())
        while len(ahead):
            alone = self.alike or (begun and int(ahead[0]) in self.starts)
            count = 1 if alone else TOGETHER
            states, ahead = ahead[:count], ahead[count:]
            if alone:
                targets, met = self.ways(int(states[0]))
                sources = numpy.full_like(targets, states[0])[targets > 0]
                targets, met = targets[targets > 0], met[targets > 0]
            else:
                nodes, rows, targets, met = self.tree.walk(self.automaton, states, self._like)
                ending = self.tree.is_end[nodes]
                sources, targets, met = states[rows[ending]], targets[ending], met[ending]
            every.append(numpy.unique((sources * size + targets) * sets + met))
            fresh = numpy.unique(targets)
            fresh = fresh[~seen[fresh]]
            seen[fresh] = True
            ahead = numpy.concatenate([ahead, fresh])
        codes = numpy.unique(numpy.concatenate([*every, numpy.zeros(0, dtype=numpy.int64)]))
        return codes // sets // size, codes // sets % size, codes % sets

    def _needs(self) -> Ints:
        """(M, S): the fewest tokens to an end with everything met."""
        found = numpy.full((self.everything + 1, len(self.automaton.table)), FAR, dtype=numpy.int32)
        found[-1][self.automaton.accepts] = 0
        if not len(self.sources):
            return found
        sources, first = numpy.unique(self.sources, return_index=True)
        for met in range(self.everything, -1, -1):  # a larger set has a larger number
            after = met | self.met
            while True:
                fewest = numpy.minimum.reduceat(found[after, self.targets], first)
                better = numpy.minimum(found[met][sources], numpy.where(fewest < FAR, fewest + 1, FAR))
                if (better == found[met][sources]).all():
                    break
                found[met][sources] = better
        return found

    def _can_end(self, written: int, least: int, limit: int) -> Flags:
        """(M, S): the sets and states that a row may be in once it has written this many tokens.

        Those from which a text of at least `least` and at most `limit` tokens can still end.
        """
        late = max(written, least)
        live: Flags = self.need <= limit - late
        if not hasattr(self, "sources"):
            return live
        sets = numpy.arange(len(live))[:, None] | self.met  # (M, E)
        sources, first = numpy.unique(self.sources, return_index=True)
        for _ in range(late - written):
            before = numpy.zeros_like(live)
            if len(sources):
                before[:, sources] = numpy.logical_or.reduceat(live[sets, self.targets], first, axis=1)
            live = before
        return live
