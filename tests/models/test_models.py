"""Whole models: presets build, families name their insides, heads have their shapes, errors are sentences.

Shapes: B rows, S source tokens, T target tokens, E width, V vocabulary.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import clearhead
from clearhead.base.errors import UserError
from clearhead.models import FAMILIES, PRESETS, ModelConfig, ModelOutput, build, preset
from clearhead.nn.look import Look

from .families import SOURCE, VOCABULARY, ids, model_for

IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def run(model: nn.Module, look: Look | None = None) -> Any:
    """One small batch through any family."""
    family = model.config.family
    if family == "vision":
        return model(IMAGES, look=look)
    if family in ("encoder", "decoder"):
        return model(ids(2, 4), lengths=[4, 2], look=look)
    return model(ids(2, SOURCE), ids(2, 4), source_lengths=[SOURCE, 3], look=look)


# --- presets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_without_memory(name: str) -> None:
    model = build(name, device="meta")
    tensors = [*model.parameters(), *model.buffers()]
    assert tensors
    assert all(tensor.is_meta for tensor in tensors)
    assert model.config == preset(name)
    assert type(model) is FAMILIES[model.config.family]


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_survives_json(name: str) -> None:
    config = preset(name)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("base", (2, 4, 37_000)),
        ("gpt2", (2, 5, 50_257)),
        ("llama3-8b", (2, 5, 128_256)),
        ("t5-small", (2, 4, 32_128)),
        ("vit-b16", (2, 1000)),
    ],
)
def test_shapes_of_published_models_cost_nothing_to_ask_for(name: str, wanted: tuple[int, ...]) -> None:
    with torch.device("meta"):
        model = build(name, device="meta", layers=1)
        if name == "vit-b16":
            out = model(torch.empty(2, 3, 224, 224))
        elif model.config.family == "decoder":
            out = model(torch.empty(2, 5, dtype=torch.long))
        else:
            out = model(torch.empty(2, 5, dtype=torch.long), torch.empty(2, 4, dtype=torch.long))
    assert out.logits.shape == wanted
    assert out.logits.is_meta


def test_build_with_changes() -> None:
    model = build("tiny", layers=1, decoder_layers=3, attention__heads=2, position__name="t5")
    assert len(model.encoder.layers) == 1
    assert len(model.decoder.layers) == 3
    assert model.config.attention.heads == 2
    assert type(model.encoder.layers[0].attention.position).__name__ == "T5Bias"
    torch.manual_seed(3)
    first = build("tiny").output.weight
    torch.manual_seed(3)
    assert torch.equal(first, build("tiny").output.weight)
    assert "tiny" in clearhead.presets()


def test_positions_are_shared_or_not_as_the_scheme_says() -> None:
    for scheme, shared in [("t5", True), ("rotary", True), ("shaw", False), ("transformer_xl", False)]:
        model = build("tiny", family="decoder", position__name=scheme)
        first, second = (layer.attention.position for layer in model.decoder.layers)
        assert (first is second) == shared, scheme
    model = build("tiny", position__name="t5")  # the encoder looks both ways, the decoder back only
    schemes = [model.encoder.layers[0].attention.position, model.decoder.layers[0].attention.position]
    assert [scheme.causal for scheme in schemes] == [False, True]
    assert schemes[0].table is not schemes[1].table
    learned = build("tiny", position__name="learned", position__max_length=9)
    tables = [learned.source_embedding.position.table, learned.target_embedding.position.table]
    assert tables[0] is not tables[1]


# --- looking inside -------------------------------------------------------------------------------

PARTS = ["added", "k", "mixed", "q", "scores", "v", "weights"]


def names_of(stack: str, kinds: tuple[str, ...], layers: int = 2) -> set[str]:
    found = {f"{stack}.embedding", f"{stack}.output"}
    for layer in range(layers):
        found |= {f"{stack}.{layer}.output", f"{stack}.{layer}.feedforward.added"}
        found |= {f"{stack}.{layer}.{kind}.{part}" for kind in kinds for part in PARTS}
    return found


def head_for(family: str) -> dict[str, str]:
    """Settings with which a model of the family gives logits."""
    return {"head__kind": "classify"} if family in ("encoder", "vision") else {}


NAMES: dict[str, set[str]] = {
    "encoder-decoder": names_of("encoder", ("self",)) | names_of("decoder", ("self", "cross")) | {"logits"},
    "encoder": names_of("encoder", ("self",)) | {"logits"},
    "decoder": names_of("decoder", ("self",)) | {"logits"},
    "vision": names_of("encoder", ("self",)) | {"logits"},
    "recurrent": {"encoder.output", "decoder.output", "decoder.0.cross.weights", "logits"},
    "convolutional": {"encoder.output", "decoder.output", "logits"}
    | {f"decoder.{layer}.cross.weights" for layer in range(2)},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_name_a_family_offers(family: str) -> None:
    model = model_for(family, **head_for(family))
    look = Look("*")
    plain, seen = run(model), run(model, look)
    assert set(look.names) == NAMES[family]
    assert set(look.seen) == NAMES[family]  # all of them can be had
    assert torch.equal(plain.logits, seen.logits)
    assert torch.equal(look["logits"], plain.logits)
    assert all(torch.isfinite(tensor).all() for name, tensor in look.seen.items() if "scores" not in name)
    for name, tensor in look.seen.items():
        if name.endswith("weights"):
            assert torch.allclose(tensor.sum(-1), torch.ones(tensor.shape[:-1]).double()), name


@pytest.mark.parametrize(
    "family, wrong, nearest",
    [
        ("encoder-decoder", "decoder.1.cros.weights", "decoder.1.cross.weights"),
        ("encoder-decoder", "encoder.0.self.weight", "encoder.0.self.weights"),
        ("encoder", "encoder.5.output", r"encoder\.\d\.output"),
        ("decoder", "decoder.outputs", "decoder.output"),
        ("vision", "embedding", "encoder.embedding"),
        ("recurrent", "decoder.1.cross.weights", "decoder.0.cross.weights"),
    ],
)
def test_a_wrong_name_gives_the_nearest(family: str, wrong: str, nearest: str) -> None:
    look = Look(wrong)
    run(model_for(family, **head_for(family)), look)
    with pytest.raises(UserError, match=rf"Nothing named '{wrong}' was seen: did you mean '{nearest}'\?"):
        look[wrong]


def test_chosen_layers_and_heads() -> None:
    model = model_for("encoder-decoder")
    look = Look({"decoder.*.cross.weights": [2], "encoder.0.self.weights": [0, 3]})
    run(model, look)
    assert set(look.seen) == {"decoder.0.cross.weights", "decoder.1.cross.weights", "encoder.0.self.weights"}
    assert look["decoder.1.cross.weights"].shape == (2, 1, 4, SOURCE)
    assert look["encoder.0.self.weights"].shape == (2, 2, SOURCE, SOURCE)
    every = Look(["decoder.1.cross.weights", "encoder.0.self.weights"])
    run(model, every)
    assert torch.allclose(look["decoder.1.cross.weights"], every["decoder.1.cross.weights"][:, [2]])
    assert torch.allclose(look["encoder.0.self.weights"], every["encoder.0.self.weights"][:, [0, 3]])


def test_the_residual_stream_adds_up() -> None:
    """Pre-norm: what the last layer gives is the embedding and everything added to it."""
    model = model_for("decoder", norm__place="pre")
    look = Look("*")
    run(model, look)
    total = look["decoder.embedding"]
    for layer in range(2):
        total = total + look[f"decoder.{layer}.self.added"] + look[f"decoder.{layer}.feedforward.added"]
        assert torch.allclose(total, look[f"decoder.{layer}.output"], atol=1e-12)
    assert torch.allclose(model.decoder.norm(total), look["decoder.output"], atol=1e-12)


def test_a_last_norm_stands_where_the_config_says() -> None:
    for place, final, wanted in [
        ("pre", None, True),
        ("post", None, False),
        ("post", True, True),
        ("pre", False, False),
    ]:
        model = model_for("encoder", norm__place=place, norm__final=final)
        assert (model.encoder.norm is not None) == wanted, (place, final)


# --- heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
@pytest.mark.parametrize(
    "kind, wanted",
    [
        ("none", None),
        ("classify", (2, 5)),
        ("number", (2, 1)),
        ("tag", (2, 4, 5)),
        ("mlm", (2, 4, VOCABULARY)),
    ],
)
def test_heads_of_an_encoder(kind: str, wanted: tuple[int, ...] | None, pooling: str) -> None:
    model = model_for("encoder", head__kind=kind, head__classes=5, head__pooling=pooling)
    out = run(model)
    assert out.hidden.shape == (2, 4, 8)
    assert out.pooled.shape == (2, 8)
    assert (None if out.logits is None else out.logits.shape) == wanted
    expected = out.hidden[:, 0]
    if pooling == "mean":
        expected = torch.stack([out.hidden[0, :4].mean(0), out.hidden[1, :2].mean(0)])
    if pooling == "last":
        expected = torch.stack([out.hidden[0, 3], out.hidden[1, 1]])
    assert torch.allclose(out.pooled, expected)
    if kind in ("classify", "number"):
        assert torch.allclose(out.logits, model.head.classifier(out.pooled))
    packed = model(torch.cat([ids(2, 4)[0], ids(2, 4)[1, :2]]), lengths=[4, 2])
    assert packed.hidden.shape == (6, 8)
    assert torch.allclose(packed.pooled, out.pooled)
    if kind == "tag":
        assert packed.logits.shape == (6, 5)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("kind, outputs", [("classify", 5), ("number", 1)])
@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
def test_heads_of_decoders(family: str, kind: str, outputs: int, pooling: str) -> None:
    """Padding does not count, packed is padded, and what writes is not there."""
    changes = {"head__kind": kind, "head__classes": 5, "head__pooling": pooling}
    model = model_for(family, **changes, head__pooler=True)
    rows, sizes = ids(2, 4), [4, 2]
    flat = torch.cat([rows[0], rows[1, :2]])

    def read(tokens: torch.Tensor, lengths: list[int] | None) -> ModelOutput:
        if family == "decoder":
            return model(tokens, lengths=lengths)
        return model(tokens, tokens, source_lengths=lengths, target_lengths=lengths)

    out = read(rows, sizes)
    last = [[3], [1]] if pooling == "last" else [[0, 1, 2, 3], [0, 1]]
    vectors = torch.stack([out.hidden[row, places].mean(0) for row, places in enumerate(last)])
    assert torch.allclose(out.pooled, torch.tanh(model.head.pooler(vectors)))
    assert torch.allclose(out.logits, model.head.classifier(out.pooled))
    assert out.logits.shape == (2, outputs)
    packed = read(flat, sizes)
    assert packed.hidden.shape == (6, 8)
    assert torch.allclose(packed.logits, out.logits)
    assert torch.allclose(read(rows[:1], None).logits, out.logits[:1])
    look = Look("logits")
    args = (rows,) if family == "decoder" else (rows, rows)
    assert torch.equal(model(*args, look=look).logits, look["logits"])
    assert not hasattr(model, "output")
    assert (out.memory is not None) == (family == "encoder-decoder")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"family": "decoder", "head__kind": "tag"}, "head.kind=tag cannot be used with .* 'decoder'"),
        ({"family": "encoder-decoder", "head__kind": "mlm"}, "head.kind=mlm cannot be used with"),
        ({"family": "recurrent", "head__kind": "classify"}, "'recurrent': use an encoder"),
        ({"family": "decoder", "head__kind": "number"}, "set head.pooling=last"),
    ],
)
def test_heads_that_make_no_sense(changes: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        preset("tiny").replace(**changes)


def test_the_pooler_and_the_transform_of_bert() -> None:
    model = model_for("encoder", head__pooler=True, head__kind="mlm", embedding__output_bias=True)
    out = run(model)
    head = model.head
    assert torch.allclose(out.pooled, torch.tanh(out.hidden[:, 0] @ head.pooler.weight.T + head.pooler.bias))
    step = head.transform.norm(torch.nn.functional.gelu(head.transform.dense(out.hidden)))
    assert torch.allclose(out.logits, step @ model.embedding.table.weight.T + head.words.bias)
    plain = model_for("encoder", head__kind="mlm", head__transform=False)
    out = run(plain)
    assert torch.allclose(out.logits, out.hidden @ plain.embedding.table.weight.T)


def test_token_types() -> None:
    model = model_for("encoder", embedding__token_types=2)
    tokens, types = ids(2, 4), torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    with_types = model(tokens, token_types=types).hidden
    assert not torch.allclose(with_types, model(tokens).hidden)
    packed = model(tokens.flatten(), token_types=types.flatten(), lengths=[4, 4]).hidden
    assert torch.allclose(packed, with_types.flatten(0, 1))


@pytest.mark.parametrize("class_token", [True, False])
def test_vision(class_token: bool) -> None:
    model = model_for(
        "vision", head__kind="classify", head__classes=7, scheme="learned", image__class_token=class_token
    )
    out = model(IMAGES)
    assert out.hidden.shape == (2, 9 + class_token, 8)
    assert out.logits.shape == (2, 7)
    patches = IMAGES.unfold(2, 2, 2).unfold(3, 2, 2)  # (B, C, 3, 3, 2, 2)
    flat = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # (B, 9, C·4), row by row
    weight = model.patches.weight.flatten(1)
    look = Look("encoder.embedding")
    model(IMAGES, look=look)
    wanted = flat @ weight.T + model.patches.bias
    if class_token:
        wanted = torch.cat([model.class_token.expand(2, 1, -1), wanted], dim=1)
    assert torch.allclose(look["encoder.embedding"], wanted + model.position.table)


# --- errors are sentences -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3, 6, 5), (2, 1, 6, 6), (2, 3, 8, 8), (3, 6, 6)])
def test_an_image_of_the_wrong_size(shape: tuple[int, ...]) -> None:
    model = model_for("vision")
    wanted = r"takes images of shape \(batch, 3, 6, 6\), not " + str(shape).replace("(", r"\(").replace(
        ")", r"\)"
    )
    with pytest.raises(UserError, match=wanted):
        model(torch.zeros(shape).double())


@pytest.mark.parametrize("family", ["encoder-decoder", "encoder", "decoder", "recurrent", "convolutional"])
@pytest.mark.parametrize("wrong", [VOCABULARY, -1])
def test_ids_out_of_range(family: str, wrong: int) -> None:
    model = model_for(family)
    good, bad = ids(1, 3), torch.tensor([[1, wrong, 2]])
    calls = [(bad, good), (good, bad)] if family not in ("encoder", "decoder") else [(bad,)]
    for inputs in calls:
        with pytest.raises(
            UserError, match=f"Token id {wrong} is outside the vocabulary of {VOCABULARY} tokens"
        ):
            model(*inputs)


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent", "convolutional"])
def test_source_and_target_have_their_own_vocabularies(family: str) -> None:
    model = model_for(family, source_vocabulary=20)
    assert model(torch.tensor([[19, 3]]), torch.tensor([[2]])).logits.shape == (1, 1, VOCABULARY)
    with pytest.raises(UserError, match="Token id 19 is outside the vocabulary of 13"):
        model(torch.tensor([[3]]), torch.tensor([[19]]))


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_inputs_that_cannot_be(family: str) -> None:
    model = model_for(family)
    for inputs, lengths, sentence in [
        (ids(5), None, "need the length of each sequence"),
        (ids(5), [2, 2], "lengths add up to 4, but there are 5 tokens"),
        (ids(2, 3), [1, 2, 3], "2 rows need 2 lengths, not 3"),
        (ids(2, 3), [1, 4], "length of 4 is longer than the rows, which hold 3"),
        (ids(2, 3), [1, -1], "length of -1 is negative"),
        (ids(2, 3, 1), None, "one dimension .* or two .*, not 3"),
    ]:
        with pytest.raises(UserError, match=sentence):
            model(inputs, lengths=lengths)


@pytest.mark.parametrize("family", ["encoder-decoder", "recurrent", "convolutional"])
def test_sources_and_targets_that_cannot_be(family: str) -> None:
    model = model_for(family)
    for source, target, lengths, sentence in [
        (ids(5), ids(4), ([3, 2], None), "need the length of each sequence"),
        (ids(5), ids(4), ([3, 1], [2, 2]), "add up to 4, but there are 5 source tokens"),
        (ids(5), ids(4), ([3, 2], [2, 1]), "add up to 3, but there are 4 target tokens"),
        (ids(5), ids(4), ([3, 2], [2, 1, 1]), "2 packed sources but 3 packed targets"),
        (ids(2, 5), ids(4), ([5, 5], [2, 2]), "both packed .* or both in rows"),
        (ids(2, 5), ids(3, 4), (None, None), "2 source rows but 3 target rows"),
        (ids(2, 5), ids(2, 4), (None, [4, 5]), "5 is longer than the rows, which hold 4"),
        (ids(2, 5), ids(2, 4), ([4], None), "2 rows need 2 lengths"),
    ]:
        with pytest.raises(UserError, match=sentence):
            model(source, target, source_lengths=lengths[0], target_lengths=lengths[1])


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"attention__heads": 3}, "width of 32 does not divide into 3 heads"),
        ({"width": 30}, "width of 30 does not divide into 4 heads"),
        ({"attention__kv_heads": 3}, "4 heads cannot share 3"),
        ({"attention__width": 16}, "attention.width=16 contradicts the model's width=32"),
        ({"layers": 0}, "'layers' must be a whole number from 1 .* not 0"),
        ({"vocabulary": -5}, "'vocabulary' must be a whole number from 1 .* not -5"),
        ({"family": "decoders"}, "did you mean 'decoder'"),
        ({"attention__hed": 2}, "did you mean 'heads'"),
        ({"widht": 2}, "did you mean 'width'"),
        ({"layers": "two"}, "'layers' must be of type int"),
        ({"layers": 2.5}, "'layers' must be of type int"),
        ({"dropout": True}, "'dropout' must be of type float"),
        ({"width__a": 1}, "has no settings inside"),
        ({"position__name": "rotery"}, "did you mean 'rotary'"),
        ({"attention__score": "bilinear", "position__name": "rotary"}, "cannot work together"),
        ({"attention__key_dim": 3, "position__name": "rotary"}, "must be even, not 3"),
        ({"family": "vision", "image__patch": 5}, "224 pixels does not divide into patches of 5"),
        ({"family": "recurrent", "recurrent__attention": "dot"}, "'dot' and bidirectional=true cannot work"),
    ],
)
def test_a_config_that_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refusal:
        build("tiny", **changes)
    assert "\n" not in str(refusal.value)


def test_names_nobody_knows() -> None:
    with pytest.raises(UserError, match="no preset 'bert-bas': did you mean 'bert-base'"):
        build("bert-bas")
    with pytest.raises(UserError, match=r"setting 'vocabulry'.* did you mean 'vocabulary'"):
        ModelConfig.from_dict({"vocabulry": 3})
