"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004): how much of a summary's words a reference shares.

All are F1 of precision and recall, for one text at a time; a corpus score is the
mean over texts, in per cent. Of several references the one with the highest F1
counts. Words are runs of letters and digits of any script, in lower case; there
is no stemming unless a function for it is handed in. On ASCII text this is what
the `rouge-score` package computes with `use_stemmer=False`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from clearhead.evaluation.metrics import References, Score, best_of

WORD = re.compile(r"[^\W_]+")
KINDS = ("1", "2", "L")


def rouge(
    outputs: Sequence[str], references: References, *, stem: Callable[[str], str] | None = None
) -> dict[str, Score]:
    """Mean F1 of each kind over all texts, 0 to 100.

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

    return best_of(score, outputs, references)


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
    so that one addition of long integers stands for a whole row of that table.

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
