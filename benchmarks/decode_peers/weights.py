"""One model with random weights in every contender's format, so that all of them compute the same.

A translator never stops by itself and never writes padding or the start symbol: a large negative output bias
ensures that for all contenders alike, and texts then have the requested length. Vocabularies are made-up
words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import clearhead
from clearhead.bundle import Bundle
from clearhead.interop import export_folder
from clearhead.interop.ctranslate2 import export_ctranslate2
from clearhead.models.config import ModelConfig
from clearhead.text.tokenizer import Tokenizer

NEVER = -100.0  # added to a logit: far below all others, and sums of float32 stay exact enough
SPECIALS = 4  # padding, start, stop and unknown come first in these vocabularies
CT2_KINDS = ("float32", "int8")


@dataclass(frozen=True)
class Size:
    """A model's shape."""

    family: str
    width: int
    layers: int
    vocabulary: int
    head_width: int = 64

    @property
    def heads(self) -> int:
        return max(self.width // self.head_width, 1)


TRANSLATOR = Size("encoder-decoder", width=512, layers=6, vocabulary=32_000)  # Transformer base
DECODER = Size("decoder", width=768, layers=12, vocabulary=50_257)  # GPT-2 small, 124 million weights


def config(size: Size) -> ModelConfig:
    """As Marian has it, or as GPT-2."""
    translates = size.family == "encoder-decoder"
    plain = {
        "family": size.family,
        "vocabulary": size.vocabulary,
        "width": size.width,
        "layers": size.layers,
        "dropout": 0.0,
        "attention": {"heads": size.heads},
        "feedforward": {"activation": "relu" if translates else "gelu_tanh"},
        "norm": {"place": "post" if translates else "pre", "eps": 1e-5},
    }
    if translates:
        plain["position"] = {"name": "sinusoidal", "layout": "halves", "max_length": 512}
        plain["embedding"] = {"output_bias": True}
    else:
        plain["position"] = {"name": "learned", "max_length": 1024}
        plain["embedding"] = {"scale": False}
    return ModelConfig.from_dict(plain)


def bundle(size: Size) -> Bundle:
    torch.manual_seed(0)
    model = clearhead.build(config(size)).eval()
    words = Tokenizer.words(" ".join(f"w{id}" for id in range(SPECIALS, size.vocabulary)))
    if size.family == "encoder-decoder":
        bias = model.output.bias
        assert isinstance(bias, nn.Parameter)
        with torch.no_grad():
            bias[:SPECIALS] = NEVER
    return Bundle(model, words)


def export(made: Bundle, folder: Path) -> dict[str, str]:
    """The peers' folders that are not there yet, beside the bundle; why, where one could not be written."""
    failures = {}
    for name in ("hf", *(f"ct2-{kind}" for kind in CT2_KINDS)):
        if (folder / name).exists():
            continue
        try:
            if name == "hf":
                export_folder(made, folder / name, to="huggingface")
            else:
                export_ctranslate2(made, folder / name, quantize=name.removeprefix("ct2-"))
        except (clearhead.UserError, ImportError) as error:
            failures[f"export to {name}"] = str(error)
    return failures


def prepare(size: Size, folder: Path) -> dict[str, str]:
    """`folder/bundle`, and the same model in the peers' formats; what is there from before is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "bundle").exists():
        made = clearhead.load(folder / "bundle")
    else:
        made = bundle(size)
        clearhead.save(made, folder / "bundle")
    return export(made, folder)
