"""Evaluate a bundle on a test set: its answers, how good they are, and how it compares with another bundle.

A `Judge` scores the answers; there is one for each kind of answer (`judges`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch

from clearhead.base.config import Count
from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.data.pictures import in_words, is_picture
from clearhead.decoding.writer import Dtype, Way
from clearhead.evaluation.bootstrap import Bootstrap, bootstrap_scores, bootstrap_texts
from clearhead.evaluation.labels_and_numbers import Confusion
from clearhead.evaluation.loss import corpus_loss
from clearhead.evaluation.metrics import CorpusMetric
from clearhead.training.config import TestConfig
from clearhead.training.distributed.ranks import Ranks

Text = str | tuple[str, str]  # the input: one text, or two together
Rows = Sequence[tuple[Text, str]]
Device = str | torch.device | None


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(TestConfig):
    """How texts are written and scored: as a run's test set, or differently."""

    _noun: ClassVar[str] = "evaluation"

    lowercase: bool = False  # BLEU and chrF
    loss: bool = True  # perplexity as well, which costs one more pass
    batch_tokens: Count = 4096  # source tokens of a batch that is read at once, padding included
    dtype: Dtype = "float32"  # of the weights and products while texts are written
    way: Way = "auto"  # native: by the C++ engine; torch: by PyTorch; auto: by the faster one

    @property
    def search(self) -> str:
        """How texts are searched for, in words."""
        return "greedy" if self.beam == 1 else f"beam {self.beam}"


@dataclass(frozen=True)
class Example:
    """One row of the test set."""

    source: str
    references: tuple[str, ...]  # correct answers; one, or several
    output: str
    score: float  # examples are sorted by it, 0 to 100, higher is better; see `Evaluation.score_name`
    right: bool
    notes: dict[str, float] = field(default_factory=dict)  # further numbers to show
    picture: str | None = None  # the source, if it is a picture, as in its row

    @property
    def reference(self) -> str:
        """The first reference."""
        return self.references[0]


@dataclass(frozen=True)
class Evaluation:
    """All results of one bundle on one test set."""

    judge: Judge
    # name → value: per cent, except for correlations (−1 to 1) and losses
    metrics: dict[str, float] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)  # name → how it was computed
    examples: tuple[Example, ...] = ()  # in the order of the test set
    score_name: str = ""  # what `Example.score` is
    confusion: Confusion | None = None
    seconds: float = 0.0  # spent on writing the outputs
    config: EvaluationConfig = field(default_factory=EvaluationConfig)

    @property
    def task(self) -> str:
        """The task by which it was judged."""
        return self.judge.task

    @property
    def outputs(self) -> list[str]:
        """What the model answered, in the order of the test set."""
        return [example.output for example in self.examples]


class Asked(NamedTuple):
    """How a bundle is to be judged."""

    config: EvaluationConfig
    references: Sequence[Sequence[str]] | None  # several for each row, in place of its target
    device: Device
    show: bool  # a progress line if there is a terminal
    ranks: Ranks  # which share the model's work

    @property
    def reading(self) -> dict[str, Any]:
        """Arguments for labelling texts."""
        return {"batch_tokens": self.config.batch_tokens, "device": self.device}

    @property
    def writing(self) -> dict[str, Any]:
        """Arguments for writing texts."""
        how = self.config
        return {"device": self.device, "dtype": how.dtype, "way": how.way, "show": self.show}


class Validated(NamedTuple):
    """The results of a validation: figures by their names in a recipe, and the answer to each row."""

    values: dict[str, float]
    outputs: list[str]


@dataclass(frozen=True)
class Judge(ABC):
    """How the answers of a bundle are judged, in validations and on a test set."""

    task: str  # as messages call it
    validates: ClassVar[tuple[str, ...]] = ()  # the figures of validations, by their names in a recipe
    writes: ClassVar[bool] = False  # are answers texts, found by a search?
    reads_words: ClassVar[bool] = True  # or pictures, which have none to count
    has_loss: ClassVar[bool] = True  # is there a −log p of the right answer?
    has_windows: ClassVar[bool] = False  # is that of one long text, whose windows may overlap?
    format_metric: ClassVar[str | None] = None  # of number formats; None: there is only one format

    def __call__(
        self,
        bundle: Bundle,
        rows: Rows,
        config: EvaluationConfig | None = None,
        *,
        references: Sequence[Sequence[str]] | None = None,
        device: Device = None,
        show: bool = False,
        ranks: Ranks | None = None,
    ) -> Evaluation:
        """Run a bundle over rows of (source, target) and score its answers.

        `references`: several for each row, in place of its target, for the metrics that compare texts.
        `show`: a progress line if there is a terminal.
        `ranks`: which share the model's work; all of them get the same evaluation.
        """
        if not rows:
            raise UserError("The test set is empty: give one with at least one row.")
        config, ranks = config or EvaluationConfig(), ranks or Ranks()
        if config.stride is not None and not self.has_windows:
            raise UserError("A stride is for models that continue a text: leave it out for this one.")
        began = time.perf_counter()
        found = self.judged(bundle, rows, Asked(config, references, device, show, ranks))
        seconds = time.perf_counter() - began
        metrics = found.metrics
        if self.has_loss and (config.loss or not metrics):
            loss = corpus_loss(
                bundle,
                rows,
                batch_tokens=config.batch_tokens,
                stride=config.stride,
                device=device,
                ranks=ranks,
            )
            metrics |= loss.metrics()
        return replace(found, metrics=self.told(metrics, rows), seconds=seconds, config=config)

    def told(self, metrics: dict[str, float], rows: Rows) -> dict[str, float]:
        """The figures to report, out of those found."""
        return metrics

    @abstractmethod
    def judged(self, bundle: Bundle, rows: Rows, asked: Asked) -> Evaluation:
        """The figures for this kind of answer, and every example."""

    @abstractmethod
    def validate(self, bundle: Bundle, rows: Rows, seed: int, ranks: Ranks | None = None) -> Validated:
        """The figures of a validation, at a lower cost; `seed` is for sampling."""

    def texts_compared(self, how: EvaluationConfig) -> Sequence[CorpusMetric]:
        """The corpus metrics by which two bundles are compared."""
        return ()

    def scores_compared(self, found: Evaluation) -> dict[str, list[float]]:
        """The scores per example by which two bundles are compared."""
        return {"exact match": [100.0 * one.right for one in found.examples]}

    def bucket_scores(self, found: Evaluation, inside: Sequence[Example]) -> dict[str, float]:
        """The scores of some examples by name; for no examples, the names."""
        return {"right": 100.0 * sum(one.right for one in inside) / max(1, len(inside))}


def shown(text: Text) -> str:
    """The input as one text."""
    if not isinstance(text, str):
        return " · ".join(text)
    return in_words(text) if is_picture(text) else text


def compare(
    first: Evaluation, second: Evaluation, *, resamples: int = 1000, seed: int = 12345
) -> list[Bootstrap]:
    """Paired bootstrap of two evaluations on the same test set, for each metric of single texts or sums."""
    one, two = first.examples, second.examples
    if first.task != second.task or not one:
        raise UserError(
            "Two bundles can only be compared on the same task, one that gives texts or labels, not "
            f"{first.task} with {second.task}."
        )
    if [(e.source, e.references) for e in one] != [(e.source, e.references) for e in two]:
        raise UserError("Two bundles can only be compared on the same test set, row by row.")
    references, outputs = [example.references for example in one], (first.outputs, second.outputs)
    ours, theirs = (found.judge.scores_compared(found) for found in (first, second))
    return [
        *(
            bootstrap_texts(metric, *outputs, references, resamples=resamples, seed=seed)
            for metric in first.judge.texts_compared(first.config)
        ),
        *(bootstrap_scores(name, ours[name], theirs[name], resamples=resamples, seed=seed) for name in ours),
    ]
