"""How each kind of answer is judged: written texts, long texts by their loss, classes, numbers, tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from clearhead.base.errors import UserError, counted
from clearhead.bundle.folder import Bundle
from clearhead.data.pictures import is_picture
from clearhead.data.tag_columns import MARK, by_column
from clearhead.decoding.labels import class_probabilities, labels_of, regress, tag_names
from clearhead.decoding.number_formats import NATS
from clearhead.decoding.options import Options
from clearhead.decoding.run import generate, translate
from clearhead.evaluation.evaluate import (
    Asked,
    Evaluation,
    EvaluationConfig,
    Example,
    Judge,
    Rows,
    Validated,
    shown,
)
from clearhead.evaluation.labels_and_numbers import Confusion, number_metrics
from clearhead.evaluation.metrics import (
    KINDS,
    CorpusMetric,
    Score,
    bleu,
    bleu_metric,
    chrf,
    chrf_metric,
    exact_match,
    exact_matches,
    rouge,
    rouge_scores,
)
from clearhead.training.distributed.ranks import Ranks

Right = list[list[str]]  # the correct answers for each output
Named = tuple[str, list[float]]  # a score by its name, for each output
CONTINUATION = 60  # tokens of a language model's sample


@dataclass(frozen=True)
class Translations(Judge):
    """Written texts compared with references, by BLEU, chrF and exact match."""

    validates: ClassVar[tuple[str, ...]] = ("bleu", "chrf", "exact")
    writes: ClassVar[bool] = True
    format_metric: ClassVar[str | None] = "chrF"

    def judged(self, bundle: Bundle, rows: Rows, asked: Asked) -> Evaluation:
        config, sources = asked.config, [shown(source) for source, _ in rows]
        right = [[target] for _, target in rows]
        right = right if asked.references is None else [list(texts) for texts in asked.references]
        how = Options(beam=config.beam, length_penalty=config.length_penalty, max_length=config.max_length)
        written = asked.ranks.shared(
            sources, lambda some: translate(bundle, list(some), how, **asked.writing)
        )
        outputs = [one.text for one in written]
        scores = self.scores(outputs, right, config)
        name, sentences = self.sentences(outputs, right, config)
        extra_name, extra = self.further(outputs, right, config)
        examples = tuple(
            Example(source, tuple(texts), output, value, same, {extra_name: more})
            for source, texts, output, value, same, more in zip(
                sources, right, outputs, sentences, exact_matches(outputs, right), extra, strict=True
            )
        )
        signatures = {score.name: _signature(score) for score in scores}
        return Evaluation(
            self, {score.name: score.value for score in scores}, signatures, examples, f"sentence {name}"
        )

    def scores(self, outputs: list[str], right: Right, how: EvaluationConfig) -> list[Score]:
        """The metrics of the whole set."""
        bleu_score = bleu_metric(how.tokenise, how.lowercase)(outputs, right)
        return [bleu_score, chrf_metric(how.lowercase)(outputs, right), exact_match(outputs, right)]

    def sentences(self, outputs: list[str], right: Right, how: EvaluationConfig) -> Named:
        """The score by which single texts are sorted."""
        return "chrF", chrf_metric(how.lowercase).sentences(outputs, right)

    def further(self, outputs: list[str], right: Right, how: EvaluationConfig) -> Named:
        """A further score to note."""
        by_sentence = bleu_metric(how.tokenise, how.lowercase, sentence=True)
        return "BLEU", by_sentence.sentences(outputs, right)

    def validate(self, bundle: Bundle, rows: Rows, seed: int, ranks: Ranks | None = None) -> Validated:
        """Some texts, written greedily."""
        texts, ranks = [shown(text) for text, _ in rows], ranks or Ranks()
        written = ranks.shared(texts, lambda some: translate(bundle, list(some), way="torch"))
        return self.validated([one.text for one in written], rows)

    def validated(self, outputs: list[str], rows: Rows) -> Validated:
        """The figures of the written texts."""
        right = [target for _, target in rows]
        values = {
            "bleu": bleu(outputs, right).value,
            "chrf": chrf(outputs, right).value,
            "exact": exact_match(outputs, right).value,
        }
        return Validated(values, outputs)

    def texts_compared(self, how: EvaluationConfig) -> Sequence[CorpusMetric]:
        """BLEU and chrF."""
        return (bleu_metric(how.tokenise, how.lowercase), chrf_metric(how.lowercase))

    def bucket_scores(self, found: Evaluation, inside: Sequence[Example]) -> dict[str, float]:
        """BLEU, chrF and exact match."""
        outputs, right = [one.output for one in inside], [one.references for one in inside]
        metrics = Translations.texts_compared(self, found.config)
        scores = {metric.name: metric(outputs, right).value if inside else 0.0 for metric in metrics}
        return scores | {"exact match": super().bucket_scores(found, inside)["right"]}


@dataclass(frozen=True)
class Summaries(Translations):
    """Summaries of long texts, by ROUGE as well."""

    validates: ClassVar[tuple[str, ...]] = ("bleu", "chrf", "exact", "rouge1", "rouge2", "rougeL")
    format_metric: ClassVar[str | None] = "ROUGE-L"

    def scores(self, outputs: list[str], right: Right, how: EvaluationConfig) -> list[Score]:
        return [*rouge(outputs, right).values(), *super().scores(outputs, right, how)[1:]]

    def sentences(self, outputs: list[str], right: Right, how: EvaluationConfig) -> Named:
        return "ROUGE-L", [100.0 * f1 for f1 in rouge_scores(outputs, right, "L")]

    def further(self, outputs: list[str], right: Right, how: EvaluationConfig) -> Named:
        return super().sentences(outputs, right, how)

    def validated(self, outputs: list[str], rows: Rows) -> Validated:
        values, outputs = super().validated(outputs, rows)
        found = rouge(outputs, [target for _, target in rows])
        named = {name.replace("ROUGE-", "rouge"): score.value for name, score in found.items()}
        return Validated(values | named, outputs)

    def texts_compared(self, how: EvaluationConfig) -> Sequence[CorpusMetric]:
        return ()

    def scores_compared(self, found: Evaluation) -> dict[str, list[float]]:
        """ROUGE of each text."""
        right = [one.references for one in found.examples]
        by_kind = {kind: rouge_scores(found.outputs, right, kind) for kind in KINDS}
        pairs = {f"ROUGE-{kind}": [100.0 * x for x in values] for kind, values in by_kind.items()}
        return pairs | super().scores_compared(found)

    def bucket_scores(self, found: Evaluation, inside: Sequence[Example]) -> dict[str, float]:
        return super().bucket_scores(found, inside) | _mean_score(found, inside)


@dataclass(frozen=True)
class LongTexts(Judge):
    """A language model, measured by its loss alone; a validation shows a sample."""

    has_windows: ClassVar[bool] = True
    format_metric: ClassVar[str | None] = NATS

    def judged(self, bundle: Bundle, rows: Rows, asked: Asked) -> Evaluation:
        return Evaluation(self)

    def validate(self, bundle: Bundle, rows: Rows, seed: int, ranks: Ranks | None = None) -> Validated:
        """No figures, and one sampled text."""
        asked = Options(sample=True, temperature=0.8, seed=seed, max_length=CONTINUATION)
        ranks = ranks or Ranks()
        one = ranks.shared([""], lambda some: [generate(bundle, text, asked, way="torch") for text in some])
        return Validated({}, one)


@dataclass(frozen=True)
class Classes(Judge):
    """The class of each text, or of two together."""

    validates: ClassVar[tuple[str, ...]] = ("f1", "matthews")

    def judged(self, bundle: Bundle, rows: Rows, asked: Asked) -> Evaluation:
        names = labels_of(bundle, "classify")
        texts = [text for text, _ in rows]
        shares = asked.ranks.shared(
            texts, lambda some: class_probabilities(bundle, list(some), **asked.reading)
        )
        examples = []
        for (text, label), share in zip(rows, shares, strict=True):
            best = max(share, key=lambda name: share[name])
            given = 100.0 * share.get(label, 0.0)
            notes = {"probability": share[best]}
            picture = text if isinstance(text, str) and is_picture(text) else None
            examples.append(Example(shown(text), (label,), best, given, best == label, notes, picture))
        confusion = Confusion.of([label for _, label in rows], [one.output for one in examples], names)
        name = "probability of the right class"
        return Evaluation(self, confusion.metrics(), {}, tuple(examples), name, confusion)

    def validate(self, bundle: Bundle, rows: Rows, seed: int, ranks: Ranks | None = None) -> Validated:
        """F1 and Matthews."""
        found = self(bundle, rows, EvaluationConfig(loss=False), ranks=ranks)
        return Validated(
            {"f1": found.metrics["macro F1"], "matthews": found.metrics["Matthews"]}, found.outputs
        )

    def scores_compared(self, found: Evaluation) -> dict[str, list[float]]:
        """Accuracy."""
        return {"accuracy": super().scores_compared(found)["exact match"]}


@dataclass(frozen=True)
class PictureClasses(Classes):
    """The class of each picture."""

    reads_words: ClassVar[bool] = False


@dataclass(frozen=True)
class WordTags(Classes):
    """The tag of each word, or several; each column is measured by itself as well."""

    def judged(self, bundle: Bundle, rows: Rows, asked: Asked) -> Evaluation:
        names, texts = labels_of(bundle, "tag"), [shown(text) for text, _ in rows]
        several = max(len(bundle.config.head.columns), 1)
        found = asked.ranks.shared(texts, lambda some: tag_names(bundle, list(some), **asked.reading))
        truth: list[str] = []
        chosen: list[str] = []
        examples = []
        for number, (text, (_, target), words) in enumerate(zip(texts, rows, found, strict=True), start=1):
            wanted, tags = target.split(), list(chain.from_iterable(words))
            if len(wanted) != len(tags):
                raise UserError(
                    f"Row {number} has {counted(len(words), 'word')} but {counted(len(wanted), 'tag')}"
                    + ("." if several == 1 else f": this model gives {several} per word.")
                )
            if several > 1:
                wanted = _in_order(wanted, list(by_column(names)), number)
            truth += wanted
            chosen += tags
            right = sum(a == b for a, b in zip(wanted, tags, strict=True))
            share = 100.0 * right / len(tags) if tags else 100.0
            examples.append(Example(text, (target,), " ".join(tags), share, wanted == tags))
        confusion = Confusion.of(truth, chosen, names)
        whole = 100.0 * sum(one.right for one in examples) / len(examples)
        metrics = confusion.metrics() | {"exact match": whole}
        if several > 1:
            metrics |= _by_column(names, truth, chosen, several)
        return Evaluation(self, metrics, {}, tuple(examples), "right tags in percent", confusion)

    def scores_compared(self, found: Evaluation) -> dict[str, list[float]]:
        """Correct tags of each text, and texts that are entirely correct."""
        return {
            found.score_name: [one.score for one in found.examples],
            **Judge.scores_compared(self, found),
        }

    def bucket_scores(self, found: Evaluation, inside: Sequence[Example]) -> dict[str, float]:
        return super().bucket_scores(found, inside) | _mean_score(found, inside)


@dataclass(frozen=True)
class Numbers(Judge):
    """The number of each text, or of two together, by its correlation with the right one."""

    validates: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    has_loss: ClassVar[bool] = False

    def judged(self, bundle: Bundle, rows: Rows, asked: Asked) -> Evaluation:
        texts = [text for text, _ in rows]
        given = asked.ranks.shared(texts, lambda some: regress(bundle, list(some), **asked.reading))
        right = [_number(target, line) for line, (_, target) in enumerate(rows, start=1)]
        span = max(right) - min(right) or 1.0
        examples = tuple(
            Example(shown(text), (target,), f"{one:.6g}", 100.0 * max(0.0, 1 - abs(one - true) / span), False)
            for (text, target), one, true in zip(rows, given, right, strict=True)
        )
        metrics, name = number_metrics(right, given), "closeness in percent of the range of all numbers"
        undefined = {} if "Pearson" in metrics else {"Pearson": "not defined where one side never changes"}
        return Evaluation(self, metrics, undefined, examples, name)

    def validate(self, bundle: Bundle, rows: Rows, seed: int, ranks: Ranks | None = None) -> Validated:
        """The correlations; 0 if the model gives the same number for every text."""
        found = self(bundle, rows, ranks=ranks)
        values = {name: found.metrics.get(name.capitalize(), 0.0) for name in self.validates}
        return Validated(values, found.outputs)

    def scores_compared(self, found: Evaluation) -> dict[str, list[float]]:
        """How close each number is."""
        return {found.score_name: [one.score for one in found.examples]}

    def bucket_scores(self, found: Evaluation, inside: Sequence[Example]) -> dict[str, float]:
        return _mean_score(found, inside)


def _in_order(tags: Sequence[str], columns: Sequence[str], row: int) -> list[str]:
    """The tags of each word in the model's order of columns, whatever order they are given in."""
    found: list[str] = []
    for start in range(0, len(tags), len(columns)):
        own = {tag.partition(MARK)[0]: tag for tag in tags[start : start + len(columns)]}
        if set(own) != set(columns):
            raise UserError(
                f"Row {row} has tags for the columns {', '.join(own)}, but this model predicts "
                f"{', '.join(columns)}: name those columns, --target-column {','.join(columns)}."
            )
        found += [own[column] for column in columns]
    return found


def _by_column(
    names: Sequence[str], truth: Sequence[str], chosen: Sequence[str], several: int
) -> dict[str, float]:
    """Accuracy and macro F1 of each column of tags; a word has one tag per column."""
    found: dict[str, float] = {}
    for place, (column, tags) in enumerate(by_column(names).items()):
        own = [f"{column}{MARK}{name}" for name in tags]
        figures = Confusion.of(truth[place::several], chosen[place::several], own).metrics()
        found |= {f"{column} {name}": figures[name] for name in ("accuracy", "macro F1")}
    return found


def _number(text: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"Row {line} has '{text[:40]}' where a number should be.") from None


def _mean_score(found: Evaluation, inside: Sequence[Example]) -> dict[str, float]:
    return {f"mean {found.score_name}": sum(one.score for one in inside) / max(1, len(inside))}


def _signature(score: Score) -> str:
    return f"{score.signature} · {score.details}" if score.details else score.signature
