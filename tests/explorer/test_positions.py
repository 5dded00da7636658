"""The positions view: tables and biases are the model's own, similarities and verdicts follow from them."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.explorer.positions import MOST_BIAS, positions
from clearhead.explorer.words import unpacked
from clearhead.models import build
from clearhead.nn.positions import POSITIONS, check_position, sinusoid
from clearhead.nn.positions.check import CANDIDATES, SAME
from clearhead.nn.tokens import Tokens


def session(name: str = "sinusoidal", family: str = "encoder-decoder", **changes: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build("tiny", family=family, position__name=name, **changes).eval()
    return SimpleNamespace(bundle=Bundle(model))


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "encoder"])
@pytest.mark.parametrize("name", list(POSITIONS))
def test_every_scheme_of_every_family_is_shown(name: str, family: str) -> None:
    found = positions(session(name, family), length=12)
    json.dumps(found, allow_nan=False)
    for scheme in found["schemes"]:
        assert scheme["name"] == name
        assert scheme["formula"]
        assert [one["name"] for one in scheme["guidelines"]] == ["unique", "consistent", "bounded"]
        assert len(scheme["similarity"]["values"]) == len(scheme["similarity"]["distances"])
        assert (scheme["table"] is None) == (
            name in ("none", "t5", "alibi", "transformer_xl", "shaw", "music")
        )
        assert (scheme["bias"] is None) == (name in ("none", "sinusoidal", "learned", "rotary"))
        assert "learned parameters are random here" not in scheme["note"]  # it is the model's own


def test_the_sinusoidal_table_is_what_is_added_to_embeddings() -> None:
    [scheme] = positions(session(), length=20)["schemes"]
    table = unpacked(scheme["table"])
    assert torch.equal(table, sinusoid(torch.arange(20), 32).float())
    for wave in scheme["waves"]:
        assert wave["values"] == table[:, wave["index"]].tolist()
    assert {0, 31} <= {wave["index"] for wave in scheme["waves"]}


def test_a_learned_table_is_the_models_own_and_ends_where_it_ends() -> None:
    one = session("learned", "decoder", position__max_length=9)
    [scheme] = positions(one, length=64)["schemes"]
    assert torch.equal(unpacked(scheme["table"]), one.bundle.model.embedding.position.table)
    assert "only 9 positions" in scheme["note"]


def test_encoder_and_decoder_show_the_tables_that_each_has_learnt() -> None:
    one = session("learned", position__max_length=9)
    first, second = positions(one, length=8)["schemes"]
    model = one.bundle.model
    assert torch.equal(unpacked(first["table"]), model.source_embedding.position.table[:8])
    assert torch.equal(unpacked(second["table"]), model.target_embedding.position.table[:8])
    assert "encoder" in first["note"]
    assert "decoder" in second["note"]


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_rotary_waves_are_cosines_and_sines_and_similarity_their_mean(layout: str) -> None:
    [scheme] = positions(session("rotary", position__layout=layout), length=16)["schemes"]
    table = unpacked(scheme["table"]).double()
    size = table.shape[1]
    speed = 10_000.0 ** -(torch.arange(0, size, 2) / size)
    angle = torch.arange(16.0)[:, None] * speed
    cosine, sine = (table[:, ::2], table[:, 1::2]) if layout == "interleaved" else table.chunk(2, dim=-1)
    torch.testing.assert_close(cosine, angle.cos().double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(sine, angle.sin().double(), atol=1e-6, rtol=0)
    wanted = [float((distance * speed).cos().mean()) for distance in range(16)]
    assert scheme["similarity"]["values"] == pytest.approx(wanted, abs=1e-6)


def test_the_t5_bias_is_the_models_own() -> None:
    one = session("t5", "decoder")
    scheme = one.bundle.model.decoder.layers[0].attention.position
    found = unpacked(positions(one, length=10)["schemes"][0]["bias"])
    for query in range(10):
        for key in range(10):
            bucket = scheme.bucket(torch.tensor(key - query))
            assert torch.equal(found[:, query, key], scheme.table[bucket])


def test_alibi_falls_with_the_distance_and_its_similarity_is_the_mean_of_the_heads() -> None:
    [scheme] = positions(session("alibi", "decoder"), length=5)["schemes"]
    slopes = [2.0 ** (-8 * (head + 1) / 4) for head in range(4)]
    found = unpacked(scheme["bias"])
    for head, slope in enumerate(slopes):
        wanted = [[-slope * abs(key - query) for key in range(5)] for query in range(5)]
        torch.testing.assert_close(found[head], torch.tensor(wanted))
    mean = sum(slopes) / 4
    assert scheme["similarity"]["distances"] == list(range(-4, 5))
    assert scheme["similarity"]["values"] == pytest.approx([-mean * abs(d) for d in range(-4, 5)])
    verdicts = {one["name"]: one["holds"] for one in scheme["guidelines"]}
    assert verdicts == {"unique": True, "consistent": True, "bounded": False}  # causal: never ahead


@pytest.mark.parametrize("name", ["shaw", "music", "transformer_xl"])
def test_a_bias_that_asks_the_query_is_that_of_one_fixed_query(name: str) -> None:
    one = session(name)
    found = positions(one, length=6)["schemes"]
    assert len(found) == 2  # encoder and decoder
    layer = one.bundle.model.encoder.layers[0].attention
    size = layer.config.key_size
    query, key = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    q, k = (x.expand(1, 4, 6, size) for x in (query, key))
    tokens = Tokens.padded(6)
    with torch.no_grad():
        wanted = layer.position.bias(q, k, tokens, tokens, size**-0.5, slice(None))[0]
    got = unpacked(found[0]["bias"])
    torch.testing.assert_close(got.expand(4, 6, 6), wanted.expand(4, 6, 6))
    assert "one random query" in found[0]["note"]


def test_schemes_are_compared_side_by_side_the_own_one_as_it_is() -> None:
    one = session("learned")
    own, _, other = positions(one, ["learned", "rotary"], length=8)["schemes"]
    assert (own["name"], other["name"]) == ("learned", "rotary")
    stranger = positions(session("rotary"), ["learned"], length=8)["schemes"][0]
    assert "learned parameters are random here" in stranger["note"]
    assert positions(session("rotary"), ["learned"], length=8)["schemes"][0] == stranger
    state = torch.random.get_rng_state()
    positions(session("rotary"), ["learned"], length=8)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_table_of_another_width() -> None:
    [scheme] = positions(session(), ["sinusoidal"], length=4, width=6)["schemes"]
    assert torch.equal(unpacked(scheme["table"]), sinusoid(torch.arange(4), 6).float())


@pytest.mark.parametrize("name", list(CANDIDATES))
def test_the_tutorials_candidates_are_shown_with_what_the_guidelines_say(name: str) -> None:
    [scheme] = positions(session(), [name], length=8)["schemes"]
    torch.testing.assert_close(unpacked(scheme["table"]), CANDIDATES[name](8).reshape(8, -1).float())
    assert all(one["holds"] for one in scheme["guidelines"]) == name.startswith("cos")
    assert scheme["tolerance"] == SAME
    report = check_position(name, longest=512)
    assert [one["holds"] for one in scheme["guidelines"]] == [
        bool(report.unique),
        bool(report.consistent),
        bool(report.bounded),
    ]
    if name == "t":
        assert scheme["similarity"]["values"] == pytest.approx(list(range(8)))


def test_similarity_is_the_mean_cosine_of_all_pairs_so_far_apart() -> None:
    [scheme] = positions(session(), length=7)["schemes"]
    table = sinusoid(torch.arange(7), 32)
    for distance, value in zip(*(scheme["similarity"][key] for key in ("distances", "values")), strict=True):
        pairs = [torch.cosine_similarity(table[i], table[i + distance], 0) for i in range(7 - distance)]
        assert value == pytest.approx(float(sum(pairs)) / len(pairs), abs=1e-6)


def test_a_long_bias_is_drawn_for_its_first_positions() -> None:
    [scheme] = positions(session("alibi", "decoder"), length=512)["schemes"]
    assert scheme["bias"]["shape"] == [4, MOST_BIAS, MOST_BIAS]
    assert str(MOST_BIAS) in scheme["note"]


def test_a_recurrent_model_needs_none() -> None:
    [scheme] = positions(session(family="recurrent"), length=4)["schemes"]
    assert scheme["name"] == "none"
    assert scheme["table"] is None
    assert "recurrent" in scheme["note"]
    assert scheme["similarity"]["values"] == [1.0] * 4


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"schemes": ["rotry"]}, "did you mean 'rotary'"),
        ({"schemes": ["rotary"] * 5}, "At most 4"),
        ({"length": 1}, "2 to 512"),
        ({"length": 513}, "2 to 512"),
        ({"width": 0}, "width of a position table must be 2"),
        ({"schemes": ["rotary"], "width": 7}, "even"),
    ],
)
def test_what_cannot_be_shown_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        positions(session(), **asked)


def test_angles_of_far_positions_are_exact() -> None:
    [scheme] = positions(session(), length=512)["schemes"]
    assert unpacked(scheme["table"])[511, 0].item() == pytest.approx(math.sin(511), abs=1e-7)


def test_sentences_are_for_readers() -> None:
    model = session("sinusoidal")
    for name in ("alibi", "t5", "t", "cos(t(k+1)/(T_max·d))", "sinusoidal"):
        for rule in positions(model, [name])["schemes"][0]["guidelines"]:
            assert rule["sentence"][0].isupper()
            assert rule["sentence"].endswith(".")
            assert "causal=" not in rule["sentence"]
            assert not re.search(r"-\d", rule["sentence"])
    alibi = positions(model, ["alibi"])["schemes"][0]["guidelines"][0]["sentence"]
    assert alibi.startswith("Distances −1 and 1 have the same signal")
    assert "in a decoder" in alibi
