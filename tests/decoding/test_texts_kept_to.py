"""Banned, required and stop texts with real models, over vocabularies of every kind."""

from __future__ import annotations

import random
from functools import cache

import pytest
from tokenizers import decoders

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding import Options, Writer, generate, stream, translate
from clearhead.decoding.constraints import before_stop
from clearhead.jobs.drafting import DraftedWriter
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer

from .bundles import ENGLISH, FRENCH, build, shaken, translator
from .test_constraints import LLAMA, METASPACE, imported

TEXTS = [*ENGLISH, *FRENCH, "l'été, où ça ? 猫が好き。"]
LETTERS = ["a", "b", "ab", "ba", "c", ",", "▁", "▁a", "▁b", "bc", "▁ab", "▁c"]


@cache
def bundle_of(kind: str) -> Bundle:
    if kind == "llama":
        tokenizer = imported(LLAMA, [*METASPACE, *LETTERS, *(f"<0x{byte:02X}>" for byte in range(256))])
    elif kind == "metaspace":
        tokenizer = imported(decoders.Metaspace(), LETTERS)
    elif kind == "bert":
        pieces = ["a", "b", "ab", "##a", "##b", "##ab", "c", "##c", ","]
        tokenizer = imported(decoders.WordPiece(cleanup=False), pieces)
    else:
        tokenizer = learn_tokenizer(TEXTS, TokenizerConfig(kind=kind, vocabulary=600))  # type: ignore[arg-type]
    reader = Tokenizer.words(ENGLISH)
    sizes = {"vocabulary": tokenizer.vocabulary_size, "source_vocabulary": reader.vocabulary_size}
    model = build("tiny", family="encoder-decoder", embedding__tie_output=False, **sizes)
    return Bundle(shaken(model, 0.5), tokenizer, {"task": "translate"}, reader)


KINDS = ["bpe", "unigram", "wordpiece", "characters", "words", "llama", "metaspace", "bert"]
SEARCHES: list[dict[str, object]] = [{}, {"sample": True, "nbest": 2}, {"beam": 3, "nbest": 2}]
ROUNDS = 1
SOURCES = ["the cat sleeps", "who sees the old green house"]


def written(bundle: Bundle, options: Options) -> list[str]:
    found = dict(Writer(bundle, way="torch").write(SOURCES, options))
    return [one.text for number in range(len(SOURCES)) for one in found[number]]


def settings_for(bundle: Bundle, search: dict[str, object]) -> Options:
    """Letters are made likelier: what single bytes make is seldom a text."""
    words = [
        (id, bundle.tokenizer.decode([id]).strip(" #")) for id in range(4, bundle.tokenizer.vocabulary_size)
    ]
    bias = tuple((id, 9.0) for id, word in words if word.isascii() and word.isprintable() and word)
    return Options(max_length=14, bias=bias, **search)  # type: ignore[arg-type]


def part_of(texts: list[str], chance: random.Random, longest: int) -> str:
    """Some of one of the texts, such as any vocabulary can write it in the midst of another."""
    text = chance.choice([text for text in texts if text.strip("#\ufffd ")])
    begin = chance.randrange(len(text))
    found = text[begin : begin + chance.randint(1, longest)].strip()
    return found if found and not set(found) & set("#\ufffd") else part_of(texts, chance, longest)


@pytest.mark.parametrize(
    "kind, search", [(kind, SEARCHES[number % 3]) for number, kind in enumerate([*KINDS, *KINDS[:4]])]
)
def test_what_is_asked_of_texts_is_kept_to(kind: str, search: dict[str, object]) -> None:
    """Bans, stops and requirements are taken from what the model writes by itself, so that they matter."""
    bundle, chance = bundle_of(kind), random.Random(f"{kind} {search}")
    asked = settings_for(bundle, search)
    free = written(bundle, asked)
    for _ in range(ROUNDS):
        banned = tuple({part_of(free, chance, 4) for _ in range(2)})
        assert any(ban in text for ban in banned for text in free)
        kept = written(bundle, asked.replace(banned=banned))
        assert not any(ban in text for ban in banned for text in kept)
        cut = written(bundle, asked.replace(stop_texts=banned))
        assert not any(stop in text for stop in banned for text in cut)
        if "beam" not in search:  # nothing is chosen otherwise up to the end
            assert sorted(cut) == sorted(before_stop(text, banned) for text in free)
        required = part_of(free, chance, 6)
        asking = asked.replace(must_include=(required,), stop_texts=("qq",))
        assert all(required in text for text in written(bundle, asking))
        if not any(ban in required for ban in banned):
            together = written_if_possible(bundle, asking.replace(banned=banned))
            assert all(required in text and not any(ban in text for ban in banned) for text in together)


def written_if_possible(bundle: Bundle, options: Options) -> list[str]:
    """Some required texts cannot be written without a banned one around them: then it is a sentence."""
    try:
        return written(bundle, options)
    except UserError as error:
        assert "only with a banned text" in str(error)  # noqa: PT017
        return []


@pytest.mark.parametrize("way", ["auto", "torch"])
@pytest.mark.parametrize("stop", ["h ", "eb"])
def test_a_stop_text_ends_what_is_streamed_and_none_of_it_is_shown(way: str, stop: str) -> None:
    tokenizer = Tokenizer.characters("\n abcdefgh")
    model = shaken(build("tiny", family="decoder", vocabulary=tokenizer.vocabulary_size))
    bundle = Bundle(model, tokenizer, {"task": "generate"})
    for seed in range(2):
        free = Options(sample=True, seed=seed, max_length=24)
        whole = generate(bundle, "ab", free, way=way)[2:]  # type: ignore[arg-type]
        pieces = list(stream(bundle, "ab", free.replace(stop_texts=(stop, "zz")), way=way))  # type: ignore[arg-type]
        assert "".join(pieces) == whole.split(stop)[0]
        shown = ""
        for piece in pieces:  # what was shown never has to be taken back
            shown += piece
            assert whole.startswith(shown)
    beams = list(stream(bundle, "ab", Options(beam=3, max_length=24, stop_texts=(stop,)), way=way))  # type: ignore[arg-type]
    assert stop not in "".join(beams)


def test_a_ban_is_kept_to_across_a_prompt_and_with_a_draft() -> None:
    tokenizer = Tokenizer.characters("\n abcdefgh")
    model = shaken(build("tiny", family="decoder", vocabulary=tokenizer.vocabulary_size))
    bundle = Bundle(model, tokenizer, {"task": "generate"})
    free = generate(bundle, "ab", Options(max_length=9))
    ban = free[1:3]  # begun in the prompt
    assert ban not in generate(bundle, "ab", Options(max_length=9, banned=(ban,)))[1:]
    one, smaller = translator(), translator(layers=1)
    asked = Options(max_length=8, banned=("a",), must_include=("ver",), stop_texts=("q",))
    [(_, [drafted])] = DraftedWriter(one, smaller).write(["the cat"], asked)
    assert drafted.text == translate(one, ["the cat"], asked, way="torch")[0].text
    assert "a" not in drafted.text
    assert "ver" in drafted.text


def test_texts_and_ids_in_settings() -> None:
    options = Options(banned=("a", (3, 4)), must_include=("b",), choices=("b", (5,)), stop_texts=("\n",))
    assert Options.from_dict(options.to_dict()) == options
    for name in ("banned", "must_include", "choices", "stop_texts"):
        with pytest.raises(UserError, match="list of texts"):
            Options(**{name: "prof"})
        if name != "choices":
            with pytest.raises(UserError, match="must not be empty"):
                Options(**{name: ("",)})
    bundle = translator()
    [found] = translate(bundle, ["the cat"], Options(choices=("un chat", "le chien")))
    assert found.text in ("un chat", "le chien")
    with pytest.raises(UserError, match="'zebra' cannot be written"):
        translate(bundle, ["the cat"], Options(choices=("zebra",)))
    for name in ("banned", "must_include", "stop_texts"):
        with pytest.raises(UserError, match="must be valid Unicode"):
            translate(bundle, ["the cat"], Options(**{name: ("\udcff",)}))
