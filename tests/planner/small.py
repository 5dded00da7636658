"""Small models of every family with every dial turned once, and batches to run them on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import clearhead
from clearhead.models import PRESETS, ModelConfig, ModelOutput
from clearhead.planner.batch import PAIRS, Batch

# What every family of Transformers shares: one row, one dial.
DIALS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped-query": {"attention": {"kv_heads": 2}},
    "multi-query, free sizes": {"attention": {"kv_heads": 1, "key_dim": 16, "value_dim": 4}},
    "narrow keys": {"attention": {"key_dim": 6, "value_dim": 10}},
    "dot": {"attention": {"score": "dot"}},
    "bilinear": {"attention": {"score": "bilinear", "query_dim": 5, "key_dim": 8}},
    "bilinear, grouped": {"attention": {"score": "bilinear", "kv_heads": 2}},
    "reduced rank": {"attention": {"score": "reduced_rank", "score_rank": 3}},
    "additive": {"attention": {"score": "additive", "score_rank": 12}},
    "additive, grouped": {"attention": {"score": "additive", "kv_heads": 2}},
    "soft cap": {"attention": {"softcap": 10.0}},
    "attention dropout": {"attention": {"dropout": 0.1}},
    "gated silu": {"feedforward": {"gated": True, "activation": "silu"}},
    "gated relu, dropout": {"feedforward": {"gated": True, "dropout": 0.1}},
    "gelu, dropout": {"feedforward": {"activation": "gelu", "dropout": 0.1}},
    "relu, dropout": {"feedforward": {"dropout": 0.1}},
    "quick gelu": {"feedforward": {"activation": "quick_gelu"}},
    "dropout": {"dropout": 0.2, "embedding": {"dropout": 0.1}},
    "pre-norm": {"norm": {"place": "pre"}},
    "RMS pre-norm": {"norm": {"place": "pre", "kind": "rms"}},
    "no norm": {"norm": {"kind": "none"}},
    "no norm, pre": {"norm": {"kind": "none", "place": "pre"}},
    "no residual": {"residual": False},
    "experts": {"feedforward": {"kind": "experts", "dispatch": "segments"}},
    "experts, gated and shared": {
        "feedforward": {
            "kind": "experts",
            "gated": True,
            "activation": "silu",
            "score": "sigmoid",
            "shared": 1,
            "dispatch": "loop",
        }
    },
    "no feed-forward": {"feedforward": {"kind": "none"}},
    "no cross-attention": {"cross_attention": False},
    "no causal mask": {"causal_mask": False},
    "post-norm and a last one": {"norm": {"final": True}},
    "untied output": {"embedding": {"tie_output": False, "output_bias": True}},
    "embedding norm, types": {"embedding": {"norm": True, "token_types": 2}},
    **{
        f"position {name}": {"position": {"name": name}}
        for name in ("none", "learned", "rotary", "t5", "alibi", "shaw", "music", "transformer_xl")
    },
    "shaw with values": {"position": {"name": "shaw", "values": True, "max_distance": 4}},
    "t5, grouped": {"position": {"name": "t5"}, "attention": {"kv_heads": 2}},
    "transformer_xl, grouped": {"position": {"name": "transformer_xl"}, "attention": {"kv_heads": 2}},
}
# An encoder-decoder holds both stacks; these are turned in models of one stack, too.
AGAIN = (
    "plain",
    "grouped-query",
    "bilinear",
    "attention dropout",
    "untied output",
    "embedding norm, types",
    "position rotary",
    "position alibi",
    "position shaw",
)
_TEXT = {"attention": {"heads": 4}, "vocabulary": 100, "width": 32, "layers": 2}
_IMAGE = {"attention": {"heads": 4}, "width": 32, "layers": 2, "image": {"size": 32, "patch": 8}}

# Name → (preset, settings on top of it).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{family}: {dial}": ("tiny", {"family": family, "layers": 1, **settings})
        for family, dials in (("encoder-decoder", [*DIALS]), ("encoder", AGAIN), ("decoder", AGAIN))
        for dial, settings in ((dial, DIALS[dial]) for dial in dials)
    },
    **{
        f"{family}: latent, {name}": (
            "tiny",
            {
                "family": family,
                "layers": 1,
                "attention": {"kind": "latent", "latent_dim": 24, **dials},
                "position": {"name": scheme},
            },
        )
        for family in ("decoder", "encoder")
        for name, scheme, dials in (
            ("rotary", "rotary", {}),
            ("compressed queries", "rotary", {"query_latent_dim": 20, "value_dim": 12}),
            ("no rotary part", "sinusoidal", {"rotary_dim": 0}),
            ("alibi", "alibi", {}),
        )
    },
    **{
        f"head {kind}, pooler {pooler}": (
            "tiny",
            {"family": "encoder", "head": {"kind": kind, "pooler": pooler}},
        )
        for kind in ("none", "classify", "number", "tag", "mlm")
        for pooler in (True, False)
    },
    **{
        f"{family} with head {kind}": (
            "tiny",
            {"family": family, "head": {"kind": kind, "pooling": "last", "pooler": kind == "classify"}},
        )
        for family in ("decoder", "encoder-decoder")
        for kind in ("classify", "number")
    },
    "mean pooling": ("tiny", {"family": "encoder", "head": {"kind": "classify", "pooling": "mean"}}),
    "two vocabularies, uneven": ("tiny", {"source_vocabulary": 50, "decoder_layers": 3}),
    "like T5": ("t5-small", _TEXT),
    "like GPT-2": ("gpt2", _TEXT | {"attention": {"heads": 4, "key_dim": 8}}),
    "like Llama 3": (
        "llama3-8b",
        _TEXT | {"attention": {"heads": 4, "kv_heads": 2}, "feedforward": {"width": 96}},
    ),
    "like BERT": ("bert-base", _TEXT),
    "image": ("vit-b16", _IMAGE),
    "image, relative": ("vit-b16", _IMAGE | {"position": {"name": "shaw"}}),
    "image, no head": (
        "vit-b16",
        _IMAGE | {"image": {"size": 32, "patch": 8, "class_token": False}, "head": {"kind": "none"}},
    ),
    **{
        f"recurrent {cell}, {score}, {'both ways' if both else 'one way'}, {layers} layers": (
            "rnn",
            {
                "vocabulary": 100,
                "width": 32,
                "layers": layers,
                "recurrent": {"cell": cell, "attention": score, "bidirectional": both},
            },
        )
        for cell in ("rnn", "gru", "lstm")
        for score in ("additive", "bilinear", "dot", "none")
        for both in (True, False)
        for layers in ((1, 2) if score == "additive" and both else (2,))
        if not (score == "dot" and both)
    },
    **{
        f"convolutional, {name}": (
            "tiny",
            {"family": "convolutional", "layers": 2, "decoder_layers": 3, **settings},
        )
        for name, settings in {
            "plain": {},
            "dropout": {"dropout": 0.1, "embedding": {"dropout": 0.1}},
            "wide": {"convolution": {"kernel": 5, "decoder_kernel": 4}, "position": {"name": "learned"}},
        }.items()
    },
}


def merged(plain: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Tables laid over each other, one level deep."""
    result = dict(plain)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def config_of(case: str, **attention: Any) -> ModelConfig:
    """A case's config; `attention` turns further dials."""
    name, settings = CASES[case]
    return ModelConfig.from_dict(merged(merged(PRESETS[name], settings), {"attention": attention}))


def model_of(case: str, **attention: Any) -> nn.Module:
    """A case's model, in memory."""
    return clearhead.build(config_of(case, **attention)).train()


def batch_for(config: ModelConfig, rows: int, source: int, target: int) -> tuple[tuple[Tensor, ...], Batch]:
    """Inputs of a model, and the same batch as the planner describes it."""
    vocabulary = min(config.vocabulary, config.source_vocabulary or config.vocabulary)
    read, write = (torch.randint(vocabulary, (rows, length)) for length in (source, target))
    if config.family in PAIRS:
        return (read, write), Batch(rows, source, target)
    if config.family == "vision":
        image = config.image
        return (torch.randn(rows, image.channels, image.size, image.size),), Batch(rows, image.tokens, 0)
    return (
        ((read,), Batch(rows, source, 0))
        if config.family == "encoder"
        else ((write,), Batch(rows, 0, target))
    )


def everything(output: ModelOutput) -> Tensor:
    """A loss on all that a model returns."""
    parts = [part for part in (output.logits, output.hidden, output.pooled) if part is not None]
    return torch.stack([part.sum() for part in parts]).sum()
