"""Random models, random calls: every instruction set of this machine is as near to the truth as PyTorch is.

The truth is the model in float64, computed from nothing for each text. Rows are admitted, doubled, dropped,
crossed over, emptied and filled again in any order, and no width is a multiple of anything.
"""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import Tensor, nn

from clearhead.decoding.native import NativeRows
from clearhead.decoding.native.binding import instruction_sets
from clearhead.decoding.native.pack import Dtype

from ..decoding.test_native import SYMBOLS, build, expected
from ..hard.engines import model_of

pytestmark = pytest.mark.native

SEEDS = 200
Text = tuple[list[int], list[int]]  # what was given, what was written


def a_model(chance: random.Random) -> nn.Module:
    """Any dials; one in four has next to no vocabulary and heads of odd sizes."""
    if chance.random() < 0.75:
        return model_of(chance)
    return build(
        chance.choice(["encoder-decoder", "decoder"]),
        vocabulary=chance.choice([2, 3, 5, 65]),
        width=chance.choice([6, 22, 38]),
        attention__heads=2,
        attention__key_dim=chance.choice([3, 5, 18]),
        attention__value_dim=chance.choice([1, 7, 17]),
        feedforward__width=chance.choice([1, 13, 67]),
    )


class Walk:
    """The same calls for every instruction set, and the texts that they stand for."""

    def __init__(self, model: nn.Module, dtype: Dtype, chance: random.Random) -> None:
        self.model, self.dtype, self.chance = model, dtype, chance
        self.exact = copy.deepcopy(model).double()
        self.vocabulary: int = model.config.vocabulary  # type: ignore[assignment, union-attr]
        threads = chance.choice([1, 1, 2, 3])
        self.rows = [
            NativeRows(model, SYMBOLS, dtype, threads=threads, instruction_set=name)
            for name in instruction_sets()
        ]
        self.texts: list[Text] = []

    def admit(self) -> None:
        sizes = [self.chance.randint(1, 9) for _ in range(self.chance.randint(1, 6))]
        given = [[self.chance.randrange(self.vocabulary) for _ in range(size)] for size in sizes]
        fresh: list[Text] = [(one, []) for one in given]
        self.compare([rows.admit(given).logp() for rows in self.rows], fresh)
        self.texts += fresh

    def step(self) -> None:
        count = self.chance.randint(1, min(14, 2 * len(self.texts)))
        parents = [self.chance.randrange(len(self.texts)) for _ in range(count)]
        tokens = [self.chance.randrange(self.vocabulary) for _ in parents]
        self.texts = [
            (self.texts[parent][0], [*self.texts[parent][1], token])
            for parent, token in zip(parents, tokens, strict=True)
        ]
        moves = torch.tensor(parents), torch.tensor(tokens)
        self.compare([rows.step(*moves).logp() for rows in self.rows], self.texts)

    def leave(self) -> None:
        nothing = torch.zeros(0, dtype=torch.int64)
        for rows in self.rows:
            rows.step(nothing, nothing)
            assert rows.memory()[0] == 0  # all keys and values were given back
        self.texts = []

    def compare(self, found: list[Tensor], texts: list[Text]) -> None:
        if self.dtype == "float32":
            wanted = torch.stack([expected(self.exact, *text) for text in texts])
            theirs = torch.stack([expected(self.model, *text) for text in texts])
            bound = 1e-4 + 8 * float((theirs - wanted).abs().max())
            for one in found:
                assert float((one - wanted).abs().max()) < bound
        for one in found[1:]:
            difference = (one - found[0]).abs()
            # in int8 an activation that lies just between two whole numbers may become either
            assert float(difference.mean()) < (0.05 if self.dtype == "int8" else 1e-3)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_calls(seed: int) -> None:
    chance = random.Random(seed)
    dtypes: tuple[Dtype, ...] = ("float32", "float32", "bf16", "int8")
    walk = Walk(a_model(chance), dtypes[seed % 4], chance)
    walk.admit()
    for _ in range(9):
        weights = {walk.admit: 2, walk.step: 6 if walk.texts else 0, walk.leave: 1}
        [action] = chance.choices(list(weights), list(weights.values()))
        action()
