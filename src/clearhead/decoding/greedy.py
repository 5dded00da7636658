"""One token after another, the likeliest each time, or one drawn by chance.

A row that has ended leaves the batch at once, so that none waits for the longest.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.base.seed import generator
from clearhead.decoding.steps import Hypothesis, Run, Symbols, refuse_not_finite


@torch.no_grad()
def greedy(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    max_length: int | None = None,
) -> list[Hypothesis]:
    """The likeliest token at each step; one hypothesis for each row of `given` (B, S).

    `given` is the source of an encoder-decoder or the prompt of a decoder, `lengths` say where its rows
    end. `max_length`: see `Run`; at the limit the stop symbol is written whatever the model prefers.

    >>> import clearhead, torch
    >>> model = clearhead.build("tiny").eval()
    >>> found = greedy(model, torch.tensor([[5, 6, 2]]), symbols=Symbols(1, 2, (0, 1)), max_length=4)
    >>> len(found), len(found[0].ids) <= 4
    (1, True)
    """
    run = Run(model, given, lengths, symbols, max_length)
    return _write(run, lambda logp: logp.argmax(dim=-1))


@torch.no_grad()
def sample(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    max_length: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[Hypothesis]:
    """As `greedy`, each token drawn with its probability to the power 1/temperature, normalised.

    The log-probabilities returned are the model's own, at temperature 1. What is drawn depends on the
    seed and on the batch.
    """
    if not temperature > 0:
        raise UserError(f"A temperature must be above 0, not {temperature}; 0 means greedy.")
    chance = generator(seed)

    def drawn(logp: Tensor) -> Tensor:
        share = (logp / temperature).softmax(dim=-1).cpu()  # one source of chance for all devices
        return torch.multinomial(share, 1, generator=chance).squeeze(1).to(logp.device)

    return _write(Run(model, given, lengths, symbols, max_length), drawn)


def _write(run: Run, choose: Callable[[Tensor], Tensor]) -> list[Hypothesis]:
    """Write all rows to their ends. What is known of a row is kept by its number in the first batch."""
    logp, stop = run.first, run.symbols.stop
    rows = torch.arange(len(logp), device=logp.device)  # which rows are still being written
    tokens = torch.full((len(logp), run.longest + 1), stop, device=logp.device)
    total = torch.zeros(len(logp), device=logp.device, dtype=torch.float64)
    count = torch.zeros_like(rows)
    willing = torch.zeros_like(rows, dtype=torch.bool)
    written = 0
    while True:
        chosen = choose(logp)
        willing[rows] = chosen == stop
        chosen = chosen.masked_fill(run.limits[rows] <= written, stop)
        total[rows] += logp.gather(1, chosen.unsqueeze(1)).squeeze(1).double()
        tokens[rows, written] = chosen
        count[rows] = written
        going = (chosen != stop).nonzero().squeeze(1)  # the one look at the device in a step
        if not len(going):
            break
        if len(going) < len(rows):
            run.reorder(going)
            rows, chosen = rows[going], chosen[going]
        logp = run.step(chosen)
        written += 1
    return [
        Hypothesis(tuple(line[:size]), refuse_not_finite(value), ready, value)
        for line, size, value, ready in zip(
            tokens.tolist(), count.tolist(), total.tolist(), willing.tolist(), strict=True
        )
    ]
