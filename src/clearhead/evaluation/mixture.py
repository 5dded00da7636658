"""Several tasks of one bundle, each by its own metrics; a row's prefix tells which task it belongs to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.decoding.options import Options
from clearhead.decoding.run import translate
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
from clearhead.evaluation.labels_and_numbers import number_metrics
from clearhead.evaluation.metrics import bleu_metric, chrf_metric, exact_matches, rouge
from clearhead.training.distributed.ranks import Ranks

SCORE = "chrF for texts, accuracy for other answers"


class Part(NamedTuple):
    """One of the tasks: the prefix of its rows, the kind of its answers, and the indices of its rows."""

    prefix: str
    answer: str
    places: list[int]

    @property
    def name(self) -> str:
        """The name in figures.

        >>> Part("sst2: ", "class", []).name
        'sst2'
        """
        return self.prefix.strip(" :")


def answers_of(bundle: Bundle) -> dict[str, str]:
    """The prefixes that a bundle was trained with, and the kind of answer to each."""
    recipe: Any = bundle.metadata.get("recipe")
    data: Any = recipe.get("data") if isinstance(recipe, Mapping) else None
    corpora: Any = data.get("train") if isinstance(data, Mapping) else None
    found = {
        str(one.get("prefix") or ""): str(one.get("answer") or "text")
        for one in (corpora if isinstance(corpora, Sequence) else [])
        if isinstance(one, Mapping)
    }
    if not found:
        raise UserError("This bundle does not say which tasks it was trained for.")
    return found


def parts_of(bundle: Bundle, rows: Rows) -> list[Part]:
    """The rows by task; raises an error for a row that belongs to none."""
    answers = answers_of(bundle)
    found = {prefix: Part(prefix, answer, []) for prefix, answer in answers.items()}
    longest = sorted(answers, key=len, reverse=True)
    for place, (source, _) in enumerate(rows):
        text = shown(source)
        prefix = next((one for one in longest if text.startswith(one)), None)
        if prefix is None:
            known = ", ".join(f"'{one}'" for one in answers)
            raise UserError(
                f"Row {place + 1} does not start with one of this bundle's prefixes ({known}): put one "
                "before every source (on the command line, with --source-prefix)."
            )
        found[prefix].places.append(place)
    return [part for part in found.values() if part.places]


def figures(
    answer: str, outputs: list[str], right: list[str], how: EvaluationConfig | None = None
) -> dict[str, float]:
    """The metrics of one kind of answer by name, the main one first."""
    how = how or EvaluationConfig()
    references = [[one] for one in right]
    if answer == "summary":
        return {name: score.value for name, score in rouge(outputs, references).items()}
    if answer == "class":
        return {"accuracy": 100.0 * sum(exact_matches(outputs, references)) / len(outputs)}
    if answer == "number":
        return _correlations(outputs, right)
    scores = [bleu_metric(how.tokenise, how.lowercase), chrf_metric(how.lowercase)]
    return {score.name: score.value for score in (one(outputs, references) for one in scores)}


def _correlations(outputs: list[str], right: list[str]) -> dict[str, float]:
    """Pearson and Spearman; an answer that is not a number counts as the mean of the correct ones."""
    true = [_number(one) for one in right]
    wrong = next((place for place, one in enumerate(true) if math.isnan(one)), None)
    if wrong is not None:
        raise UserError(f"'{right[wrong][:40]}' is not a number.")
    given = [_number(one) for one in outputs]
    mean = sum(true) / len(true)
    found = number_metrics(true, [mean if math.isnan(one) else one for one in given])
    correlated = {name: found.get(name, 0.0) for name in ("Pearson", "Spearman")}
    return correlated | {"numbers": 100.0 * sum(not math.isnan(one) for one in given) / len(given)}


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return math.nan
    return found if math.isfinite(found) else math.nan


@dataclass(frozen=True)
class Mixture(Judge):
    """Every task by its own metrics (BLEU, ROUGE, accuracy, Pearson), and their mean, in per cent."""

    validates: ClassVar[tuple[str, ...]] = ("mean",)
    writes: ClassVar[bool] = True
    format_metric: ClassVar[str | None] = "mean"

    def judged(self, bundle: Bundle, rows: Rows, asked: Asked) -> Evaluation:
        parts, config = parts_of(bundle, rows), asked.config
        how = Options(beam=config.beam, length_penalty=config.length_penalty, max_length=config.max_length)
        sources, right = [shown(source) for source, _ in rows], [target for _, target in rows]
        written = asked.ranks.shared(
            sources, lambda some: translate(bundle, list(some), how, **asked.writing)
        )
        outputs = [one.text for one in written]
        same = exact_matches(outputs, [[one] for one in right])
        scores = [100.0 * one for one in same]
        for part in parts:
            if part.answer in ("text", "summary"):
                some = [outputs[at] for at in part.places], [[right[at]] for at in part.places]
                each = chrf_metric(config.lowercase).sentences(*some)
                for at, score in zip(part.places, each, strict=True):
                    scores[at] = score
        examples = tuple(
            Example(source, (target,), output, score, is_right)
            for source, target, output, score, is_right in zip(
                sources, right, outputs, scores, same, strict=True
            )
        )
        metrics = by_task(parts, outputs, right, config)
        return Evaluation(self, metrics, {}, examples, SCORE)

    def validate(self, bundle: Bundle, rows: Rows, seed: int, ranks: Ranks | None = None) -> Validated:
        """Some texts of every task, written greedily."""
        sources, right = [shown(source) for source, _ in rows], [target for _, target in rows]
        written = (ranks or Ranks()).shared(sources, lambda some: translate(bundle, list(some), way="torch"))
        outputs = [one.text for one in written]
        return Validated(by_task(parts_of(bundle, rows), outputs, right), outputs)

    def scores_compared(self, found: Evaluation) -> dict[str, list[float]]:
        """The score of each text, and which are entirely correct."""
        return {SCORE: [one.score for one in found.examples], **super().scores_compared(found)}


def by_task(
    parts: Sequence[Part], outputs: list[str], right: list[str], how: EvaluationConfig | None = None
) -> dict[str, float]:
    """The figures of every task, and the mean of the main ones."""
    found: dict[str, float] = {}
    counting = []
    for part in parts:
        own = figures(
            part.answer, [outputs[at] for at in part.places], [right[at] for at in part.places], how
        )
        first = next(iter(own.values()))
        counting.append(100.0 * first if part.answer == "number" else first)
        found |= {f"{part.name} {name}".strip(): value for name, value in own.items()}
    return {"mean": sum(counting) / len(counting), **found}
