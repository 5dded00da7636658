"""Rows of PyTorch models: whatever joins, leaves or repeats, scores equal those of the text alone."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

import clearhead
from clearhead.decoding.backend import Symbols
from clearhead.decoding.rows import TorchRows

SYMBOLS = Symbols(1, 2, (0, 1))
V = 13
SHAPES: dict[str, dict[str, object]] = {
    "post-norm, sinusoidal": {},
    "rotary, grouped": {"position": {"name": "rotary"}, "attention": {"heads": 4, "kv_heads": 2}},
    "t5": {"position": {"name": "t5"}, "norm": {"kind": "rms", "place": "pre"}},
    "recurrent": {"family": "recurrent"},
    "convolutional": {"family": "convolutional"},
    "decoder": {"family": "decoder"},
    "decoder, alibi": {"family": "decoder", "position": {"name": "alibi"}},
}


def make(shape: str) -> nn.Module:
    torch.manual_seed(1)
    plain = {"vocabulary": V, "width": 16, "layers": 2, "attention": {"heads": 4}, "dropout": 0.0}
    return clearhead.build(clearhead.ModelConfig.from_dict({**plain, **SHAPES[shape]})).double().eval()


@torch.no_grad()
def alone(model: nn.Module, given: list[int], written: list[int]) -> Tensor:
    """Log-probabilities after a text, in one pass without any state."""
    if model.config.family == "decoder":  # type: ignore[union-attr]
        logits = model(torch.tensor([given + written])).logits
    else:
        logits = model(torch.tensor([given]), torch.tensor([[1, *written]])).logits
    found: Tensor = logits[0, -1].log_softmax(-1)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_that_join_leave_and_repeat_score_like_texts_alone(shape: str, seed: int) -> None:
    model, chance = make(shape), random.Random(seed)
    rows = TorchRows(model, SYMBOLS)
    texts: list[tuple[int, list[int], list[int]]] = []  # request, given, written
    requests = 0
    for _ in range(12):
        if not texts or chance.random() < 0.4:
            new = [
                [chance.randrange(3, V) for _ in range(chance.randint(1, 6))]
                for _ in range(chance.randint(1, 3))
            ]
            scores = rows.admit(new)
            for given, found in zip(new, scores.logp(), strict=True):
                torch.testing.assert_close(found, alone(model, given, []), rtol=0, atol=1e-10)
                texts.append((requests, given, []))
                requests += 1
        kept = sorted({request for request, _, _ in texts if chance.random() < 0.8})
        uniform = chance.random() < 0.5
        width = chance.randint(1, 3)
        parents: list[int] = []
        for request in kept:
            own = [i for i, (number, _, _) in enumerate(texts) if number == request]
            count = width if uniform else chance.randint(1, 3)
            parents += [chance.choice(own) for _ in range(count)]
        tokens = [chance.randrange(3, V) for _ in parents]
        scores = rows.step(torch.tensor(parents, dtype=torch.long), torch.tensor(tokens, dtype=torch.long))
        texts = [(*texts[p][:2], [*texts[p][2], t]) for p, t in zip(parents, tokens, strict=True)]
        assert scores.rows == rows.count == len(texts)
        for (_, given, written), found in zip(texts, scores.logp(), strict=True):
            torch.testing.assert_close(found, alone(model, given, written), rtol=0, atol=1e-10)


def test_a_beam_keeps_one_memory_for_each_source() -> None:
    rows = TorchRows(make("post-norm, sinusoidal"), SYMBOLS)
    rows.admit([[5, 6, 2], [7, 2]])
    rows.step(torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([3, 4, 5, 3, 4, 5]))
    assert len(rows.state.memory) == 2
    assert all(len(cross.k) == 2 for cross in rows.state.cross)
    assert all(len(own.k) == 6 for own in rows.state.own)


def test_extras_are_those_of_the_last_place() -> None:
    model = make("post-norm, sinusoidal")
    rows = TorchRows(model, SYMBOLS, frozenset({"hidden", "attention"}))
    rows.admit([[5, 6, 2], [7, 2]])
    scores = rows.step(torch.tensor([0, 0, 1, 1]), torch.tensor([3, 4, 5, 6]))
    look = clearhead.Look("decoder.1.cross.weights")
    output = model(torch.tensor([[5, 6, 2]]), torch.tensor([[1, 4]]), look=look)
    assert scores.hidden is not None
    assert scores.attention is not None
    torch.testing.assert_close(scores.hidden[1], output.hidden[0, -1])
    torch.testing.assert_close(scores.attention[1], look["decoder.1.cross.weights"][0, :, -1].mean(0))
    assert scores.attention[2, 2] == 0.0  # padding of a shorter source
    torch.testing.assert_close(scores.part(1, 2).hidden, scores.hidden[1:2])
