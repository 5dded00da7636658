"""Parts of the Transformer taken out one by one: each model is what is left, by a formula of a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead
from clearhead.base.errors import UserError
from clearhead.base.settings import parse_settings
from clearhead.decoding.native.rows import supports
from clearhead.jobs.recipe import merged, nested
from clearhead.jobs.train import train
from clearhead.models import ModelConfig
from clearhead.nn.attention.masks import Causal
from clearhead.training.config import TrainConfig

from ..jobs.making import settings, write_corpus
from .families import ids, model_for

DIALS: dict[str, dict[str, Any]] = {
    "residual": {"residual": False},
    "norm": {"norm": {"kind": "none"}},
    "feed-forward": {"feedforward": {"kind": "none"}},
    "cross-attention": {"cross_attention": False},
    "causal mask": {"causal_mask": False},
    "one head, no position, no scale": {
        "attention": {"heads": 1, "score": "dot"},
        "position": {"name": "none"},
    },
}


def plain(place: str = "post", **changes: Any) -> Any:
    model: Any = model_for("encoder", layers=1, norm__place=place, **changes)
    return model


def embedded(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
    where = clearhead.Tokens.padded(tokens.shape[1])
    return model.embedding(tokens, where), model.encoder.layers[0]


@pytest.mark.parametrize("place", ["post", "pre"])
def test_without_residual_a_layer_is_its_sublayers_one_after_the_other(place: str) -> None:
    model, tokens = plain(place, residual=False), ids(2, 5)
    x, layer = embedded(model, tokens)
    for part, around in (
        (layer.attention, layer.attention_residual),
        (layer.feedforward, layer.feedforward_residual),
    ):
        x = part(around.norm(x)) if place == "pre" else around.norm(part(x))
    wanted = x if model.encoder.norm is None else model.encoder.norm(x)
    torch.testing.assert_close(model(tokens).hidden, wanted)


@pytest.mark.parametrize("place", ["post", "pre"])
def test_without_norms_a_layer_adds_up(place: str) -> None:
    model, tokens = plain(place, norm__kind="none"), ids(2, 5)
    x, layer = embedded(model, tokens)
    x = x + layer.attention(x)
    x = x + layer.feedforward(x)
    torch.testing.assert_close(model(tokens).hidden, x)
    assert not [name for name, _ in model.named_parameters() if "norm" in name]


def test_without_feedforward_attention_is_alone() -> None:
    model, tokens = plain(feedforward__kind="none"), ids(2, 5)
    x, layer = embedded(model, tokens)
    torch.testing.assert_close(model(tokens).hidden, layer.attention_residual.norm(x + layer.attention(x)))
    assert not [name for name, _ in model.named_parameters() if "feedforward" in name]
    again = ModelConfig.from_dict(model.config.to_dict())
    assert again == model.config
    assert again.unusual_parts == "parts of the kind 'none'"


def test_none_on_the_command_line_is_the_kind_none() -> None:
    table = nested(parse_settings(["model.feedforward.kind=none", "model.norm.kind=none"]))
    config = TrainConfig.from_dict(table).model
    assert (config.feedforward.kind, config.norm.kind) == ("none", "none")
    assert clearhead.build("tiny").config.replace(feedforward__kind=None).feedforward.kind == "none"


def test_silenced_cross_attention_gives_one_output_for_all_sources() -> None:
    target = ids(1, 4)
    hears, deaf = (model_for("encoder-decoder", cross_attention=on) for on in (True, False))
    both = [[one(ids(1, 5, seed=seed), target).logits for seed in (1, 2)] for one in (hears, deaf)]
    assert not torch.equal(*both[0])
    assert torch.equal(*both[1])
    deaf(ids(1, 5), target).logits.sum().backward()
    assert all(one.grad is None for one in deaf.encoder.parameters())
    state = deaf.begin(ids(1, 5))
    steps = [deaf(None, one, state=state).logits for one in target.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), both[1][0])


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_without_the_causal_mask_a_token_sees_the_one_it_must_predict(family: str) -> None:
    given = (ids(1, 5),) if family == "encoder-decoder" else ()
    target = ids(1, 4)
    other = target.clone()
    other[0, -1] = target[0, -1] % 12 + 1
    for masked in (True, False):
        model = model_for(family, causal_mask=masked)
        first, second = (model(*given, one).logits[:, 0] for one in (target, other))
        assert torch.equal(first, second) == masked
    if family == "decoder":  # a mask that is given goes before the dial
        again = model_for(family)
        torch.testing.assert_close(model(target, mask=Causal()).logits, again(target).logits)
    # decoding has nothing after a token to see, so it gives other scores than training did
    state = model.begin(*given)
    steps = [model(*([None] if given else []), one, state=state).logits for one in target.split(1, dim=1)]
    assert not torch.allclose(steps[0], model(*given, target).logits[:, :1])


@pytest.mark.parametrize("name", DIALS)
def test_fast_engines_and_exports_refuse_what_they_do_not_know(name: str) -> None:
    config = ModelConfig.from_dict({"vocabulary": 20, "width": 16, "layers": 1, **DIALS[name]})
    why = supports(clearhead.build(config))
    known = name.startswith("one head")
    assert (why is None) == (config.unusual_parts is None) == known, why


@pytest.mark.parametrize(
    "settings_, words",
    [
        ({"family": "recurrent", "residual": False}, "residual=false is for the family 'encoder-decoder'"),
        ({"family": "decoder", "cross_attention": False}, "not for 'decoder'"),
        ({"family": "encoder", "causal_mask": False}, "'encoder-decoder' or 'decoder'"),
        ({"attention": {"kind": None}}, "There is no kind of attention 'none'"),
    ],
)
def test_parts_that_are_not_there_cannot_be_taken_out(settings_: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ModelConfig.from_dict(settings_)


@pytest.mark.parametrize("taken", [("residual", "norm"), ("feed-forward", "cross-attention", "causal mask")])
def test_what_is_left_trains_and_writes(taken: tuple[str, ...], tmp_path: Path) -> None:
    said = settings(write_corpus(tmp_path), model=merged(*(DIALS[name] for name in taken)), steps=4)
    finished = train(tmp_path / "run", said, view="quiet")
    assert finished.outcome.steps == 4
    again = clearhead.load(tmp_path / "run")
    assert clearhead.translate(again, ["the cat", "a dog"], max_length=3) is not None
