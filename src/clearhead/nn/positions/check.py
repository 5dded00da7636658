"""Is a position scheme any good? Checks the three properties that the lectures ask for.

- **unique**: no two positions get the same signal;
- **consistent**: a position gets the same signal whatever the length of the text;
- **bounded**: the signal does not grow with the length.

A scheme's signal depends on where it acts: the vector that `embed` adds, a fixed
vector after `rotate`, or, for schemes that act through `bias`, what is added to the
scores of fixed queries and keys. A bias is a function of the distance, so for
it read "distance" for "position".

The verdicts are measured up to a length, not proved; each comes with its evidence.
Signals count as the same within a tolerance, which the report states: by default
the resolution of float32 at the largest signal.

Shapes: P positions or distances, C numbers of one signal, T tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.base.errors import UserError, nearest
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.build import POSITIONS, position
from clearhead.nn.positions.rotary import Rotary
from clearhead.nn.tokens import Tokens

Encode = Callable[[int], Tensor]  # length → one row for each position, (length, C) or (length,)

SAME = 2.0**-23  # of the largest signal: smaller differences are below float32's resolution
GROWTH = 1.25  # signals grow if far ones are this many times the largest near one
PROBES = 8  # fixed queries and keys to probe a bias: one alone might not distinguish two distances

T_MAX, FEATURES = 1024, 64  # of the third candidate


def slow_cosines(t_max: int, features: int) -> Encode:
    """The tutorial's third candidate: cos(t(k+1)/(T_max·d)) in the features k = 0 … d−1, T_max fixed.

    Up to T_max every angle is between 0 and 1, where the cosine falls strictly: no two positions coincide.
    But the nearest, 0 and 1, are only 1 − cos(1/T_max) apart, which bfloat16 cannot represent.
    """
    speeds = torch.arange(1, features + 1).double() / (t_max * features)
    return lambda length: torch.cos(torch.arange(length).double()[:, None] * speeds)


# The tutorial's three candidates (T9 Q3): the first two break a rule, the third keeps all three.
CANDIDATES: dict[str, Encode] = {
    "t": lambda length: torch.arange(length).double(),
    "t/T": lambda length: torch.arange(length).double() / length,
    "cos(t(k+1)/(T_max·d))": slow_cosines(T_MAX, FEATURES),
}


@dataclass(frozen=True)
class Verdict:
    """Whether a property holds, why, and the numbers that show it."""

    holds: bool
    reason: str
    witness: Mapping[str, float]

    def __bool__(self) -> bool:
        return self.holds


@dataclass(frozen=True)
class PositionReport:
    """The result of `check_position`; `print` it, or test `if report.unique:`."""

    scheme: str
    kind: str  # what is distinguished: "position" or "distance"
    longest: int  # measured up to this length
    unique: Verdict
    consistent: Verdict
    bounded: Verdict
    tolerance: float = SAME  # of the largest signal: closer signals count as the same
    note: str = ""

    def __str__(self) -> str:
        lines = [f"{self.scheme}: a signal for each {self.kind}, measured up to length {self.longest}"]
        for name in ("unique", "consistent", "bounded"):
            verdict: Verdict = getattr(self, name)
            lines.append(f"  {name:<10}  {'yes' if verdict else 'no':<3}  {verdict.reason}")
        if self.note:
            lines.append(f"  note             {self.note}")
        nearest = f"signals within {self.tolerance:.2g} of the largest count as the same"
        return "\n".join([*lines, f"  tolerance        {nearest}"])


@dataclass(frozen=True)
class _Signals:
    """The signals of one text."""

    length: int
    where: Tensor  # (P,) the position or distance of each signal
    value: Tensor  # (P, C)


def check_position(
    scheme: str | Position | Encode,
    *,
    longest: int = 1024,
    tolerance: float = SAME,
    causal: bool = False,
    width: int = 64,
    heads: int = 4,
    head_dim: int = 16,
    **settings: Any,
) -> PositionReport:
    """Is this scheme unique, consistent and bounded?

    `scheme` is a name (of a scheme, or of one of `CANDIDATES`), a `Position`, or a function that gives
    the signals of a text of some length, (length, size). Signals that differ by no more than `tolerance`
    times the largest one count as equal; 2**-23 is float32's resolution, 2**-7 bfloat16's. With `causal`,
    distances ahead do not count.
    Sizes and `settings` are those of `clearhead.position`, for schemes given by name.

    >>> print(check_position("t/T"))
    t/T: a signal for each position, measured up to length 1024
      unique      yes  the nearest two positions, 0 and 1, are 0.00098 apart
      consistent  no   position 15 has a different signal in a text of 128 than in one of 16
      bounded     yes  signals stay small: at most 0.992 in a text of 128, about 0.749 far out in one of 1024
      tolerance        signals within 1.2e-07 of the largest count as the same
    >>> report = check_position("alibi", heads=8, causal=True)
    >>> bool(report.unique), bool(report.consistent), bool(report.bounded)
    (True, True, False)
    """
    if longest < 16:
        raise UserError(f"A position scheme is checked on texts of at least 16 tokens, not {longest}.")
    if not 0 <= tolerance < 1:
        raise UserError(
            f"The tolerance is a fraction of the largest signal: at least 0 and below 1, not {tolerance}."
        )
    if isinstance(scheme, str):
        name = scheme
        scheme = _by_name(scheme, width, heads, head_dim, causal, settings)
    elif not callable(scheme) or settings:
        raise UserError("Settings go with the name of a scheme: leave them out for a Position or a function.")
    else:
        name = type(scheme).__name__ if isinstance(scheme, Position) else _name(scheme)
    note = ""
    if isinstance(scheme, Position) and scheme.max_length is not None:
        note = f"there is no position past {scheme.max_length - 1}: longer texts are refused"
        longest = min(longest, scheme.max_length)
    lengths = sorted({min(longest, max(2, longest // part)) for part in (64, 8, 1)})
    with torch.no_grad():
        texts = [text for length in lengths for text in _signals(scheme, length, head_dim, width, causal)]
    kind = "distance" if isinstance(scheme, Position) and scheme.has_bias else "position"
    unique, consistent = _unique(texts, kind, causal, tolerance), _consistent(texts, kind, tolerance)
    bounded = _bounded(texts, ends=bool(note))
    return PositionReport(name, kind, longest, unique, consistent, bounded, tolerance, note)


def _by_name(
    name: str, width: int, heads: int, head_dim: int, causal: bool, settings: dict[str, Any]
) -> Position | Encode:
    if name in CANDIDATES and not settings:
        return CANDIDATES[name]
    if name not in POSITIONS:
        raise UserError(f"There is no position scheme '{name}': {nearest(name, [*POSITIONS, *CANDIDATES])}")
    with torch.random.fork_rng(devices=[]):  # reproducible, and leaves the global random state alone
        torch.manual_seed(0)
        return position(name, width=width, heads=heads, head_dim=head_dim, causal=causal, **settings)


def _name(encode: Encode) -> str:
    plain = str(getattr(encode, "__name__", type(encode).__name__))
    return next((name for name, candidate in CANDIDATES.items() if candidate is encode), plain)


# --- signals ------------------------------------------------------------------------------------


def _signals(
    scheme: Position | Encode, length: int, head_dim: int, width: int, causal: bool
) -> list[_Signals]:
    """The signals of a text of this length; relative ones from its first, middle and last token."""
    if not isinstance(scheme, Position):
        value = torch.as_tensor(scheme(length)).detach().double()
        if value.dim() not in (1, 2) or len(value) != length:
            raise UserError(
                f"A position function gives one row for each of {length} positions, and this one gave the "
                f"shape {tuple(value.shape)}."
            )
        return [_Signals(length, torch.arange(length), value.reshape(length, -1))]
    scheme = copy.deepcopy(scheme).to("cpu", torch.float64)
    size = _own_size(scheme)
    if scheme.has_bias:
        return [
            _bias_signals(scheme, length, at, size or head_dim, causal) for at in {0, length // 2, length - 1}
        ]
    tokens = Tokens.padded(length)
    if scheme.turns:
        fixed = _draw(1, 1, 1, size or head_dim).expand(1, 1, length, -1)
        return [_Signals(length, tokens.position[0], scheme.rotate(fixed, tokens)[0, 0])]
    nothing = torch.zeros(1, length, size or width, dtype=torch.float64)
    return [_Signals(length, tokens.position[0], scheme.embed(nothing, tokens)[0])]


def _bias_signals(scheme: Position, length: int, at: int, size: int, causal: bool) -> _Signals:
    """The biases between the token at one position and all others: (P distances, probes · heads)."""
    query, key = _draw(PROBES, 1, 1, size), _draw(PROBES, 1, 1, size, seed=1).expand(-1, -1, length, -1)
    queries, keys = Tokens.padded(1, start=at), Tokens.padded(length)
    bias = scheme.bias(query, key, queries, keys, 1.0, slice(None))
    where = keys.position[0] - at
    value = torch.zeros(length, 1) if bias is None else bias[:, :, 0].flatten(0, 1).T.double()
    seen = where <= 0 if causal else torch.ones_like(where, dtype=torch.bool)
    return _Signals(length, where[seen], value[seen])


def _draw(*shape: int, seed: int = 0) -> Tensor:
    """Fixed random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _own_size(scheme: Position) -> int | None:
    """The vector size a scheme was built for, if it has one; a table of numbers takes any."""
    vectors = [parameter.shape[-1] for parameter in scheme.parameters()]
    return scheme.head_dim if isinstance(scheme, Rotary) else vectors[0] if vectors else None


# --- verdicts -----------------------------------------------------------------------------------


def _peak(texts: list[_Signals]) -> float:
    return max(float(text.value.abs().max()) for text in texts)


def _unique(texts: list[_Signals], kind: str, causal: bool, tolerance: float) -> Verdict:
    """In the longest text, do all signals differ?"""
    longest = max(text.length for text in texts)
    views = [text for text in texts if text.length == longest]
    every = torch.cat([view.where for view in views])
    where, inverse = torch.unique(every, return_inverse=True)  # each position once, in order
    signal = torch.zeros(len(where), dtype=torch.long).scatter_(0, inverse, torch.arange(len(every)))
    value = torch.cat([view.value for view in views])[signal]
    apart = torch.cdist(value, value, p=math.inf)
    apart.fill_diagonal_(math.inf)
    same = apart <= tolerance * _peak(views)
    if not bool(same.any()):
        a, b = divmod(int(apart.argmin()), len(where))
        gap, a, b = float(apart[a, b]), *sorted((int(where[a]), int(where[b])))
        reason = f"the nearest two {kind}s, {a} and {b}, are {gap:.2g} apart"
        return Verdict(True, reason, {"first": a, "second": b, "gap": gap})
    # of all that coincide, report the pair nearest to the beginning
    far = where.abs().unsqueeze(0) + where.abs().unsqueeze(1) + (~same).double() * 10 * longest
    a, b = divmod(int(far.argmin()), len(where))
    a, b = sorted((int(where[a]), int(where[b])), key=abs)
    reason = f"{kind}s {a} and {b} have the same signal"
    if kind == "distance" and not causal and a == -b:
        reason += ": it cannot tell behind from ahead (this does not matter with causal=True)"
    return Verdict(False, reason, {"first": a, "second": b, "gap": 0.0})


def _consistent(texts: list[_Signals], kind: str, tolerance: float) -> Verdict:
    """Does a position keep its signal from text to text (and a distance wherever it occurs)?"""
    limit, worst = tolerance * _peak(texts), 0.0
    for number, other in enumerate(texts):
        for one in texts[:number]:
            shared = torch.isin(one.where, other.where), torch.isin(other.where, one.where)  # both in order
            common = one.where[shared[0]]
            differ = (one.value[shared[0]] - other.value[shared[1]]).abs().amax(-1)
            if len(common) == 0 or float(differ.max()) <= limit:
                worst = max([worst, *differ.tolist()])
                continue
            at, gap = int(common[differ.argmax()]), float(differ.max())
            witness = {kind: at, "length": one.length, "other length": other.length, "gap": gap}
            where = f"in a text of {other.length} than in one of {one.length}"
            if one.length == other.length:
                where = f"at one position of a text of {one.length} than at another"
            return Verdict(False, f"{kind} {at} has a different signal {where}", witness)
    told = ", ".join(str(length) for length in sorted({text.length for text in texts}))
    return Verdict(True, f"every {kind} keeps its signal in texts of {told}", {"gap": worst})


def _bounded(texts: list[_Signals], ends: bool) -> Verdict:
    """Are far signals as small as near ones? A finite table is bounded by its rows.

    The far ones are judged by their median: the maximum of more numbers is slightly larger even
    if nothing grows.
    """
    lengths = sorted({text.length for text in texts})
    near, longest = lengths[max(len(lengths) - 2, 0)], lengths[-1]
    largest = max(float(_sizes(text).max()) for text in texts if text.length == near)
    views = [text for text in texts if text.length == longest]
    far = torch.cat([_sizes(view)[view.where.abs() >= longest // 2] for view in views])
    typical = float(far.median())
    holds = ends or typical <= GROWTH * largest
    reason = (
        f"signals {'stay small' if holds else 'grow'}: at most {largest:.3g} in a text of {near}, "
        f"about {typical:.3g} far out in one of {longest}"
    )
    return Verdict(holds, reason, {"length": near, "largest": largest, "longest": longest, "far": typical})


def _sizes(text: _Signals) -> Tensor:
    """The root mean square of each signal (P,): the absolute value if a signal is one number."""
    return text.value.square().mean(-1).sqrt()
