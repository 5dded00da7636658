"""What a processor is, and what it may know: the tokens that each row has written, and what it was given.

A processor maps scores to scores and is a pure function of them and of the past, so that a search may
reorder, repeat and drop its rows as it likes. Knows nothing about any single processor.

Shapes: R rows, V vocabulary, L tokens written by each row, P tokens of the longest prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.base.errors import UserError

NOBODY = -1  # stands where a row has no token


class Past(NamedTuple):
    """The rows of a batch so far. All of them have written equally many tokens."""

    tokens: Tensor  # (R, L) int64
    prompts: Sequence[Sequence[int]]  # what each request was given: a prompt, or a source
    request: Tensor  # (R,) int64: the request of each row
    written: int  # L
    totals: Tensor | None = None  # (R,) log Σ exp of the model's logits, where somebody wants them back


# (R, V) scores and the past to (R, V) scores, never in place; -inf rules a token out
Processor = Callable[[Tensor, Past], Tensor]


def nothing_left(written: int) -> UserError:
    """What to raise where the processors have ruled out every token."""
    return UserError(
        f"Nothing may be written at place {written + 1}: the settings contradict each other there. "
        "Loosen what is banned, repeated, required or of a least length."
    )


class Numbers:
    """Numbers of a processor, copied once to whatever device its scores lie on."""

    def __init__(self, values: Sequence[int] | Sequence[Sequence[int]] | Sequence[float]) -> None:
        self.host = torch.tensor(values)
        self.here = self.host

    def on(self, device: torch.device) -> Tensor:
        if self.here.device != device:
            self.here = self.host.to(device)
        return self.here


class History:
    """All that a row can look back on: what it has written, behind its prompt where that is text of its own.

    A decoder goes on from its prompt, so that the prompt counts. A source is another text, and does not; the
    symbol that a target starts from counts where it is given, which shows where a text may also end with it.
    """

    def __init__(self, prompted: bool, start: int | None = None) -> None:
        self.prompted, self.start = prompted, start
        self._prompts: Sequence[Sequence[int]] = ()
        self._padded: Tensor | None = None  # (B, P)

    def __call__(self, past: Past) -> Tensor:
        """(R, P + L), filled up on the left with `NOBODY`: the last token always stands last."""
        if not self.prompted:
            if self.start is None:
                return past.tokens
            return torch.cat([torch.full_like(past.request, self.start).unsqueeze(1), past.tokens], dim=1)
        if self._padded is None or self._prompts != past.prompts:  # same objects: compared by identity, fast
            self._prompts = past.prompts
            longest = max(map(len, past.prompts))
            rows = [[NOBODY] * (longest - len(one)) + list(one) for one in past.prompts]
            self._padded = torch.tensor(rows, dtype=torch.long, device=past.tokens.device)
        return torch.cat([self._padded[past.request], past.tokens], dim=1)
