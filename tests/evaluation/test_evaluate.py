"""A bundle on a test set, two bundles side by side, and the report about them."""

from __future__ import annotations

import html.parser
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding import Options, classify, regress, translate
from clearhead.evaluation.evaluate import Evaluation, EvaluationConfig, Rows, compare
from clearhead.evaluation.labels_and_numbers import pearson
from clearhead.evaluation.loss import corpus_loss
from clearhead.evaluation.metrics import bleu, chrf, rouge
from clearhead.evaluation.render import to_html, to_markdown
from clearhead.evaluation.report import Subject, by_words, make_report, write_report
from clearhead.tasks import task_of

from ..decoding.bundles import ENGLISH, FRENCH, labeller, translator, writer

PAIRS = list(zip(ENGLISH, FRENCH, strict=True)) * 3


def evaluate(
    bundle: Bundle, rows: Rows, task: str | None = None, config: EvaluationConfig | None = None, **how: Any
) -> Evaluation:
    return task_of(bundle, task).judge(bundle, rows, config, **how)


def noisy(bundle: Bundle) -> Bundle:
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9)))
    return bundle


def test_translations_are_written_and_measured() -> None:
    bundle = translator()
    config = EvaluationConfig(beam=2, lowercase=True)
    found = evaluate(bundle, PAIRS, config=config)  # the task stands in the bundle
    outputs = [one.text for one in translate(bundle, [source for source, _ in PAIRS], Options(beam=2))]
    references = [target for _, target in PAIRS]
    assert found.outputs == outputs
    assert found.metrics["BLEU"] == bleu(outputs, references, lowercase=True).value
    assert found.metrics["chrF"] == chrf(outputs, references, lowercase=True).value
    assert found.metrics["perplexity"] == corpus_loss(bundle, PAIRS).perplexity
    assert found.metrics["exact match"] == 0.0
    assert "case:lc" in found.signatures["BLEU"]
    assert "tok:13a" in found.signatures["BLEU"]
    assert found.seconds > 0
    assert "perplexity" not in evaluate(bundle, PAIRS, config=EvaluationConfig(loss=False)).metrics


def test_what_is_right_is_right() -> None:
    bundle = translator()
    rows = [(text, translate(bundle, [text])[0].text) for text in ENGLISH]
    found = evaluate(bundle, rows, "translate")
    assert found.metrics["exact match"] == 100.0
    assert all(example.right for example in found.examples)
    [extra] = evaluate(bundle, rows[:1], references=[["nonsense", rows[0][1]]]).examples
    assert extra.right
    assert extra.references == ("nonsense", rows[0][1])


def test_summaries() -> None:
    found = evaluate(translator(), PAIRS, "summarise")
    wanted = rouge(found.outputs, [target for _, target in PAIRS])
    for name, score in wanted.items():
        assert found.metrics[name] == score.value
    assert "BLEU" not in found.metrics


def test_classes() -> None:
    bundle = labeller("classify", ["good", "bad"])
    rows = [(text, ["good", "bad"][i % 2]) for i, text in enumerate(ENGLISH)]
    found = evaluate(bundle, rows)
    chosen = classify(bundle, ENGLISH)
    right = [name == label for (name, _), (_, label) in zip(chosen, rows, strict=True)]
    assert found.metrics["accuracy"] == pytest.approx(100 * sum(right) / len(right))
    assert [example.right for example in found.examples] == right
    assert found.confusion is not None
    assert found.confusion.labels == ("good", "bad")
    assert {"macro F1", "micro F1", "Matthews", "perplexity"} <= set(found.metrics)


def test_tags() -> None:
    bundle = labeller("tag", ["x", "y"])
    rows = [(text, " ".join("x" for _ in text.split())) for text in ENGLISH]
    found = evaluate(bundle, rows)
    tags = " ".join(found.outputs).split()
    assert found.metrics["accuracy"] == pytest.approx(100 * tags.count("x") / len(tags))
    with pytest.raises(UserError, match="Row 2 has 5 words but 1 tag\\."):
        evaluate(bundle, [rows[0], (ENGLISH[1], "x")])


def test_a_language_model_is_measured_by_its_loss() -> None:
    found = evaluate(writer(), [("", "abc def\n"), ("", "gh\n")])
    assert set(found.metrics) == {"nats per token", "perplexity", "nats per character", "bits per byte"}
    assert found.examples == ()


def test_refusals() -> None:
    with pytest.raises(UserError, match="test set is empty"):
        evaluate(translator(), [])
    with pytest.raises(UserError, match="name the task"):
        evaluate(Bundle(translator().model, translator().tokenizer), PAIRS)
    first = evaluate(translator(), PAIRS)
    with pytest.raises(UserError, match="same test set"):
        compare(first, evaluate(translator(), PAIRS[:3]))
    with pytest.raises(UserError, match="the same task"):
        compare(first, evaluate(translator(), PAIRS, "summarise"))


@pytest.mark.parametrize("task", ["translate", "summarise"])
def test_two_bundles(task) -> None:
    first, second = (evaluate(bundle, PAIRS, task) for bundle in (translator(), noisy(translator())))
    found = compare(first, second, resamples=50)
    for one in found:
        assert one.first.score == pytest.approx(first.metrics[one.metric], abs=1e-6)
        assert one.second.score == pytest.approx(second.metrics[one.metric], abs=1e-6)
    names = {"translate": ["BLEU", "chrF", "exact match"]}.get(task)
    assert [one.metric for one in found] == (names or ["ROUGE-1", "ROUGE-2", "ROUGE-L", "exact match"])


# --- the report -----------------------------------------------------------------------------------


class Checker(html.parser.HTMLParser):
    """Every tag that opens is closed in order, and nothing is loaded from anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        assert not {"src", "href", "onclick", "onload"} & {name for name, _ in attrs}
        self.seen.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text.append(data)


def read(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


def test_a_report_on_one_bundle(tmp_path: Path) -> None:
    rows = [*PAIRS, ("who sees <script>alert(1)</script> | *now*", 'qui & "voit" `ça` <b>maintenant</b>')]
    found = evaluate(translator(), rows)
    page = make_report(Subject("runs/en-fr", found), title="Test <set>", facts={"file": "test|1.tsv"})
    markdown, whole = write_report(page, tmp_path)
    checker = read(whole.read_text("utf-8"))
    assert "script" not in checker.seen
    assert "b" not in checker.seen
    text = "".join(checker.text)
    assert "<script>alert(1)</script>" in text
    assert found.signatures["BLEU"] in text
    assert checker.seen.count("details") == sum(not one.right for one in found.examples)
    assert "prefers-color-scheme: dark" in whole.read_text("utf-8")
    plain = markdown.read_text("utf-8")
    assert "<script>" not in plain
    assert "test\\|1.tsv" in plain
    assert f"| chrF | {found.metrics['chrF']:.2f} |" in plain
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["report.html", "report.md"]


def test_the_worst_come_first() -> None:
    found = evaluate(translator(), PAIRS)
    text = to_markdown(make_report(Subject("a", found), examples=5))
    shown = [int(number) - 1 for number in re.findall(r"### line (\d+)", text)]
    scores = [found.examples[number].score for number in shown]
    assert len(scores) == 5
    assert scores == sorted(scores)
    assert max(scores) <= min(
        example.score for number, example in enumerate(found.examples) if number not in shown
    )


def test_every_example_is_in_one_bucket_of_length() -> None:
    found = evaluate(translator(), PAIRS)
    page = make_report(Subject("a", found))
    [table] = next(section.tables for section in page.sections if section.title.startswith("By length"))
    assert sum(int(row[1]) for row in table.rows) == len(PAIRS)
    assert table.header == ("source words", "examples", "BLEU", "chrF", "exact match")
    assert [row[0] for row in table.rows] == ["1–5", "6–10"]
    lengths = (1, 50, 51, 100, 101, 999, 1000, 1001, 8000)  # of whole e-mails, too
    some = [replace(found.examples[0], source="word " * length) for length in lengths]
    parts = [(low, len(inside)) for low, _, inside in by_words(some)]
    assert parts == [(1, 1), (31, 1), (51, 2), (101, 1), (501, 2), (1001, 2)]


def test_a_report_on_two_bundles_and_on_labels() -> None:
    first, second = (evaluate(bundle, PAIRS) for bundle in (translator(), noisy(translator())))
    comparison = compare(first, second, resamples=20)
    page = make_report(Subject("old", first), Subject("new", second), comparison=comparison)
    text = to_markdown(page)
    assert "new better" in text
    assert "20 resamples" in text
    assert "**old**" in text
    assert "**new**" in text
    read(to_html(page))
    labels = evaluate(labeller("classify", ["good", "<bad>"]), [(text, "good") for text in ENGLISH])
    page = make_report(Subject("a", labels))
    assert any("Confusion matrix" in section.title for section in page.sections)
    checker = read(to_html(page))
    assert "bad" not in checker.seen
    language = make_report(Subject("a", evaluate(writer(), [("", "abc\n")])))
    assert [section.title for section in language.sections] == ["Figures"]


def test_numbers_are_judged_in_their_own_units() -> None:
    bundle = labeller("number", [])
    texts = [*ENGLISH, "the dog", "a bird"]
    given = regress(bundle, texts)
    rows = [(text, str(value + shift)) for text, value, shift in zip(texts, given, [3, -3] * 3, strict=True)]
    found = evaluate(bundle, rows)
    right = [float(target) for _, target in rows]
    assert found.metrics["Pearson"] == pytest.approx(pearson(right, given))
    assert found.metrics["mean absolute error"] == pytest.approx(3)
    assert found.metrics["mean squared error"] == pytest.approx(9)
    assert "mean absolute error" in to_markdown(make_report(Subject("one", found)))
    alike = evaluate(bundle, [(text, "7") for text in texts])
    assert "Pearson" not in alike.metrics
    assert "never changes" in alike.signatures["Pearson"]
    with pytest.raises(UserError, match="Row 2 has 'many' where a number should be"):
        evaluate(bundle, [("the", "1"), ("the", "many")])
