"""How good a model is: metrics, losses, comparisons of two bundles, reports.

Gets bundles and texts and uses `decoding` to run them. Knows nothing about
training: whoever wires a run makes a validator from this and hands it over.
"""

from __future__ import annotations

from clearhead.evaluation.bootstrap import Bootstrap, bootstrap_scores, bootstrap_texts
from clearhead.evaluation.classes import Confusion
from clearhead.evaluation.evaluate import Evaluation, EvaluationConfig, Example, Judge, compare
from clearhead.evaluation.loss import Loss, batches_loss, corpus_loss
from clearhead.evaluation.metrics import Score, bleu, chrf, exact_match
from clearhead.evaluation.render import to_html, to_markdown
from clearhead.evaluation.report import Subject, make_report, write_report
from clearhead.evaluation.rouge import rouge

__all__ = [
    "Bootstrap",
    "Confusion",
    "Evaluation",
    "EvaluationConfig",
    "Example",
    "Judge",
    "Loss",
    "Score",
    "Subject",
    "batches_loss",
    "bleu",
    "bootstrap_scores",
    "bootstrap_texts",
    "chrf",
    "compare",
    "corpus_loss",
    "exact_match",
    "make_report",
    "rouge",
    "to_html",
    "to_markdown",
    "write_report",
]
