"""What a text must be, contain and not contain, as processors: choices, regexes, required and banned texts.

A constraint looks ahead: it rules out every token after which no valid end is possible within the limit, so
every search (greedy, sampling or beam) ends with a valid text. (A stop text needs no lookahead: the text ends
after it, and it is cut off.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clearhead.decoding.backend import Symbols
from clearhead.decoding.constraints.choices import Choosing
from clearhead.decoding.constraints.pieces import Pieces, pieces_of
from clearhead.decoding.constraints.text import StopTexts, TextConstraint
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Processor

__all__ = ["Pieces", "before_stop", "constraint_processors", "pieces_of", "until_stop"]


def constraint_processors(
    options: Options,
    symbols: Symbols,
    pieces: Pieces | None,
    limits: Sequence[int],
    prompts: Sequence[Sequence[int]] | None = None,
) -> list[Processor]:
    """The constraints of `options`; `limits` are those of the batch's requests, by number.

    `pieces` is the result of `pieces_of` for the vocabulary if `Options.about_text`; `prompts` are the
    prompts that texts continue, None if they have none. Contradictions that are visible before anything is
    written raise an error here.
    """
    if options.choices:  # these must satisfy all other options
        return [Choosing(options, symbols, limits, pieces or Pieces([]))]
    found: list[Processor] = []
    ends = options.regex is not None or bool(options.must_include)  # stop texts: see `TextConstraint`
    if ends or any(isinstance(one, str) for one in options.banned):
        found.append(TextConstraint(options, symbols, pieces or Pieces([]), limits, prompts))
    if options.stop_texts and not ends:
        before = [()] * len(limits) if prompts is None else prompts
        found.append(StopTexts(options.stop_texts, symbols, pieces or Pieces([]), before))
    return found


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of these strings.

    >>> before_stop("one. two. three", [" three", ". "])
    'one'
    """
    return text[: min((text.index(one) for one in stops if one in text), default=len(text))]


def until_stop(pieces: Iterator[str], stops: Sequence[str]) -> Iterator[str]:
    """A text that comes in pieces, up to the first of these strings; no part of one is ever let through.

    >>> list(until_stop(iter(["one.", " two", ". T", "hree"]), [". T"]))
    ['one', '. two']
    """
    seen, shown = "", 0
    for piece in pieces:
        seen += piece
        text = before_stop(seen, stops)
        ended = len(text) < len(seen)
        sure = len(text) if ended else len(seen) - _begun(seen, stops)
        if sure > shown:
            yield text[shown:sure]
            shown = sure
        if ended:
            return
    if seen[shown:]:
        yield seen[shown:]


def _begun(text: str, stops: Sequence[str]) -> int:
    """How many of the last characters may still become one of these strings."""
    return max((size for one in stops for size in range(1, len(one)) if text.endswith(one[:size])), default=0)
