"""A beam search that records itself: every extension it ranked, and what became of it.

`DrawnBeam` is the library's `Beam` with a recorder: it searches exactly as that does, and records each
choice. `tree` turns the records into plain data. Follows one request at a time; knows nothing about pages.

Shapes: K beam size, C candidates of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from clearhead.decoding.backend import Batch
from clearhead.decoding.beam import Beam, Choice, Offer
from clearhead.decoding.processors import Pipeline
from clearhead.explorer.words import Plain, Word

MOST_NODES = 4000  # beyond, branches that led nowhere are left out: nobody can look at them all


Fate = Literal["kept", "ended", "dropped"]  # it continues; it finished a text; neither


@dataclass
class Node:
    """One token after a text of the beam, as the search saw it."""

    parent: int | None  # the node before it; None: the start
    step: int  # tokens before it
    token: int
    row: int  # the row of the search, at this step, that it extends
    logp: float  # the model's own log-probability of the text up to here
    score: float  # what the search ranks it by, over the length penalty at this length
    fate: Fate
    led_on: bool = field(default=False)  # it, or a descendant, finished or was still active at the end


class DrawnBeam(Beam):
    """A `Beam` for one request without groups, and the `nodes` of everything it ranked.

    At each step these are the best extensions that the search considers: 2K if one symbol ends texts.
    """

    def __init__(self, batch: Batch, pipeline: Pipeline) -> None:
        assert len(batch.requests) == 1
        assert batch.options.groups == 1
        super().__init__(batch, pipeline)
        self.nodes: list[Node] = []
        self.ends: list[int | None] = [None]  # the node at which each row's text ends now

    def choose(self, offer: Offer, group: int, earlier: Sequence[Choice]) -> Choice:
        choice = super().choose(offer, group, earlier)
        kept = _pairs(choice.live, choice.row, choice.token)
        ended = _pairs(choice.ended, choice.ended_row, choice.ended_token)
        look = (1 + len(self.symbols.stops)) * self.width
        score, where = self.arrays.top(offer.score, min(look, offer.score.shape[1]))
        token, own = offer.token[self.line, where], offer.own[self.line, where]
        found: dict[tuple[int, int], int] = {}
        divisor = self.penalty.at(self.written + 1)
        for total, place, id, logp in _lines(score, where, token, own):
            if not total > -math.inf:
                continue
            row = place // self.candidates
            parent = self.ends[row]
            before = 0.0 if parent is None else self.nodes[parent].logp
            fate: Fate = "kept" if (row, id) in kept else "ended" if (row, id) in ended else "dropped"
            found[row, id] = len(self.nodes)
            self.nodes.append(Node(parent, self.written, id, row, before + logp, total / divisor, fate))
        rows = _lines(choice.row, choice.token, choice.live)  # of the next step: where each comes from
        self.ends = [found.get((row, id)) if live > -math.inf else None for row, id, live in rows]
        return choice

    def path(self, ids: Sequence[int]) -> list[int]:
        """The nodes of a text that the search found, given with its stop symbol last."""
        children: dict[tuple[int | None, int], int] = {}
        for number, node in enumerate(self.nodes):
            if node.fate != "dropped":
                children[node.parent, node.token] = number
        path: list[int] = []
        for token in ids:
            following = children.get((path[-1] if path else None, token))
            if following is None:
                break
            path.append(following)
        return path


def _lines(*tables: Any) -> Iterator[tuple[Any, ...]]:
    """The entries of several tables for the one request, zipped."""
    return zip(*(one[0].tolist() for one in tables), strict=True)


def _pairs(score: Any, row: Any, token: Any) -> set[tuple[int, int]]:
    """Row and token of each extension that counts."""
    return {(row, token) for score, row, token in _lines(score, row, token) if score > -math.inf}


def tree(beam: DrawnBeam, best: Sequence[int], word: Callable[[int], Word]) -> Plain:
    """Everything a beam ranked: `best` are the nodes of its answer.

    A node's state is `best` on the answer's path; `finished` if another text ended there; `live` if it was
    kept and a descendant finished or was still active at the end; `pruned` if it was never kept, or all its
    descendants fell out of the beam. `left_out` counts nodes that were too many to show.
    """
    _mark(beam)
    chosen = set(best)
    shown = _shown(beam.nodes, chosen)
    number = {old: new for new, old in enumerate(shown)}
    nodes = []
    for old in shown:
        node = beam.nodes[old]
        state = "finished" if node.fate == "ended" else "live" if node.led_on else "pruned"
        nodes.append(
            {
                "id": number[old],
                "parent": None if node.parent is None else number[node.parent],
                "step": node.step,
                "word": word(node.token),
                "logp": node.logp,
                "score": node.score,
                "kept": node.fate != "dropped",
                "state": "best" if old in chosen else state,
            }
        )
    return {"nodes": nodes, "best": [number[old] for old in best], "left_out": len(beam.nodes) - len(shown)}


def _mark(beam: DrawnBeam) -> None:
    """Follow every text that finished, or was active at the end, back to its start."""
    last = max((node.step for node in beam.nodes), default=0)
    for node in beam.nodes:
        if node.fate == "ended" or (node.fate == "kept" and node.step == last):
            here: Node | None = node
            while here is not None and not here.led_on:
                here.led_on = True
                here = None if here.parent is None else beam.nodes[here.parent]


def _shown(nodes: Sequence[Node], best: set[int]) -> list[int]:
    """As many as can be viewed: all, or without those never kept, or only those that led somewhere."""
    for wanted in (lambda node: True, lambda node: node.fate != "dropped"):
        found = [number for number, node in enumerate(nodes) if number in best or wanted(node)]
        if len(found) <= MOST_NODES:
            return found
    return [number for number, node in enumerate(nodes) if number in best or node.led_on]
