"""Vectors of texts: the model's own states, pooled over real tokens alone, whatever stands beside a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding import embed, nearest
from clearhead.decoding.text_requests import opening, read_sources
from clearhead.nn.look import Look

from .bundles import labeller, translator, writer

TEXTS = ["the cat sleeps", "a dog", "who sees the old green house", "the cat sleeps", "one bird sings"]
LETTERS = ["abc", "a", "fedcba gh", "abc", "hhh"]


def makers() -> dict[str, Bundle]:
    return {
        "encoder": labeller("classify", ["good", "bad"]),
        "tagger": labeller("tag", ["X", "Y"], norm__place="pre"),
        "pairs": labeller("classify", ["good", "bad"], two=True),
        "encoder-decoder": translator(norm__place="pre"),
        "separate": translator(separate=True),
        "decoder": writer(norm__place="pre"),
        "labelling decoder": labeller("classify", ["good", "bad"], "decoder"),
        "translating decoder": translator(family="decoder"),
        "recurrent": translator(family="recurrent"),
        "convolutional": translator(family="convolutional"),
    }


FOUND = makers()


def texts_of(name: str) -> list[str]:
    return LETTERS if name == "decoder" else TEXTS


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_vector_does_not_depend_on_the_texts_beside_it(name: str, pooling: Any) -> None:
    bundle, texts = FOUND[name], texts_of(name)
    whole = embed(bundle, texts, pooling=pooling)
    alone = torch.cat([embed(bundle, [text], pooling=pooling) for text in texts])
    torch.testing.assert_close(whole, alone, rtol=1e-5, atol=1e-5)
    few = embed(bundle, texts, pooling=pooling, batch_tokens=12)
    torch.testing.assert_close(whole, few, rtol=1e-5, atol=1e-5)
    assert torch.equal(whole[0], whole[3])
    assert not torch.allclose(whole[0], whole[1], atol=1e-3)


@pytest.mark.parametrize("name", [name for name in FOUND if name not in ("recurrent", "convolutional")])
def test_every_layer_is_the_models_own(name: str) -> None:
    """An oracle without batches: one text, one pass, the taps of `Look`."""
    bundle, text = FOUND[name], texts_of(name)[2]
    model: Any = bundle.model
    ids = torch.tensor([opening(bundle, text) if name == "decoder" else read_sources(bundle, [text])[0]])
    stack = "decoder" if "decoder" in name and name != "encoder-decoder" else "encoder"
    names = [f"{stack}.embedding", f"{stack}.0.output", f"{stack}.output"]
    look = Look(names)
    with torch.no_grad():
        if hasattr(model, "encode"):
            model.encode(ids, look=look)
        else:
            model(ids, look=look)
    for layer, seen in enumerate(names):
        states = look[seen][0]
        for pooling, wanted in (("mean", states.mean(0)), ("last", states[-1]), ("first", states[0])):
            if stack == "decoder" and pooling == "first":
                continue
            [ours] = embed(bundle, [text], layer=layer, pooling=pooling)  # type: ignore[arg-type]
            torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(embed(bundle, [text]), embed(bundle, [text], layer=2))


def test_unit_length_and_the_nearest() -> None:
    bundle = FOUND["encoder"]
    vectors = embed(bundle, TEXTS, normalise=True)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(TEXTS)))
    torch.testing.assert_close(vectors, F.normalize(embed(bundle, TEXTS), dim=-1))
    found = nearest(embed(bundle, ["a dog"])[0], vectors, 3)
    assert found[0][0] == 1
    assert found[0][1] == pytest.approx(1.0)
    by_hand = (vectors @ vectors[1]).argsort(descending=True, stable=True)[:3].tolist()
    assert [number for number, _ in found] == by_hand
    again = nearest(vectors[0], vectors, 2)
    assert [number for number, _ in again] == [0, 3]  # equal texts, the earlier first
    assert len(nearest(vectors[0], vectors, 99)) == len(TEXTS)


def test_what_cannot_be_embedded() -> None:
    for name, asked, sentence in (
        ("encoder", {"layer": 3}, "has layers 1 to 2"),
        ("encoder", {"layer": -1}, "has layers 1 to 2"),
        ("encoder", {"pooling": "max"}, "There is no pooling 'max'"),
        ("decoder", {"pooling": "first"}, "has read nothing of the text"),
        ("recurrent", {"layer": 0}, "leave the layer out"),
        ("convolutional", {"layer": 1}, "leave the layer out"),
    ):
        with pytest.raises(UserError, match=sentence):
            embed(FOUND[name], ["a"], **asked)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Line 8 has no tokens"):
        embed(FOUND["tagger"], ["the cat", ""], before=6)
    with pytest.raises(UserError, match="Text 12 has 30 tokens"):
        embed(FOUND["decoder"], ["a", "a" * 30], before=10)
