"""What is recorded: small models with all kinds of dials, and what a decoder does with them.

A case is a model, a number format and a scene; a scene drives `NativeRows` as the package does, so that the
recording holds rows that are doubled, dropped, crossed over, emptied and filled again, best tokens, beams
with every way of stopping, long prompts and tables that grow.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from clearhead.decoding.backend import Extra, Request, Symbols
from clearhead.decoding.native import NativeRows
from clearhead.decoding.native.beam import NativeBeam
from clearhead.decoding.native.pack import Dtype
from clearhead.decoding.options import Options
from clearhead.decoding.rows_backend import rows_engine

from ..decoding.test_native import DIALS, LATENT, LATENT_DIALS, SYMBOLS, build
from ..decoding.test_native_take import Parking
from ..decoding.test_search import stopping
from .recording import recording

Scene = Callable[[nn.Module, Dtype], None]
DTYPES: tuple[Dtype, ...] = ("float32", "bf16", "int8")


class Case(NamedTuple):
    """One recording."""

    name: str
    model: Callable[[], nn.Module]
    dtype: Dtype
    scene: Scene

    def record(self, folder: Path) -> Path:
        model = self.model()
        with recording(model, self.dtype) as recorder:
            self.scene(model, self.dtype)
        path = folder / f"{self.name.replace(' ', '-')}-{self.dtype}"
        recorder.write(path)
        return path


def sources(count: int, vocabulary: int) -> list[list[int]]:
    """Texts of one to twelve tokens."""
    return [[(7 * i + 5 * t * t) % vocabulary for t in range(1 + 5 * i % 12)] for i in range(count)]


def come_and_go(model: nn.Module, dtype: Dtype, **options: Any) -> None:
    """Rows are doubled, dropped and crossed over; some come later; all leave, and others come."""
    rows = NativeRows(model, SYMBOLS, dtype, threads=2, **options)
    given = sources(40, model.config.vocabulary)  # type: ignore[union-attr, arg-type]
    scores = rows.admit(given[:3])
    best = scores.top(2)[1]
    for parents in ([0, 0, 1, 2, 2], [4, 0, 0, 3], [3, 2, 1]):
        tokens = [int(best[parent, i % 2]) for i, parent in enumerate(parents)]
        best = rows.step(torch.tensor(parents), torch.tensor(tokens)).top(2)[1]
    best = torch.cat([best, rows.admit(given[3:5]).top(2)[1]])  # behind those under way
    best = rows.step(torch.tensor([4, 1, 3]), best[[4, 1, 3], 0]).top(2)[1]
    nothing = torch.zeros(0, dtype=torch.int64)
    rows.step(nothing, nothing)  # nobody goes on
    scores = rows.admit(given)  # so many that threads take parts of them
    for _ in range(2):
        scores = rows.step(torch.arange(len(given)), scores.top(1)[1][:, 0])


def hidden_and_attention(model: nn.Module, dtype: Dtype) -> None:
    rows = NativeRows(model, SYMBOLS, dtype, threads=2, keep=frozenset({"hidden", "attention"}))
    scores = rows.admit([[5, 6, 7, 2], [9, 2]])
    for parents in ([0, 0, 1, 1], [1, 3, 3]):
        scores = rows.step(torch.tensor(parents), scores.top(1)[1][parents, 0])


def long_prompt(model: nn.Module, dtype: Dtype) -> None:
    """Longer than a portion, and over the end of the first tables."""
    rows = NativeRows(model, SYMBOLS, dtype, threads=2)
    scores = rows.admit([[3 + (i * i + i // 7) % 90 for i in range(size)] for size in (5, 400, 126)])
    for _ in range(4):
        scores = rows.step(torch.arange(3), scores.top(1)[1][:, 0])


def beams(model: nn.Module, dtype: Dtype, symbols: Symbols, **options: Any) -> None:
    """More requests than there is room for, so that some are admitted while others are under way.

    Several steps are taken at a time, but one by one where the hidden states are asked for.
    """
    keep: frozenset[Extra] = frozenset({"hidden"}) if dtype == "bf16" else frozenset()
    rows = NativeRows(model, symbols, dtype, threads=2, keep=keep)
    asked = Options.from_dict({"beam": 4, "nbest": 3} | options)
    given = sources(9, model.config.vocabulary)  # type: ignore[union-attr, arg-type]
    requests = [Request(tuple(one), 3 + 4 * i % 11, asked) for i, one in enumerate(given)]
    found = dict(rows_engine(rows, symbols, NativeBeam, 16).run(requests))
    assert len(found) == len(requests)


def leave_and_come_back(model: nn.Module, dtype: Dtype, striding: bool) -> None:
    """Requests of several beams leave at any time, and come back in another order or not at all."""
    rows = NativeRows(model, SYMBOLS, dtype, threads=2)
    parking = Parking(rows, random.Random(3), copies=False)  # a recording knows only what calls have filled
    asked = Options(beam=4, nbest=3)
    given = sources(9, model.config.vocabulary)  # type: ignore[union-attr, arg-type]
    parking.admit([Request(tuple(one), 3 + 4 * i % 11, asked) for i, one in enumerate(given)])
    parking.run({4}, striding)
    assert rows.memory()[0] == 0


def _push(family: str, push: float, vocabulary: int) -> nn.Module:
    return stopping(family, push=push, dtype=torch.float32, vocabulary=vocabulary).eval()


def cases() -> list[Case]:
    found = []
    families = "encoder-decoder", "decoder"
    dials = ("original", "rms, gated silu, grouped, rotary", "t5", "alibi, quick gelu", "odd sizes")
    for name in (*dials, "learned, gelu, embedding norm"):
        for family in families:
            made = partial(build, family, **DIALS[name])
            for dtype in DTYPES if name in ("original", "odd sizes") else DTYPES[:1]:
                found.append(Case(f"{name.replace(',', '')} {family}", made, dtype, come_and_go))
    for name in "rotary", "compressed queries":
        made = partial(build, "decoder", **LATENT, **LATENT_DIALS[name])
        found += [Case(f"latents {name}", made, dtype, come_and_go) for dtype in DTYPES]
    found.append(Case("hidden and attention", build, "float32", hidden_and_attention))
    gated = partial(build, "decoder", **DIALS["rms, gated silu, grouped, rotary"])
    found.append(Case("long prompt", gated, "float32", long_prompt))
    found.append(Case("vocabulary of two", partial(build, vocabulary=2), "int8", come_and_go))
    small = partial(come_and_go, int8_embeddings=True)
    for name in "original", "odd sizes":
        found.append(Case(f"int8 embeddings {name}", partial(build, **DIALS[name]), "int8", small))
    for family, striding in (families[0], True), (families[0], False), (families[1], True):
        scene = partial(leave_and_come_back, striding=striding)
        made = partial(_push, family, 2.0, 40)
        found.append(Case(f"leave and come back {family} {striding}", made, "float32", scene))
    kinds: list[dict[str, Any]] = [
        {"early_stopping": "never", "length_penalty": 0.6, "length_kind": "wu"},
        {"early_stopping": False, "forced": "free", "length_penalty": 2.0},
        {"early_stopping": True, "forced": "cut", "beam": 5, "nbest": 5},
    ]
    for number, options in enumerate(kinds):
        for family in families:
            model = partial(_push, family, (2.0, 4.0, 0.0)[number], (40, 300, 9)[number])
            symbols = Symbols(1, 2, (0, 1), other_stops=(4,) if number == 1 else ())
            scene = partial(beams, symbols=symbols, **options)
            for dtype in DTYPES:
                found.append(Case(f"beam {number} {family}", model, dtype, scene))
    return found
