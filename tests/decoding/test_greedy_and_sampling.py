"""Greedy and drawn texts through the engine: equal to plain recomputation and transformers, at any limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Hypothesis, Request, Symbols
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past, pipeline
from clearhead.decoding.rows import PlainScores, TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.run import greedy
from clearhead.interop import import_folder

from ..interop.conftest import GPT2, GROUPED, LLAMA, PAD, SEQ2SEQ, T5, VOCABULARY, Spec, save_random
from ..models.families import has_source, ids, model_for

SYMBOLS = Symbols(start=1, stop=2, forbidden=(0, 1))
LENGTHS = [5, 2, 4, 1]


def write(
    model: nn.Module,
    given: Sequence[Sequence[int]],
    limit: int,
    symbols: Symbols = SYMBOLS,
    room: int = 64,
    **asked: Any,
) -> list[list[Hypothesis]]:
    def make(batch: Batch) -> GreedyOrSampling:
        return GreedyOrSampling(
            batch, pipeline(batch.options, batch.symbols, batch.vocabulary, has_source(model))
        )

    requests = [Request(tuple(one), limit, Options(**asked)) for one in given]
    engine = rows_engine(TorchRows(model, symbols), symbols, make, room)
    return [texts for _, texts in sorted(engine.run(requests))]


def stopping(family: str, push: float = 2.0) -> nn.Module:
    """A model whose rows end early, late or never."""
    model = model_for(family, dtype=torch.float32, embedding__tie_output=False, embedding__output_bias=True)
    with torch.no_grad():
        model.output.weight.mul_(3.0)
        model.output.bias.zero_()
        model.output.bias[SYMBOLS.stop] = push
    return model


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "recurrent"])
@pytest.mark.parametrize("room", [1, 3, 64])
def test_greedy_through_the_engine_is_the_likeliest_token_each_time(family: str, room: int) -> None:
    model, rows = stopping(family), ids(4, 5)
    given = [row[:size].tolist() for row, size in zip(rows, LENGTHS, strict=True)]
    found = write(model, given, 6, room=room)
    wanted = greedy(model, rows, LENGTHS, symbols=SYMBOLS, max_length=6)
    for [one], expected in zip(found, wanted, strict=True):
        assert (one.ids, one.stopped) == (expected.ids, expected.stopped)
        assert math.isclose(one.logp, expected.logp, abs_tol=1e-4)
        assert one.score == one.logp
        assert len(one.token_logps) == len(one.ids) + 1
        assert math.isclose(sum(one.token_logps), one.logp, abs_tol=1e-6)


def test_the_cases_differ_in_length_and_in_how_they_end() -> None:
    found = [
        one
        for family in ("encoder-decoder", "decoder", "recurrent")
        for [one] in write(stopping(family), [row.tolist() for row in ids(4, 5)], 6)
    ]
    assert {one.stopped for one in found} == {True, False}
    assert len({len(one.ids) for one in found}) > 2


def test_processors_shape_the_choice_and_leave_the_models_probabilities_alone() -> None:
    model = model_for("decoder", dtype=torch.float32)
    prompt = [3, 4, 5]
    [[free]] = write(model, [prompt], 8)
    [[one]] = write(model, [prompt], 8, repetition=3.0, no_repeat=2, banned=((free.ids[0],),))
    assert free.ids[0] not in one.ids
    whole = [*prompt, *one.ids]
    grams = list(zip(whole[1:], whole[:-1], strict=True))
    assert len(set(grams[len(prompt) - 1 :])) == len(grams[len(prompt) - 1 :])
    with torch.no_grad():
        logp = model(torch.tensor([whole])).logits[0].log_softmax(-1)
    own = [float(logp[2 + place, token]) for place, token in enumerate([*one.ids, SYMBOLS.stop])]
    assert one.token_logps == pytest.approx(own, abs=1e-5)


def test_least_and_greatest_length_and_prefix() -> None:
    eager = stopping("encoder-decoder", push=60.0)
    rows = [row.tolist() for row in ids(3, 4)]
    assert all(one.ids == () and one.stopped for [one] in write(eager, rows, 9))
    for [one] in write(eager, rows, 9, min_length=4):
        assert len(one.ids) == 4
        assert one.stopped
    for [one] in write(eager, rows, 9, prefix=(7, 5)):
        assert one.ids == (7, 5)
        assert one.stopped
    for sample in (False, True):
        for texts in write(
            eager, rows, 3, prefix=(7, 5), min_length=9, sample=sample, nbest=2 if sample else 1
        ):
            assert len(texts) == (2 if sample else 1)
            for one in texts:
                assert one.ids[:2] == (7, 5)
                assert len(one.ids) == 3
                assert not one.stopped
                assert math.isfinite(one.logp)
    assert all(one.ids == () for [one] in write(eager, rows, 0, prefix=(7, 5)))


def test_a_favourite_that_is_forbidden_gives_way_to_the_next() -> None:
    logits = torch.tensor([[3.0, 9.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 5.0, 1.0]])
    request = Request((3,), 4)
    batch = Batch([request, request], request.options, SYMBOLS, 5, torch.device("cpu"))
    line = GreedyOrSampling(batch, pipeline(request.options, SYMBOLS, 5, has_source=True))
    assert line.advance(PlainScores.of(logits)).token.tolist() == [4, 3]


@pytest.mark.parametrize(
    "asked", [{"min_length": 2}, {"min_length": 2, "sample": True, "nbest": 2, "top_k": 2}]
)
def test_settings_that_leave_nothing_are_a_sentence(asked: dict[str, Any]) -> None:
    model = model_for("encoder-decoder", dtype=torch.float32)
    everything = tuple((token,) for token in range(3, 13))
    with pytest.raises(UserError, match="No token is allowed at position 1, because the settings contradict"):
        write(model, [[3, 4]], 5, banned=everything, **asked)
    with pytest.raises(UserError, match="at position 3"):
        write(model, [[3, 4]], 5, banned=everything, prefix=(5, 6), **{**asked, "min_length": 4})


def test_at_its_limit_a_row_ends_even_where_nothing_may_be_written() -> None:
    model = model_for("encoder-decoder", dtype=torch.float32)
    everything = tuple((token,) for token in range(2, 13))
    [[one]] = write(model, [[3, 4]], 2, prefix=(5, 6), banned=everything)
    assert (one.ids, one.stopped) == ((5, 6), False)


@pytest.mark.parametrize("asked", [{}, {"repetition": 1.5}, {"sample": True}, {"sample": True, "top_k": 3}])
def test_scores_that_are_no_numbers_are_a_sentence(asked: dict[str, Any]) -> None:
    broken = model_for("encoder-decoder")
    with torch.no_grad():
        broken.output.weight.fill_(math.nan)
    with pytest.raises(UserError, match="not finite"):
        write(broken, [[3, 4]], 5, **asked)


def test_long_texts_outgrow_the_first_record() -> None:
    model = stopping("decoder", push=-60.0)
    [[one]] = write(model, [[3, 4]], 150)
    assert len(one.ids) == 150
    assert one.ids == greedy(model, torch.tensor([[3, 4]]), symbols=SYMBOLS, max_length=150)[0].ids


# -- the same as transformers -------------------------------------------------------------------------

SPECS = [
    Spec("marian", "seq2seq", "MarianMTModel", SEQ2SEQ | {"activation_function": "relu"}),
    Spec("t5", "seq2seq", "T5ForConditionalGeneration", T5 | {"num_decoder_layers": 2}),
    Spec("gpt2", "decoder", "GPT2LMHeadModel", GPT2),
    Spec("llama", "decoder", "LlamaForCausalLM", LLAMA | GROUPED | {"eos_token_id": 2, "pad_token_id": None}),
]
LIMIT = 10


class Both:
    """A random model of theirs, and what we make of it."""

    def __init__(self, transformers: Any, spec: Spec, folder: Path) -> None:
        save_random(transformers, spec, folder)
        self.theirs = getattr(transformers, spec.architecture).from_pretrained(folder).eval()
        self.ours = import_folder(folder).model
        self.is_decoder = spec.kind == "decoder"
        self.symbols = Symbols(start=1, stop=2, forbidden=() if self.is_decoder else (1, PAD))
        self.given = [[5, 6, 7, 2], [30, 9, 41, 3, 3, 2], [8, 2]]
        if self.is_decoder:
            self.given = [one[:-1] for one in self.given]

    def generate(self, given: Sequence[int], **asked: Any) -> Any:
        barred = {} if self.is_decoder else {"bad_words_ids": [[1], [PAD]]}
        return self.theirs.generate(
            torch.tensor([given]),
            attention_mask=torch.ones(1, len(given), dtype=torch.long),
            max_new_tokens=LIMIT,
            num_beams=1,
            forced_eos_token_id=None,
            pad_token_id=PAD,
            eos_token_id=2,
            **{**barred, **asked},
        )

    def continuation(self, given: Sequence[int], **asked: Any) -> list[int]:
        found = self.generate(given, do_sample=False, **asked)[0].tolist()
        return found[len(given) if self.is_decoder else 1 :]


@pytest.fixture(scope="module", params=SPECS, ids=lambda spec: spec.name)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return Both(transformers, request.param, tmp_path_factory.mktemp("foreign") / "model")


@pytest.mark.parametrize(
    "ours, theirs",
    [
        ({}, {}),
        ({"min_length": 6}, {"min_new_tokens": 6}),
        ({"no_repeat": 2}, {"no_repeat_ngram_size": 2}),
        ({"bias": ((9, 3.0), (30, -4.0))}, {"sequence_bias": {(9,): 3.0, (30,): -4.0}}),
    ],
    ids=["plain", "least length", "no repeat", "bias"],
)
def test_greedy_is_that_of_transformers(both: Both, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    found = write(both.ours, both.given, LIMIT, both.symbols, **ours)
    for given, [one] in zip(both.given, found, strict=True):
        wanted = both.continuation(given, **theirs)
        text = list(one.ids) + ([2] if len(one.ids) < LIMIT else [])
        assert text[:LIMIT] == wanted


@pytest.mark.parametrize(
    "ours",
    [
        {"temperature": 0.7},
        {"top_k": 8},
        {"top_p": 0.8},
        {"temperature": 1.6, "top_k": 20, "top_p": 0.9},
    ],
    ids=str,
)
def test_what_is_drawn_from_is_what_transformers_draws_from(both: Both, ours: dict[str, Any]) -> None:
    """Their distributions at each place of a text that they drew, and ours at the same places of it."""
    made = pipeline(Options(sample=True, **ours), both.symbols, VOCABULARY, has_source=not both.is_decoder)
    for given in both.given:
        torch.manual_seed(0)
        asked = {"top_k": 0, "top_p": 1.0, **ours}
        drawn = both.generate(
            given, do_sample=True, return_dict_in_generate=True, output_scores=True, **asked
        )
        text = drawn.sequences[0].tolist()[len(given) if both.is_decoder else 1 :]
        rows = TorchRows(both.ours, both.symbols)
        scores = rows.admit([given])
        for place, theirs in enumerate(drawn.scores):
            past = Past(torch.tensor([text[:place]]), [given], torch.tensor([0]), place)
            narrow, columns = made.narrow(made.shape(scores.logp(), past), past)
            if columns is not None:
                narrow = torch.full((1, VOCABULARY), -math.inf).scatter(1, columns, narrow)
            wanted = theirs.softmax(-1)
            torch.testing.assert_close(narrow.softmax(-1), wanted, rtol=1e-3, atol=1e-5)
            assert torch.equal(narrow[0] > -math.inf, wanted[0] > 0)
            scores = rows.step(torch.tensor([0]), torch.tensor([text[place]]))
