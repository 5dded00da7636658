"""A report on one bundle, or on two side by side: its contents, and its files.

Figures with their signatures, facts about the texts, quality by length, the
confusion of labels, and examples with the worst first. `render` turns it into
Markdown and into one self-contained HTML file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clearhead.base.atomic import atomic_write_text
from clearhead.data.pictures import as_png, pixels_of
from clearhead.evaluation.bootstrap import Bootstrap, Interval
from clearhead.evaluation.evaluate import Evaluation, Example
from clearhead.evaluation.labels_and_numbers import Confusion
from clearhead.evaluation.render import Case, Page, Section, Table, to_html, to_markdown

LONGEST = 10**9
BUCKETS = (  # words of a source: sentences, then documents
    *((1, 5), (6, 10), (11, 15), (16, 20), (21, 30), (31, 50)),
    *((51, 100), (101, 200), (201, 500), (501, 1000), (1001, LONGEST)),
)
EXAMPLES = 100  # the worst that are shown
SMALL = (
    "Matthews",
    "Pearson",
    "Spearman",
    "nats per token",
    "nats per voice",
    "nats per time step",
    "nats per character",
    "bits per byte",
    "probability",
)
LABELS = 30  # a larger confusion matrix is unreadable


@dataclass(frozen=True)
class Subject:
    """A bundle by its name in the report, and its evaluation."""

    name: str
    evaluation: Evaluation


def make_report(
    first: Subject,
    second: Subject | None = None,
    *,
    title: str = "Evaluation",
    facts: Mapping[str, str] | None = None,
    comparison: Sequence[Bootstrap] = (),
    examples: int = EXAMPLES,
) -> Page:
    """The whole report as a page. `facts` are the caller's: files, settings, machine."""
    subjects = [first] if second is None else [first, second]
    sections = [_metrics(subjects)]
    if comparison and second is not None:
        sections.append(_comparison(comparison, first.name, second.name))
    sections.append(_facts(subjects, facts or {}))
    for subject in subjects:
        found, suffix = subject.evaluation, "" if second is None else f" · {subject.name}"
        if found.examples and found.judge.reads_words:
            sections.append(_by_length(found, suffix))
        if found.confusion is not None and len(found.confusion.labels) <= LABELS:
            sections.append(_confusion(found.confusion, suffix))
    worst = _worst(first, second, examples)
    if worst is not None:
        sections.append(worst)
    return Page(title, tuple(section for section in sections if section.worth_showing))


def write_report(page: Page, folder: str | Path, name: str = "report") -> tuple[Path, Path]:
    """Write `report.md` and `report.html` into a folder, each atomically."""
    markdown, html = Path(folder) / f"{name}.md", Path(folder) / f"{name}.html"
    atomic_write_text(markdown, to_markdown(page))
    atomic_write_text(html, to_html(page))
    return markdown, html


def _metrics(subjects: Sequence[Subject]) -> Section:
    names = list(dict.fromkeys(name for one in subjects for name in one.evaluation.metrics))
    rows = [[name, *(_figure(name, one.evaluation.metrics.get(name)) for one in subjects)] for name in names]
    header = ["metric", *(one.name for one in subjects)]
    signatures = dict(item for one in subjects[::-1] for item in one.evaluation.signatures.items())
    notes = [f"{name}: {signature}" for name, signature in signatures.items()]
    return Section("Figures", tables=(Table(tuple(header), rows),), notes=tuple(notes))


def _comparison(found: Sequence[Bootstrap], first: str, second: str) -> Section:
    rows = [
        [
            one.metric,
            _interval(one.first),
            _interval(one.second),
            _interval(one.difference, sign=True),
            f"{100 * one.wins:.1f} %",
            f"{one.p_value:.4f}",
            "yes" if one.significant else "no",
        ]
        for one in found
    ]
    header = ("metric", first, second, "difference", f"{second} better", "p", "significant at 5 %")
    note = (
        f"Paired bootstrap (Koehn 2004) with {found[0].resamples:,} resamples of the test set, seed "
        f"{found[0].seed}; brackets give the middle 95 % of the resamples; p as in sacreBLEU, two-sided."
    )
    return Section("Are they different?", tables=(Table(header, rows),), notes=(note,))


def _facts(subjects: Sequence[Subject], facts: Mapping[str, str]) -> Section:
    rows = [[name, value] for name, value in facts.items()]
    for one in subjects:
        found, suffix = one.evaluation, "" if len(subjects) == 1 else f" ({one.name})"
        if found.judge.writes:
            rows.append(
                [f"search{suffix}", f"{found.config.search}, length penalty {found.config.length_penalty:g}"]
            )
        if found.examples:
            rows.append([f"seconds for all outputs{suffix}", f"{found.seconds:.1f}"])
            rows.append([f"different outputs{suffix}", f"{len(set(found.outputs)):,}"])
            rows.append([f"empty outputs{suffix}", f"{sum(not text.strip() for text in found.outputs):,}"])
            rows += [[f"words per output{suffix}", _mean(found.outputs)]] if found.judge.reads_words else []
    examples = subjects[0].evaluation.examples
    if examples:
        rows.append(["examples", f"{len(examples):,}"])
        if subjects[0].evaluation.judge.reads_words:
            rows.append(["words a source", _mean([one.source for one in examples])])
            rows.append(["words a reference", _mean([one.reference for one in examples])])
    return Section("The texts", tables=(Table(("fact", "value"), rows),))


def by_words(examples: Sequence[Example]) -> Iterator[tuple[int, int, list[Example]]]:
    """Examples in ranges of words of their source: first and last number, and the examples, if any."""
    for low, high in BUCKETS:
        inside = [one for one in examples if low <= len(one.source.split()) <= high]
        if inside:
            yield low, high, inside


def _by_length(found: Evaluation, suffix: str) -> Section:
    """Quality by the number of words of the source."""
    rows = []
    header = ["source words", "examples", *_bucket_scores(found, ())]
    for low, high, inside in by_words(found.examples):
        name = f"{low}–{high}" if high < LONGEST else f"{low} and more"
        rows.append([name, f"{len(inside):,}", *_bucket_scores(found, inside).values()])
    return Section(f"By length{suffix}", tables=(Table(tuple(header), rows),))


def _bucket_scores(found: Evaluation, inside: Sequence[Example]) -> dict[str, str]:
    """The scores of some examples by name; for no examples, the names."""
    return {name: _figure(name, value) for name, value in found.judge.bucket_scores(found, inside).items()}


def _confusion(found: Confusion, suffix: str) -> Section:
    f1 = found.f1_by_label()
    rows = [
        [name, *(f"{int(count):,}" for count in counts), f"{100 * f1[name]:.1f}"]
        for name, counts in zip(found.labels, found.counts, strict=True)
    ]
    table = Table(("true ↓ chosen →", *found.labels, "F1"), rows)
    return Section(f"Confusion matrix{suffix}", tables=(table,))


def _worst(first: Subject, second: Subject | None, count: int) -> Section | None:
    """The examples with the lowest score, worst first; correct ones are left out."""
    found = first.evaluation
    wrong = [number for number, one in enumerate(found.examples) if not one.right]
    wrong.sort(key=lambda number: found.examples[number].score)
    if not found.examples:
        return None
    cases = [_case(number, first, second) for number in wrong[:count]]
    right = len(found.examples) - len(wrong)
    note = (
        f"Sorted by {found.score_name}, worst first; {len(cases):,} of the {len(wrong):,} wrong ones; "
        f"{right:,} are right."
    )
    return Section("Examples", notes=(note,), cases=tuple(cases))


def _case(number: int, first: Subject, second: Subject | None) -> Case:
    one = first.evaluation.examples[number]
    scores = {first.evaluation.score_name: one.score, **one.notes}
    heading = " · ".join(f"{name} {_figure(name, value)}" for name, value in scores.items())
    name = "output" if second is None else first.name
    lines = [("source", one.source), *(("reference", text) for text in one.references), (name, one.output)]
    if second is not None:
        lines.append((second.name, second.evaluation.examples[number].output))
    place = "line" if first.evaluation.judge.reads_words else "picture"
    picture = None if one.picture is None else as_png(pixels_of(one.picture))
    return Case(f"{place} {number + 1} · {heading}", one.reference, tuple(lines), picture)


def _figure(name: str, value: float | None) -> str:
    """Four decimals for small quantities, two for per cents and perplexities."""
    if value is None:
        return "–"
    if name.endswith("error"):  # in the units of the numbers, which may be of any size
        return f"{value:.4g}"
    return f"{value:.4f}" if name in SMALL else f"{value:,.2f}"


def _interval(found: Interval, sign: bool = False) -> str:
    mark = "+" if sign else ""
    return f"{found.score:{mark}.2f} [{found.low:{mark}.2f}, {found.high:{mark}.2f}]"


def _mean(texts: Sequence[str]) -> str:
    return f"{sum(len(text.split()) for text in texts) / len(texts):.1f}"
