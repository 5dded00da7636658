"""Tiny bundles with random weights, of each family, with the norm before or after, and sessions on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from clearhead.bundle import Bundle
from clearhead.explorer.session import Session
from clearhead.models import build
from clearhead.text.tokenizer import Tokenizer

ENGLISH = ["the cat sleeps .", "a dog eats the fish", "one bird sings ,", "who sees the old green house ?"]
FRENCH = ["le chat dort .", "un chien mange le poisson", "un oiseau chante", "qui voit la vieille maison ?"]
LABELS = ["good", "bad", "so-so"]
TAGS = ["pos=N", "pos=V", "ner=O", "ner=B", "ner=I"]  # of two columns
SEVERAL = {"head__kind": "tag", "head__classes": len(TAGS), "head__columns": (2, 3)}

BundleOf = Callable[..., Bundle]
SessionOf = Callable[..., Session]


def make_bundle(kind: str = "encoder-decoder", place: str = "post", **changes: Any) -> Bundle:
    """The same weights each time, shaken, so that outputs differ and depend on what is read.

    Kinds: encoder-decoder (one vocabulary), separate (two), decoder, encoder (a classifier), recurrent.
    """
    reader = Tokenizer.words(ENGLISH)
    writer = Tokenizer.words(FRENCH if kind == "separate" else ENGLISH + FRENCH)
    family = "encoder-decoder" if kind == "separate" else kind
    if kind == "separate":
        changes["source_vocabulary"] = reader.vocabulary_size
    if kind == "encoder":
        changes = {"head__kind": "classify", "head__classes": len(LABELS), **changes}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("tiny", family=family, vocabulary=writer.vocabulary_size, norm__place=place, **changes)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape))
    task = {"encoder": "classify", "decoder": "generate"}.get(kind, "translate")
    labels = TAGS if changes.get("head__columns") else LABELS
    notes = {"task": task, "labels": labels if kind == "encoder" else [], "documents": True}
    return Bundle(model.eval(), writer, notes, reader if kind == "separate" else None)


@pytest.fixture(scope="session")
def bundle_of() -> BundleOf:
    """A fresh bundle: `bundle_of("decoder", "pre", position__name="rotary")`."""
    return make_bundle


@pytest.fixture(scope="session")
def session_of() -> SessionOf:
    """A session on a fresh bundle, by the same arguments."""
    return lambda *what, **changes: Session(make_bundle(*what, **changes), "tiny")
