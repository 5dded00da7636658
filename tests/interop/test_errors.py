"""What cannot be imported says so in one sentence that names the culprit."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.base.errors import UserError
from clearhead.interop import export_folder, import_folder, is_foreign

Save = Callable[[str], Path]
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def change_tensors(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def change_config(folder: Path, **settings: Any) -> None:
    plain = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(plain | settings))


def sentence(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        import_folder(folder)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


NAMES = [
    ("marian", "model.encoder.layers.1.fc1.bias"),
    ("bart", "model.decoder.layernorm_embedding.weight"),
    ("t5 1.0", "decoder.block.2.layer.1.EncDecAttention.k.weight"),
    ("gpt2", "transformer.h.1.attn.c_attn.weight"),
    ("llama", "lm_head.weight"),
    ("bert, text classes", "bert.pooler.dense.weight"),
    ("vit, classes", "vit.embeddings.cls_token"),
]


@pytest.mark.parametrize("row, name", NAMES)
def test_a_missing_tensor_is_named(saved: Save, row: str, name: str) -> None:
    folder = saved(row)
    change_tensors(folder, lambda tensors: tensors.pop(name))
    message = sentence(folder)
    assert f"'{name}' is missing" in message


@pytest.mark.parametrize("row", [row for row, _ in NAMES])
def test_a_left_over_tensor_is_named(saved: Save, row: str) -> None:
    folder = saved(row)
    change_tensors(folder, lambda tensors: tensors.update({"some.adapter.weight": torch.ones(2)}))
    message = sentence(folder)
    assert "'some.adapter.weight'" in message
    assert "does not have" in message


def test_several_left_over_tensors_are_counted(saved: Save) -> None:
    folder = saved("gpt2")
    change_config(folder, n_layer=1)
    assert "'transformer.h.1.attn.c_attn.bias' (and 11 more)" in sentence(folder)


def test_far_too_many_layers_fail_at_once(saved: Save) -> None:
    folder = saved("gpt2")
    change_config(folder, n_layer=1_999)
    assert "'transformer.h.2.ln_1.weight' is missing" in sentence(folder)
    change_config(folder, n_layer=10**9)
    assert "'layers' must be a whole number from 1 to 2000" in sentence(folder)


@pytest.mark.parametrize("shape", [(5, 7), (7,), (3, 2, 2)])
def test_a_tensor_of_the_wrong_shape_is_named(saved: Save, shape: tuple[int, ...]) -> None:
    folder = saved("gpt2")
    name = "transformer.h.0.attn.c_attn.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.ones(shape)}))
    message = sentence(folder)
    assert f"'{name}'" in message
    assert "do not belong together" in message


def test_a_copy_that_differs_is_named(saved: Save) -> None:
    folder = saved("llama, grouped")
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(61, 32)}))
    assert "'lm_head.weight' and 'model.embed_tokens.weight' differ" in sentence(folder)


def test_quantised_weights_are_refused(saved: Save) -> None:
    folder = saved("gpt2")
    ints = {"transformer.wpe.weight": torch.ones(32, 24, dtype=torch.int8)}
    change_tensors(folder, lambda tensors: tensors.update(ints))
    assert "'transformer.wpe.weight' holds torch.int8" in sentence(folder)
    change_config(folder, quantization_config={"bits": 4})
    assert "quantization_config" in sentence(folder)


@pytest.mark.parametrize(
    "row, settings, words",
    [
        ("marian", {"activation_function": "mish"}, ["activation_function='mish'", "relu"]),
        ("marian", {"decoder_ffn_dim": 48}, ["encoder_ffn_dim=40 and decoder_ffn_dim=48"]),
        ("marian", {"decoder_attention_heads": 2}, ["decoder_attention_heads=2"]),
        ("marian", {"decoder_vocab_size": 70}, ["decoder_vocab_size=70"]),
        ("marian", {"normalize_before": True}, ["normalize_before=True"]),
        ("bart", {"static_position_embeddings": True}, ["static_position_embeddings"]),
        ("t5 1.0", {"feed_forward_proj": "mixed-relu"}, ["feed_forward_proj='mixed-relu'"]),
        ("t5 1.0", {"dense_act_fn": "mish"}, ["feed_forward_proj"]),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx=True"]),
        ("gpt2", {"add_cross_attention": True}, ["add_cross_attention=True"]),
        ("gpt2", {"n_embd": "wide"}, ["n_embd='wide'", "whole number"]),
        ("gpt2", {"n_embd": None}, ["lacks the setting 'n_embd'"]),
        ("gpt2", {"n_head": 5}, ["24", "5 heads"]),
        ("gpt2", {"n_layer": True}, ["n_layer=True"]),
        ("gpt2", {"layer_norm_epsilon": "small"}, ["layer_norm_epsilon='small'", "a number"]),
        ("gpt2", {"tie_word_embeddings": 1}, ["tie_word_embeddings=1", "true or false"]),
        ("gpt2", {"model_type": "gpt17"}, ["model_type='gpt17'", "gpt2"]),
        ("gpt2", {"model_type": ["gpt2"]}, ["model_type"]),
        ("gpt2", {"architectures": ["GPT2ForTokenClassification"]}, ["GPT2ForTokenClassification"]),
        ("gpt2", {"architectures": "GPT2LMHeadModel"}, ["architectures"]),
        ("gpt2", {"architectures": [["GPT2LMHeadModel"]]}, ["architectures"]),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            ["rope_type='dynamic'", "cached and uncached decoding would differ"],
        ),
        ("llama", {"rope_parameters": {"type": "longrope"}}, ["rope_type='longrope'"]),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2, "truncate": False}}, ["truncate"]),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 2}}, ["'low_freq_factor'"]),
        ("llama", {"rope_parameters": [1]}, ["rope_parameters=[1]", "a table"]),
        ("llama", {"partial_rotary_factor": 0.5}, ["partial_rotary_factor=0.5"]),
        ("mixtral", {"sliding_window": 64}, ["sliding_window=64"]),
        ("mixtral", {"num_experts_per_tok": 5}, ["5 experts cannot be chosen among 4"]),
        ("deepseek_v3", {"rope_parameters": {"rope_type": "dynamic"}}, ["rope_type='dynamic'"]),
        ("deepseek_v3", {"hidden_act": "mish"}, ["hidden_act='mish'"]),
        ("deepseek_v3", {"num_key_value_heads": 2}, ["num_key_value_heads=2", "every head has its own"]),
        ("deepseek_v3, experts", {"n_group": 3}, ["8 experts cannot be divided into 3 groups"]),
        ("deepseek_v3, experts", {"n_group": 8}, ["each needs two or more"]),
        ("deepseek_v3, experts", {"scoring_func": "softmax"}, ["scoring_func='softmax'"]),
        ("deepseek_v3, experts", {"topk_method": "greedy"}, ["topk_method='greedy'"]),
        ("deepseek_v3, experts", {"moe_layer_freq": 2}, ["moe_layer_freq=2"]),
        ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type='relative_key'"]),
        ("bert", {"is_decoder": True}, ["is_decoder=True"]),
        ("bert, text classes", {"id2label": {"1": "a", "2": "b"}}, ["id2label"]),
        ("vit", {"image_size": [12, 16]}, ["image_size"]),
        ("vit", {"pooler_act": "relu"}, ["pooler_act='relu'"]),
    ],
)
def test_settings_that_change_the_maths_are_refused(
    saved: Save, row: str, settings: dict[str, Any], words: list[str]
) -> None:
    folder = saved(row)
    change_config(folder, **settings)
    message = sentence(folder)
    for word in words:
        assert word in message


class Bomb:
    """Unpickling this leaves a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(self.trace),))

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)


def test_pickles_are_never_loaded(saved: Save, tmp_path: Path) -> None:
    folder = saved("gpt2")
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "trace")))
    message = sentence(folder)
    assert "'pytorch_model.bin', a pickle file" in message
    assert WEIGHTS in message
    assert is_foreign(folder)
    (folder / CONFIG).unlink()
    assert not is_foreign(folder)
    assert "nothing to import" in sentence(folder)
    assert not (tmp_path / "trace").exists()


def test_folders_that_hold_no_model(saved: Save, tmp_path: Path) -> None:
    assert "no folder" in sentence(tmp_path / "nowhere")
    assert not is_foreign(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "nothing to import" in sentence(empty)
    assert not is_foreign(empty)
    (empty / CONFIG).write_text('{"family": "decoder"}')
    assert "names no 'model_type'" in sentence(empty)
    assert not is_foreign(empty)
    folder = saved("gpt2")
    (folder / WEIGHTS).unlink()
    assert f"contains neither '{WEIGHTS}'" in sentence(folder)


@pytest.mark.parametrize("cut", [0, 4, 200, -5])
def test_a_damaged_safetensors_file(saved: Save, cut: int) -> None:
    folder = saved("gpt2")
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:cut])
    assert f"{WEIGHTS}' is damaged" in sentence(folder)


@pytest.mark.parametrize("text", ["", '{"model_type": "gp', "[1, 2]", "[" * 100_000, "\x00"])
def test_a_damaged_config(saved: Save, text: str) -> None:
    folder = saved("gpt2")
    (folder / CONFIG).write_text(text)
    assert f"{CONFIG}' is damaged" in sentence(folder)
    assert not is_foreign(folder)


def shard(folder: Path) -> dict[str, str]:
    """Split the weights of a folder into two files and an index, as large models are stored."""
    tensors = load_file(folder / WEIGHTS)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        part = {name: tensors[name] for name in tensors if files[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / WEIGHTS).unlink()
    write_index(folder, files)
    return files


def write_index(folder: Path, files: dict[str, Any]) -> None:
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def test_shards(saved: Save) -> None:
    folder = saved("t5 1.0")
    before = import_folder(folder).model.state_dict()
    files = shard(folder)
    after = import_folder(folder).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)

    write_index(folder, files | {"shared.weight": "../elsewhere.safetensors"})
    assert "'../elsewhere.safetensors' is not a safetensors file next to it" in sentence(folder)
    write_index(folder, files | {"extra.weight": "model-00001-of-00002.safetensors"})
    assert "says that 'extra.weight'" in sentence(folder)
    write_index(folder, {})
    assert "has no 'weight_map'" in sentence(folder)
    write_index(folder, files)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors' is missing" in sentence(folder)


def test_exporting_over_other_files_is_refused(saved: Save, tmp_path: Path) -> None:
    bundle = import_folder(saved("gpt2"))
    target = tmp_path / "out"
    export_folder(bundle, target)
    export_folder(bundle, target)  # an earlier export is replaced
    (target / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"thesis\.tex"):
        export_folder(bundle, target)
    assert (target / "thesis.tex").exists()
    with pytest.raises(UserError, match="did you mean 'huggingface'"):
        export_folder(bundle, tmp_path / "new", to="hugginface")


def test_a_newer_llama2c_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(struct.pack("<2i", 0x616B3432, 1) + bytes(300))
    assert "newer llama2.c format" in sentence(tmp_path)
    assert is_foreign(tmp_path)


def test_tables_that_the_config_does_not_tie_are_not_called_tied(saved: Save) -> None:
    """Three tables of their own beside the output, which transformers writes where nothing is tied."""
    folder = saved("marian")
    change_config(folder, tie_word_embeddings=False)

    def part(tensors: dict[str, torch.Tensor]) -> None:
        shared = tensors["model.shared.weight"]
        tensors["lm_head.weight"] = shared + 1
        tensors |= {f"model.{side}.embed_tokens.weight": shared * 2 for side in ("encoder", "decoder")}

    change_tensors(folder, part)
    message = sentence(folder)
    assert "can only be imported as one table for both sides" in message
    assert "the config makes them one" not in message
    change_config(folder, share_encoder_decoder_embeddings=False)
    model: Any = import_folder(folder).model
    assert not torch.equal(model.output.weight, model.target_embedding.table.weight)


@pytest.mark.parametrize("row", ["marian", "t5 1.0"])
def test_a_tied_table_is_found_by_any_of_its_names(saved: Save, row: str) -> None:
    folder = saved(row)
    before = import_folder(folder).model.state_dict()
    prefix = "model." if row == "marian" else ""

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{prefix}decoder.embed_tokens.weight"] = tensors.pop(f"{prefix}shared.weight")

    change_tensors(folder, rename)
    after = import_folder(folder).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
