"""A bundle's own settings for decoding: what they become, what is refused, what goes before them."""

from __future__ import annotations

from typing import Any

import pytest

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding import run
from clearhead.decoding.backend import Symbols
from clearhead.decoding.defaults import changed, not_carried, options_of, own_options
from clearhead.decoding.options import Options
from clearhead.decoding.text_requests import symbols_of
from clearhead.decoding.writer import Writer

from .bundles import translator, writer


def with_settings(bundle: Bundle, **settings: Any) -> Bundle:
    return Bundle(bundle.model, bundle.tokenizer, {**bundle.metadata, "generation": settings})


def test_what_settings_become() -> None:
    """Their lengths count the start symbol, or the prompt, and a forced end."""
    bundle = with_settings(
        translator(),
        num_beams=4,
        length_penalty=2.0,
        early_stopping=True,
        max_length=142,
        min_length=56,
        no_repeat_ngram_size=3,
        forced_bos_token_id=5,
        forced_eos_token_id=2,
        temperature=0.7,
        bad_words_ids=[[6], [7, 8]],
        repetition_penalty=None,
    )
    assert options_of(bundle) == Options(
        beam=4,
        length_penalty=2.0,
        early_stopping=True,
        max_length=140,
        min_length=55,
        no_repeat=3,
        prefix=(5,),
        forced="free",
        banned=((7, 8),),
        repetition_of="logits",
    )
    assert 6 in symbols_of(bundle).forbidden
    prompted = {"max_length": 50, "min_length": 10, "do_sample": True, "top_p": 0.9}
    assert own_options({"generation": prompted}, "decoder") == Options(
        sample=True,
        top_k=50,
        top_p=0.9,
        max_total=50,
        min_total=10,
        early_stopping=False,
        forced="cut",
        repetition_of="logits",
    )
    assert own_options({"generation": {"eos_token_id": 2, "bos_token_id": 1}}, "decoder") is None
    assert own_options({}, "encoder-decoder") is None
    several = with_settings(translator(), eos_token_id=[7, 2], forced_eos_token_id=7)
    assert symbols_of(several) == Symbols(1, 7, (0, 1), other_stops=(2,))


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"num_beams": "four"}, "'num_beams' for decoding must be a whole number of at least 1, not 'four'"),
        ({"num_beams": 0}, "must be a whole number of at least 1, not 0"),
        ({"num_beams": 10**400}, "must be a whole number"),
        ({"num_beams": 4, "length_penalty": float("nan")}, "'length_penalty' for decoding must be a number"),
        ({"num_beams": 4, "length_penalty": 1000.0}, "A length penalty is a power from -10 to 10"),
        ({"num_beams": 4, "early_stopping": "soon"}, "must be true, false or 'never', not 'soon'"),
        ({"do_sample": 1}, "must be true or false"),
        ({"do_sample": True, "temperature": 0.0}, "The temperature must be above 0"),
        ({"bad_words_ids": [3]}, "must be a list of lists of ids"),
        ({"suppress_tokens": [999]}, "name token 999, but its vocabulary has tokens 0 to"),
        ({"eos_token_id": ["</s>"]}, "must be an id or a list of ids"),
        ([1, 2], r"\('generation'\) must be a table"),
    ],
    ids=str,
)
def test_malformed_settings_are_a_sentence(settings: Any, sentence: str) -> None:
    bundle = translator()
    broken = Bundle(bundle.model, bundle.tokenizer, {**bundle.metadata, "generation": settings})
    with pytest.raises(UserError, match=sentence):
        Writer(broken)


def test_what_is_not_carried_is_named() -> None:
    settings = {
        "num_beams": 2,
        "do_sample": True,
        "exponential_decay_length_penalty": [3, 1.1],
        "num_return_sequences": 1,
        "guidance_scale": 2.0,
        "cache_implementation": "static",
        "forced_eos_token_id": 9,
        "eos_token_id": 2,
    }
    named = ["do_sample", "exponential_decay_length_penalty", "forced_eos_token_id", "guidance_scale"]
    assert not_carried({"generation": settings}, "encoder-decoder") == named


BEAM = Options(
    beam=4, length_penalty=2.0, early_stopping=False, forced="free", no_repeat=3, prefix=(5,), min_length=6
)
DRAWN = Options(sample=True, top_k=50, top_p=0.9, max_total=50)


@pytest.mark.parametrize(
    "own, said, wanted",
    [
        (BEAM, {}, BEAM),
        (BEAM, {"beam": 8}, BEAM.replace(beam=8)),
        (BEAM, {"beam": 1}, Options(no_repeat=3, prefix=(5,), min_length=6)),
        (BEAM, {"sample": True}, Options(sample=True, no_repeat=3, prefix=(5,), min_length=6)),
        (BEAM, {"prefix": (7,), "max_length": 4}, BEAM.replace(prefix=(5, 7), min_length=4, max_length=4)),
        (DRAWN, {"beam": 4}, Options(beam=4, max_total=50)),
        (DRAWN, {"sample": True, "top_k": 3}, DRAWN.replace(top_k=3)),
        (DRAWN, {"max_length": 9}, DRAWN.replace(max_length=9, max_total=None)),
        (DRAWN, {"sample": False, "beam": 1}, Options(max_total=50)),
    ],
    ids=str,
)
def test_what_is_said_goes_before(own: Options, said: dict[str, Any], wanted: Options) -> None:
    assert changed(own, said) == wanted


def test_own_settings_are_the_defaults() -> None:
    """Without options a bundle is decoded as it says; `Options()` is greedy; prompts count if they must."""
    bundle = translator()
    own = with_settings(bundle, num_beams=3, min_new_tokens=4, max_new_tokens=6)
    text = ["the cat sleeps"]
    searched = Options(beam=3, min_length=4, max_length=6, early_stopping=False, forced="cut")
    [[wanted]] = Writer(bundle).in_order(text, searched)
    assert next(Writer(own).in_order(text)) == [wanted]
    assert run.translate(own, text) == [wanted]
    assert run.translate(own, text, Options(max_length=6)) == run.translate(
        bundle, text, Options(max_length=6)
    )
    told = with_settings(writer(), max_length=9, min_length=8)
    ready = Writer(told)
    [request] = ready.requests("abc", ready.defaults)
    assert (len(request.given), request.limit, request.options.min_length) == (3, 6, 5)
    with pytest.raises(UserError, match="may only have 9: shorten it, or set the number"):
        ready.requests("abcabcabcabc", ready.defaults)
