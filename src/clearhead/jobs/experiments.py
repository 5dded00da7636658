"""Experiments that answer the lectures' questions: small models, trained on synthetic data within seconds.

Everything is seeded, so a machine shows the same numbers each time. A made-up language stands for English and
French: the target opens with a register, chosen freely, then translates word by word, and every verb has two
forms and must agree with the register. In stories, each word may be followed by two others, which depend on
the theme.

Shapes: B examples of a batch, S source words, T target words, V words of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention

START = 1
KINDS, LENGTH = 4, 4  # nouns and verbs of the language, words of a sentence
SOURCE, REGISTER, NOUN, VERB, LANGUAGE = 2, 10, 12, 16, 24  # first ids of each class; size of the vocabulary
THEMES, WORDS, STORY = 3, 10, 8  # of stories; words of a story
THEME, WORD, YES, NO, MASK, VOCABULARY = 2, 5, 15, 16, 17, 18
BATCH, TRIED, STEPS = 64, 200, 400

Draw = Callable[[int], tuple[tuple[Tensor, ...], Tensor]]  # number of examples → inputs and labels


@dataclass(frozen=True)
class Experiment:
    """The results of an experiment, as a table, and what they show."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shows: str


def small(family: str, vocabulary: int, **changes: Any) -> nn.Module:
    """A model of width 32 with 4 heads and 2 layers per stack, without dropout."""
    plain = {"family": family, "width": 32, "layers": 2, "vocabulary": vocabulary, "dropout": 0.0}
    parts = {"attention": {"heads": 4, "dropout": 0.0}, "norm": {"place": "pre"}, "head": {"dropout": 0.0}}
    if family == "encoder":
        parts["head"] = {"kind": "mlm", "dropout": 0.0}
    return build(ModelConfig.from_dict({**plain, **parts, "embedding": {"dropout": 0.0}, **changes}))


def train(model: nn.Module, draw: Draw, steps: int) -> float:
    """Train by Adam at a constant rate; returns the mean loss of the last tenth of the steps."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(steps):
        given, labels = draw(BATCH)
        logits = model(*given).logits
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    last = losses[-max(1, steps // 10) :]
    model.eval()
    return sum(last) / len(last)


@contextmanager
def silenced(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Make the outputs of some parts 0 within the block, as if they were absent."""
    hooks = [part.register_forward_hook(lambda part, given, found: torch.zeros_like(found)) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def seeded(seed: int = 0) -> Iterator[torch.Generator]:
    """A local random state that leaves the global one untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)


# --- the made-up language ------------------------------------------------------------------------


def translations(draw: torch.Generator) -> Draw:
    """Sources (B, S) and decoder inputs (B, T); labels (B, T)."""

    def some(count: int) -> tuple[tuple[Tensor, ...], Tensor]:
        words = torch.randint(2 * KINDS, (count, LENGTH), generator=draw)
        register = torch.randint(2, (count, 1), generator=draw)
        form = torch.where(words < KINDS, NOUN + words, VERB + KINDS * register + words - KINDS)
        target = torch.cat([REGISTER + register, form], 1)
        return (SOURCE + words, torch.cat([torch.full((count, 1), START), target[:, :-1]], 1)), target

    return some


@torch.no_grad()
def judged(model: nn.Module, sources: Tensor) -> tuple[float, float, int]:
    """Greedy decoding: the share of right words, of verbs that agree, and how many outputs differ."""
    written = torch.full((len(sources), 1), START)
    for _ in range(LENGTH + 1):
        best = model(sources, written).logits[:, -1].argmax(-1, keepdim=True)
        written = torch.cat([written, best], 1)
    register, words = written[:, 1:2] - REGISTER, written[:, 2:]
    verb = (words >= VERB) & (words < VERB + 2 * KINDS)
    word = torch.where(verb, KINDS + (words - VERB) % KINDS, words - NOUN)
    agrees = (words - VERB) // KINDS == register
    right = (word == sources - SOURCE).double().mean()
    share = float((agrees & verb).sum()) / max(1, int(verb.sum()))
    return float(right), share, len(written.unique(dim=0))


def cross_attention(steps: int = STEPS) -> Experiment:
    """The decoder without its own past, and without the source: from training on, or silenced afterwards."""
    with seeded() as chance:
        draw = translations(chance)
        (sources, _), _ = draw(TRIED)
        rows = []

        def note(name: str, loss: float, model: nn.Module) -> None:
            right, agree, different = judged(model, sources)
            shown = (f"{loss:.3f}", f"{100 * right:.0f} %", f"{100 * agree:.0f} %", f"{different}")
            rows.append((name, *shown))

        whole: Any = small("encoder-decoder", LANGUAGE)
        note("everything in place", loss := train(whole, draw, steps), whole)
        with silenced([layer.cross_attention for layer in whole.decoder.layers]):
            note("cross-attention switched off after training", loss, whole)
        blind = small("encoder-decoder", LANGUAGE, cross_attention=False)
        note("trained without cross-attention", train(blind, draw, steps), blind)
        alone: Any = small("encoder-decoder", LANGUAGE)
        with silenced([layer.attention for layer in alone.decoder.layers]):
            note("trained without the decoder's self-attention", train(alone, draw, steps), alone)
    floor, without = math.log(2) / (LENGTH + 1), (math.log(2) + LENGTH * math.log(2 * KINDS)) / (LENGTH + 1)
    return Experiment(
        "What each part contributes",
        f"A made-up translation: {LENGTH} words of {2 * KINDS}, a register that verbs agree with; greedy, "
        f"{TRIED} sources. No loss can fall below {floor:.3f}, nor below {without:.3f} without the source.",
        ("model", "loss", "words right", "verbs that agree", "different outputs"),
        tuple(rows),
        "Without cross-attention, all sources get the same output: well-formed, but unrelated to the "
        "source. Without the decoder's self-attention the words are right and the verbs no longer agree, "
        "since nothing but the decoder's own past tells the register.",
    )


def exchanged_roles() -> Experiment:
    """Queries from either side: there are as many output rows as queries."""
    attention = MultiHeadAttention(AttentionConfig(width=8, heads=2))
    source, target = torch.zeros(1, 5, 8), torch.zeros(1, 3, 8)
    rows = [len(attention(one, other)[0]) for one, other in ((target, source), (source, target))]
    return Experiment(
        "Which side asks",
        "Cross-attention between 5 source and 3 target words, with the queries from either side.",
        ("queries", "keys and values", "rows that come out", "rows of the residual"),
        (("decoder", "encoder", str(rows[0]), "3"), ("encoder", "decoder", str(rows[1]), "3")),
        "Only the decoder's queries give a row for each target word, to which the residual can be added.",
    )


# --- stories -------------------------------------------------------------------------------------


def successors() -> Tensor:
    """(themes, words + 1, 2): what may follow each word; the last row is what may come first."""
    chance = torch.Generator().manual_seed(7)
    order = torch.stack([torch.randperm(WORDS, generator=chance) for _ in range(THEMES * (WORDS + 1))])
    return order[:, :2].view(THEMES, WORDS + 1, 2)


def stories(draw: torch.Generator) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Themes (B,) and stories (B, T) as numbers of words."""
    follow = successors()

    def some(count: int) -> tuple[Tensor, Tensor]:
        theme = torch.randint(THEMES, (count,), generator=draw)
        words, last = [], torch.full((count,), WORDS)
        for _ in range(STORY):
            last = follow[theme, last, torch.randint(2, (count,), generator=draw)]
            words.append(last)
        return theme, torch.stack(words, 1)

    return some


def continued(tell: Callable[[int], tuple[Tensor, Tensor]]) -> Draw:
    """Inputs: the theme and all words but the last. Labels: each next word."""

    def some(count: int) -> tuple[tuple[Tensor, ...], Tensor]:
        theme, words = tell(count)
        return (torch.cat([THEME + theme[:, None], WORD + words[:, :-1]], 1),), WORD + words

    return some


@torch.no_grad()
def told(write: Callable[[Tensor, list[Tensor]], Tensor], draw: torch.Generator) -> float:
    """The share of words that may follow the one before, each sampled from the model."""
    follow = successors()
    theme = torch.arange(TRIED) % THEMES
    words: list[Tensor] = []
    last, allowed = torch.full((TRIED,), WORDS), 0
    for _ in range(STORY):
        scores = write(theme, words)[:, WORD : WORD + WORDS]
        chosen = torch.multinomial(scores.softmax(-1), 1, generator=draw)[:, 0]
        allowed += int((follow[theme, last] == chosen[:, None]).any(1).sum())
        words.append(chosen)
        last = chosen
    return allowed / (TRIED * STORY)


def by_decoder(model: nn.Module) -> Callable[[Tensor, list[Tensor]], Tensor]:
    """A decoder's prediction after a theme and some words."""

    def write(theme: Tensor, words: list[Tensor]) -> Tensor:
        row = torch.stack([THEME + theme, *(WORD + word for word in words)], 1)
        scores: Tensor = model(row).logits[:, -1]
        return scores

    return write


def causal_mask(steps: int = STEPS) -> Experiment:
    """A decoder that tells stories, trained with the mask and without it."""
    rows = []
    for name, mask in (("with the mask", True), ("without the mask", False)):
        with seeded() as chance:
            model = small("decoder", VOCABULARY, causal_mask=mask)
            loss = train(model, continued(stories(chance)), steps)
            share = told(by_decoder(model), chance)
        rows.append((name, f"{loss:.3f}", f"{100 * share:.0f} %"))
    return Experiment(
        "The causal mask in training",
        f"Stories of {STORY} words in which two words may follow each word: no honest loss is below ln 2 "
        f"= {math.log(2):.3f}. Then the model writes {TRIED} stories on its own.",
        ("trained", "loss", "words that may follow the one before"),
        tuple(rows),
        "Without the mask the loss falls below its floor, because the model reads the answer in its "
        "input; when it has to write, there is no answer to read, and it fails.",
    )


# --- which architecture for which task -----------------------------------------------------------


def architectures(steps: int = 250) -> Experiment:
    """Encoder, decoder and encoder-decoder on a label, on tags and on stories."""
    rows = []
    for family in ("encoder", "decoder", "encoder-decoder"):
        with seeded() as chance:
            spam = _labelled(family, chance, steps)
        with seeded() as chance:
            tags = "–" if family == "encoder-decoder" else f"{100 * _tagged(family, chance, steps):.0f} %"
        with seeded() as chance:
            story = _story(family, chance, steps)
        size = sum(one.numel() for one in small(family, VOCABULARY).parameters())
        rows.append((family, f"{size:,}", f"{100 * spam:.0f} %", tags, f"{100 * story:.0f} %"))
    return Experiment(
        "Which architecture for which task",
        "A label: does one given word come before another? A tag for each word: does it come again? A story "
        f"from its theme. {steps} steps each; chance is 50 % for the label and 20 % for stories.",
        ("model", "parameters", "label", "tags", "story"),
        tuple(rows),
        "The encoder sees later words and the decoder does not, so the decoder's tags are guesses. The "
        "encoder writes all words at once, so each cannot follow from the one before. The "
        "encoder-decoder pays for two stacks. On toy data this small all three can learn the label: "
        "compare cost as well as quality.",
    )


def _labelled(family: str, chance: torch.Generator, steps: int) -> float:
    """The share of right labels: does word 0 come before word 1?"""

    def some(count: int) -> tuple[tuple[Tensor, ...], Tensor]:
        words = torch.rand(count, WORDS, generator=chance).argsort(1)
        first = (words == 0).double().argmax(1) < (words == 1).double().argmax(1)
        read, label = WORD + words, torch.where(first, YES, NO)
        ask = torch.full((count, 1), START)
        nothing = torch.full((count, WORDS), -100)
        if family == "encoder":
            return (torch.cat([ask, read], 1),), torch.cat([label[:, None], nothing], 1)
        if family == "decoder":
            return (torch.cat([read, ask], 1),), torch.cat([nothing, label[:, None]], 1)
        return (read, ask), label[:, None]

    model = small(family, VOCABULARY)
    train(model, some, steps)
    return _right(model, *some(TRIED))


def _tagged(family: str, chance: torch.Generator, steps: int) -> float:
    """The share of right tags: does this word occur again?"""

    def some(count: int) -> tuple[tuple[Tensor, ...], Tensor]:
        words = torch.randint(WORDS, (count, STORY), generator=chance)
        later = torch.ones(STORY, STORY).triu(1).bool()
        again = ((words[:, :, None] == words[:, None, :]) & later).any(2)
        return (WORD + words,), torch.where(again, YES, NO)

    model = small(family, VOCABULARY)
    train(model, some, steps)
    return _right(model, *some(TRIED))


@torch.no_grad()
def _right(model: nn.Module, given: tuple[Tensor, ...], labels: Tensor) -> float:
    best, counts = model(*given).logits.argmax(-1), labels != -100
    return float((best == labels)[counts].double().mean())


def _story(family: str, chance: torch.Generator, steps: int) -> float:
    """The share of a story's words that may follow the one before."""
    tell = stories(chance)
    model = small(family, VOCABULARY)
    if family == "decoder":
        train(model, continued(tell), steps)
        return told(by_decoder(model), chance)

    def whole(theme: Tensor) -> Tensor:
        return torch.cat([THEME + theme[:, None], torch.full((len(theme), STORY - 1), MASK)], 1)

    def some(count: int) -> tuple[tuple[Tensor, ...], Tensor]:
        theme, words = tell(count)
        if family == "encoder":
            return (whole(theme),), WORD + words
        shifted = torch.cat([torch.full((count, 1), START), WORD + words[:, :-1]], 1)
        return (THEME + theme[:, None], shifted), WORD + words

    def write(theme: Tensor, words: list[Tensor]) -> Tensor:
        if family == "encoder":  # all words at once, independently of each other
            scores: Tensor = model(whole(theme)).logits[:, len(words)]
            return scores
        row = torch.stack([torch.full_like(theme, START), *(WORD + word for word in words)], 1)
        scores = model(THEME + theme[:, None], row).logits[:, -1]
        return scores

    train(model, some, steps)
    return told(write, chance)


# --- lengths -------------------------------------------------------------------------------------


def past_the_table() -> Experiment:
    """What a model does with a text that is longer than its table of positions."""
    rows = []
    for scheme in ("learned", "sinusoidal", "rotary"):
        model = small("decoder", VOCABULARY, position={"name": scheme, "max_length": STORY})
        said = []
        for length in (STORY, STORY + 4):
            try:
                model(torch.full((1, length), WORD))
                said.append("an answer")
            except UserError as error:
                said.append(str(error))
        rows.append((scheme, *said))
    return Experiment(
        "Beyond the maximum length",
        f"Decoders with positions for {STORY} tokens, asked for {STORY} and {STORY + 4}; nothing is trained.",
        ("positions", f"{STORY} tokens", f"{STORY + 4} tokens"),
        tuple(rows),
        "A learned table ends. Sinusoidal and rotary positions exist at any length, but no model has been "
        "trained there, and existing is not working.",
    )


EXPERIMENTS: dict[str, tuple[Callable[[], Experiment], ...]] = {
    "cross-attention-questions": (cross_attention, causal_mask, exchanged_roles),
    "which-architecture": (architectures,),
    "which-is-correct": (past_the_table,),
}
