"""Small bundles with random weights, for tests on the level of text."""

from __future__ import annotations

from typing import Any

import torch

from clearhead.bundle import Bundle
from clearhead.models import build as build_anyhow
from clearhead.text.framing import Framing, Framings, bert_framing
from clearhead.text.tokenizer import Tokenizer

ENGLISH = ["the cat sleeps", "a dog eats the fish", "one bird sings", "who sees the old green house"]
FRENCH = ["le chat dort", "un chien mange le poisson", "un oiseau chante", "qui voit la vieille maison verte"]


def build(*what: Any, **changes: Any) -> torch.nn.Module:
    """The same weights each time, without disturbing anybody's chance."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_anyhow(*what, **changes)


def shaken(model: torch.nn.Module, size: float = 0.3) -> torch.nn.Module:
    """Random parameters everywhere, so that outputs differ and depend on what is read."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def translator(separate: bool = False, family: str = "encoder-decoder", **changes: Any) -> Bundle:
    reader = Tokenizer.words(ENGLISH)
    writer = Tokenizer.words(FRENCH if separate else ENGLISH + FRENCH)
    if separate:
        changes["source_vocabulary"] = reader.vocabulary_size
    model = build(
        "tiny",
        family=family,
        vocabulary=writer.vocabulary_size,
        embedding__tie_output=False,
        embedding__output_bias=True,
        **changes,
    )
    shaken(model)
    with torch.no_grad():
        model.output.weight.mul_(2.0)
        model.output.bias[writer.stop] = 1.0
    metadata: dict[str, Any] = {"task": "translate"}
    if family == "decoder":  # source, separator, target in one row; the start symbol separates them
        assert not separate, "one row has one vocabulary"
        framings = Framings(source=Framing.of(after=writer.start), target=Framing.of(after=writer.stop))
        metadata["framing"] = framings.to_dict()
    return Bundle(model, writer, metadata, reader if separate else None)


def writer(**changes: Any) -> Bundle:
    tokenizer = Tokenizer.characters("\n abcdefgh")
    settings = {"position__name": "learned", "position__max_length": 24, **changes}
    model = build("tiny", family="decoder", vocabulary=tokenizer.vocabulary_size, **settings)
    return Bundle(shaken(model), tokenizer, {"task": "generate"})


def labeller(
    kind: str, labels: list[str], family: str = "encoder", two: bool = False, **changes: Any
) -> Bundle:
    """A model that labels texts, or two of them together; one of numbers has no labels, but a scale."""
    tokenizer = Tokenizer.words(ENGLISH)
    if family != "encoder":
        changes = {"head__pooling": "last", **changes}
    model = build(
        "tiny",
        family=family,
        vocabulary=tokenizer.vocabulary_size,
        head__kind=kind,
        head__classes=max(len(labels), 1),
        embedding__token_types=2 if two and family == "encoder" else 0,
        **changes,
    )
    metadata: dict[str, Any] = {"task": kind, "labels": labels}
    if kind == "number":
        metadata = {"task": "regress", "numbers": {"mean": 10.0, "deviation": 2.0}}
        metadata["framing"] = Framings(source=Framing.of(before=tokenizer.start)).to_dict()
    if two or family != "encoder":
        framing = bert_framing(tokenizer.start, tokenizer.stop)
        framing = framing if family == "encoder" else framing.in_one_segment()
        metadata["framing"] = Framings(source=framing if two else framing.replace(pair=())).to_dict()
    return Bundle(shaken(model), tokenizer, metadata)
