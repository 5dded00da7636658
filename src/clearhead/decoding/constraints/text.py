"""What a text must match, must contain, and must not contain, however it is tokenised.

A regular expression, required texts and banned texts become one automaton over bytes, which the tokens of
the vocabulary traverse. It looks ahead: a token is ruled out if the available tokens could no longer bring
the text to a valid end within its limit.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Symbols
from clearhead.decoding.constraints.automaton import Automaton, both, searched, without
from clearhead.decoding.constraints.expression import compiled
from clearhead.decoding.constraints.pieces import Pieces, as_bytes
from clearhead.decoding.constraints.tokens import FAR, PieceTree, TokenAutomaton
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past

READY = 8  # automata that are cached for one vocabulary
MASKS = 256  # (V,) masks that are cached
MOST = 12  # required texts: the sets of those met are 2 to this power

Place = tuple[int, int]  # a state of the automaton, and which of the required texts have been met, as bits
State = TypeVar("State")


@dataclass(frozen=True)
class Wanted:
    """The constraints on a text, as bytes."""

    regex: str | None
    banned: tuple[bytes, ...]
    required: tuple[bytes, ...]
    barred: frozenset[int]  # tokens that are never written
    prefix: tuple[int, ...]  # tokens that every text begins with; a ban may begin but not end in them
    has_source: bool  # the text stands alone; else it continues a prompt, in which a ban may begin as well


class Walk(Generic[State]):
    """The states of rows of tokens, from a first state and a step: a pure function of what they have written.

    The states of the last call's rows are cached, so a row costs one step, not its whole past.

    >>> sums = Walk(lambda state, token: state + token)
    >>> sums.states(torch.tensor([[1, 2], [3, 4]]), [0, 0]), sums.states(torch.tensor([[1, 2, 5]]), [0])
    ([3, 7], [8])
    """

    def __init__(self, step: Callable[[State, int], State]) -> None:
        self.step = step
        self._known: dict[tuple[State, tuple[int, ...]], State] = {}

    def states(self, tokens: Tensor, firsts: Sequence[State]) -> list[State]:
        """The states of the rows of tokens (R, L), each from its own first state."""
        rows = list(zip(firsts, map(tuple, tokens.tolist()), strict=True))
        known = {row: self._state(*row) for row in dict.fromkeys(rows)}
        self._known = known  # a row that continues needs only its current state
        return [known[row] for row in rows]

    def _state(self, first: State, row: tuple[int, ...]) -> State:
        if (first, row) in self._known:
            return self._known[first, row]
        if row and (first, row[:-1]) in self._known:
            return self.step(self._known[first, row[:-1]], row[-1])
        return functools.reduce(self.step, row, first)


class TextConstraint:
    """Rules out every token after which the text could no longer reach a valid end.

    That is exact for the expression, required and banned texts, the minimum length and the limit, with the
    tokens that are neither forbidden nor banned individually; longer banned sequences of ids and no-repeat
    may still block the only way out.
    """

    def __init__(
        self,
        options: Options,
        symbols: Symbols,
        pieces: Pieces,
        limits: Sequence[int],
        prompts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.least, self.limits, self.stops = options.min_length, limits, list(symbols.stops)
        self.pieces, self.prefix, self.bans = pieces, options.prefix, bool(options.banned)
        self.wanted = _wanted(options, symbols, pieces, prompts is None)
        self.ready = _ready(self.wanted, pieces)
        self.machine = self.ready.machine
        self.firsts = [self.ready.first(one) for one in prompts or [()] * len(limits)]
        self.walk = Walk(self._after)
        self._mask = functools.lru_cache(MASKS)(self._barred)
        if self.ready.look_ahead:
            self._refuse_impossible()

    def _after(self, here: Place, token: int) -> Place:
        state, met = here
        if state in self.machine.starts and token in self.ready.never_first:
            return 0, met
        for byte in self.pieces[token] if token < len(self.pieces) else b"\xff":
            state = int(self.machine.automaton.table[state, byte])
            met |= int(self.machine.automaton.met[state])
        return state, met

    def _refuse_impossible(self) -> None:
        wanted, behind = self.wanted, " after the prefix" if self.prefix else ""
        for limit, (state, met) in sorted(set(zip(self.limits, self.firsts, strict=True))):
            if not state:
                raise UserError(
                    f"The prefix does not match the regular expression '{wanted.regex}': change one of them."
                )
            if self.machine.can_end(len(self.prefix), self.least, limit)[met, state]:
                continue
            need, room = int(self.machine.need[met, state]), limit - len(self.prefix)
            if wanted.regex is None and need >= FAR:
                named = ", ".join(f"'{one.decode('utf-8', 'replace')}'" for one in wanted.required)
                banned = ", or only with a banned text" if self.bans else ""
                raise UserError(f"{named} cannot be written with this bundle's vocabulary{banned}.")
            if wanted.regex is None and need > room:
                raise UserError(
                    f"The required texts take at least {need} tokens{behind}, but only {max(room, 0)} may "
                    "be written: raise the limit."
                )
            at_least = f"at least {self.least} and " if self.least else ""
            asked = [] if wanted.regex is None else [f"matches the regular expression '{wanted.regex}'"]
            asked += ["contains the required texts"] if wanted.required else []
            raise UserError(
                f"No text of {at_least}at most {limit} tokens that may be written "
                f"{' and '.join(asked)}{behind}."
            )

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        requests = past.request.tolist()
        wanting = max(self.least - past.written, 0)
        places = self.walk.states(past.tokens[:, len(self.prefix) :], [self.firsts[one] for one in requests])
        most = wanting + self.machine.farthest + 1  # a larger limit changes nothing
        masks = [
            self._mask(*place, wanting, min(self.limits[request] - past.written, most), logp.device)
            for place, request in zip(places, requests, strict=True)
        ]
        if not masks:
            return logp
        barred = torch.stack(masks)[:, : logp.shape[1]]
        if (missing := logp.shape[1] - barred.shape[1]) > 0:  # ids unknown to the tokenizer are not allowed
            barred = torch.nn.functional.pad(barred, (0, missing), value=True)
        return logp.masked_fill(barred, -torch.inf)

    def _barred(self, state: int, met: int, wanting: int, room: int, device: torch.device) -> Tensor:
        """(V,): what may not follow in a state if `wanting` tokens must and `room` may still be written."""
        mask = numpy.zeros(len(self.pieces), dtype=bool)
        live = self.machine.can_end(1, wanting, room)
        targets, meets = self.machine.ways(state)
        mask[self.machine.tree.ids] = live[met | meets if self.wanted.required else 0, targets]
        if self.wanted.regex is None:
            mask[self.ready.silent] = live[met if self.wanted.required else 0, state]
        ended = bool(self.machine.automaton.accepts[state]) and met == self.machine.everything
        mask[self.stops] = ended and not wanting
        return torch.from_numpy(~mask).to(device)


class StopTexts:
    """Leaves a row only the stop symbol, at no cost, as soon as its text contains one of the strings.

    The string itself is written, since only then is it certain; it is cut off the text afterwards.
    """

    def __init__(
        self, texts: Sequence[str], symbols: Symbols, pieces: Pieces, prompts: Sequence[Sequence[int]]
    ) -> None:
        self.stop = symbols.stop
        self.texts = [as_bytes(one) for one in texts]
        # whether a text's first space, if it begins with one, is not part of it
        self.lost = [pieces.opening_lost and not pieces.text(prompt) for prompt in prompts]
        self.walk: Walk[bytes] = Walk(lambda text, token: text + pieces.text([token], goes_on=True))

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        texts = self.walk.states(past.tokens, [b""] * len(past.tokens))
        rows = zip(texts, past.request.tolist(), strict=True)
        written = [text.removeprefix(b" " if self.lost[request] else b"") for text, request in rows]
        ended = [row for row, text in enumerate(written) if any(one in text for one in self.texts)]
        if not ended:
            return logp
        logp = logp.index_fill(0, torch.tensor(ended, device=logp.device), -torch.inf)
        logp[ended, self.stop] = 0.0
        return logp


def _wanted(options: Options, symbols: Symbols, pieces: Pieces, has_source: bool) -> Wanted:
    banned = [form for one in options.banned if isinstance(one, str) for form in pieces.forms(one)]
    if options.stop_texts and (options.regex is not None or options.must_include):
        # such a text has its own end, and no stop text may occur before it
        banned += [as_bytes(one) for one in options.stop_texts]
    several = [
        pieces.as_written(one) if isinstance(one, str) else pieces.text(one) for one in options.must_include
    ]
    if not all(several):
        raise UserError("A required text must not be empty, and required token ids must stand for some text.")
    if any(ban in one for one in several for ban in banned):
        raise UserError("A required text contains a banned one: remove one of them.")
    # a string inside another is found as soon as that is
    inner = {one for one in several if any(one != other and one in other for other in several)}
    required = [one for one in dict.fromkeys(several) if one not in inner]
    if len(required) > MOST:
        raise UserError(f"At most {MOST} texts can be required at once, not {len(required)}.")
    alone = (one[0] for one in options.banned if not isinstance(one, str) and len(one) == 1)
    return Wanted(
        regex=options.regex,
        banned=tuple(dict.fromkeys(banned)),
        required=tuple(required),
        barred=frozenset({*symbols.forbidden, *symbols.stops, *alone}),
        prefix=options.prefix,
        has_source=has_source,
    )


class _Ready:
    """The automaton for the constraints, and its start states."""

    def __init__(self, wanted: Wanted, pieces: Pieces) -> None:
        self.wanted, self.pieces = wanted, pieces
        begun = pieces.text(wanted.prefix)
        lost = pieces.opening_lost and not begun  # the text's first space, for all that sees only the text
        alone = lost and wanted.has_source
        self.never_first = pieces.never_first if alone or (lost and wanted.regex is not None) else frozenset()
        self.bans = searched(wanted.banned)
        required = searched(wanted.required)
        self.met = _met(required, begun)
        parts = [_opened(without(self.bans), alone), _opened(required, alone)]
        states = [self._node(begun), required.after(begun)]
        # after prompts, bans may have begun in any way
        starts = [states[0]] if wanted.has_source else list(range(1, len(parts[0].table)))
        whole = parts[0]
        if wanted.regex is not None:
            fits = _opened(compiled(wanted.regex), lost)
            at = fits.after(begun)
            whole, starts = both(fits, whole, [(at, one) for one in starts])
        if wanted.required:
            whole, starts = both(whole, parts[1], [(one, states[1]) for one in starts])
        self.starts = starts
        usable = [id for id in range(len(pieces)) if id not in wanted.barred]
        # tokens that add nothing to a text; an expression does not allow them
        self.silent = [id for id in usable if not pieces[id]]
        tree = PieceTree(pieces, usable)
        self.look_ahead = wanted.regex is not None or bool(wanted.required)
        everything = 2 ** len(wanted.required) - 1 if self.look_ahead else 0
        alike = wanted.regex is None  # what is searched for is soon forgotten
        self.machine = TokenAutomaton(
            whole, tree, starts, self.never_first, everything, self.look_ahead, alike
        )

    def _node(self, text: bytes) -> int:
        """The state of the search for bans after a text, whatever it contains; only its end matters."""
        longest = max(map(len, self.wanted.banned), default=0)
        return self.bans.after(text[-longest:] if longest else b"")

    def first(self, prompt: Sequence[int]) -> Place:
        """The state after a prompt and the prefix, and what the prefix has met."""
        if self.wanted.has_source:
            return self.starts[0], self.met
        node = self._node(self.pieces.text([*prompt, *self.wanted.prefix]))
        return self.starts[node - 1], self.met


def _opened(automaton: Automaton, lost: bool) -> Automaton:
    return automaton.without_first_space() if lost else automaton


def _met(required: Automaton, text: bytes) -> int:
    """The required texts that occur in a text."""
    found, state = 0, 1
    for byte in text:
        state = int(required.table[state, byte])
        found |= int(required.met[state])
    return found


def _ready(wanted: Wanted, pieces: Pieces) -> _Ready:
    """Cached with the pieces, for later requests with the same constraints."""
    if wanted not in pieces.prepared:
        if len(pieces.prepared) >= READY:
            pieces.prepared.pop(next(iter(pieces.prepared)))
        pieces.prepared[wanted] = _Ready(wanted, pieces)
    found: _Ready = pieces.prepared[wanted]
    return found
