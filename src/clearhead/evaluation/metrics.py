"""How good written texts are compared with references: BLEU, chrF, exact match, ROUGE.

BLEU and chrF are sacreBLEU's, with the signature that says exactly how they were
computed. A text may have several references. Knows nothing about models.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from clearhead.base.errors import UserError
from clearhead.text.parts import Tokenisation

WORD = re.compile(r"[^\W_]+")
KINDS = ("1", "2", "L")  # of ROUGE

References = Sequence[str] | Sequence[Sequence[str]]  # one text for each output, or several


@dataclass(frozen=True)
class Score:
    """One number and how it was computed."""

    name: str
    value: float
    signature: str
    details: str = ""


class CorpusMetric:
    """A corpus metric: the sum of the statistics of each text determines the score.

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
        """The corpus score from summed statistics."""
        return float(self._metric._compute_score_from_stats([_whole(number) for number in total]).score)

    def __call__(self, outputs: Sequence[str], references: References) -> Score:
        """The corpus score, with signature and details."""
        if not outputs:
            raise UserError(f"There are no texts to compute {self.name} of: give at least one.")
        found = self._metric.corpus_score(outputs, _columns(outputs, references))
        details = found.format(width=1).partition(" = ")[2]
        return Score(self.name, float(found.score), str(self._metric.get_signature()), details)

    def sentences(self, outputs: Sequence[str], references: References) -> list[float]:
        """The score of each text by itself."""
        return [self.score(row) for row in self.statistics(outputs, references)]


def bleu_metric(
    tokenise: Tokenisation = "13a", lowercase: bool = False, sentence: bool = False
) -> CorpusMetric:
    """BLEU (Papineni et al. 2002). `tokenise="none"` on text that is already tokenised equals the output of
    fairseq and multi-bleu (smoothing matters only if an n-gram order has no match at all).

    `sentence`: for single texts; orders longer than the text are left out.
    """
    name = "tokenised BLEU" if tokenise == "none" else "BLEU"
    # force: no warning about text that looks tokenised, which is intended here
    metric = BLEU(tokenize=tokenise, lowercase=lowercase, effective_order=sentence, force=True)
    return CorpusMetric(name, metric)


def chrf_metric(lowercase: bool = False) -> CorpusMetric:
    """chrF (Popović 2015): F2 over character n-grams up to 6, without white space."""
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
    """Percentage of texts that equal one of their references; white space at the ends is ignored.

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
        raise UserError(
            f"There are {len(outputs)} outputs but {len(references)} references: give one list of "
            "references per output."
        )
    found = [[texts] if isinstance(texts, str) else list(texts) for texts in references]
    if not all(found):
        raise UserError(f"Text {found.index([]) + 1} has no reference to compare with.")
    return found


def _columns(outputs: Sequence[str], references: References) -> list[list[Any]]:
    """As sacreBLEU wants them: first references of all texts, then second ones; None if missing."""
    rows = several(outputs, references)
    count = max((len(row) for row in rows), default=1)
    return [[row[i] if i < len(row) else None for row in rows] for i in range(count)]


def _whole(number: Any) -> Any:
    """Sums of counts are integers, and sacreBLEU prints and compares them as such."""
    return int(number) if float(number).is_integer() else float(number)


def rouge(
    outputs: Sequence[str], references: References, *, stem: Callable[[str], str] | None = None
) -> dict[str, Score]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): how many of a summary's words a reference shares.

    The mean over texts of F1, 0 to 100; of several references the one with the highest F1 counts. Words are
    runs of letters and digits of any script, in lower case; there is no stemming unless a function for it is
    passed in. On ASCII text this is what the `rouge-score` package computes with `use_stemmer=False`.

    >>> found = rouge(["the cat sat"], ["the cat lay"])
    >>> [round(score.value, 1) for score in found.values()]
    [66.7, 50.0, 66.7]
    """
    stemmed = "no" if stem is None else "yes"
    found = {}
    for kind in KINDS:
        values = rouge_scores(outputs, references, kind, stem=stem)
        signature = f"texts:{len(values)}|f1:mean|case:lower|words:letters+digits|stem:{stemmed}|refs:best"
        value = 100.0 * sum(values) / len(values) if values else 0.0
        found[f"ROUGE-{kind}"] = Score(f"ROUGE-{kind}", value, signature)
    return found


def rouge_scores(
    outputs: Sequence[str],
    references: References,
    kind: str,
    *,
    stem: Callable[[str], str] | None = None,
) -> list[float]:
    """F1 of each text, 0 to 1; `kind` is a number of words, or L."""

    def score(output: str, reference: str) -> float:
        ours, theirs = words(output, stem), words(reference, stem)
        if kind == "L":
            return _f1(common_subsequence(ours, theirs), len(ours), len(theirs))
        mine, other = _ngrams(ours, int(kind)), _ngrams(theirs, int(kind))
        return _f1((mine & other).total(), mine.total(), other.total())

    pairs = zip(outputs, several(outputs, references), strict=True)
    return [max(score(output, text) for text in texts) for output, texts in pairs]


def words(text: str, stem: Callable[[str], str] | None = None) -> list[str]:
    """The words that are compared.

    >>> words("L'été, 2024: state_of-the-art!")
    ['l', 'été', '2024', 'state', 'of', 'the', 'art']
    """
    found = WORD.findall(text.lower())
    return found if stem is None else [stem(word) for word in found]


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, by Hyyrö's bit-parallel method.

    Bit i of `row` is 0 where the table of the textbook method rises by one at the i-th word of `first`,
    so one addition of long integers replaces a whole row of that table.

    >>> common_subsequence("a b c d".split(), "b d a c".split())
    2
    """
    places: dict[str, int] = {}
    for i, word in enumerate(first):
        places[word] = places.get(word, 0) | (1 << i)
    everything = (1 << len(first)) - 1
    row = everything
    for word in second:
        match = row & places.get(word, 0)
        row = ((row + match) | (row - match)) & everything
    return len(first) - row.bit_count()


def _ngrams(tokens: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))


def _f1(shared: int, ours: int, theirs: int) -> float:
    return 2.0 * shared / (ours + theirs) if shared else 0.0
