"""Text in, text out: the same here and in `transformers`, its tokenizer included, on the way in and out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.bundle import Bundle, load_bundle, save
from clearhead.decoding import Options, Writer, tag
from clearhead.decoding.batches import framings_of
from clearhead.decoding.labels import class_probabilities
from clearhead.interop import export_folder, import_folder

from .foreign_texts import FAMILIES, TEXTS, Foreign, save_foreign

STEPS = 10


class There:
    """A folder as `transformers` uses it: whatever it says by itself, and nothing else."""

    def __init__(self, transformers: Any, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        [name] = transformers.AutoConfig.from_pretrained(folder).architectures
        self.model = getattr(transformers, name).from_pretrained(folder).eval()

    @torch.no_grad()
    def write(self, text: str, **settings: Any) -> str:
        given = self.tokenizer(text, return_tensors="pt")
        written = self.model.generate(**given, do_sample=False, num_beams=1, **settings)[0]
        begun = 0 if self.model.config.is_encoder_decoder else given["input_ids"].shape[1]
        return str(self.tokenizer.decode(written[begun:], skip_special_tokens=True))

    @torch.no_grad()
    def shares(self, *texts: str) -> list[float]:
        logits = self.model(**self.tokenizer(*texts, return_tensors="pt")).logits[0]
        return [float(share) for share in logits.softmax(-1)]

    @torch.no_grad()
    def tags(self, text: str) -> list[str]:
        given = self.tokenizer(text.split(), is_split_into_words=True, return_tensors="pt")
        best = self.model(**given).logits[0].argmax(-1).tolist()
        places = given.word_ids(0)
        firsts = [places.index(word) for word in range(len(text.split()))]
        return [self.model.config.id2label[best[first]] for first in firsts]


def written_here(bundle: Bundle, texts: Sequence[str], options: Options | None = None) -> list[str]:
    asked = options or Options(max_length=STEPS)
    return [found[0].text for found in Writer(bundle).in_order(texts, asked)]


def ids_here(bundle: Bundle, text: str) -> list[int]:
    """What a model is fed for one text."""
    assert bundle.tokenizer is not None
    framings = framings_of(bundle)
    own = framings.target if bundle.config.family == "decoder" else framings.source
    return own.around(bundle.tokenizer.encode(text))


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def folder(
    request: pytest.FixtureRequest, transformers: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    family: Foreign = request.param
    made = tmp_path_factory.mktemp("foreign") / "model"
    save_foreign(transformers, family, made)
    return made


def test_text_to_text_on_the_way_in_and_out(folder: Path, transformers: Any, tmp_path: Path) -> None:
    """Imported, kept as a bundle, and exported again: ids, texts, classes and tags are theirs every time."""
    there = There(transformers, folder)
    bundle = load_bundle(save(import_folder(folder), tmp_path / "ours"))
    export_folder(bundle, tmp_path / "back")
    for other in (there, There(transformers, tmp_path / "back")):
        assert [ids_here(bundle, text) for text in TEXTS] == [
            other.tokenizer(text)["input_ids"] for text in TEXTS
        ]
        if bundle.config.family != "encoder":
            assert written_here(bundle, TEXTS) == [other.write(text, max_new_tokens=STEPS) for text in TEXTS]
        elif bundle.config.head.kind == "tag":
            assert tag(bundle, TEXTS) == [other.tags(text) for text in TEXTS]
        else:
            pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
            found = class_probabilities(bundle, [*TEXTS, *pairs])
            wanted = [other.shares(text) for text in TEXTS] + [other.shares(*pair) for pair in pairs]
            assert [list(one.values()) for one in found] == [pytest.approx(one, abs=1e-5) for one in wanted]
    assert import_folder(tmp_path / "back").metadata["framing"] == bundle.metadata["framing"]
