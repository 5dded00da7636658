"""The position examples, recomputed with the library's position schemes.

Shapes: T tokens, E model width; one row, one head, float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.lectures.attention import one_head, scores_of, tensor
from clearhead.lectures.step import Source, Step
from clearhead.nn.positions import Rotary, Sinusoidal
from clearhead.nn.tokens import Tokens


def sinusoidal_positions(source: Source) -> list[Step]:
    """The sinusoids alone, and added to the embeddings."""
    x = tensor(source.inputs["X"])[None]  # (1, T, E)
    scheme, tokens = Sinusoidal(), Tokens.padded(x.shape[1])
    waves, total = scheme.embed(torch.zeros_like(x), tokens)[0], scheme.embed(x, tokens)[0]
    rows = tuple(f"pos {i}" for i in range(x.shape[1]))
    columns = ("sin", "cos", "sin", "cos")
    formula = "sin or cos of pos / 10000^(2i/4)"
    return [
        source.step("PE", formula, waves, rows=rows, columns=columns),
        source.step("sum", "X + PE", total, rows=rows),
    ]


def rotary_distance(source: Source) -> list[Step]:
    """The scores of one phrase at two positions, with rotary and with sinusoidal positions."""
    x, words = tensor(source.inputs["X"])[None], tuple(source.inputs["words"])
    near, far = (Tokens.padded(x.shape[1], start=start) for start in source.inputs["starts"])
    turning = one_head(x.shape[2], position=Rotary(x.shape[2]))
    plain, waves = one_head(x.shape[2]), Sinusoidal()

    def rotary(tokens: Tokens) -> Tensor:
        return scores_of(turning.problem(x, queries=tokens))

    def sinusoidal(tokens: Tokens) -> Tensor:
        return scores_of(plain.problem(waves.embed(x, tokens), queries=tokens))

    turned, waved = ((scores(far) - scores(near)).round(decimals=12) for scores in (rotary, sinusoidal))
    formula = "q · k / √4, both turned by their positions, the phrase at positions"
    waving = "the same difference with sinusoidal positions added to the words"
    labels = (words, words)
    return [
        source.step("at_0", f"{formula} 0 to 2", rotary(near), "", *labels),
        source.step("at_7", f"{formula} 7 to 9", rotary(far), "", *labels),
        source.step("rotary_moved", "at_7 − at_0", turned, "No score changes.", *labels),
        source.step(
            "sinusoidal_moved", waving, waved, "Here every score changes with the position.", *labels
        ),
    ]
