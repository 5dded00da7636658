"""A folder's own settings for decoding: with them we write what `generate` of transformers writes."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.bundle import Bundle
from clearhead.cli.main import main
from clearhead.decoding import native
from clearhead.decoding.backend import Request, Symbols
from clearhead.decoding.defaults import options_of, with_own
from clearhead.decoding.options import WITH_SOURCE, Options, limit_of
from clearhead.decoding.processors import Past, pipeline
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.text_requests import _behind_prompt
from clearhead.decoding.writer import make_search
from clearhead.interop import import_folder

from .conftest import LLAMA, PAD, SEQ2SEQ, VOCABULARY, Spec, save_random

SPECS = {
    "encoder-decoder": Spec("bart", "seq2seq", "BartForConditionalGeneration", SEQ2SEQ),
    "decoder": Spec("llama", "decoder", "LlamaForCausalLM", LLAMA),
}


class Pair:
    """One random model on both sides."""

    def __init__(self, transformers: Any, family: str, folder: Path) -> None:
        spec = SPECS[family]
        save_random(transformers, spec, folder)
        self.theirs = getattr(transformers, spec.architecture).from_pretrained(folder).eval()
        with torch.no_grad():  # surer of itself, and with a mind to end
            if family == "encoder-decoder":
                self.theirs.model.shared.weight *= 1.5
            else:
                self.theirs.lm_head.weight *= 1.5
        self.theirs.save_pretrained(folder)
        self.bundle = import_folder(folder)
        self.config = transformers.GenerationConfig
        self.theirs.generation_config = self.config()  # what is not said is not taken from there
        self.has_source = family in WITH_SOURCE

    def their_ids(self, settings: dict[str, Any], given: list[int]) -> list[int]:
        out = self.theirs.generate(
            torch.tensor([given]),
            attention_mask=torch.ones(1, len(given), dtype=torch.long),
            generation_config=self.config(**settings),
        )
        ids = out[0, 1 if self.has_source else len(given) :].tolist()
        ends = [place for place, id in enumerate(ids) if id in _stops(settings)]
        return ids[: ends[0]] if ends else ids

    def told(self, settings: dict[str, Any]) -> Bundle:
        """Ours, with these settings of its own."""
        bundle = copy.copy(self.bundle)
        bundle.metadata = {**self.bundle.metadata, "generation": settings}
        return bundle

    def our_ids(self, settings: dict[str, Any], given: list[int], compiled: bool) -> list[int]:
        bundle = self.told(settings)
        options, symbols = options_of(bundle), with_own(Symbols(1, 2, (PAD, 1)), bundle)
        limit = limit_of(bundle.config, len(given), options.max_length, None, options.max_total)
        rows = (native.NativeRows if compiled else TorchRows)(bundle.model, symbols)
        engine = rows_engine(
            rows, symbols, lambda one: make_search(one, self.has_source, compiled=compiled), 16
        )
        request = Request(tuple(given), limit, _behind_prompt(options, len(given), limit))
        [(_, [best, *_])] = list(engine.run([request]))
        return list(best.ids)


def _stops(settings: dict[str, Any]) -> list[int]:
    found = settings["eos_token_id"]
    return found if isinstance(found, list) else [found]


def settings_of(chance: random.Random, has_source: bool) -> dict[str, Any]:
    """Some settings that a folder may have."""
    some = lambda share, **more: more if chance.random() < share else {}  # noqa: E731
    longest = chance.randint(3, 14)
    found: dict[str, Any] = {
        "pad_token_id": PAD,
        "decoder_start_token_id": 1,
        "eos_token_id": chance.choice([2, [2, 7], [7, 2, 11]]),
        "num_beams": chance.choice([1, 2, 3, 5]),
        "length_penalty": chance.choice([0.0, 1.0, 0.6, 2.0, -1.0]),
        "early_stopping": chance.choice([True, False, "never"]),
        **({"max_new_tokens": longest} if chance.random() < 0.5 else {"max_length": longest + 6}),
        **some(0.3, min_length=chance.randint(1, 9)),
        **some(0.2, min_new_tokens=chance.randint(1, 3)),
        **some(0.3, no_repeat_ngram_size=chance.randint(1, 3)),
        **some(0.3, bad_words_ids=[[9], [5], [20, 21]]),
        **some(0.2, suppress_tokens=[4, 30]),
        **some(0.2, begin_suppress_tokens=[2, 8, 33]),
        **some(0.3, forced_eos_token_id=2),
        **some(0.3, forced_bos_token_id=44),
    }
    found |= some(0.3, repetition_penalty=chance.choice([0.8, 1.3]))
    if not has_source:
        found.pop("forced_bos_token_id", None)
    return found


@pytest.fixture(scope="module", params=SPECS)
def pair(request: pytest.FixtureRequest, transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(transformers, request.param, tmp_path_factory.mktemp("settings") / "model")


def compare(pair: Pair, seeds: range) -> None:
    compiled = native.why_not() is None
    for seed in seeds:
        chance = random.Random(seed)
        settings = settings_of(chance, pair.has_source)
        given = [chance.randint(3, 50) for _ in range(chance.randint(1, 5))]
        wanted = pair.their_ids(settings, given)
        assert pair.our_ids(settings, given, compiled and seed % 2 == 0) == wanted, (seed, settings, given)


def test_random_settings(pair: Pair) -> None:
    compare(pair, range(24))


@pytest.mark.parametrize(
    "more",
    [
        {},  # the 50 likeliest, if a folder does not say
        {"temperature": 0.7, "top_k": 0, "top_p": 0.8, "repetition_penalty": 1.4},
        {"temperature": 1.5, "top_k": 20, "min_p": 0.05, "typical_p": 0.9, "suppress_tokens": [3]},
    ],
    ids=str,
)
def test_what_is_drawn_from(pair: Pair, more: dict[str, Any]) -> None:
    """The distribution of the first token, after a prompt in which it may have occurred."""
    settings = {"do_sample": True, "eos_token_id": 2, "pad_token_id": PAD, "decoder_start_token_id": 1} | more
    given = [5, 9, 14, 9]
    told = pair.theirs.generate(
        torch.tensor([given]),
        attention_mask=torch.ones(1, 4, dtype=torch.long),
        generation_config=pair.config(**settings, max_new_tokens=1),
        return_dict_in_generate=True,
        output_scores=True,
    )
    bundle = pair.told(settings)
    options, symbols = options_of(bundle), with_own(Symbols(1, 2, (PAD, 1)), bundle)
    assert options.sample
    scores = TorchRows(bundle.model, symbols).admit([given])
    made = pipeline(options, symbols, VOCABULARY, pair.has_source)
    none = torch.zeros(1, 0, dtype=torch.long)
    past = Past(none, [given], torch.zeros(1, dtype=torch.long), 0, scores.totals())
    shaped = made.shape(scores.logp(), past)
    for processor in made.after:
        shaped = processor(shaped, past)
    assert torch.allclose(shaped.softmax(-1), told.scores[0].softmax(-1), atol=1e-5)


def test_settings_of_a_folder(transformers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of `generation_config.json`, and of `config.json` only where there is no such file."""
    save_random(transformers, SPECS["encoder-decoder"], tmp_path)
    plain = json.loads((tmp_path / "config.json").read_text())
    plain |= {"num_beams": 4, "forced_eos_token_id": 2, "min_length": 5}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    newer = {"eos_token_id": [2, 7], "num_beams": 3, "early_stopping": "never", "use_cache": True}
    newer |= {"exponential_decay_length_penalty": [3, 1.1]}
    (tmp_path / "generation_config.json").write_text(json.dumps(newer))
    bundle = import_folder(tmp_path)
    assert options_of(bundle) == Options(beam=3, forced="cut", repetition_of="logits")
    assert with_own(Symbols(1, 2), bundle).stops == (2, 7)
    assert main(["import", str(tmp_path), "--out", str(tmp_path / "made")]) == 0
    said = "These decoding settings have no effect here: exponential_decay_length_penalty."
    assert said in capsys.readouterr().out
    (tmp_path / "generation_config.json").unlink()
    older = options_of(import_folder(tmp_path))
    assert (older.beam, older.min_length, older.forced, older.early_stopping) == (4, 4, "free", False)


@pytest.mark.slow
def test_many_random_settings(pair: Pair) -> None:
    compare(pair, range(24, 800))
