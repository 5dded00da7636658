"""Devices without float64 (Apple's `mps`): positions, searches, labels, scores and losses as on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from clearhead.bundle import Bundle
from clearhead.decoding.labels import class_probabilities, tag
from clearhead.decoding.options import Options
from clearhead.decoding.score import score
from clearhead.decoding.writer import Writer
from clearhead.evaluation.loss import corpus_loss

from .bundles import ENGLISH, FRENCH, labeller, translator, writer
from .pretending import without_float64

PAIRS = list(zip(ENGLISH, FRENCH, strict=True))
OPTIONS = {
    "greedy": Options(max_length=5),
    "beam": Options(beam=3, nbest=2, max_length=5, coverage=0.2, no_repeat=3),
    "sampling": Options(sample=True, top_k=7, top_p=0.9, typical=0.95, seed=3, max_length=5),
}


def texts(options: Options) -> Callable[[Bundle], Any]:
    return lambda bundle: [
        [(one.text, one.ids) for one in found]
        for found in Writer(bundle, way="torch").in_order(ENGLISH, options)
    ]


CASES: dict[str, tuple[Callable[[], Bundle], Callable[[Bundle], Any]]] = {
    **{name: (translator, texts(options)) for name, options in OPTIONS.items()},
    "rotary": (lambda: translator(position__name="rotary"), texts(OPTIONS["greedy"])),
    "far relatives": (lambda: translator(position__name="transformer_xl"), texts(OPTIONS["greedy"])),
    "contrastive": (
        writer,
        lambda bundle: [
            one[0].text
            for one in Writer(bundle, way="torch").in_order(
                ["ab", "cd"], Options(contrastive=0.5, top_k=3, max_length=6)
            )
        ],
    ),
    "classes": (
        lambda: labeller("classify", ["good", "bad"]),
        lambda bundle: [one["good"] for one in class_probabilities(bundle, ENGLISH)],
    ),
    "tags": (lambda: labeller("tag", ["noun", "verb", "other"]), lambda bundle: tag(bundle, ENGLISH)),
    "scores": (translator, lambda bundle: [one.logp for one in score(bundle, PAIRS)]),
    "loss": (translator, lambda bundle: [corpus_loss(bundle, PAIRS).nats]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_device_without_float64_finds_the_same(name: str) -> None:
    make, ask = CASES[name]
    wanted = ask(make())
    bundle = make()
    with without_float64() as place:
        for parameter in bundle.model.parameters():
            parameter.requires_grad_(False)
        bundle.model.to(place)
        assert next(bundle.model.parameters()).device == place
        with torch.no_grad():
            found = ask(bundle)
    assert found == (pytest.approx(wanted, abs=1e-4) if isinstance(wanted[0], float) else wanted)
