"""Small models that write: taught for a moment, so that they stop by themselves and are sure of most words.

An encoder-decoder turns its source round; a decoder goes on from "a b c ." with "c b a". A beam
search of an untaught model wanders off and never ends, which tells little about an export.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from clearhead.bundle import Bundle
from clearhead.decoding import Hypothesis, LengthPenalty, Symbols, beam_search, greedy
from clearhead.models import build
from clearhead.text.tokenizer import Tokenizer

LETTERS = "abcdefghij"
SMALL = {"width": 32, "layers": 2, "attention__heads": 4, "feedforward__width": 48, "dropout": 0.0}
PRE = {"norm__place": "pre"}
DECODER = {"family": "decoder", **PRE}
LLAMA = DECODER | {
    "norm__kind": "rms",
    "position__name": "rotary",
    "attention__kv_heads": 2,
    "attention__bias": False,
    "feedforward__gated": True,
    "feedforward__activation": "silu",
    "feedforward__bias": False,
    "embedding__scale": False,
    "embedding__tie_output": False,
}
LONGEST = 24  # more than any of them wants to write


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.words(" ".join(LETTERS) + " .")


def texts(seed: int = 5, count: int = 8) -> list[list[int]]:
    """Ids of some letters, texts of different lengths."""
    chance = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 6, (count,), generator=chance).tolist()
    return [torch.randint(4, 4 + len(LETTERS), (size,), generator=chance).tolist() for size in sizes]


def taught(**changes: Any) -> Bundle:
    """A model with these settings, trained until all it writes for `texts()` comes to an end."""
    return _taught(tuple(sorted(changes.items())))


@cache
def _taught(changes: tuple[tuple[str, Any], ...]) -> Bundle:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("tiny", **{**SMALL, "vocabulary": tokenizer().vocabulary_size, **dict(changes)})
        shake(model, 0.1)
        optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
        bundle = Bundle(model, tokenizer())
        for step in range(400):
            if step >= 40 and step % 20 == 0 and _comes_to_an_end(bundle):
                return bundle
            optimiser.zero_grad()
            _loss(model.train(), 2 + step % 4).backward()
            optimiser.step()
    raise AssertionError("this model does not learn to stop")


def _comes_to_an_end(bundle: Bundle) -> bool:
    rows, lengths = padded(given(bundle, texts()))
    symbols = Symbols.of(tokenizer())
    found = greedy(bundle.model.eval(), rows, lengths, symbols=symbols, max_length=LONGEST)
    several = len({one.ids for one in found}) >= 4  # what is written depends on what is read
    return several and all(one.stopped for one in found)


def shake(model: nn.Module, size: float = 0.3) -> None:
    """Biases that are not 0, norms that are not 1: no parameter without effect."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(size * torch.randn_like(parameter))


def untaught(**changes: Any) -> Bundle:
    """A model with random weights; the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("tiny", **{**SMALL, "vocabulary": tokenizer().vocabulary_size, **changes})
        shake(model)
    return Bundle(model.eval(), tokenizer())


def _loss(model: Any, size: int) -> torch.Tensor:
    words = torch.randint(4, 4 + len(LETTERS), (32, size))
    column = torch.ones(32, 1, dtype=torch.long)
    back = torch.cat([words.flip(1), 2 * column], dim=1)
    if model.config.family == "encoder-decoder":
        logits = model(torch.cat([words, 2 * column], dim=1), torch.cat([column, back[:, :-1]], dim=1)).logits
    else:
        full_stop = tokenizer().id(".") * column
        given = torch.cat([column, words, full_stop], dim=1)
        logits = model(torch.cat([given, back[:, :-1]], dim=1)).logits[:, given.shape[1] - 1 :]
    return F.cross_entropy(logits.flatten(0, 1), back.flatten())


def given(bundle: Bundle, words: list[list[int]]) -> list[list[int]]:
    """What the model is given for each text: a source with its end, or a prompt with its beginning."""
    if bundle.config.family == "encoder-decoder":
        return [[*ids, 2] for ids in words]
    return [[1, *ids, tokenizer().id(".")] for ids in words]


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True), lengths


def ours(bundle: Bundle, words: list[list[int]], beams: int = 1, alpha: float = 0.0) -> list[Hypothesis]:
    """What our own search finds for each text."""
    rows, lengths = padded(given(bundle, words))
    symbols = Symbols.of(tokenizer())
    if beams == 1:
        return greedy(bundle.model, rows, lengths, symbols=symbols, max_length=LONGEST)
    several = beam_search(
        bundle.model,
        rows,
        lengths,
        symbols=symbols,
        beams=beams,
        penalty=LengthPenalty(alpha),
        max_length=LONGEST,
    )
    return [best[0] for best in several]


def program(with_line: str) -> str:
    """The one program in `docs/interop.md` that has this line."""
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    [one] = [block for block in found if with_line in block.splitlines()]
    return one
