"""Models of ours as models of theirs: what fits computes the same there, what does not is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from clearhead import build
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, load_bundle, save
from clearhead.decoding.text_requests import opening
from clearhead.interop import export_folder, import_folder, is_foreign
from clearhead.models.build import count_parameters
from clearhead.models.build import preset as find_preset
from clearhead.models.config import ModelConfig
from clearhead.text.framing import Framing, Framings
from clearhead.text.tokenizer import Tokenizer

SMALL = {"layers": 2, "vocabulary": 61, "attention__heads": 4, "feedforward__width": 40, "width": 24}
DECODER = SMALL | {"attention__key_dim": 6}

# a preset made small, with settings changed; the class there that it becomes
OURS: list[tuple[str, dict[str, Any], str]] = [
    ("base", SMALL, "MarianMTModel"),
    ("base", SMALL | {"source_vocabulary": 43, "decoder_layers": 3}, "MarianMTModel"),
    ("base", SMALL | {"embedding__tie_output": False, "embedding__output_bias": True}, "MarianMTModel"),
    (
        "base",
        SMALL | {"position__name": "learned", "embedding__norm": True, "embedding__tie_output": False},
        "BartForConditionalGeneration",
    ),
    ("t5-small", DECODER | {"embedding__output_scale": 24**-0.5}, "T5ForConditionalGeneration"),
    ("t5-small", DECODER | {"embedding__output_scale": None}, "T5ForConditionalGeneration"),
    ("t5-small", DECODER | {"embedding__tie_output": False}, "T5ForConditionalGeneration"),
    ("gpt2", DECODER, "GPT2LMHeadModel"),
    ("llama-7b", DECODER | {"attention__kv_heads": 2}, "LlamaForCausalLM"),
    (
        "llama-7b",
        DECODER
        | {
            "attention__kv_heads": 1,
            "attention__bias": True,
            "position__scaling": {"kind": "ntk", "factor": 2.0},
        },
        "LlamaForCausalLM",
    ),
    ("bert-base", SMALL, "BertModel"),
    ("bert-base", SMALL | {"head__kind": "classify", "head__classes": 5}, "BertForSequenceClassification"),
    ("vit-b16", SMALL | {"image__patch": 4, "image__size": 12}, "ViTForImageClassification"),
]


def random_bundle(preset: str, changes: dict[str, Any]) -> Bundle:
    torch.manual_seed(0)
    plain = find_preset(preset).to_dict()
    for name, value in changes.items():
        section, _, setting = name.rpartition("__")
        (plain[section] if section else plain)[setting] = value
    model = build(ModelConfig.from_dict(plain)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return Bundle(model=model)


def outputs(ours: Any, theirs: Any, config: ModelConfig) -> tuple[Any, Any]:
    tokens = torch.tensor([[5, 6, 7, 8, 9], [9, 30, 20, 41, 3]])
    if config.family == "encoder-decoder":
        target = torch.tensor([[1, 7, 8], [1, 33, 12]])
        return ours(tokens, target).logits, theirs(input_ids=tokens, decoder_input_ids=target).logits
    if config.family == "vision":
        shape = (2, config.image.channels, config.image.size, config.image.size)
        images = torch.randn(shape, generator=torch.Generator().manual_seed(4))
        return ours(images).logits, theirs(images).logits
    if config.head.kind == "none" and config.family == "encoder":
        return ours(tokens).pooled, theirs(tokens).pooler_output
    return ours(tokens).logits, theirs(tokens).logits


@pytest.mark.parametrize("preset, changes, architecture", OURS)
def test_models_of_ours_compute_the_same_there(
    preset: str, changes: dict[str, Any], architecture: str, transformers: Any, tmp_path: Path
) -> None:
    bundle = random_bundle(preset, changes)
    export_folder(bundle, tmp_path / "out")
    plain = json.loads((tmp_path / "out" / "config.json").read_text())
    assert plain["architectures"] == [architecture]
    theirs, report = getattr(transformers, architecture).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ours, there = outputs(bundle.model, theirs.eval(), bundle.config)
    torch.testing.assert_close(ours, there, rtol=1e-4, atol=1e-4)
    again = import_folder(tmp_path / "out")
    ours_again, _ = outputs(again.model, theirs, again.config)
    torch.testing.assert_close(ours_again, ours, rtol=1e-4, atol=1e-4)


def test_numbers_are_exported_in_their_own_units(transformers: Any, tmp_path: Path) -> None:
    bundle = random_bundle("bert-base", SMALL | {"head__kind": "number"})
    bundle.metadata["numbers"] = {"mean": 30.0, "deviation": 4.0}
    export_folder(bundle, tmp_path / "out")
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert theirs.config.problem_type == "regression"
    ours, there = outputs(bundle.model, theirs, bundle.config)
    torch.testing.assert_close(30 + 4 * ours, there, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "preset, changes, named",
    [
        (
            "gpt2",
            DECODER | {"head__kind": "classify", "head__pooling": "last"},
            ["head.kind='classify'", "head.pooling='last'"],
        ),
        ("gpt2", DECODER | {"position__name": "alibi"}, ["position.name='alibi'"]),
        ("gpt2", DECODER | {"attention__softcap": 5.0}, ["attention.softcap=5.0"]),
        ("gpt2", DECODER | {"attention__scale": 0.7}, ["attention.scale=0.7"]),
        ("gpt2", DECODER | {"embedding__scale": True}, ["embedding.scale=True"]),
        ("gpt2", DECODER | {"attention__value_dim": 3}, ["attention.value_dim=3"]),
        ("llama-7b", DECODER | {"feedforward__gated": False, "attention__kv_heads": 4}, ["gated=False"]),
        ("base", SMALL | {"norm__place": "pre"}, ["norm.place='pre'", "norm.final=True"]),
        ("base", SMALL | {"attention__score": "additive"}, ["attention.score='additive'"]),
        ("base", SMALL | {"norm__eps": 1e-6}, ["norm.eps=1e-06"]),
        ("t5-small", DECODER | {"embedding__output_scale": 0.5}, ["embedding.output_scale=0.5"]),
        ("t5-small", DECODER | {"feedforward__gated": True, "feedforward__activation": "gelu"}, ["'gelu'"]),
        ("bert-base", SMALL | {"embedding__token_types": 0}, ["embedding.token_types=0"]),
        ("bert-base", SMALL | {"head__pooling": "mean"}, ["head.pooling='mean'"]),
        ("vit-b16", SMALL | {"image__class_token": False}, ["image.class_token=False"]),
        ("rnn", {"width": 8, "vocabulary": 20}, ["recurrent"]),
    ],
)
def test_what_does_not_fit_is_named(
    preset: str, changes: dict[str, Any], named: list[str], tmp_path: Path
) -> None:
    bundle = random_bundle(preset, changes)
    with pytest.raises(UserError) as caught:
        export_folder(bundle, tmp_path / "out")
    for words in named:
        assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_bundle_that_came_from_a_family_goes_back_to_it(
    saved: Callable[[str], Path], tmp_path: Path
) -> None:
    bundle = import_folder(saved("gpt2"))
    changed = build(bundle.config, position__name="alibi")
    with pytest.raises(UserError, match=r"gpt2, has no position\.name='alibi'"):
        export_folder(Bundle(model=changed, metadata=bundle.metadata), tmp_path / "out")


def test_a_part_that_no_table_knows_is_named(tmp_path: Path) -> None:
    bundle = random_bundle("gpt2", DECODER)
    bundle.model.adapter = nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"no 'adapter\.weight'"):
        export_folder(bundle, tmp_path / "out")


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no weights"):
        export_folder(Bundle(model=build("gpt2", device="meta")), tmp_path / "out")


def test_an_imported_model_is_saved_as_a_bundle(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = saved("marian")
    bundle = import_folder(folder)
    again = load_bundle(save(bundle, tmp_path / "ours"))
    assert again.metadata == bundle.metadata
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 8]])
    expected = bundle.model(source, target).logits
    assert torch.equal(again.model(source, target).logits, expected)
    assert not is_foreign(tmp_path / "ours")
    export_folder(again, tmp_path / "theirs")
    before = load_file(folder / "model.safetensors")
    after = load_file(tmp_path / "theirs" / "model.safetensors")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_half(saved: Callable[[str], Path], tmp_path: Path, dtype: torch.dtype) -> None:
    folder = saved("llama")
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    bundle = import_folder(folder)
    assert {parameter.dtype for parameter in bundle.model.parameters()} == {dtype}
    export_folder(bundle, tmp_path / "out")
    again = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == str(dtype)[6:]


def test_shared_parameters_stay_shared(saved: Callable[[str], Path]) -> None:
    model: Any = import_folder(saved("t5 1.0")).model
    assert model.output.weight is model.source_embedding.table.weight
    assert (
        model.encoder.layers[1].attention.position.table is model.encoder.layers[0].attention.position.table
    )
    assert count_parameters(model) == count_parameters(model.config)
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_names_of_old_checkpoints(saved: Callable[[str], Path]) -> None:
    """gamma and beta, buffers stored as weights, a body without its prefix, a head that nobody reads."""
    folder = saved("bert, words")
    before = import_folder(folder).model.state_dict()
    tensors = load_file(folder / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(32).unsqueeze(0)
    old["cls.seq_relationship.weight"] = torch.ones(2, 24)
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, folder / "model.safetensors")
    after = import_folder(folder).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_body_alone_without_its_prefix(saved: Callable[[str], Path]) -> None:
    folder = saved("gpt2")
    before = import_folder(folder).model.state_dict()
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
    save_file(bare, folder / "model.safetensors")
    plain = json.loads((folder / "config.json").read_text()) | {"architectures": None}
    (folder / "config.json").write_text(json.dumps(plain))
    after = import_folder(folder).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_special_ids_labels_and_what_is_not_carried(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = saved("bart")
    plain = json.loads((folder / "config.json").read_text())
    plain |= {"encoder_layerdrop": 0.1, "bad_words_ids": [[60]], "num_beams": 4}
    (folder / "config.json").write_text(json.dumps(plain))
    (folder / "generation_config.json").unlink()  # beside it transformers asks config.json for ids alone
    bundle = import_folder(folder)
    assert bundle.metadata["special"] == {"pad": 60, "start": 1, "stop": 2}
    assert bundle.metadata["source"] == {
        "format": "huggingface",
        "model_type": "bart",
        "architecture": "BartForConditionalGeneration",
        "not_carried": {"encoder_layerdrop": 0.1},
    }
    assert bundle.metadata["generation"]["num_beams"] == 4
    export_folder(bundle, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written["bad_words_ids"] == [[60]]
    assert written["decoder_start_token_id"] == 1


def test_several_stop_ids_survive(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = saved("llama")
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8], "temperature": 0.6}')
    bundle = import_folder(folder)
    assert bundle.metadata["special"]["stop"] == 7
    export_folder(bundle, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written["eos_token_id"] == [7, 8]
    assert written["temperature"] == 0.6


def test_labels_go_along(saved: Callable[[str], Path], transformers: Any, tmp_path: Path) -> None:
    folder = saved("bert, token classes")
    plain = json.loads((folder / "config.json").read_text())
    plain["id2label"] = {"0": "place", "1": "person", "2": "other"}
    plain["label2id"] = {"place": 0, "person": 1, "other": 2}
    (folder / "config.json").write_text(json.dumps(plain))
    bundle = import_folder(folder)
    assert bundle.metadata["labels"] == ["place", "person", "other"]
    export_folder(bundle, tmp_path / "out")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config.id2label == {0: "place", 1: "person", 2: "other"}


def test_the_tokenizer_goes_along(transformers: Any, tmp_path: Path) -> None:
    text = "to be or not to be"
    tokenizer = Tokenizer.words(text)
    bundle = random_bundle("gpt2", DECODER)
    bundle.tokenizer = tokenizer
    export_folder(bundle, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
    assert (theirs.pad_token_id, theirs.eos_token_id) == (tokenizer.pad, tokenizer.stop)
    again = import_folder(tmp_path / "out")
    assert again.tokenizer is not None
    assert again.tokenizer.encode(text) == tokenizer.encode(text)
    assert again.metadata["special"] == {"pad": 0, "start": 1, "stop": 2}


def test_the_tokenizer_of_a_decoder_that_translates_puts_the_separator_behind_a_source(
    tmp_path: Path,
) -> None:
    tokenizer = Tokenizer.words("the cat sleeps")
    plain = random_bundle("gpt2", DECODER | {"vocabulary": tokenizer.vocabulary_size})
    framings = Framings(source=Framing.of(after=tokenizer.start))
    export_folder(Bundle(plain.model, tokenizer, {"framing": framings.to_dict()}), tmp_path / "out")
    again = import_folder(tmp_path / "out")
    assert again.tokenizer is not None
    asked = [*tokenizer.encode("the cat"), tokenizer.start]
    assert again.tokenizer.encode("the cat", specials=True) == asked
    assert opening(again, "the cat") == asked
