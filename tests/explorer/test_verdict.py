"""What a labelling model says is what `clearhead label` says, and its words are really left out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding.labels import class_probabilities, regress, tag, tag_probabilities
from clearhead.explorer import verdict as module
from clearhead.explorer.contexts import contexts
from clearhead.explorer.depth import depth
from clearhead.explorer.evidence import evidence
from clearhead.explorer.inside import inside, tensor
from clearhead.explorer.report import explain
from clearhead.explorer.session import Session
from clearhead.explorer.verdict import verdict
from clearhead.models import build
from clearhead.text.framing import Framing, Framings
from clearhead.text.learn import TokenizerConfig, learn_tokenizer

from ..decoding.bundles import labeller
from .conftest import SEVERAL, TAGS

Make = Callable[..., Any]
TEXT = "the old cat  sleeps ."


@pytest.mark.parametrize("place", ["pre", "post"])
def test_the_classes_and_each_word_left_out(session_of: Make, place: str) -> None:
    session = session_of("encoder", place)
    found = verdict(session, TEXT)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    [whole] = class_probabilities(session.bundle, [TEXT])
    assert {one["label"]: one["p"] for one in found["classes"]} == pytest.approx(whole)
    chances = [one["p"] for one in found["classes"]]
    assert chances == sorted(chances, reverse=True)
    assert found["label"] == found["classes"][0]["label"]
    words = TEXT.split()
    assert [part["text"] for part in found["parts"]] == words
    assert found["together"] == 1
    for number, part in enumerate(found["parts"]):
        rest = " ".join(words[:number] + words[number + 1 :])
        [without] = class_probabilities(session.bundle, [rest])
        assert part["p"] == pytest.approx(without[found["label"]])
        assert part["label"] == max(without, key=without.__getitem__)
        wanted = math.log(whole[found["label"]] / without[found["label"]])
        assert part["support"] == pytest.approx(wanted, abs=1e-5)
    assert (
        len({round(part["support"], 4) for part in found["parts"]}) > 2
    )  # they differ, so that it says something


def test_one_word_is_not_left_out_and_a_long_text_in_pieces(
    session_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of("encoder")
    [alone] = verdict(session, "cat")["parts"]
    assert alone == {"text": "cat", "support": None, "p": None, "label": None}
    monkeypatch.setattr(module, "TOKENS", 0)  # as if the text were long: the fewest parts
    words = [f"{'cat' if n % 2 else 'dog'}" for n in range(20)]
    found = verdict(session, " ".join(words))
    assert [part["text"].split() for part in found["parts"]] == [words[n : n + 3] for n in range(0, 20, 3)]
    assert found["together"] == 3
    [without] = class_probabilities(session.bundle, [" ".join(words[:3] + words[6:])])
    assert found["parts"][1]["p"] == pytest.approx(without[found["label"]])


def test_a_text_without_spaces_is_left_out_token_by_token() -> None:
    tokenizer = learn_tokenizer(["猫が好き", "犬も好き"] * 3, TokenizerConfig(kind="bpe", vocabulary=280))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(
            "tiny",
            family="encoder",
            vocabulary=tokenizer.vocabulary_size,
            head__kind="classify",
            head__classes=2,
        )
    session = Session(Bundle(model.eval(), tokenizer, {"labels": ["a", "b"]}))
    found = verdict(session, "猫も好き")
    texts = [part["text"] for part in found["parts"]]
    assert "".join(texts) == "猫も好き"
    assert len(texts) > 1
    assert all(part["support"] is not None for part in found["parts"])


def test_a_tagger_s_words_have_tags_and_chances(session_of: Make) -> None:
    session = session_of("encoder", head__kind="tag", head__classes=3)
    found = verdict(session, TEXT)
    assert found["kind"] == "tag"
    assert [word["text"] for word in found["words"]] == TEXT.split()
    assert [[word["tag"] for word in found["words"]]] == tag(session.bundle, [TEXT])
    for word in found["words"]:
        assert word["top"][0]["label"] == word["tag"]
        assert sum(one["p"] for one in word["top"]) == pytest.approx(1)


def test_several_tags_of_a_word_are_one_answer(session_of: Make) -> None:
    session = session_of("encoder", **SEVERAL)
    found, chances = verdict(session, TEXT), tag_probabilities(session.bundle, [TEXT])[0]
    assert [[word["tag"] for word in found["words"]]] == tag(session.bundle, [TEXT])
    for word, each in zip(found["words"], chances, strict=True):
        joint = {f"{a[4:]}|{b[4:]}": each[a] * each[b] for a in TAGS[:2] for b in TAGS[2:]}
        assert word["top"][0]["label"] == word["tag"]
        best = sorted(joint.values(), reverse=True)[: module.SHOWN]
        assert [one["p"] for one in word["top"]] == pytest.approx(best)
        assert all(one["p"] == pytest.approx(joint[one["label"]]) for one in word["top"])
    whole = depth(session, TEXT)
    assert [word["text"] for word in whole["final"]] == [word["tag"] for word in found["words"]]
    assert all(word["tag"] in explain(session, TEXT) for word in found["words"])
    asked = evidence(session, TEXT, kind="encoder.self", layer=0, head=0, row=1)
    assert asked["predicted"]["text"] == found["words"][1]["tag"]
    assert asked["tau"]["ablated"] is not None  # fillers of short columns are no rounding error


def test_framed_words_are_found_behind_what_stands_before_them(bundle_of: Make) -> None:
    """As BERT's taggers are fed: the first token is no word."""
    plain = bundle_of("encoder", head__kind="tag", head__classes=3)
    start, stop = plain.tokenizer.id("the"), plain.tokenizer.id("cat")  # any ids may frame, words among them
    framing = Framing.of(before=start, after=stop)
    notes = Framings(source=framing, target=framing).to_dict()
    session = Session(Bundle(plain.model, plain.tokenizer, {**plain.metadata, "framing": notes}))
    found = verdict(session, TEXT)
    assert len(session.trace(TEXT).source) == len(TEXT.split()) + 2
    assert [[word["tag"] for word in found["words"]]] == tag(session.bundle, [TEXT])
    shares = session.trace(TEXT).logits.softmax(-1)
    for number, word in enumerate(found["words"], start=1):
        assert word["top"][0]["label"] == word["tag"]
        assert word["top"][0]["p"] == pytest.approx(float(shares[number].max()))


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_a_model_that_writes_gives_no_label(session_of: Make, kind: str) -> None:
    with pytest.raises(UserError, match="labels neither texts nor words"):
        verdict(session_of(kind), TEXT)
    with pytest.raises(UserError, match="empty"):
        verdict(session_of("encoder"), "  ")


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
@pytest.mark.parametrize("kind", ["classify", "number"])
def test_every_labelling_family_has_a_verdict_and_a_report(family: str, kind: str) -> None:
    session = Session(labeller(kind, ["good", "bad"], family))
    text = "the old cat sees a dog"
    found, page = verdict(session, text), explain(session, text)
    shorter = "the old sees a dog"  # without its third word
    if kind == "number":
        [whole, without] = regress(session.bundle, [text, shorter])
        assert found["number"] == pytest.approx(whole, abs=1e-5)
        assert found["parts"][2]["support"] == pytest.approx(whole - without, abs=1e-5)
        assert "raises it by" in page
    else:
        [whole, without] = class_probabilities(session.bundle, [text, shorter])
        assert found["classes"][0]["p"] == pytest.approx(max(whole.values()), abs=1e-6)
        assert found["parts"][2]["p"] == pytest.approx(without[found["label"]], abs=1e-6)
        assert f"It says <strong>{found['label']}</strong>" in page
    assert "It wrote" not in page
    names = {box["id"] for box in inside(session, text)["boxes"]}
    assert {"pool", "output"} <= names
    tensor(session, text, name="logits")
    assert bool(depth(session, text)["predictions"]) == (kind == "classify")
    contexts(session, "cat", [text, "a cat sleeps"])
    attention = "encoder.self" if family == "encoder" else "decoder.self"
    ask = {"kind": attention, "layer": 0, "head": 0, "row": 1}
    if family == "encoder" and kind == "classify":
        evidence(session, text, **ask)
    else:
        with pytest.raises(UserError, match="have predictions to explain"):
            evidence(session, text, **ask)


def test_two_texts_are_refused_in_one_sentence() -> None:
    session = Session(labeller("classify", ["good", "bad"], two=True))
    for look in (verdict, explain):
        with pytest.raises(UserError, match="labels pairs of texts, and the explorer shows one text"):
            look(session, TEXT)
