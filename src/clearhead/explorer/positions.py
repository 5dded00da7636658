"""View 4: how a model knows the positions of its tokens: tables, waves, similarity by distance, guidelines.

The model's own scheme is shown with the numbers it has learned. Other schemes are
built by name for the model's sizes; parameters that they would have to learn are
drawn with a fixed seed, and a note says so. Nothing is judged here:
`nn.positions.check` checks the three guidelines.

Shapes: P positions, E features of a table, H heads, D head size, N distances.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError, nearest
from clearhead.explorer.session import Session
from clearhead.explorer.words import Plain, packed
from clearhead.models.config import ModelConfig
from clearhead.models.stack import Layer, Stack
from clearhead.nn.positions import POSITIONS, Position, Rotary, build_position, check_position
from clearhead.nn.positions.check import CANDIDATES, FEATURES, SAME, T_MAX, Encode
from clearhead.nn.tokens import Tokens

MOST_SCHEMES = 4
MOST_POSITIONS = 512
MOST_FEATURES = 2048
MOST_BIAS = 128  # positions of a bias matrix: further ones repeat its diagonals
MEASURED = 512  # the guidelines are measured up to this length
WAVES = 8  # features drawn as curves

# what the check says to callers, and what that means for readers
IN_A_DECODER = (
    "(this does not matter with causal=True)",
    "(this does not matter in a decoder, which sees nothing ahead)",
)

FORMULAS = {
    "none": "x",
    "sinusoidal": "PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/d));  x + PE",
    "learned": "x + table[pos]",
    "rotary": "q, k rotated by pos · base^(−2i/d) in each pair of features;  q_m · k_n depends on m − n",
    "t5": "q·k/√d + b[head, bucket(n − m)]",
    "alibi": "q·k/√d − slope_h · |n − m|,  slope_h = 2^(−8h/H)",
    "transformer_xl": "(q·k + q·W r + u·k + v·W r)/√d,  r = sinusoids of the distance m − n",
    "shaw": "(q·k + q·a[n − m])/√d",
    "music": "(q·k + q·a[head, n − m])/√d",
    "t": "PE(t) = t",
    "t/T": "PE(t) = t / T",
    "cos(t(k+1)/(T_max·d))": f"PE(t, k) = cos(t(k+1) / (T_max · d)),  T_max = {T_MAX}, d = {FEATURES}",
}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
UNTRAINED = (
    "The model uses another scheme, so this one's learned parameters are random here, with a fixed seed."
)
ASKED = "This bias also depends on the query: it is shown for one random query and key, with a fixed seed."


@dataclass(frozen=True)
class _Shown:
    """A scheme to show: the module itself, its name, and remarks about it."""

    name: str
    scheme: Position | Encode
    note: str
    causal: bool = False  # whether tokens only look back


def positions(
    session: Session, schemes: Sequence[str] = (), length: int = 64, width: int | None = None
) -> Plain:
    """Each scheme's table or bias over `length` positions; without names the model's own.

    `width` is the number of features of a scheme that is not the model's own; None: the model's.
    """
    if len(schemes) > MOST_SCHEMES:
        raise UserError(
            f"At most {MOST_SCHEMES} position schemes can be compared at once, not {len(schemes)}."
        )
    if not 2 <= length <= MOST_POSITIONS:
        raise UserError(f"Positions can be shown for a length of 2 to {MOST_POSITIONS}, not {length}.")
    if width is not None and not 2 <= width <= MOST_FEATURES:
        raise UserError(f"The width of a position table must be 2 to {MOST_FEATURES}, not {width}.")
    config = session.bundle.config
    own = own_schemes(session.bundle.model, config)
    found: list[_Shown] = []
    for name in dict.fromkeys(schemes):  # each once
        is_own = name == own[0].name and width in (None, config.width)
        found += own if is_own else [_made(name, config, width)]
    with torch.no_grad():
        return {"schemes": [_shown(one, length, width or config.width) for one in found or own]}


def own_schemes(model: nn.Module, config: ModelConfig) -> list[_Shown]:
    """What the model itself uses; one for each stack if both have learned their own."""
    if config.family == "recurrent":
        return [_Shown("none", Position(), "A recurrent model reads in order and needs no positions.")]
    name = config.position.name
    embedding = getattr(model, "source_embedding", getattr(model, "embedding", model))
    at_input = getattr(embedding, "position", None)
    if isinstance(at_input, Position) and at_input.in_embedding:
        target: Any = getattr(model, "target_embedding", None)
        if target is None or not _learns(at_input):
            return [_Shown(name, at_input, "")]
        note = "The encoder's table; the decoder has learned its own."
        return [_Shown(name, at_input, note), _Shown(name, target.position, "The decoder's table.")]
    found = []
    for kind in ("encoder", "decoder"):
        stack = getattr(model, kind, None)
        if isinstance(stack, Stack):
            layer = stack.layers[0]
            assert isinstance(layer, Layer)
            scheme = layer.attention.position
            sharing = "layer 1; each layer has learned its own" if scheme.per_layer else "for all its layers"
            note = f"The {kind}'s, {sharing}." if _learns(scheme) else ""
            found.append(_Shown(name, scheme, note, kind == "decoder" and config.causal_mask))
    return found if any(_learns(one.scheme) for one in found) else found[:1]


def _learns(scheme: Position | Encode) -> bool:
    return isinstance(scheme, Position) and any(True for _ in scheme.parameters())


def _made(name: str, config: ModelConfig, width: int | None) -> _Shown:
    """A scheme by name in the model's sizes."""
    if name in CANDIDATES:
        note = "One of the tutorial's three candidates: see which of the guidelines it meets."
        return _Shown(name, CANDIDATES[name], note)
    if name not in POSITIONS:
        known = [*POSITIONS, *CANDIDATES]
        raise UserError(f"There is no position scheme '{name}': {nearest(name, known)}")
    attention = config.attention.replace(width=config.width)
    settings = config.position.replace(name=name, scaling=None, values=False)
    with torch.random.fork_rng(devices=[]):  # the same each time, and no other draws change
        torch.manual_seed(0)
        scheme = build_position(
            settings,
            width=width or config.width,
            heads=attention.heads,
            head_dim=width or attention.position_size,
            causal=config.family == "decoder",
        )
    causal = config.family == "decoder" and config.causal_mask
    return _Shown(name, scheme, UNTRAINED if _learns(scheme) else "", causal)


def _shown(one: _Shown, length: int, width: int) -> Plain:
    notes = [one.note] if one.note else []
    scheme = one.scheme
    limit = scheme.max_length if isinstance(scheme, Position) else None
    if limit is not None and limit < length:
        notes.append(f"There are only {limit} positions.")
        length = limit
    table = bias = None
    if isinstance(scheme, Position) and scheme.has_bias:
        bias = bias_of(scheme, min(length, MOST_BIAS))
        if not scheme.elementwise_bias:
            notes.append(ASKED)
        if length > MOST_BIAS:
            notes.append(f"The bias is drawn for {MOST_BIAS} positions.")
    elif one.name != "none":
        table = table_of(scheme, length, width)
    return {
        "name": one.name,
        "table": None if table is None else packed(table),
        "waves": None if table is None else _waves(table),
        "similarity": _similarity(table, bias, length),
        "bias": None if bias is None else packed(bias),
        "guidelines": _guidelines(one, width),
        "tolerance": SAME,
        "note": " ".join(notes),
        "formula": FORMULAS.get(one.name, ""),
    }


def table_of(scheme: Position | Encode, length: int, width: int) -> Tensor:
    """What each position adds to an embedding, or how it rotates the point (1, 0) of each pair: (P, E)."""
    if not isinstance(scheme, Position):
        return scheme(length).reshape(length, -1)
    device = next((parameter.device for parameter in scheme.parameters()), torch.device("cpu"))
    tokens = Tokens.padded(length, device=device)
    if isinstance(scheme, Rotary):
        points = torch.zeros(1, 1, length, scheme.head_dim, device=device)
        firsts = slice(None, scheme.head_dim // 2) if scheme.layout == "halves" else slice(None, None, 2)
        points[..., firsts] = 1.0
        return scheme.rotate(points, tokens)[0, 0]
    learnt = getattr(scheme, "table", None)
    features = learnt.shape[-1] if isinstance(learnt, Tensor) else width
    return scheme.embed(torch.zeros(1, length, features, device=device), tokens)[0]


def bias_of(scheme: Position, length: int) -> Tensor:
    """What the scheme adds to the scores of `length` queries and keys, (H, P, P)."""
    device = next((parameter.device for parameter in scheme.parameters()), torch.device("cpu"))
    tokens = Tokens.padded(length, device=device)
    size = next((parameter.shape[-1] for parameter in scheme.parameters()), 1)  # unused if none compares
    query, key = (
        torch.randn(1, 1, 1, size, generator=torch.Generator().manual_seed(seed)).to(device)
        for seed in (0, 1)
    )
    query, key = (one.expand(1, 1, length, size) for one in (query, key))
    bias = scheme.bias(query, key, tokens, tokens, size**-0.5, slice(None))
    assert bias is not None
    return bias[0]


def _waves(table: Tensor) -> list[Plain]:
    """Some features over the positions, spread from the first to the last."""
    count = table.shape[1]
    chosen = sorted({number * (count - 1) // (WAVES - 1) for number in range(WAVES)})
    return [{"index": index, "values": table[:, index].tolist()} for index in chosen]


def _similarity(table: Tensor | None, bias: Tensor | None, length: int) -> Plain:
    """How similar two positions are, by their distance."""
    distances = list(range(length))
    if bias is not None:
        size, alike = bias.shape[-1], bias.double().mean(0)  # (P,P)
        distances = list(range(1 - size, size))
        what = "added to the score of a key this far ahead of its query (negative: behind), mean over heads"
    elif table is None:
        return {"distances": distances, "values": [1.0] * length, "what": "nothing tells two positions apart"}
    elif table.shape[1] == 1:  # single numbers have no angle between them
        alike = (table - table.T).abs().double()
        what = "difference between the values of two positions this far apart, mean over all such pairs"
    else:
        unit = nn.functional.normalize(table.double(), dim=-1)
        alike = unit @ unit.T
        what = "cosine between the vectors of two positions this far apart, mean over all such pairs"
    values = [float(alike.diagonal(distance).mean()) for distance in distances]
    return {"distances": distances, "values": values, "what": what}


def _guidelines(one: _Shown, width: int) -> list[Plain]:
    report = check_position(one.scheme, longest=MEASURED, causal=one.causal, width=width)
    verdicts = {"unique": report.unique, "consistent": report.consistent, "bounded": report.bounded}
    return [
        {"name": name, "holds": verdict.holds, "sentence": _sentence(verdict.reason)}
        for name, verdict in verdicts.items()
    ]


def _sentence(reason: str) -> str:
    """A verdict's reason for readers: no argument names, real minus signs, powers of ten.

    >>> _sentence("distances -1 and 1 have the same signal")
    'Distances −1 and 1 have the same signal.'
    >>> _sentence("the nearest two positions, 0 and 1, are 4.8e-07 apart")
    'The nearest two positions, 0 and 1, are 4.8·10⁻⁷ apart.'
    """
    plain = re.sub(r"(?<![\w.])-(?=\d)", "−", reason.replace(*IN_A_DECODER))
    plain = re.sub(r"e([-+]\d+)", lambda power: "·10" + str(int(power[1])).translate(SUPERSCRIPTS), plain)
    return f"{plain[0].upper()}{plain[1:]}."
