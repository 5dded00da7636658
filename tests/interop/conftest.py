"""One row per family of foreign models, each a small random model saved by its own toolkit and imported."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clearhead.bundle import Bundle
from clearhead.interop import import_folder

VOCABULARY, PAD = 61, 60

SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "decoder_start_token_id": 1,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "pad_token_id": PAD,
    "decoder_start_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
MIXTRAL = LLAMA | {
    "num_key_value_heads": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
DEEPSEEK = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 2,
    "num_mtp_layers": 0,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 40,
    "kv_lora_rank": 20,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "num_labels": 3,
}
VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 2,
    "num_labels": 3,
}


def rope(**settings: Any) -> dict[str, Any]:
    return {"rope_theta": 500.0, "rope_scaling": settings}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_DIALS = {"beta_fast": 4.0, "beta_slow": 0.5, "mscale": 0.8, "mscale_all_dim": 0.3}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Spec:
    """A row: which class of theirs, which settings, and what is done to the saved folder before import."""

    name: str
    kind: str  # seq2seq, decoder, encoder, vision: how it is fed
    architecture: str
    settings: dict[str, Any]
    edit: Callable[[Path], None] = field(default=lambda folder: None)


def untie(folder: Path) -> None:
    """Give a saved T5 an output of its own, as published 1.1 checkpoints have it."""
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(VOCABULARY, 24, generator=torch.Generator().manual_seed(5)) / 5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    plain = json.loads((folder / "config.json").read_text())
    plain["tie_word_embeddings"] = False
    plain.pop("scale_decoder_outputs", None)
    (folder / "config.json").write_text(json.dumps(plain))


TWO_VOCABULARIES = {
    "decoder_vocab_size": 53,
    "pad_token_id": 52,
    "share_encoder_decoder_embeddings": False,
    "activation_function": "swish",
    "scale_embedding": True,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
GROUPED = {"num_key_value_heads": 2, "tie_word_embeddings": True}
DEEPSEEK_EXPERTS = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
}
EXPERTS_ONLY = DEEPSEEK_EXPERTS | {
    "first_k_dense_replace": 0,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.5,
}
ONE_OF_THREE = {
    "num_local_experts": 3,
    "num_experts_per_tok": 1,
    "num_key_value_heads": 2,
    "rope_theta": 500.0,
}
PLAIN_QUERIES = {"q_lora_rank": None, "attention_bias": True, "rope_interleave": None}
BIASES = {"attention_bias": True, "mlp_bias": True, "head_dim": 12}

SPECS = [
    Spec("marian", "seq2seq", "MarianMTModel", SEQ2SEQ | {"activation_function": "relu"}),
    Spec("marian, two vocabularies", "seq2seq", "MarianMTModel", SEQ2SEQ | TWO_VOCABULARIES),
    Spec("bart", "seq2seq", "BartForConditionalGeneration", SEQ2SEQ),
    Spec("bart, scaled", "seq2seq", "BartForConditionalGeneration", SEQ2SEQ | {"scale_embedding": True}),
    Spec("t5 1.0", "seq2seq", "T5ForConditionalGeneration", T5),
    Spec("t5 1.1", "seq2seq", "T5ForConditionalGeneration", T5 | GATED, untie),
    Spec("t5 gated, tied", "seq2seq", "T5ForConditionalGeneration", T5 | GATED),
    Spec("gpt2", "decoder", "GPT2LMHeadModel", GPT2),
    Spec("gpt2, dials", "decoder", "GPT2LMHeadModel", GPT2 | {"n_inner": 30, "scale_attn_weights": False}),
    Spec("gpt2, untied", "decoder", "GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}),
    Spec("llama", "decoder", "LlamaForCausalLM", LLAMA),
    Spec("llama, grouped", "decoder", "LlamaForCausalLM", LLAMA | GROUPED),
    Spec("llama, biases", "decoder", "LlamaForCausalLM", LLAMA | BIASES),
    Spec("llama, linear", "decoder", "LlamaForCausalLM", LLAMA | rope(rope_type="linear", factor=2.0)),
    Spec("llama, yarn", "decoder", "LlamaForCausalLM", LLAMA | rope(**YARN)),
    Spec("llama, yarn dials", "decoder", "LlamaForCausalLM", LLAMA | rope(**YARN, **YARN_DIALS)),
    Spec("llama, llama3", "decoder", "LlamaForCausalLM", LLAMA | rope(**LLAMA3)),
    Spec("mixtral", "decoder", "MixtralForCausalLM", MIXTRAL),
    Spec("mixtral, one of three", "decoder", "MixtralForCausalLM", MIXTRAL | ONE_OF_THREE),
    Spec("deepseek_v3", "decoder", "DeepseekV3ForCausalLM", DEEPSEEK),
    Spec("deepseek_v3, dials", "decoder", "DeepseekV3ForCausalLM", DEEPSEEK | PLAIN_QUERIES),
    Spec("deepseek_v3, yarn", "decoder", "DeepseekV3ForCausalLM", DEEPSEEK | rope(**YARN, **YARN_DIALS)),
    Spec("deepseek_v3, experts", "decoder", "DeepseekV3ForCausalLM", DEEPSEEK | DEEPSEEK_EXPERTS),
    Spec("deepseek_v3, experts only", "decoder", "DeepseekV3ForCausalLM", DEEPSEEK | EXPERTS_ONLY),
    Spec("bert", "encoder", "BertModel", BERT),
    Spec("bert, words", "encoder", "BertForMaskedLM", BERT),
    Spec("bert, text classes", "encoder", "BertForSequenceClassification", BERT),
    Spec("bert, a number", "encoder", "BertForSequenceClassification", BERT | {"num_labels": 1}),
    Spec("bert, token classes", "encoder", "BertForTokenClassification", BERT),
    Spec("vit", "vision", "ViTModel", VIT),
    Spec("vit, classes", "vision", "ViTForImageClassification", VIT | {"qkv_bias": False}),
]


@dataclass
class Case:
    """A model of theirs, the folder it is saved in, and what we make of it."""

    spec: Spec
    folder: Path
    theirs: Any
    bundle: Bundle


@pytest.fixture(scope="session")
def transformers() -> Any:
    module = pytest.importorskip("transformers", reason="needs transformers to compare with")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


@pytest.fixture(scope="session", params=SPECS, ids=lambda spec: spec.name)
def case(request: pytest.FixtureRequest, transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Case:
    spec: Spec = request.param
    folder = tmp_path_factory.mktemp("foreign") / "model"
    save_random(transformers, spec, folder)
    theirs = getattr(transformers, spec.architecture).from_pretrained(folder, attn_implementation="eager")
    return Case(spec, folder, theirs.eval(), import_folder(folder))


@pytest.fixture
def saved(transformers: Any, tmp_path: Path) -> Callable[[str], Path]:
    """A fresh folder of one row, to damage at will."""

    def save(name: str) -> Path:
        spec = next(spec for spec in SPECS if spec.name == name)
        save_random(transformers, spec, tmp_path / "model")
        return tmp_path / "model"

    return save


def save_random(transformers: Any, spec: Spec, folder: Path) -> None:
    architecture = getattr(transformers, spec.architecture)
    model = architecture(architecture.config_class(**spec.settings))
    randomise(model)
    model.save_pretrained(folder)
    spec.edit(folder)


def randomise(model: nn.Module) -> None:
    """Values that leave no parameter without effect: no zero bias, no norm that is all ones."""
    random = torch.Generator().manual_seed(1)

    def fresh(like: Tensor, spread: float) -> Tensor:
        return torch.randn(like.shape, generator=random) * spread

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name and not parameter.requires_grad:
                continue  # Marian's sinusoids
            if parameter.dim() == 1:
                scale_of_norm = name.endswith("weight")
                parameter.copy_(fresh(parameter, 0.2) + float(scale_of_norm))
            else:
                fan = parameter.shape[1] if parameter.dim() == 2 else parameter[0].numel()
                parameter.copy_(fresh(parameter, fan**-0.5))
        for name, buffer in model.named_buffers():
            if name.endswith(("final_logits_bias", "e_score_correction_bias")):
                buffer.copy_(fresh(buffer, 0.5 if name.endswith("logits_bias") else 0.05))


@pytest.fixture(scope="session")
def data() -> Path:
    """Where real corpora and models lie on this machine, if they do."""
    given = os.environ.get("CLEARHEAD_DATA")
    folder = Path(given) if given else Path(__file__).parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set CLEARHEAD_DATA to the folder that holds it")
    return folder
