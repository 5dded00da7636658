"""Renders the answer to a line as text: plain, as an n-best list, with alignments, or as JSON.

Plain output has exactly one line for each line of the input, whatever the model wrote. Lines are counted
from 0, as in n-best lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding.alignment import END, alignment
from clearhead.decoding.text_requests import Written
from clearhead.jobs.lines import Answer

Links = list[tuple[int, int]]  # source word, target word; counted from 0


@dataclass(frozen=True)
class Format:
    """How answers are rendered. `text_of` completes the output, such as by the prompt before it."""

    as_json: bool = False
    nbest: bool = False
    aligned: Bundle | None = None  # the bundle whose attention aligns the words
    text_of: Callable[[str, Written], str] = lambda source, written: written.text
    source: str = "source"  # the JSON name of the input text

    def render(self, answer: Answer) -> str:
        """One answer, including newlines."""
        if self.as_json:
            return json.dumps(self._plain(answer), ensure_ascii=False, allow_nan=False) + "\n"
        if self.nbest:
            return "".join(self._ranked(answer, one) for one in answer.written)
        text = one_line(self.text_of(answer.source, answer.written[0]))
        if self.aligned is None:
            return f"{text}\n"
        # the column after the last tab is the alignment's
        return text.replace("\t", " ") + f"\t{pharaoh(self._links(answer.source, answer.written[0]))}\n"

    def _ranked(self, answer: Answer, one: Written) -> str:
        text = one_line(self.text_of(answer.source, one))
        links = "" if self.aligned is None else f" ||| {pharaoh(self._links(answer.source, one))}"
        return f"{answer.number} ||| {text} ||| {one.score:.6f}{links}\n"

    def _plain(self, answer: Answer) -> dict[str, Any]:
        best = answer.written[0]
        found = {"number": answer.number, self.source: answer.source, **self._facts(answer.source, best)}
        if self.nbest:
            found["nbest"] = [self._facts(answer.source, one) for one in answer.written]
        return found

    def _facts(self, source: str, one: Written) -> dict[str, Any]:
        found: dict[str, Any] = {
            "text": self.text_of(source, one),
            "score": _finite(one.score),
            "logp": _finite(one.logp),
            "tokens": list(one.tokens),
            "token_logps": [_finite(value) for value in one.token_logps],
            "stopped": one.stopped,
            "parts": one.parts,
        }
        if one.source_read is not None:  # the bundle reads only the beginning of a text this long
            found |= {"source_read": one.source_read, "source_tokens": one.source_tokens}
        return found if self.aligned is None else {**found, "alignment": self._links(source, one)}

    def _links(self, source: str, one: Written) -> Links | None:
        """Aligned words of both texts; None if unknown, as when a source was read in parts."""
        if self.aligned is None or not one.text.strip():
            return []
        try:
            return linked(self.aligned, source, one.text) if one.parts == 1 else None
        except UserError:  # longer than the model's positions, once it is tokenised again
            return None


def linked(bundle: Bundle, source: str, target: str) -> Links:
    """For each target word the source word with the most attention; stop symbols are left out."""
    found = alignment(bundle, source, target, words=True)
    columns = [i for i, word in enumerate(found.source) if not _ends(found.source, i, word)]
    links = []
    for j, (word, row) in enumerate(zip(found.target, found.weights, strict=True)):
        if columns and not _ends(found.target, j, word):
            links.append((max(columns, key=lambda i: row[i]), j))
    return links


def _ends(words: Sequence[str], place: int, word: str) -> bool:
    return place == len(words) - 1 and word == END


def pharaoh(links: Links | None) -> str:
    """Links in the format of word aligners; empty if there are none.

    >>> pharaoh([(0, 0), (2, 1)])
    '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for source, target in links or ())


def one_line(text: str) -> str:
    """A text without newlines, so lines can be counted.

    >>> one_line("one\\r\\ntwo\\n")
    'one two '
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def _finite(value: float) -> float | None:
    """Rounded to the precision of float32; None if not finite, as JSON has no infinity."""
    return round(value, 6) if math.isfinite(value) else None
