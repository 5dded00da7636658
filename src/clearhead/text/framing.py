"""The special tokens around a text on its way into a model: before, between and after one text or two.

A `Framing` is plain data. It is stored in a bundle's metadata and, as the template
of its `tokenizer.json` (`post_processor`), in files of the `tokenizers` library: it
is read from imported files and written into exported ones. No torch; knows
nothing about tasks or bundles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from clearhead.base.config import Config
from clearhead.base.errors import UserError
from clearhead.text.tokenizer import Tokenizer

FIRST: Literal["A"] = "A"
SECOND: Literal["B"] = "B"
Slot = tuple[int | Literal["A", "B"], int]  # an id, or a placeholder for a text; and its segment

_INERT = ("ByteLevel",)  # processors that change only the offsets of tokens


class Framed(NamedTuple):
    """One text, or two, as a model reads them."""

    ids: list[int]
    segments: list[int]  # one per id: BERT's token types


@dataclass(frozen=True, kw_only=True)
class Framing(Config):
    """The ids around one text (`single`) and around two (`pair`), each with its segment.

    "A" and "B" are placeholders for the texts. An empty `pair` means that pairs are not supported.

    >>> bert = Framing(single=((101, 0), ("A", 0), (102, 0)))
    >>> bert.around([7, 8])
    [101, 7, 8, 102]
    """

    _noun: ClassVar[str] = "framing"

    single: tuple[Slot, ...] = ((FIRST, 0),)
    pair: tuple[Slot, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, slots, texts in (("single", self.single, [FIRST]), ("pair", self.pair, [FIRST, SECOND])):
            found = sorted(what for what, _ in slots if isinstance(what, str))
            if found != texts and (slots or name == "single"):
                places = " and ".join(f"'{text}'" for text in texts)
                raise UserError(f"The framing setting '{name}' must contain {places} exactly once.")
            if any(segment < 0 or (isinstance(what, int) and what < 0) for what, segment in slots):
                raise UserError(f"The framing setting '{name}' contains a negative number.")

    @classmethod
    def of(cls, before: int | None = None, after: int | None = None) -> Framing:
        """At most one id on either side of one text.

        >>> Framing.of(after=2).around([7, 8])
        [7, 8, 2]
        """
        front, back = ([] if id is None else [(id, 0)] for id in (before, after))
        return cls(single=(*front, (FIRST, 0), *back))

    def in_one_segment(self) -> Framing:
        """The same ids for a model without segments."""
        single, pair = (tuple((what, 0) for what, _ in slots) for slots in (self.single, self.pair))
        return Framing(single=single, pair=pair)

    @property
    def before(self) -> list[int]:
        """The ids before one text."""
        return [what for what, _ in self.single[: self._place] if isinstance(what, int)]

    @property
    def after(self) -> list[int]:
        """The ids after one text."""
        return [what for what, _ in self.single[self._place :] if isinstance(what, int)]

    @property
    def extra(self) -> int:
        """How many ids surround one text."""
        return len(self.single) - 1

    def around(self, ids: Sequence[int], limit: int | None = None) -> list[int]:
        """One text with the ids around it; the text is cut to give at most `limit` ids in all."""
        return self.around_each([ids], limit)[0]

    def around_each(self, texts: Iterable[Sequence[int]], limit: int | None = None) -> list[list[int]]:
        """Like `around`, for each of many texts."""
        before, after = self.before, self.after
        room = None if limit is None else max(limit - self.extra, 0)
        return [[*before, *ids[:room], *after] for ids in texts]

    def frame(self, first: Sequence[int], second: Sequence[int] | None = None) -> Framed:
        """One text, or two, with the ids around them and the segment of each id.

        >>> slots = ((101, 0), ("A", 0), (102, 0), ("B", 1), (102, 1))
        >>> Framing(pair=slots).frame([7, 8], [9])
        Framed(ids=[101, 7, 8, 102, 9, 102], segments=[0, 0, 0, 0, 1, 1])
        """
        if second is not None and not self.pair:
            raise UserError("This model reads one text at a time: it has no separator for a pair of texts.")
        found = Framed([], [])
        for what, segment in self.single if second is None else self.pair:
            ids = [what] if isinstance(what, int) else first if what == FIRST else second or []
            found.ids.extend(ids)
            found.segments.extend([segment] * len(ids))
        return found

    def check(self, vocabulary: int) -> None:
        """Refuse ids that are not in the vocabulary."""
        highest = max((what for what, _ in (*self.single, *self.pair) if isinstance(what, int)), default=0)
        if highest >= vocabulary:
            raise UserError(
                f"The framing uses the token id {highest}, but the vocabulary ends at {vocabulary - 1}."
            )

    @property
    def _place(self) -> int:
        return next(place for place, (what, _) in enumerate(self.single) if what == FIRST)


@dataclass(frozen=True, kw_only=True)
class Framings(Config):
    """The framings of a model's two sides; an encoder has only the source's.

    A decoder has only the target's, unless it translates: then the ids after the source are the separator
    that the target follows. A decoder that labels texts reads them as sources.

    The ids around a target are predicted as well: the decoder is fed the start symbol before all of it.
    Around a decoder's prompt they are read, like those of a source.
    """

    _noun: ClassVar[str] = "framing"

    source: Framing = Framing()
    target: Framing = Framing()

    @classmethod
    def stored(cls, noted: Any, source: int, target: int) -> Framings:
        """Those in a bundle's metadata, whose ids must be in vocabularies of these sizes."""
        try:
            found = cls.from_dict(noted, "framing")
            found.source.check(source)
            found.target.check(target)
        except UserError as error:
            raise UserError(f"The 'framing' in this bundle's metadata cannot be used: {error}") from error
        return found


# -- templates of the library ---------------------------------------------------------------------------


def template_of(tokenizer: Tokenizer) -> Framing | None:
    """The ids that a tokenizer's file puts around texts; None if it has no template.

    >>> template_of(Tokenizer.words("a b")) is None
    True
    """
    processor = tokenizer.backend.post_processor
    if processor is None:
        return None
    # only the processor's state: serialising the whole file with its vocabulary takes long
    processors = _processors(json.loads(processor.__getstate__()))
    framing = [one for one in processors if one["type"] not in _INERT]
    if not framing:
        return None
    if len(framing) > 1:
        raise UserError("This tokenizer nests one template inside another, which is not supported.")
    return _READERS[framing[0]["type"]](framing[0])


def with_template(tokenizer: Tokenizer, framing: Framing) -> Tokenizer:
    """The same tokenizer with this framing as its file's template.

    >>> again = with_template(Tokenizer.words("a b"), Framing.of(after=2))
    >>> again.encode("b a"), again.encode("b a", specials=True)
    ([5, 4], [5, 4, 2])
    """
    if template_of(tokenizer) == framing:
        return tokenizer
    plain = json.loads(tokenizer.to_json())
    kept = [one for one in _processors(plain.get("post_processor")) if one["type"] in _INERT]
    every = [*kept, _as_template(tokenizer, framing)]
    plain["post_processor"] = every[0] if len(every) == 1 else {"type": "Sequence", "processors": every}
    return type(tokenizer).from_json(json.dumps(plain, ensure_ascii=False))


def plain_framing(start: int | None, stop: int | None) -> Framing:
    """`<s> A </s>`, with either id optional, and the same around a second text, in a separate segment."""

    def around(text: Literal["A", "B"], segment: int) -> tuple[Slot, ...]:
        slots: tuple[int | Literal["A", "B"] | None, ...] = (start, text, stop)
        return tuple((what, segment) for what in slots if what is not None)

    return Framing(single=around(FIRST, 0), pair=(*around(FIRST, 0), *around(SECOND, 1)))


def bert_framing(start: int, stop: int) -> Framing:
    """`[CLS] A [SEP] B [SEP]`; the second text and the ids after it form the second segment."""
    single: tuple[Slot, ...] = ((start, 0), (FIRST, 0), (stop, 0))
    return Framing(single=single, pair=(*single, (SECOND, 1), (stop, 1)))


def roberta_framing(start: int, stop: int) -> Framing:
    """`<s> A </s></s> B </s>`, all of it in one segment."""
    single: tuple[Slot, ...] = ((start, 0), (FIRST, 0), (stop, 0))
    return Framing(single=single, pair=(*single, (stop, 0), (SECOND, 0), (stop, 0)))


def _processors(plain: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """A file's post-processors in order, with sequences flattened."""
    if plain is None:
        return []
    if plain["type"] == "Sequence":
        return [one for inner in plain["processors"] for one in _processors(inner)]
    if plain["type"] not in (*_INERT, *_READERS):
        raise UserError(f"This tokenizer has a post-processor '{plain['type']}', which is not supported.")
    return [plain]


def _from_template(plain: Mapping[str, Any]) -> Framing:
    ids = {name: token["ids"] for name, token in plain["special_tokens"].items()}

    def slots(pieces: Iterable[Mapping[str, Any]]) -> tuple[Slot, ...]:
        found: list[Slot] = []
        for piece in pieces:
            [(kind, inner)] = piece.items()
            if kind != "Sequence" and inner["id"] not in ids:
                raise UserError(
                    f"The template of this tokenizer names a token '{inner['id']}' that has no id."
                )
            what = [inner["id"]] if kind == "Sequence" else ids[inner["id"]]
            found += [(one, inner["type_id"]) for one in what]
        return tuple(found)

    return Framing(single=slots(plain["single"]), pair=slots(plain["pair"]))


def _as_template(tokenizer: Tokenizer, framing: Framing) -> dict[str, Any]:
    """The library's description, which requires a pair: without one, the second text follows everything."""
    pair = framing.pair or (*framing.single, (SECOND, 1))
    names = {what: tokenizer.token(what) for what, _ in (*framing.single, *pair) if isinstance(what, int)}

    def pieces(slots: Iterable[Slot]) -> list[dict[str, Any]]:
        return [
            {"SpecialToken": {"id": names[what], "type_id": segment}}
            if isinstance(what, int)
            else {"Sequence": {"id": what, "type_id": segment}}
            for what, segment in slots
        ]

    tokens = {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in names.items()}
    return {
        "type": "TemplateProcessing",
        "single": pieces(framing.single),
        "pair": pieces(pair),
        "special_tokens": tokens,
    }


_READERS: dict[str, Callable[[Mapping[str, Any]], Framing]] = {
    "TemplateProcessing": _from_template,
    "BertProcessing": lambda plain: bert_framing(plain["cls"][1], plain["sep"][1]),
    "RobertaProcessing": lambda plain: roberta_framing(plain["cls"][1], plain["sep"][1]),
}
