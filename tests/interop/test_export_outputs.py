"""Models of ours exported to Hugging Face: `generate` there writes what our own search writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.bundle import Bundle, load_bundle, save
from clearhead.cli.main import main
from clearhead.interop import export_folder, import_folder
from clearhead.text.tokenizer import Tokenizer

from .writers import LLAMA, LONGEST, given, ours, padded, taught, texts, tokenizer, untaught

FAMILIES: dict[str, dict[str, Any]] = {
    "MarianMTModel": {},
    "BartForConditionalGeneration": {
        "position__name": "learned",
        "embedding__norm": True,
        "embedding__tie_output": False,
    },
    "T5ForConditionalGeneration": {
        "norm__place": "pre",
        "norm__kind": "rms",
        "position__name": "t5",
        "position__buckets": 8,
        "position__max_distance": 6,
        "attention__score": "dot",
        "attention__key_dim": 10,
        "attention__bias": False,
        "feedforward__bias": False,
        "embedding__scale": False,
        "embedding__output_scale": 32**-0.5,
    },
    "GPT2LMHeadModel": {
        "family": "decoder",
        "norm__place": "pre",
        "position__name": "learned",
        "position__max_length": 40,
        "feedforward__activation": "gelu_tanh",
        "embedding__scale": False,
    },
    "LlamaForCausalLM": LLAMA,
}


def theirs(model: Any, bundle: Bundle, beams: int, alpha: float) -> list[tuple[int, ...] | None]:
    """The ids that `generate` writes for each of our texts, up to the stop symbol; None: it was cut off."""
    rows = given(bundle, texts())
    ids, lengths = padded(rows)
    encodes = bundle.config.family == "encoder-decoder"
    mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).long()
    if not encodes:  # decoders are padded in front there
        ids = torch.stack(
            [line.roll(int(ids.shape[1] - size)) for line, size in zip(ids, lengths, strict=True)]
        )
        mask = mask.flip(1)
    search = {"num_beams": beams, "length_penalty": alpha, "early_stopping": "never"} if beams > 1 else {}
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=LONGEST + 1, **search)
    written = out[:, 1:] if encodes else out[:, ids.shape[1] :]
    return [tuple(line[: line.index(2)]) if 2 in line else None for line in written.tolist()]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_same_greedy_and_beam_outputs(architecture: str, transformers: Any, tmp_path: Path) -> None:
    bundle = taught(**FAMILIES[architecture])
    export_folder(bundle, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [architecture]
    model = getattr(transformers, architecture).from_pretrained(tmp_path / "out").eval()
    for beams, alpha in ((1, 0.0), (4, 0.0), (4, 1.0)):
        found = zip(ours(bundle, texts(), beams, alpha), theirs(model, bundle, beams, alpha), strict=True)
        # A text that is cut off ends with the stop symbol here, whatever it costs, and without one there.
        ended = [(here.ids, there) for here, there in found if here.stopped and there is not None]
        assert len(ended) >= (5 if alpha else len(texts()))
        for here, there in ended:
            assert here == there, f"{beams} beams, penalty {alpha}"


def test_the_exported_tokenizer_reads_and_writes_the_same(transformers: Any, tmp_path: Path) -> None:
    bundle = taught(**FAMILIES["GPT2LMHeadModel"])
    export_folder(bundle, tmp_path / "out")
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    prompt = tokenizer().decode(texts()[0]) + " ."
    ids = [tokenizer().start, *reader(prompt, add_special_tokens=False)["input_ids"]]
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=LONGEST + 1)
    told = reader.decode(out[0, len(ids) :], skip_special_tokens=True)
    assert told == tokenizer().decode(ours(bundle, texts())[0].ids)


def test_both_tokenizers_go_along(tmp_path: Path) -> None:
    reader = Tokenizer.words("one two three")
    bundle = untaught(source_vocabulary=reader.vocabulary_size)
    bundle.source_tokenizer = reader
    folder = save(bundle, tmp_path / "bundle")
    assert main(["export", str(folder), "--to", "huggingface", "--out", str(tmp_path / "out")]) == 0
    again = import_folder(tmp_path / "out")
    assert again.tokenizer is not None
    assert again.source_tokenizer is not None
    assert again.tokenizer.encode("a b") == tokenizer().encode("a b")
    assert again.source_tokenizer.encode("two one") == reader.encode("two one")
    assert load_bundle(save(again, tmp_path / "again")).source_tokenizer is not None
