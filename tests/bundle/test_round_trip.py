"""What is saved comes back: every family and dial, to the last bit, with shared weights shared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, is_bundle, load_bundle, save
from clearhead.bundle.weights import shapes_of
from clearhead.models import ModelConfig, build, count_parameters, preset, presets

TINY = {"width": 16, "layers": 2, "vocabulary": 20, "attention": {"heads": 2}, "feedforward": {"width": 24}}
DECODER = {**TINY, "family": "decoder"}
ENCODER = {**TINY, "family": "encoder"}
RECURRENT = {"family": "recurrent", "width": 8, "layers": 2, "vocabulary": 20}
VISION = {**TINY, "family": "vision", "image": {"size": 8, "patch": 4}, "position": {"name": "learned"}}
POSITIONS = ["none", "sinusoidal", "learned", "rotary", "t5", "alibi", "transformer_xl", "shaw", "music"]
SCORES = ["dot", "scaled_dot", "bilinear", "reduced_rank", "additive"]

CONFIGS: dict[str, dict[str, Any]] = {
    **{f"position {name}": {**TINY, "position": {"name": name}} for name in POSITIONS},
    **{
        f"score {name}": {**DECODER, "attention": {"heads": 2, "score": name}, "position": {"name": "none"}}
        for name in SCORES
    },
    "untied": {**TINY, "embedding": {"tie_output": False, "output_bias": True}},
    "two vocabularies": {**TINY, "source_vocabulary": 30, "decoder_layers": 1},
    "grouped keys, gated": {
        **DECODER,
        "attention": {"heads": 4, "kv_heads": 2, "key_dim": 6, "bias": False, "output_bias": True},
        "feedforward": {"gated": True, "activation": "silu", "bias": False},
        "norm": {"kind": "rms", "place": "pre"},
    },
    "rotary scaling": {
        **DECODER,
        "position": {"name": "rotary", "scaling": {"kind": "yarn", "factor": 4.0, "original_length": 64}},
    },
    "bert": {**ENCODER, "head": {"pooler": True}, "embedding": {"norm": True, "token_types": 2}},
    "masked words": {**ENCODER, "head": {"kind": "mlm"}, "embedding": {"output_bias": True}},
    "classifier": {**ENCODER, "head": {"kind": "classify", "classes": 5, "pooling": "mean"}},
    "tagger": {**ENCODER, "head": {"kind": "tag", "classes": 5}},
    "vision": {**VISION, "head": {"kind": "classify", "classes": 3}},
    "vision without class token": {**VISION, "image": {"size": 8, "patch": 4, "class_token": False}},
    "gru": RECURRENT,
    "lstm": {**RECURRENT, "recurrent": {"cell": "lstm", "attention": "dot", "bidirectional": False}},
    "rnn without attention": {**RECURRENT, "recurrent": {"cell": "rnn", "attention": "none"}},
    "convolutional": {**RECURRENT, "family": "convolutional", "convolution": {"decoder_kernel": 4}},
    "recurrent untied": {**RECURRENT, "embedding": {"tie_output": False}, "source_vocabulary": 25},
}


def made(plain: dict[str, Any], dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with every weight random, also those that usually begin at 0 or 1."""
    torch.manual_seed(1)
    model = build(ModelConfig.from_dict(plain))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.to(dtype).eval()


def outputs(model: Any) -> list[Tensor]:
    """All a model answers to some fixed input."""
    ids = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 3, 4, 5, 1, 2]])
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        if model.config.family == "vision":
            result = model(torch.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=dtype).view(2, 3, 8, 8))
        elif model.config.family in ("encoder", "decoder"):
            result = model(ids)
        else:
            result = model(ids, ids[:, :4])
    found = [result.logits, result.hidden, getattr(result, "pooled", None), getattr(result, "memory", None)]
    return [tensor for tensor in found if tensor is not None]


def shared(model: nn.Module) -> list[set[str]]:
    """Groups of names that stand for one parameter in one place in memory."""
    groups: dict[tuple[int, int], set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault((id(parameter), parameter.data_ptr()), set()).add(name)
    return sorted((group for group in groups.values() if len(group) > 1), key=sorted)


def same(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(outputs(one), outputs(two), strict=True))


@pytest.mark.parametrize("plain", CONFIGS.values(), ids=CONFIGS.keys())
def test_every_dial_comes_back_to_the_last_bit(plain: dict[str, Any], tmp_path: Path) -> None:
    model = made(plain)
    bundle = load_bundle(save(model, tmp_path / "b"))
    assert bundle.config == model.config
    assert not bundle.model.training
    assert [name for name, _ in bundle.model.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert all(p.requires_grad and p.is_leaf for p in bundle.model.parameters())
    assert shared(bundle.model) == shared(model)
    assert same(bundle.model, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_number_formats_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    model = made(CONFIGS["position t5"], dtype)
    bundle = load_bundle(save(model, tmp_path / "b"))
    assert {parameter.dtype for parameter in bundle.model.parameters()} == {dtype}
    assert same(bundle.model, model)


def test_mixed_number_formats_are_kept(tmp_path: Path) -> None:
    model: Any = made(CONFIGS["position learned"], torch.bfloat16)
    model.encoder.layers[0].attention_residual.norm.float()
    back = load_bundle(save(model, tmp_path / "b")).model
    assert {name: p.dtype for name, p in back.named_parameters()} == {
        name: p.dtype for name, p in model.named_parameters()
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bf16"])
def test_conversion_on_loading(dtype: torch.dtype | str, tmp_path: Path) -> None:
    model = made(CONFIGS["position rotary"])
    back = load_bundle(save(model, tmp_path / "b"), dtype=dtype).model
    assert shared(back) == shared(model) != []
    assert same(back, model.to(torch.bfloat16))


def test_a_format_that_weights_cannot_have(folder: Path) -> None:
    with pytest.raises(UserError, match=r"Weights cannot be torch\.int8"):
        load_bundle(folder, dtype=torch.int8)


def test_shared_weights_are_stored_once(tmp_path: Path) -> None:
    model = made(CONFIGS["position t5"])
    path = save(model, tmp_path / "b")
    with safe_open(path / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert "source_embedding.table.weight" in names
    assert not names & {"target_embedding.table.weight", "output.weight"}
    assert {name for name in names if "position" in name} == {
        "encoder.layers.0.attention.position.table",
        "decoder.layers.0.attention.position.table",
    }
    back: Any = load_bundle(path).model
    with torch.no_grad():
        back.output.weight.fill_(7.0)
        back.encoder.layers[0].attention.position.table.fill_(5.0)
    assert (back.source_embedding.table.weight == 7).all()
    assert (back.encoder.layers[1].attention.position.table == 5).all()


def test_a_loaded_model_can_be_trained_and_saved_again(tmp_path: Path) -> None:
    model = load_bundle(save(made(CONFIGS["gru"]), tmp_path / "b")).model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.tensor([[3, 4, 5]])
    model(ids, ids).logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimiser.step()
    assert same(load_bundle(save(model, tmp_path / "b")).model, model.eval())


def test_the_file_may_go_once_it_is_loaded(folder: Path, small: Bundle) -> None:
    bundle = load_bundle(folder)
    (folder / "model.safetensors").write_bytes(b"")
    assert same(bundle.model, small.model)


def test_config_json_is_the_config_and_nothing_else(folder: Path, small: Bundle) -> None:
    assert json.loads((folder / "config.json").read_text()) == small.config.to_dict()


def test_tokenizer_and_metadata_come_back(folder: Path, small: Bundle) -> None:
    bundle = load_bundle(folder)
    assert small.tokenizer is not None
    assert bundle.tokenizer is not None
    assert bundle.tokenizer.to_json() == small.tokenizer.to_json()
    assert bundle.metadata == {"trained_on": "Hamlet", "metrics": {"loss": 1.5}}
    again = load_bundle(save(bundle, folder))
    assert again.metadata == bundle.metadata


def test_metadata_json(folder: Path, small: Bundle) -> None:
    facts = json.loads((folder / "metadata.json").read_text())
    assert list(facts) == [
        "format", "format_version", "created", "versions", "parameters", "sha256", "metadata", "checksum"
    ]  # fmt: skip
    assert (facts["format"], facts["format_version"]) == ("clearhead-bundle", 1)
    assert sorted(facts["versions"]) == ["clearhead", "python", "torch"]
    assert facts["parameters"] == count_parameters(small.model)
    assert sorted(facts["sha256"]) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_arguments_take_the_place_of_what_a_bundle_holds(small: Bundle, tmp_path: Path) -> None:
    path = save(small, tmp_path / "b", metadata={"note": "other"})
    assert load_bundle(path).metadata == {"note": "other"}
    path = save(small.model, path)
    assert load_bundle(path).tokenizer is None
    assert not (path / "tokenizer.json").exists()
    assert load_bundle(save(small.model, path, tokenizer=small.tokenizer)).tokenizer is not None


def test_a_compiled_model_is_saved_as_what_it_wraps(small: Bundle, tmp_path: Path) -> None:
    path = save(torch.compile(small.model), tmp_path / "b")  # type: ignore[arg-type]
    assert same(load_bundle(path).model, small.model)


def test_paths_without_a_name(folder: Path, small: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert same(load_bundle(".").model, small.model)
    (folder / "inner").mkdir()
    monkeypatch.chdir(folder / "inner")
    assert same(load_bundle("..").model, small.model)
    with pytest.raises(UserError, match="not a bundle"):
        load_bundle("/")


def test_a_link_to_a_bundle(folder: Path, small: Bundle) -> None:
    link = folder.with_name("latest")
    link.symlink_to(folder)
    assert same(load_bundle(link).model, small.model)
    with pytest.raises(UserError, match="link of that name is in the way"):
        save(small, link)
    assert link.is_symlink()


def test_files_of_the_user_survive_a_replacement(folder: Path, small: Bundle) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / "curves").mkdir()
    (folder / "curves" / "loss.csv").write_text("1,2")
    (folder / "dangling").symlink_to("nowhere")
    save(small, folder, metadata={"version": 2})
    assert load_bundle(folder).metadata == {"version": 2}
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "curves" / "loss.csv").read_text() == "1,2"
    assert os.readlink(folder / "dangling") == "nowhere"


def test_reading_while_it_is_replaced(small: Bundle, tmp_path: Path) -> None:
    """A reader gets one version or the other, never a mixture and never a complaint."""
    versions = []
    for number in range(2):
        model = build(small.config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(number))
        versions.append(Bundle(model, metadata={"version": number}))
    path = save(versions[0], tmp_path / "b")
    done = threading.Event()

    def write() -> None:
        for round_ in range(60):
            save(versions[round_ % 2], path)
            time.sleep(0.02)  # a writer that never rests could keep a slow reader from ever finishing
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while not done.is_set():
        bundle = load_bundle(path)
        assert {p.unique().item() for p in bundle.model.parameters()} == {float(bundle.metadata["version"])}
        reads += 1
    writer.join()
    assert reads > 0


@pytest.mark.parametrize("name", presets())
def test_presets_have_no_tensors_beside_their_parameters(name: str) -> None:
    """A persistent buffer would not come back, a hidden one would stay on "meta"."""
    model = build(preset(name), device="meta")
    assert list(model.buffers()) == []
    assert set(shapes_of(model)) == {name for name, _ in model.named_parameters()}
    hidden = [
        f"{type(module).__name__}.{key}"
        for module in model.modules()
        for key, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    assert hidden == []


def test_an_empty_model_has_the_shapes_of_a_real_one() -> None:
    for plain in CONFIGS.values():
        config = ModelConfig.from_dict(plain)
        assert shapes_of(build(config, device="meta")) == shapes_of(build(config))


def test_building_an_empty_model_does_not_load_the_compiler() -> None:
    code = (
        "import sys; from clearhead.models import preset; from clearhead.models import build\n"
        "for name in ('tiny', 'gpt2', 'vit-b16', 'rnn', 't5-small'): build(preset(name), device='meta')\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_loading_needs_no_second_copy_in_memory(tmp_path: Path) -> None:
    """The peak while loading stays near the model's own size, the file's mapped pages included."""
    config = ModelConfig.from_dict({**DECODER, "width": 512, "layers": 24, "vocabulary": 64})
    path = save(build(config), tmp_path / "b")
    size = (path / "model.safetensors").stat().st_size
    assert size > 100_000_000
    code = (
        "import resource, sys; from clearhead.bundle import load_bundle\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "load_bundle(sys.argv[1]); before = peak()\n"
        "bundle = load_bundle(sys.argv[2]); print(peak() - before)"
    )
    small = save(build(config.replace(layers=1)), tmp_path / "small")
    ran = subprocess.run(
        [sys.executable, "-c", code, str(small), str(path)], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 1.25 * size


def test_is_bundle(folder: Path, tmp_path: Path) -> None:
    assert is_bundle(folder)
    assert not is_bundle(tmp_path)
    assert not is_bundle(tmp_path / "absent")


def test_summary_and_repr(small: Bundle) -> None:
    assert repr(small) == f"Bundle(decoder, {count_parameters(small.model):,} parameters, 1 layer, 12 tokens)"
    lines = small.summary().splitlines()
    assert [line.split()[0] for line in lines] == [
        "family", "parameters", "layers", "width", "vocabulary", "tokenizer", "trained_on", "metrics"
    ]  # fmt: skip
    assert "Hamlet" in lines[6]
