"""View 1 for a model that labels: what it says about a text, how certain it is, and which words matter.

For a text with a class or a number, words are left out one at a time and the rest is read again: exact, with
no gradient and no estimate. In a long text neighbouring words are left out together, as many as keep the work
within bounds, and the answer says how many. A tagger's answer is the tag of each word. Knows nothing about
the page.

Shapes: B texts, T tokens of a text, C labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.bundle.folder import framings_of
from clearhead.data.encoding import encode_words
from clearhead.decoding.labels import first_pieces, scale_of, scores_of, tag
from clearhead.explorer.inside import labels
from clearhead.explorer.reading import read_text
from clearhead.explorer.session import Session
from clearhead.explorer.tags import answer_name, likeliest
from clearhead.explorer.words import Plain
from clearhead.text.framing import Framed

TOKENS = 40_000  # most that all shortened texts together may have
FEWEST = 8  # parts of a text that are left out in any case
BATCH = 4096  # tokens per batch
SHOWN = 3  # most probable tags of a word

Span = tuple[int, int]  # characters of the text, from and to
Effect = Callable[[Tensor], Plain]  # from the scores without a part to what is reported


def verdict(session: Session, text: str) -> Plain:
    """A model's class or number for a text, and what that rests on, or each word's tag."""
    kind = session.config.head.kind
    if kind == "tag":
        return _tags_of(session, text)
    if kind not in ("classify", "number"):
        raise UserError("This model labels neither texts nor words: open a classifier or a tagger.")
    if session.family == "vision":  # a picture has no words to leave out
        said, _ = _class_of(session, session.trace(text).logits)
        return {"kind": kind, **said, "parts": [], "together": 1}
    spans, whole, changed = _left_out(session, text)
    said, effect = (_class_of if kind == "classify" else _number_of)(session, whole)
    untried = dict.fromkeys(effect(whole))  # nothing would be left to read
    parts = [
        {"text": text[begin:end], **(effect(changed[number]) if number in changed else untried)}
        for number, (begin, end) in enumerate(spans)
    ]
    words = [len(text[begin:end].split()) for begin, end in spans]
    return {"kind": kind, **said, "parts": parts, "together": max(words, default=1)}


# --- the class or the number of a text ----------------------------------------------------------


def _left_out(session: Session, text: str) -> tuple[list[Span], Tensor, dict[int, Tensor]]:
    """The parts of a text, the model's scores (C,) for all of it, and those without each part, by number."""
    ids = read_text(session.bundle, text)
    spans = _joined(_spans(session, text), most=max(TOKENS // len(ids), FEWEST))
    shortened = [_without(text, spans, number) for number in range(len(spans))]
    rows = {number: row for number, one in enumerate(shortened) if (row := _read(session, one)) is not None}
    framed = [Framed(list(row), [0] * len(row)) for row in (ids, *rows.values())]
    whole, *others = scores_of(session.bundle, framed, BATCH)
    return spans, whole, dict(zip(rows, others, strict=True))


def _number_of(session: Session, scores: Tensor) -> tuple[Plain, Effect]:
    """What the model says about a text, and what it would say with other scores."""
    mean, deviation = scale_of(session.bundle)
    whole = mean + deviation * float(scores)

    def effect(without: Tensor) -> Plain:
        number = mean + deviation * float(without)
        return {"support": whole - number, "number": number}

    return {"number": whole}, effect


def _class_of(session: Session, scores: Tensor) -> tuple[Plain, Effect]:
    names, whole = labels(session, session.config.head.classes), scores.log_softmax(-1)
    chosen = int(whole.argmax())
    shares = [{"label": name, "p": p} for name, p in zip(names, whole.exp().tolist(), strict=True)]

    def effect(without: Tensor) -> Plain:
        rest = without.log_softmax(-1)
        return {
            "support": float(whole[chosen] - rest[chosen]),  # positive: the part supports the label
            "p": float(rest[chosen].exp()),
            "label": names[int(rest.argmax())],
        }

    return {"label": names[chosen], "classes": sorted(shares, key=lambda one: -one["p"])}, effect


def _spans(session: Session, text: str) -> list[Span]:
    """Where the words are: between spaces or, in a text without any, what its tokens cover."""
    words = [found.span() for found in re.finditer(r"\S+", text)]
    if len(words) != 1:
        return words
    tokens = session.reader.backend.encode(text, add_special_tokens=False).offsets
    begins = sorted({begin for begin, end in tokens if text[begin:end].strip()} | {words[0][0]})
    return list(zip(begins, [*begins[1:], words[0][1]], strict=True))


def _joined(spans: list[Span], most: int) -> list[Span]:
    """Merge as many neighbours as leave at most so many parts.

    >>> _joined([(0, 2), (3, 5), (6, 8)], most=2)
    [(0, 5), (6, 8)]
    """
    size = max(1, math.ceil(len(spans) / most))
    groups = [spans[first : first + size] for first in range(0, len(spans), size)]
    return [(group[0][0], group[-1][1]) for group in groups]


def _without(text: str, spans: Sequence[Span], number: int) -> str:
    """The text without one part and the space after it.

    >>> _without("one two three", [(0, 3), (4, 7), (8, 13)], 1)
    'one three'
    """
    rest = text[spans[number + 1][0] :] if number + 1 < len(spans) else ""
    before = text[: spans[number][0]]
    return before + rest if rest else before.rstrip()


def _read(session: Session, text: str) -> tuple[int, ...] | None:
    if not text.strip():
        return None
    try:
        return read_text(session.bundle, text)
    except UserError:  # nothing is left of it after tokenisation
        return None


# --- the tags of words --------------------------------------------------------------------------


def _tags_of(session: Session, text: str) -> Plain:
    head = session.config.head
    names = labels(session, head.classes)
    best, chances = likeliest(session.trace(text).logits, head.columns, SHOWN)
    [tags] = tag(session.bundle, [text])
    pieces = encode_words(session.reader, text.split())
    firsts = first_pieces(pieces, len(framings_of(session.bundle).source.before))
    words = []
    for word, name, at in zip(text.split(), tags, firsts, strict=True):
        top: list[Plain] = []
        if at < len(best):  # a text is shown as far as training cut it, and tagged to its end
            pairs = zip(best[at].tolist(), chances[at].tolist(), strict=True)
            top = [{"label": answer_name(id, names, head.columns), "p": p} for id, p in pairs]
        words.append({"text": word, "tag": name, "top": top})
    return {"kind": "tag", "words": words}
