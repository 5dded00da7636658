"""The validator of a run: lets the model write, and measures what it wrote.

Handed to the training loop, which itself never decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

from clearhead.base.errors import UserError, nearest
from clearhead.bundle import Bundle
from clearhead.data.config import Task
from clearhead.decoding.options import Options
from clearhead.decoding.run import generate, translate
from clearhead.evaluation.evaluate import EvaluationConfig, evaluate
from clearhead.evaluation.metrics import bleu, chrf, exact_match
from clearhead.evaluation.rouge import rouge
from clearhead.jobs.prepare import Prepared
from clearhead.training import doctor
from clearhead.training.config import TrainConfig
from clearhead.training.loop import Checked
from clearhead.training.view import Sample

Item = TypeVar("Item")

CONTINUATION = 60  # tokens of a language model's sample

ALWAYS = ("loss", "perplexity", "accuracy")  # need no decoding
DECODED: dict[Task, tuple[str, ...]] = {
    "translate": ("bleu", "chrf", "exact"),
    "summarise": ("bleu", "chrf", "exact", "rouge1", "rouge2", "rougeL"),
    "generate": (),
    "classify": ("f1", "matthews"),
    "tag": ("f1", "matthews"),
}


def check_metric(config: TrainConfig) -> None:
    """Refuse a metric that validations of this run will not have."""
    metric, task = config.validation.metric, config.task
    if metric in DECODED[task] and config.validation.decode < 1:
        raise UserError(
            f"The validation metric '{metric}' needs decoded examples: validation.decode must be above 0."
        )
    known = (*ALWAYS, *DECODED[task])
    if metric not in known:
        raise UserError(
            f"There is no validation metric '{metric}' for the task '{task}': {nearest(metric, known)}"
        )


class DecodingValidator:
    """Decodes some validation examples greedily: metrics, samples, and the doctor's look at the outputs."""

    def __init__(self, config: TrainConfig, prepared: Prepared, notes: dict[str, Any]) -> None:
        self.config = config
        self.prepared = prepared
        self.notes = notes
        self.rows = _spread(prepared.held_out["validation"], config.validation.decode)

    def __call__(self, model: nn.Module) -> Checked:
        """Let the model write."""
        if not self.rows:
            return Checked()
        tokenizers = self.prepared.tokenizers
        bundle = Bundle(model, tokenizers.target, self.notes, self.prepared.source_tokenizer)
        if self.config.task == "generate":
            asked = Options(sample=True, temperature=0.8, seed=self.config.seed, max_length=CONTINUATION)
            text = generate(bundle, "", asked, way="torch")
            return Checked(samples=[Sample("", "", text)])
        if self.config.task in ("classify", "tag"):
            return self._labels(bundle)
        return self._texts(bundle)

    def _texts(self, bundle: Bundle) -> Checked:
        sources, references = [row[0] for row in self.rows], [row[1] for row in self.rows]
        outputs = [one.text for one in translate(bundle, sources, way="torch")]
        values = {
            "bleu": bleu(outputs, references).value,
            "chrf": chrf(outputs, references).value,
            "exact": exact_match(outputs, references).value,
        }
        if self.config.task == "summarise":
            values |= {_plain(name): score.value for name, score in rouge(outputs, references).items()}
        alike = doctor.outputs_alike(outputs, references)
        return Checked(values, self._samples(outputs), doctor.found([alike]))

    def _labels(self, bundle: Bundle) -> Checked:
        found = evaluate(bundle, self.rows, self.config.task, EvaluationConfig(loss=False))
        values = {"f1": found.metrics["macro F1"], "matthews": found.metrics["Matthews"]}
        return Checked(values, self._samples(found.outputs))

    def _samples(self, outputs: Sequence[str]) -> list[Sample]:
        count = self.config.validation.samples
        pairs = list(zip(self.rows, outputs, strict=True))
        return [Sample(row[0], row[1], output) for row, output in _spread(pairs, count)]


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """`count` of the items, spread evenly over them."""
    if count >= len(items):
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]


def _plain(name: str) -> str:
    """ROUGE-L as a metric is named in a recipe: rougeL."""
    return name.replace("ROUGE-", "rouge")
