"""Which numbers a bundle is decoded in: by what it stores and the kind of processor, never by a clock."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding import native, number_formats
from clearhead.decoding.drift import Drift, forced
from clearhead.decoding.native import binding
from clearhead.decoding.number_formats import acceptable, fast, trained_in
from clearhead.decoding.options import Options
from clearhead.decoding.score import score
from clearhead.decoding.writer import Writer
from clearhead.evaluation.formats import measure_formats
from clearhead.evaluation.loss import corpus_loss
from clearhead.tasks import TASKS

from .bundles import ENGLISH, FRENCH, labeller, translator, writer

CPU = torch.device("cpu")
GOOD = {"value": 50.0, "cost": 0.1, "drift": 0.001}
needs_engine = pytest.mark.skipif(native.why_not() is not None, reason=f"no engine: {native.why_not()}")


def with_notes(metadata: dict[str, Any]) -> Bundle:
    made = translator()
    return Bundle(made.model, made.tokenizer, {**made.metadata, **metadata}, made.source_tokenizer)


def test_auto_is_float32_on_a_cpu_and_the_trained_format_on_a_gpu() -> None:
    bundle = with_notes({"training": {"dtype": "bfloat16"}})
    for way in ("auto", "torch"):
        assert Writer(bundle, dtype="auto", way=way).dtype == "float32"
    assert trained_in(bundle) == "bf16"
    assert trained_in(with_notes({"training": {"dtype": "float32"}})) == "float32"
    assert trained_in(with_notes({"training": {"dtype": "float16"}})) == "float32"
    half = with_notes({"training": "long ago"})
    half.model = copy.deepcopy(half.model).to(torch.bfloat16)
    assert trained_in(half) == "bf16"  # an imported one: its weights say it
    # and float32 is float32, whatever the weights are stored in
    assert next(Writer(half, dtype="auto", way="torch")._torch_model().parameters()).dtype == torch.float32


@needs_engine
@pytest.mark.parametrize(
    "kind, stored, wanted",
    [
        ("avx512-vnni", {"bf16": GOOD, "int8": GOOD}, "int8"),
        ("avx2", {"bf16": GOOD, "int8": {**GOOD, "cost": 0.7}}, "bf16"),
        ("avx512-vnni", {"bf16": GOOD, "int8": {**GOOD, "drift": 0.3}}, "bf16"),
        ("avx512-vnni", {"bf16": {**GOOD, "cost": None}, "int8": {"cost": math.nan, "drift": 0}}, "float32"),
        ("avx512", {"bf16": GOOD, "int8": GOOD}, "int8"),
        ("plain", {"bf16": GOOD, "int8": {**GOOD, "cost": 0.7}}, "float32"),
        ("unheard-of", {"bf16": GOOD, "int8": GOOD}, "float32"),
        ("neon", {"int8": GOOD, "bf16": GOOD}, "int8"),
        ("neon-i8mm", {"int8": {**GOOD, "cost": 0.7}, "bf16": GOOD}, "float32"),
        ("avx512-vnni", {}, "float32"),
    ],
)
def test_fast_is_the_first_format_that_costs_little(
    kind: str, stored: dict[str, Any], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(number_formats, "instruction_set", lambda: kind)
    found = Writer(with_notes({"formats": {"metric": "chrF", "cpu": stored}}), dtype="fast")
    assert found.dtype == wanted
    assert (found.why_not_fast is None) == (wanted != "float32")


@needs_engine
def test_fast_is_decided_by_the_kernels_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in binding.instruction_sets():
        monkeypatch.setenv("CLEARHEAD_INSTRUCTION_SET", name)
        assert binding.instruction_set() == name
        assert number_formats._order(CPU) == (number_formats.CPU_ORDER[name], name)
    monkeypatch.setenv("CLEARHEAD_INSTRUCTION_SET", "abacus")
    with pytest.raises(UserError, match="no kernels for the instruction set 'abacus'"):
        number_formats._order(CPU)


@needs_engine
def test_fast_says_why_it_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_formats, "instruction_set", lambda: "avx512-vnni")
    for notes in ({}, {"formats": "none"}, {"formats": {"metric": "chrF", "cuda": {"bf16": GOOD}}}):
        dtype, sentence = fast(with_notes(notes), CPU, None)
        assert dtype == "float32"
        assert sentence is not None
        assert "does not record what other number formats cost" in sentence
    assert "no compiler" in (fast(translator(), CPU, "There is no compiler.")[1] or "")
    assert acceptable({"cost": 0.01, "drift": 0.001}, "nats per token")
    assert not acceptable({"cost": 0.1, "drift": 0.001}, "nats per token")  # points are another matter


@needs_engine
@pytest.mark.parametrize("family", ["translator", "writer"])
def test_what_formats_cost_is_measured(family: str) -> None:
    bundle = translator() if family == "translator" else writer()
    task = "translate" if family == "translator" else "generate"
    rows = list(zip(ENGLISH, FRENCH, strict=True)) if family == "translator" else [("", x) for x in ENGLISH]
    found = measure_formats(bundle, rows, TASKS[task].judge)
    assert found["examples"] == len(rows)
    assert set(found["cpu"]) == {"float32", "bf16", "int8"}
    right = found["cpu"]["float32"]["value"]
    for dtype in ("bf16", "int8"):
        one = found["cpu"][dtype]
        worse = one["value"] - right if task == "generate" else right - one["value"]
        assert one["cost"] == pytest.approx(worse, abs=1e-4)
        assert 0 <= one["drift"] < 0.02
        assert 0 < one["largest"] < 5
        assert 0.5 < one["same"] <= 1
    assert found["cpu"]["bf16"]["largest"] < found["cpu"]["int8"]["largest"]
    assert measure_formats(bundle, rows, TASKS[task].judge) == found
    if task == "generate":
        assert right == pytest.approx(corpus_loss(bundle, rows).per_token, rel=1e-4)


@needs_engine
def test_texts_that_are_too_long_are_left_out_and_many_are_thinned() -> None:
    """A measurement at the end of training must neither fail nor take long."""
    short = translator(position__name="learned", position__max_length=8)
    rows = [("the cat " * 9, "le chat"), ("the cat", "le chat " * 9), ("the cat", "le chat")]
    assert measure_formats(short, rows, TASKS["translate"].judge)["examples"] == 1
    none = measure_formats(short, rows[:2], TASKS["translate"].judge)
    assert "cpu" not in none
    assert "short enough" in none["unmeasured"]
    assert (
        measure_formats(translator(), [("the cat", "le chat")] * 900, TASKS["translate"].judge)["examples"]
        == 200
    )
    assert (
        measure_formats(writer(), [("", "the cat " * 30_000)], TASKS["generate"].judge)["cpu"]["int8"][
            "drift"
        ]
        < 0.02
    )


def test_a_model_that_labels_has_one_format() -> None:
    assert (
        measure_formats(labeller("classify", ["good", "bad"]), [("the cat", "good")], TASKS["classify"].judge)
        == {}
    )


def test_forced_decoding_step_by_step_is_forced_decoding_in_one_pass() -> None:
    bundle = translator()
    made = Writer(bundle, way="torch")
    pairs = list(zip(ENGLISH, FRENCH, strict=True))[:5]
    given = [made.requests(source, Options())[0].given for source, _ in pairs]
    texts = [[*made.tokenizer.encode(target), made.symbols.stop] for _, target in pairs]
    found = [0.0] * len(pairs)
    rows = made.rows(Options())
    for at, (going, scores) in enumerate(forced(rows, given, texts)):
        for row, number in enumerate(going):
            found[number] += float(scores.logp()[row, texts[number][at]])
    assert found == pytest.approx([one.logp for one in score(bundle, pairs)], abs=1e-4)
    assert rows.count == 0


def test_drift_is_relative_entropy() -> None:
    torch.manual_seed(0)
    wanted, found = (torch.randn(3, 5).log_softmax(-1) for _ in range(2))
    drift = Drift()
    drift.add(found[:2], wanted[:2])
    drift.add(found[2], wanted[2])
    by_hand = sum(
        math.exp(p) * (p - q)
        for p, q in zip(wanted.double().flatten().tolist(), found.double().flatten().tolist(), strict=True)
    )
    assert drift.per_token == pytest.approx(by_hand / 3)
    assert drift.largest == pytest.approx(float((wanted - found).abs().max()))
    assert drift.same == int((wanted.argmax(-1) == found.argmax(-1)).sum())
    hidden = torch.tensor([[0.0, -torch.inf]])
    exact = Drift()
    exact.add(hidden, hidden)
    assert (exact.nats, exact.largest, exact.share_same) == (0.0, 0.0, 1.0)
    exact.add(torch.tensor([[math.nan, 0.0]]), hidden)
    assert exact.largest == math.inf
    assert not acceptable({"cost": 0.0, "drift": exact.per_token}, "chrF")
