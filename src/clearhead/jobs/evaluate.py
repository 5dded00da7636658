"""Evaluate bundles on a test set of text files: one alone, or two against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.api import load
from clearhead.base.device import pick_device
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, is_bundle
from clearhead.bundle.folder import undisturbed
from clearhead.bundle.metadata import read_metadata, replace_notes
from clearhead.data.columns import Columns, Row
from clearhead.data.config import CorpusConfig
from clearhead.data.picture_corpora import for_testing
from clearhead.data.read import check_corpus, files_of, name_of, read_rows
from clearhead.data.survey import number_of
from clearhead.decoding.labels import reads_two
from clearhead.decoding.number_formats import FORMATS
from clearhead.decoding.pictures import picture_form, picture_tensor
from clearhead.evaluation.bootstrap import Bootstrap
from clearhead.evaluation.evaluate import Evaluation, EvaluationConfig, Rows, compare
from clearhead.evaluation.formats import measure_formats
from clearhead.evaluation.mixture import answers_of
from clearhead.evaluation.render import Page
from clearhead.evaluation.report import Subject, make_report
from clearhead.tasks import Task, task_of
from clearhead.tasks import task_named as task_named


@dataclass(frozen=True)
class Measured:
    """The results, and the page that shows them."""

    first: Evaluation
    second: Evaluation | None
    comparison: Sequence[Bootstrap]
    page: Page


def measure(
    bundles: Sequence[Path],
    corpus: CorpusConfig,
    task: Task | None = None,
    config: EvaluationConfig | None = None,
    *,
    device: str = "auto",
) -> Measured:
    """Evaluate one bundle, or two on the same rows with a paired bootstrap between them."""
    loaded = [load(path, device=pick_device(device)) for path in bundles]
    chosen = task or task_of(loaded[0])
    if chosen.columns.pairs and corpus.second_column is None and any(map(reads_two, loaded)):
        raise UserError(
            "This model labels pairs of texts: name the columns of both texts (give --source-column twice)."
        )
    corpus = for_testing(corpus) if chosen.columns.pictures else corpus
    rows = _rows(loaded, _meant(loaded[0], corpus, chosen), chosen.columns)
    found = [chosen.judge(one, rows, config, show=True) for one in loaded]
    second = found[1] if len(found) > 1 else None
    comparison = [] if second is None else compare(found[0], second)
    names = _names(bundles)
    page = make_report(
        Subject(names[0], found[0]),
        None if second is None else Subject(names[1], second),
        facts={"files": ", ".join(files_of(corpus)), "task": chosen.name},
        comparison=comparison,
    )
    return Measured(found[0], second, comparison, page)


def measure_and_store_formats(
    folder: Path, corpus: CorpusConfig, task: Task | None = None, *, device: str = "auto"
) -> dict[str, Any]:
    """Measure what other number formats cost a bundle, and store it there, as `clearhead train` does."""
    bundle = load(folder, device=pick_device(device))
    chosen = task or task_of(bundle)
    rows = _rows([bundle], _meant(bundle, corpus, chosen), chosen.columns)
    found = measure_formats(bundle, rows, chosen.judge)
    if not found:
        raise UserError(
            f"The task '{chosen.name}' writes no text and has only one number format: leave out --formats."
        )
    if is_bundle(folder):
        with undisturbed(folder):
            replace_notes(folder, {**read_metadata(folder).metadata, FORMATS: found})
    return found


def _meant(bundle: Bundle, corpus: CorpusConfig, task: Task) -> CorpusConfig:
    """The corpus; its prefix selects one task of several, and thus the kind of its answers.

    Pictures are scaled as in training, and as grey or coloured as the model reads them.
    """
    if task.columns.pictures and bundle.config.family == "vision":
        form = picture_form(bundle)
        corpus = corpus.replace(
            picture_channels=form.channels,
            picture_size=corpus.picture_size or form.size,
            picture_stretched=corpus.picture_stretched or form.stretched,
            picture_resample=corpus.picture_resample or form.resample,
        )
    if not corpus.prefix or not task.columns.mixed:
        return corpus
    known = answers_of(bundle)
    if corpus.prefix not in known:
        every = ", ".join(f"'{prefix}'" for prefix in known)
        raise UserError(
            f"This bundle has no prefix '{corpus.prefix}' (spaces count): it was trained with {every}."
        )
    return CorpusConfig.from_dict({**corpus.to_dict(), "answer": known[corpus.prefix]})


def _rows(bundles: Sequence[Bundle], corpus: CorpusConfig, columns: Columns) -> Rows:
    check_corpus(corpus, columns)
    rows = list(read_rows(corpus, columns))
    if not rows:
        raise UserError(f"There is no example to evaluate on in {', '.join(files_of(corpus))}.")
    for bundle in bundles:
        _refuse_answers(bundle, rows, corpus, columns)
        if columns.pictures and bundle.config.family == "vision":
            picture_tensor(bundle, rows[0].source, f"The first picture of {name_of(corpus)}")
    return [row.pair for row in rows]


def _refuse_answers(bundle: Bundle, rows: Sequence[Row], corpus: CorpusConfig, columns: Columns) -> None:
    """Raise an error with the line of an answer that is not a number, or a label unknown to the model."""
    if columns.target == "number":
        for row in rows:
            number_of(row, corpus)
    names = bundle.metadata.get("labels")
    if not columns.has_labels or not isinstance(names, list):
        return
    what, known = "class" if columns.target == "class" else "tag", {str(name) for name in names}
    for row in rows:
        given = [row.target] if columns.target == "class" else row.target.split()
        strange = next((name for name in given if name not in known), None)
        if strange is not None:
            raise UserError(
                f"{name_of(corpus)} {columns.place} {row.line} has the {what} '{strange}', which is not one "
                f"of the model's: {', '.join(map(str, names[:20]))}."
            )


def _names(bundles: Sequence[Path]) -> list[str]:
    """The folders' own names, or their full paths if the names are equal."""
    short = [path.resolve().name for path in bundles]
    return short if len(set(short)) == len(short) else [str(path) for path in bundles]
