"""How good written texts are beside references: BLEU, chrF, exact match.

BLEU and chrF are sacreBLEU's, with the signature that says exactly how they were
computed. A text may have several references. Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from clearhead.base.errors import UserError
from clearhead.text.parts import Tokenisation

References = Sequence[str] | Sequence[Sequence[str]]  # one text for each output, or several


@dataclass(frozen=True)
class Score:
    """One number and how it was computed."""

    name: str
    value: float
    signature: str
    details: str = ""


class CorpusMetric:
    """A metric that is computed from sums over a corpus: statistics of each text, added up, give the score.

    `statistics` (texts, numbers) is all that resampling needs; `score` turns their sum into the number.
    """

    def __init__(self, name: str, metric: BLEU | CHRF) -> None:
        self.name = name
        self._metric = metric

    def statistics(self, outputs: Sequence[str], references: References) -> NDArray[np.float64]:
        """The sufficient statistics of each text."""
        columns = _columns(outputs, references)
        return np.array(self._metric._extract_corpus_statistics(outputs, columns), dtype=np.float64)

    def score(self, total: NDArray[np.float64]) -> float:
        """The corpus score from added-up statistics."""
        return float(self._metric._compute_score_from_stats([_whole(number) for number in total]).score)

    def __call__(self, outputs: Sequence[str], references: References) -> Score:
        """The corpus score, with signature and details."""
        if not outputs:
            raise UserError(f"{self.name} of no texts at all is not defined: give at least one.")
        found = self._metric.corpus_score(outputs, _columns(outputs, references))
        details = found.format(width=1).partition(" = ")[2]
        return Score(self.name, float(found.score), str(self._metric.get_signature()), details)

    def sentences(self, outputs: Sequence[str], references: References) -> list[float]:
        """The score of each text by itself."""
        return [self.score(row) for row in self.statistics(outputs, references)]


def bleu_metric(
    tokenise: Tokenisation = "13a", lowercase: bool = False, sentence: bool = False
) -> CorpusMetric:
    """BLEU (Papineni et al. 2002). `tokenise="none"` with text that is tokenised already gives what
    fairseq and multi-bleu print (smoothing matters only where an n-gram order has no match at all).

    `sentence`: for single texts; orders longer than the text are left out.
    """
    name = "tokenised BLEU" if tokenise == "none" else "BLEU"
    # force: no warning about text that looks tokenised; here it is meant
    metric = BLEU(tokenize=tokenise, lowercase=lowercase, effective_order=sentence, force=True)
    return CorpusMetric(name, metric)


def chrf_metric(lowercase: bool = False) -> CorpusMetric:
    """chrF (Popović 2015): F2 over character n-grams up to 6, white space left out."""
    return CorpusMetric("chrF", CHRF(lowercase=lowercase))


def bleu(
    outputs: Sequence[str],
    references: References,
    *,
    tokenise: Tokenisation = "13a",
    lowercase: bool = False,
) -> Score:
    """Corpus BLEU, 0 to 100.

    >>> found = bleu(["the cat sat on the mat"], ["the cat sat on the mat"])
    >>> round(found.value, 1), found.signature.split("|")[:3]
    (100.0, ['nrefs:1', 'case:mixed', 'eff:no'])
    """
    return bleu_metric(tokenise, lowercase)(outputs, references)


def chrf(outputs: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """Corpus chrF, 0 to 100.

    >>> round(chrf(["the cat"], ["the cat", "x"][:1]).value)
    100
    """
    return chrf_metric(lowercase)(outputs, references)


def exact_match(outputs: Sequence[str], references: References) -> Score:
    """Share of texts that equal one of their references, in per cent; white space at the ends is left out.

    >>> exact_match(["a b", "c"], ["a b ", "d"]).value
    50.0
    """
    right = exact_matches(outputs, references)
    value = 100.0 * sum(right) / len(right) if right else 0.0
    return Score("exact match", value, f"texts:{len(right)}|case:mixed|strip:ends")


def exact_matches(outputs: Sequence[str], references: References) -> list[bool]:
    """For each text, whether it equals one of its references."""
    return [
        output.strip() in [text.strip() for text in texts]
        for output, texts in zip(outputs, several(outputs, references), strict=True)
    ]


def several(outputs: Sequence[str], references: References) -> list[list[str]]:
    """The references of each text as a list, checked."""
    if len(outputs) != len(references):
        raise UserError(f"There are {len(outputs)} outputs, but {len(references)} references.")
    found = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    if not all(found):
        raise UserError(f"Text {found.index([]) + 1} has no reference to be compared with.")
    return found


def best_of(
    score: Callable[[str, str], float], outputs: Sequence[str], references: References
) -> list[float]:
    """Each text's score against the reference that suits it best."""
    pairs = zip(outputs, several(outputs, references), strict=True)
    return [max(score(output, text) for text in texts) for output, texts in pairs]


def _columns(outputs: Sequence[str], references: References) -> list[list[Any]]:
    """As sacreBLEU wants them: first references of all texts, then second ones; None where there is none."""
    rows = several(outputs, references)
    count = max((len(row) for row in rows), default=1)
    return [[row[i] if i < len(row) else None for row in rows] for i in range(count)]


def _whole(number: Any) -> Any:
    """Sums of counts are whole numbers, and sacreBLEU prints and compares them as such."""
    return int(number) if float(number).is_integer() else float(number)
