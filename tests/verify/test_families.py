"""The same checks that users run, over every family of models and every position scheme: all must pass."""

from __future__ import annotations

from typing import Any

import pytest

from clearhead.bundle import Bundle
from clearhead.nn.attention.reformer import ReformerConfig
from clearhead.nn.positions import POSITIONS
from clearhead.verify import CHECKS, Effort, verify
from clearhead.verify.text_to_text import TEXTS

from ..decoding.bundles import labeller, translator, writer
from ..nn.builders import POSITION_ROWS

SMALL = Effort(texts=3, longest=5, write=4, draws=150, searched=1)

DIALS: dict[str, dict[str, Any]] = {
    f"encoder-decoder, {scheme}": {
        "position__name": scheme,
        **{f"position__{key}": value for key, value in POSITION_ROWS[scheme].items()},
    }
    for scheme in POSITIONS
}
DIALS |= {
    "encoder-decoder, separate vocabularies": {"separate": True},
    "encoder-decoder, grouped heads and a soft cap": {"attention__kv_heads": 2, "attention__softcap": 3.0},
    "encoder-decoder, additive score": {"attention__score": "additive"},
    "recurrent, gru": {"family": "recurrent"},
    "recurrent, lstm": {
        "family": "recurrent",
        "recurrent__cell": "lstm",
        "recurrent__attention": "bilinear",
    },
}
DECODERS: dict[str, dict[str, Any]] = {
    "decoder, like GPT-2": {
        "position__max_length": 24,
        "feedforward__activation": "gelu_tanh",
        "norm__place": "pre",
        "embedding__scale": False,
    },
    "decoder, like Llama": {
        "position__name": "rotary",
        "attention__kv_heads": 2,
        "attention__bias": False,
        "feedforward__activation": "silu",
        "feedforward__gated": True,
        "feedforward__bias": False,
        "norm__kind": "rms",
        "norm__place": "pre",
        "embedding__tie_output": False,
    },
    "decoder, alibi": {"position__name": "alibi"},
}


def faults(bundle: Bundle, **how: Any) -> list[str]:
    report = verify(bundle, effort=SMALL, **how)
    return [f"{check.name}: {check.sentence}" for check in report.checks if not check.passed]


OURS = [name for name in CHECKS if name != TEXTS]  # that one needs another toolkit to compare with
# What these look at are scores, wherever they come from: enough with some models of each family.
OF_SCORES_ALONE = (
    "stopping costs nothing",
    "sampling = its distribution (p)",
    "penalties = their formulas",
    "cut-offs = their sets",
)
EVERY_CHECK = ("encoder-decoder, learned", "encoder-decoder, rotary", "recurrent, gru")


@pytest.mark.parametrize("name", DIALS)
def test_a_model_with_a_source_passes(name: str) -> None:
    only = None if name in EVERY_CHECK else [one for one in OURS if one not in OF_SCORES_ALONE]
    assert faults(translator(**DIALS[name]), only=only) == []


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_passes(name: str) -> None:
    assert faults(writer(**DECODERS[name])) == []


def test_attention_that_sees_more_in_decoding_is_not_tested_for_seeing_the_same() -> None:
    reformer = writer(attention=ReformerConfig(heads=2, chunk=4, buckets=(2,)), position__name="none")
    only = ["cached = uncached", "beam score = forced score", "sampling = its distribution (p)"]
    report = verify(reformer, effort=SMALL, only=[*only, "fast kernels = reference"])
    assert [check.skipped for check in report.checks] == [True] * 4
    assert all("Reformer" in check.sentence for check in report.checks[:3])


def test_a_decoder_that_translates_passes() -> None:
    only = [one for one in OURS if one not in ("stopping costs nothing", "sampling = its distribution (p)")]
    assert faults(translator(family="decoder"), only=only) == []


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_an_encoder_is_tested_where_it_can_be(kind: str) -> None:
    report = verify(labeller(kind, ["good", "bad"]), effort=SMALL)
    assert [check.name for check in report.checks] == ["alone = in any batch", "fast kernels = reference"]
    assert report.passed


def test_a_quick_run_makes_every_check() -> None:
    report = verify(translator(), ["the cat sleeps", "who sees a dog", "one bird"], quick=True)
    assert [check.name for check in report.checks] == OURS
    assert report.passed
    assert all(check.sentence.endswith(".") for check in report.checks)


def test_several_stop_symbols_pass() -> None:
    bundle = writer()
    settings = {"eos_token_id": [2, 7, 9], "num_beams": 3}
    own = Bundle(bundle.model, bundle.tokenizer, {**bundle.metadata, "generation": settings})
    checks = ["beam score = forced score", "beam 1 = greedy", "penalties = their formulas"]
    assert faults(own, only=[*checks, "stopping costs nothing", "sampling = its distribution (p)"]) == []
