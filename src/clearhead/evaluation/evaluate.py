"""A bundle on a test set: what it wrote, how good that is, and how it compares with another bundle."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from clearhead.base.bounds import Beam, Count, Power
from clearhead.base.config import Config
from clearhead.base.errors import UserError, counted
from clearhead.bundle.folder import Bundle
from clearhead.data.config import Task
from clearhead.decoding.labels import class_probabilities, labels_of, tag
from clearhead.decoding.options import Options
from clearhead.decoding.run import translate
from clearhead.decoding.writer import Dtype, Way
from clearhead.evaluation.bootstrap import Bootstrap, bootstrap_scores, bootstrap_texts
from clearhead.evaluation.classes import Confusion
from clearhead.evaluation.loss import Loss, corpus_loss
from clearhead.evaluation.metrics import (
    Score,
    bleu_metric,
    chrf_metric,
    exact_match,
    exact_matches,
)
from clearhead.evaluation.rouge import KINDS, rouge, rouge_scores
from clearhead.text.parts import Tokenisation

Rows = Sequence[tuple[str, str]]
Device = str | torch.device | None


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Config):
    """How texts are written and measured."""

    _noun: ClassVar[str] = "evaluation"

    beam: Beam = 1  # places of the beam; 1: greedy
    length_penalty: Power = 1.0  # the power of the length that log-probabilities are divided by
    max_length: Count | None = None  # most tokens written; None: as long as training's, and a little more
    tokenise: Tokenisation = "13a"  # BLEU's; "none" for text that is tokenised already
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
    references: tuple[str, ...]  # what would have been right; one, or several
    output: str
    score: float  # what examples are sorted by, 0 to 100, higher is better; see `Evaluation.score_name`
    right: bool
    notes: dict[str, float] = field(default_factory=dict)  # further numbers worth showing

    @property
    def reference(self) -> str:
        """The first reference."""
        return self.references[0]


@dataclass(frozen=True)
class Evaluation:
    """Everything found out about one bundle on one test set."""

    task: Task
    metrics: dict[str, float]  # name → value: per cent, except Matthews (−1 to 1) and what is said of losses
    signatures: dict[str, str]  # name → how it was computed
    examples: tuple[Example, ...]  # in the order of the test set
    score_name: str  # what `Example.score` is
    seconds: float  # spent on writing the outputs
    config: EvaluationConfig = field(default_factory=EvaluationConfig)
    confusion: Confusion | None = None

    @property
    def outputs(self) -> list[str]:
        """What the model wrote, in the order of the test set."""
        return [example.output for example in self.examples]


def evaluate(
    bundle: Bundle,
    rows: Rows,
    task: Task | None = None,
    config: EvaluationConfig | None = None,
    *,
    references: Sequence[Sequence[str]] | None = None,
    device: Device = None,
    show: bool = False,
) -> Evaluation:
    """Run a bundle over rows of (source, target) text and measure what comes out.

    `task` None: what the bundle's metadata say it was trained for. translate: BLEU, chrF, exact match;
    summarise: ROUGE, chrF, exact match; classify and tag: accuracy, F1, Matthews; all: loss and
    perplexity of the targets. `references`: several for each row, in place of its target, for the
    metrics that compare texts. `show`: a progress line where there is a terminal.
    """
    what = _task(bundle, task)
    if not rows:
        raise UserError("There is nothing to evaluate: the test set has no rows.")
    config = config or EvaluationConfig()
    began = time.perf_counter()
    if what == "generate":
        found = _Found({}, {}, (), "")  # a language model is measured by its loss alone
    elif what == "classify":
        found = _classify(bundle, rows, config, device)
    elif what == "tag":
        found = _tag(bundle, rows, config, device)
    else:
        found = _write(bundle, rows, what, config, references, device, show)
    seconds = time.perf_counter() - began
    metrics = dict(found.metrics)
    if config.loss or what == "generate":
        loss = corpus_loss(bundle, rows, what, batch_tokens=config.batch_tokens, device=device)
        metrics |= loss_metrics(loss)
    return Evaluation(
        task=what,
        metrics=metrics,
        signatures=found.signatures,
        examples=found.examples,
        score_name=found.score_name,
        seconds=seconds,
        config=config,
        confusion=found.confusion,
    )


def loss_metrics(loss: Loss) -> dict[str, float]:
    """The figures of a loss that are defined, by name."""
    found = {
        "nats per token": loss.per_token,
        "perplexity": loss.perplexity,
        "nats per character": loss.per_character,
        "bits per byte": loss.bits_per_byte,
    }
    return {name: value for name, value in found.items() if not math.isnan(value)}


def compare(
    first: Evaluation, second: Evaluation, *, resamples: int = 1000, seed: int = 12345
) -> list[Bootstrap]:
    """Paired bootstrap of two evaluations on the same test set, for each metric of single texts or sums."""
    one, two = first.examples, second.examples
    if first.task != second.task or first.task == "generate":
        raise UserError(
            f"Two bundles are compared on one task that gives texts or labels, not {first.task} with "
            f"{second.task}."
        )
    if [(e.source, e.references) for e in one] != [(e.source, e.references) for e in two]:
        raise UserError("Two bundles can be compared on the same test set only, row by row.")
    references = [example.references for example in one]
    found = []
    if first.task == "translate":
        how = first.config
        for metric in (bleu_metric(how.tokenise, how.lowercase), chrf_metric(how.lowercase)):
            outputs = first.outputs, second.outputs
            found.append(bootstrap_texts(metric, *outputs, references, resamples=resamples, seed=seed))
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    if first.task == "summarise":
        for kind in KINDS:
            f1 = [[100.0 * x for x in rouge_scores(e.outputs, references, kind)] for e in (first, second)]
            pairs[f"ROUGE-{kind}"] = f1[0], f1[1]
    if first.task == "tag":
        pairs[first.score_name] = [e.score for e in one], [e.score for e in two]
    name = "accuracy" if first.task == "classify" else "exact match"
    pairs[name] = [100.0 * e.right for e in one], [100.0 * e.right for e in two]
    for metric_name, (ours, theirs) in pairs.items():
        found.append(bootstrap_scores(metric_name, ours, theirs, resamples=resamples, seed=seed))
    return found


@dataclass(frozen=True)
class _Found:
    """What a task's own part of the evaluation gives."""

    metrics: dict[str, float]
    signatures: dict[str, str]
    examples: tuple[Example, ...]
    score_name: str
    confusion: Confusion | None = None


def _write(
    bundle: Bundle,
    rows: Rows,
    task: Task,
    config: EvaluationConfig,
    given: Sequence[Sequence[str]] | None,
    device: Device,
    show: bool,
) -> _Found:
    """Translations and summaries."""
    sources = [source for source, _ in rows]
    references = [[target] for _, target in rows] if given is None else [list(texts) for texts in given]
    written = translate(
        bundle,
        sources,
        Options(beam=config.beam, length_penalty=config.length_penalty, max_length=config.max_length),
        device=device,
        dtype=config.dtype,
        way=config.way,
        show=show,
    )
    outputs = [one.text for one in written]
    chrf = chrf_metric(config.lowercase)
    scores: list[Score] = [chrf(outputs, references), exact_match(outputs, references)]
    sentence = chrf.sentences(outputs, references)
    if task == "summarise":
        scores = [*rouge(outputs, references).values(), *scores]
        sentence = [100.0 * f1 for f1 in rouge_scores(outputs, references, "L")]
        extra, extra_name = chrf.sentences(outputs, references), "chrF"
    else:
        scores = [bleu_metric(config.tokenise, config.lowercase)(outputs, references), *scores]
        by_sentence = bleu_metric(config.tokenise, config.lowercase, sentence=True)
        extra, extra_name = by_sentence.sentences(outputs, references), "BLEU"
    right = exact_matches(outputs, references)
    examples = tuple(
        Example(source, tuple(texts), one.text, value, same, {extra_name: more})
        for source, texts, one, value, same, more in zip(
            sources, references, written, sentence, right, extra, strict=True
        )
    )
    return _Found(
        {score.name: score.value for score in scores},
        {score.name: _signature(score) for score in scores},
        examples,
        "sentence ROUGE-L" if task == "summarise" else "sentence chrF",
    )


def _classify(bundle: Bundle, rows: Rows, config: EvaluationConfig, device: Device) -> _Found:
    names = labels_of(bundle, "classify")
    shares = class_probabilities(
        bundle, [text for text, _ in rows], batch_tokens=config.batch_tokens, device=device
    )
    examples = []
    for (text, label), share in zip(rows, shares, strict=True):
        best = max(share, key=lambda name: share[name])
        given = 100.0 * share.get(label, 0.0)
        examples.append(Example(text, (label,), best, given, best == label, {"probability": share[best]}))
    confusion = Confusion.of([label for _, label in rows], [one.output for one in examples], names)
    return _Found(label_metrics(confusion), {}, tuple(examples), "probability of the right class", confusion)


def _tag(bundle: Bundle, rows: Rows, config: EvaluationConfig, device: Device) -> _Found:
    names = labels_of(bundle, "tag")
    found = tag(bundle, [text for text, _ in rows], batch_tokens=config.batch_tokens, device=device)
    truth: list[str] = []
    chosen: list[str] = []
    examples = []
    for number, ((text, target), tags) in enumerate(zip(rows, found, strict=True), start=1):
        wanted = target.split()
        if len(wanted) != len(tags):
            raise UserError(
                f"Row {number} has {counted(len(tags), 'word')} but {counted(len(wanted), 'tag')}."
            )
        truth += wanted
        chosen += tags
        right = sum(a == b for a, b in zip(wanted, tags, strict=True))
        share = 100.0 * right / len(tags) if tags else 100.0
        examples.append(Example(text, (target,), " ".join(tags), share, wanted == tags))
    confusion = Confusion.of(truth, chosen, names)
    whole = 100.0 * sum(one.right for one in examples) / len(examples)
    metrics = label_metrics(confusion) | {"exact match": whole}
    return _Found(metrics, {}, tuple(examples), "right tags in per cent", confusion)


def label_metrics(confusion: Confusion) -> dict[str, float]:
    """Accuracy and F1 in per cent, Matthews from −1 to 1."""
    return {
        "accuracy": 100.0 * confusion.accuracy,
        "macro F1": 100.0 * confusion.macro_f1,
        "micro F1": 100.0 * confusion.micro_f1,
        "Matthews": confusion.matthews,
    }


def _task(bundle: Bundle, task: Task | None) -> Task:
    found = bundle.metadata.get("task") if task is None else task
    if found not in ("translate", "summarise", "generate", "classify", "tag"):
        raise UserError("This bundle does not say what it was trained for: name the task.")
    chosen: Task = found
    return chosen


def _signature(score: Score) -> str:
    return f"{score.signature} · {score.details}" if score.details else score.signature
