"""Decoding benchmark: the time of the next token after many others, and the size of the state by then.

The context is read in long chunks without attending, because a layer's state does not depend on what its
tokens attended to; then tokens are decoded one by one. Time is measured as in `bench_attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.base.progress import progress
from clearhead.base.seed import seeded
from clearhead.jobs.attention_kinds import EXACT, Contender
from clearhead.jobs.bench_attention import ROUNDS, STOPPED, Setting, refuse_lengths
from clearhead.nn.attention import Problem
from clearhead.nn.attention.masks import Causal
from clearhead.nn.tokens import Tokens
from clearhead.planner.crossing import quickest

STEPS, FILL = 32, 2048  # tokens decoded per round, and tokens read at once before them


@dataclass(frozen=True)
class Step:
    """Decoding after this many tokens: the time of one more, and the size of the state by then."""

    name: str
    tokens: int
    seconds: float
    bytes: int


def decode(setting: Setting, rows: Sequence[Contender]) -> tuple[list[Step], list[str]]:
    """Steps of all kinds that can decode, and why others cannot. Rows that differ only in kernel are one.

    An interrupt ends it, and what has been measured by then is kept.
    """
    refuse_lengths(setting.lengths)
    steps: list[Step] = []
    notes: list[str] = []
    lengths = sorted(setting.lengths)
    chosen = [one for one in rows if one is EXACT or not one.exact]
    try:
        with progress("Decoding", total=len(chosen) * len(lengths), unit="cells") as bar:
            for one in chosen:
                took = 0.0  # for the last length
                try:
                    for before, tokens in zip([1, *lengths], lengths, strict=False):
                        bar.advance(note=f"{one.name}, {tokens:,} tokens")
                        if took * tokens / before > setting.seconds:
                            limit = f"it would take over {setting.seconds:g} s"
                            notes.append(f"{one.name} is left out from {tokens:,} tokens on: {limit}.")
                            break
                        took = quickest(partial(_add_step, steps, setting, one, tokens), setting.device, 1)
                except UserError as error:
                    notes.append(f"{one.name} is left out: {error}")
    except KeyboardInterrupt:
        if not steps:
            raise  # there is nothing to show
        notes.append(STOPPED)
    return steps, notes


def _add_step(steps: list[Step], setting: Setting, one: Contender, tokens: int) -> None:
    steps.append(_step(setting, one, tokens))


@torch.no_grad()
def _step(setting: Setting, one: Contender, tokens: int) -> Step:
    with seeded(setting.seed):
        part, width = one.part(setting.like, tokens + 2 * ROUNDS * STEPS), setting.like.width or 0
        part = part.to(setting.device, setting.dtype).eval()
        state, usual = part.new_state(), part.kernel
        part.kernel = _nothing  # the state does not depend on what past tokens attended to
        for at in range(0, tokens, FILL):
            x = torch.randn(setting.rows, min(FILL, tokens - at), width)
            _read(setting, part, state, x, at)
        part.kernel = usual
        x = torch.randn(setting.rows, 1, width).to(setting.device, setting.dtype)
        held, done = state.bytes, tokens

        def steps() -> None:
            nonlocal done
            for _ in range(STEPS):
                _read(setting, part, state, x, done)
                done += 1

        steps()
        return Step(one.name, tokens, quickest(steps, setting.device, ROUNDS) / STEPS, held)


def _read(setting: Setting, part: Any, state: Any, x: Tensor, start: int) -> None:
    x = x.to(setting.device, setting.dtype)
    where = Tokens.padded(x.shape[1], start=start, device=setting.device)
    part(x, mask=Causal(), queries=where, state=state)


def _nothing(problem: Problem) -> Tensor:
    """A stand-in for a kernel that returns 0."""
    return problem.q.new_zeros(*problem.q.shape[:3], problem.v.shape[-1])
