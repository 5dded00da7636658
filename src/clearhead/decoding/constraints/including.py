"""The text contains each of a few sequences, wherever it likes.

All required and banned sequences are looked for at once (Aho and Corasick 1975); which of the required ones
have been met is a set of bits. For every place in the search tree and every such set it is known how few
tokens would bring the rest, bans and overlaps considered, and a token is ruled out if it would leave too
little room. So nothing is forced while there is room, and whatever is written at the end holds all of them.

Shapes: R rows, V vocabulary, N nodes of the search tree, A tokens that occur in sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.constraints.automaton import Flags, Ints
from clearhead.decoding.constraints.past import Walk, ruled_out
from clearhead.decoding.constraints.sequences import holds, refuse_symbols, repeats
from clearhead.decoding.options import Ids, Options
from clearhead.decoding.processors import Past
from clearhead.decoding.steps import Symbols

MOST = 12  # required sequences: the sets of those met are 2 to this power
FAR = 2**30  # tokens to what cannot be reached

Place = tuple[int, int]  # node of the search tree, set of required sequences that have been met


class Including:
    """Keeps enough room for what is still missing; the stop symbol waits until nothing is."""

    def __init__(self, options: Options, symbols: Symbols, limits: Sequence[int]) -> None:
        refuse_symbols("required text", options.must_include, symbols)
        for one in options.must_include:
            if any(holds(one, banned) for banned in options.banned):
                raise UserError("A required text holds what is banned: take one of them away.")
            if repeats(one, options.no_repeat):
                raise UserError(
                    f"A required text repeats {options.no_repeat} tokens, which no_repeat rules out."
                )
        # what stands inside another is there as soon as that is
        several = dict.fromkeys(options.must_include)
        required = [one for one in several if not any(one != two and holds(two, one) for two in several)]
        if len(required) > MOST:
            raise UserError(f"At most {MOST} texts can be required at a time, not {len(required)}.")
        self.limits, self.stop, self.all = limits, symbols.stop, 2 ** len(required) - 1
        self.tree = _Tree(required, options.banned)
        self.need = _needs(self.tree, self.all)
        self.walk = Walk((0, 0), self._after)
        self._refuse_impossible(options)

    def _after(self, place: Place, token: int) -> Place:
        node = int(self.tree.next[place[0], self.tree.column.get(token, -1)])
        return node, place[1] | int(self.tree.met[node])

    def _refuse_impossible(self, options: Options) -> None:
        [(node, met)] = self.walk.states(torch.tensor([options.prefix], dtype=torch.long))
        tokens = int(self.need[met, node])
        if tokens >= FAR:
            raise UserError("What is required cannot be written without what is banned.")
        room = min(self.limits, default=FAR) - len(options.prefix)
        if tokens > room:
            behind = " behind the prefix" if options.prefix else ""
            raise UserError(
                f"What is required takes at least {tokens} tokens{behind}, and {max(room, 0)} may be "
                f"written: raise the limit."
            )

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        places = self.walk.states(past.tokens)
        if not places:
            return logp
        nodes, met = numpy.array(places).T
        following = self.tree.next[nodes]  # (R, A + 1)
        need = self.need[met[:, None] | self.tree.met[following], following]
        rooms = numpy.array([self.limits[one] - past.written for one in past.request.tolist()])
        fits = torch.from_numpy(need <= rooms[:, None] - 1).to(logp.device)
        allowed = fits[:, -1:].expand(logp.shape).clone()  # tokens that occur in no sequence are all alike
        allowed[:, self.tree.tokens.to(logp.device)] = fits[:, :-1]
        allowed[:, self.stop] = torch.from_numpy(met == self.all).to(logp.device)
        return ruled_out(logp, allowed)


class _Tree:
    """The search tree of required and banned sequences, with a next node for every token from every node."""

    def __init__(self, required: Sequence[Ids], banned: Sequence[Ids]) -> None:
        every = [*required, *banned]
        alphabet = sorted({token for one in every for token in one})
        self.tokens = torch.tensor(alphabet, dtype=torch.long)
        self.column = {
            token: place for place, token in enumerate(alphabet)
        }  # any other token: the last column
        beginnings = {one[:size] for one in every for size in range(len(one) + 1)} | {()}
        nodes = sorted(beginnings, key=lambda one: (len(one), one))
        number = {beginning: node for node, beginning in enumerate(nodes)}
        self.next: Ints = numpy.zeros((len(nodes), len(alphabet) + 1), dtype=numpy.int32)
        self.met: Ints = numpy.zeros(
            len(nodes), dtype=numpy.int32
        )  # required sequences that end here, as bits
        self.bad: Flags = numpy.zeros(len(nodes), dtype=bool)  # a banned one ends here
        fallback = [0] * len(nodes)  # the longest other beginning that the node ends with
        for node, beginning in enumerate(nodes):
            for bit, one in enumerate(required):
                self.met[node] |= (beginning == one) << bit
            self.bad[node] = beginning in banned or self.bad[fallback[node]]
            self.met[node] |= self.met[fallback[node]]
            self.next[node] = self.next[fallback[node]] if node else 0
            for token, place in self.column.items():
                child = number.get((*beginning, token))
                if child is not None:
                    fallback[child] = int(self.next[node, place])  # still as if the child were not there
                    self.next[node, place] = child


def _needs(tree: _Tree, everything: int) -> Ints:
    """(sets, N): how few tokens bring what a set lacks, from each node; `FAR`: none do."""
    found = numpy.full((everything + 1, len(tree.met)), FAR, dtype=numpy.int32)
    found[everything] = 0
    found[:, tree.bad] = FAR
    for met in range(everything - 1, -1, -1):  # a set with more is a larger number
        after = met | tree.met[tree.next]  # (N, A + 1)
        while True:
            fewest = numpy.minimum(found[after, tree.next].min(axis=1) + 1, FAR)
            fewest[tree.bad] = FAR
            if (fewest == found[met]).all():
                break
            found[met] = fewest
    return found
