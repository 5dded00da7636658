"""Weights in fewer bits write as well as those in float32: BLEU of a trained translator within 0.2."""

from __future__ import annotations

from pathlib import Path

import pytest

import clearhead
from clearhead.decoding import native
from clearhead.decoding.options import Options
from clearhead.decoding.writer import Dtype, Writer
from clearhead.evaluation.metrics import bleu
from clearhead.phrasebook import split

from .commands import Warm
from .test_learning import train, write_lines

NEAR = 0.2  # BLEU


@pytest.mark.slow
@pytest.mark.skipif(native.why_not() is not None, reason="the C++ engine cannot be built here")
def test_bf16_and_int8_keep_the_quality(warm: Warm, tmp_path: Path) -> None:
    """The phrasebook until it is nearly known, and 1,000 sentences that were never seen."""
    parts = split("en-fr", 30_000, 1000, seed=3)
    for name, pairs in (("train", parts.train), ("validation", parts.validation), ("test", parts.test)):
        write_lines(tmp_path / f"{name}.tsv", [f"{source}\t{target}" for source, target in pairs])
    train(
        warm,
        tmp_path,
        *("--file", "train.tsv", "--validation", "validation.tsv", "--test", "test.tsv"),
        steps=1200,
        model__width=128,
        tokenizer__kind="bpe",
        tokenizer__vocabulary=1000,
        schedule__rate=0.004,
        batch__tokens=2048,
    )
    sources, wanted = zip(*parts.test, strict=True)
    bundle = clearhead.load(tmp_path / "run")

    def score(dtype: Dtype) -> float:
        writer = Writer(bundle, device="cpu", dtype=dtype, way="native")
        written = [found[0].text for found in writer.in_order(sources, Options(beam=5))]
        return bleu(written, wanted).value

    whole = score("float32")
    assert whole > 60, "too little was learnt for the comparison to mean anything"
    for dtype in ("bf16", "int8"):
        assert abs(score(dtype) - whole) <= NEAR, dtype
