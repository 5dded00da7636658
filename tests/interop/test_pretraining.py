"""The losses of pre-training beside those of `transformers`, with the same weights and the same gaps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.config import CorruptionConfig
from clearhead.data.encoding import Specials
from clearhead.data.encodings import Denoised, Hiding, Masked
from clearhead.data.plan import Draw
from clearhead.data.ragged import Ragged
from clearhead.decoding.fill import fill
from clearhead.interop import export_folder, import_folder
from clearhead.tasks import task_named
from clearhead.text.framing import bert_framing, with_template
from clearhead.text.marks import Marks
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.objectives import LabelObjective, run_model

from .conftest import PAD, VOCABULARY

MARKS = Marks(4, tuple(range(5, 25)), frozenset([*range(25), PAD]), VOCABULARY)
SPECIALS = Specials(PAD, 1, 2, PAD, MARKS)


def a_batch(encoding: Hiding) -> Batch:
    """Three chunks, the last of them shorter."""
    chunks = Ragged.of([[25 + (5 * n + row) % 34 for n in range(20 - 7 * (row > 1))] for row in range(3)])
    sizes = encoding.sizes({"target": chunks.lengths})
    source = 0 if sizes.source is None else int(sizes.source.max())
    widths = Widths(3, source, int(sizes.target.max()))
    return encoding.collate({"target": chunks}, widths, SPECIALS, Draw(1, 0, np.arange(3)))


def real(lengths: Any, width: int) -> torch.Tensor:
    return (torch.arange(width) < lengths.unsqueeze(1)).long()


@pytest.mark.parametrize("name, architecture", [("bert, words", "BertForMaskedLM")])
def test_masked_language_modelling(
    name: str, architecture: str, saved: Callable[[str], Path], transformers: Any
) -> None:
    folder = saved(name)
    theirs = getattr(transformers, architecture).from_pretrained(folder).eval()
    ours = import_folder(folder).model.eval()
    batch = a_batch(Masked(corruption=CorruptionConfig(rate=0.3)))
    labels = torch.full(batch.inputs.shape, IGNORED)
    for row, (places, wanted) in enumerate(zip(batch.fields["places"], batch.labels, strict=True)):
        for place, label in zip(places.tolist(), wanted.tolist(), strict=True):
            if label != IGNORED:
                labels[row, place] = label
    assert int((labels != IGNORED).sum()) == batch.tokens > 8
    mask = real(batch.lengths, batch.inputs.shape[1])
    there = theirs(input_ids=batch.inputs, attention_mask=mask, labels=labels)
    here = LabelObjective(0.0)(ours, batch)
    torch.testing.assert_close(here.objective / batch.tokens, there.loss, atol=1e-5, rtol=1e-5)
    assert run_model(ours, batch).shape == (*batch.labels.shape, VOCABULARY)


def test_an_imported_model_fills_gaps_and_is_evaluated(
    saved: Callable[[str], Path], transformers: Any, tmp_path: Path
) -> None:
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *(chr(97 + n) for n in range(26))]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({n: i for i, n in enumerate(names)}, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens(names[:5])
    bundle = import_folder(saved("bert, words"))
    bundle.tokenizer = with_template(Tokenizer(backend), bert_framing(1, 2))
    theirs = transformers.BertForMaskedLM.from_pretrained(saved("bert, words")).eval()
    [found] = fill(bundle, ["a b [MASK] d"], top=3)
    with torch.no_grad():
        scores = theirs(torch.tensor([[1, 5, 6, 4, 8, 2]])).logits[0, 3].double().softmax(-1)
    best = scores[5:31].topk(3)
    assert [word for word, _ in found.gaps[0]] == [names[5 + int(id)] for id in best.indices]
    torch.testing.assert_close(
        torch.tensor([share for _, share in found.gaps[0]], dtype=torch.double),
        best.values,
        atol=1e-5,
        rtol=1e-4,
    )
    judged = task_named("mask").judge(bundle, [("", " ".join("abcdefgh" * 9))])
    assert judged.metrics["perplexity"] > 1
    export_folder(bundle, tmp_path / "out")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (again.mask_token, again.mask_token_id) == ("[MASK]", 4)


def test_span_corruption(saved: Callable[[str], Path], transformers: Any) -> None:
    folder = saved("t5 1.0")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    ours = import_folder(folder).model.eval()
    batch = a_batch(Denoised(corruption=CorruptionConfig(rate=0.3)))
    assert batch.source is not None
    there = theirs(
        input_ids=batch.source,
        attention_mask=real(batch.source_lengths, batch.source.shape[1]),
        labels=batch.labels,  # which it shifts by itself, behind its own start symbol
    )
    here = LabelObjective(0.0)(ours, batch)
    torch.testing.assert_close(here.objective / batch.tokens, there.loss, atol=1e-5, rtol=1e-5)
