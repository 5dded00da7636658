"""Which column is the text and which the answer, in a file or data set that has several.

A column is given by its name or number, or else found by common names, or else by its position. Values
become text here too, with a message for those that cannot. Knows nothing about files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from clearhead.base.errors import UserError, counted
from clearhead.data.config import CorpusConfig

_NUMBERING = {"id", "idx", "index", "guid", "no", "nr", "#"}  # never the text, unless requested by name
_NO_BREAK = {ord(space): None for space in "\u00a0\u2007\u202f"}  # inside a word, as in 10\u202f000
_LANGUAGES = frozenset(
    """
    ar bg cs da de el en es et fa fi fr hr hu it ja ko lt lv nl pl pt ro ru sk sl sv tr uk vi zh
    arabic bulgarian chinese croatian czech danish dutch english estonian finnish french german greek
    hungarian italian japanese korean latvian lithuanian persian polish portuguese romanian russian
    slovak slovene spanish swedish turkish ukrainian vietnamese
    """.split()  # noqa: SIM905 (sixty words are read more easily without sixty pairs of quotes)
)


class Row(NamedTuple):
    """One example as text, and the line it came from: the input (one text, or two), and the answer.

    The answer is a text, the name of a class, a tag for each word (both separated by spaces), or a number.
    A long text or document from which a model learns every token is a target without a source.
    """

    source: str
    target: str
    line: int  # from 1, in the file it was read from
    second: str | None = None  # if two texts are read together

    @property
    def texts(self) -> str:
        """The whole input as one text, for counting or comparing."""
        return self.source if self.second is None else f"{self.source}\n{self.second}"

    @property
    def pair(self) -> tuple[str | tuple[str, str], str]:
        """The input, and the answer."""
        return (self.source if self.second is None else (self.source, self.second)), self.target


@dataclass(frozen=True)
class Columns:
    """How the rows of a task are found in files: which columns, and what they contain.

    Column names are listed best first; if there are none for sources, rows have only a text.
    """

    task: str = ""  # its name in messages and stores
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    target: Literal["text", "class", "tags", "number"] = "text"
    noun: str = "examples"  # what rows are called
    languages: bool = False  # columns may be named after languages
    pairs: bool = False  # two texts may be read together
    music: bool = False  # rows are pieces of music, from MIDI files or chorales in JSON
    pictures: bool = False  # the inputs are pictures, not texts
    mixed: bool = False  # each corpus declares its kind of targets, all of which are written as text

    def of(self, corpus: CorpusConfig) -> Columns:
        """Those of one corpus, if each may have its own."""
        if not self.mixed:
            if corpus.answer != "text":
                raise UserError(
                    f"The task '{self.task}' already determines what targets are: leave 'answer' out, or "
                    "use the task 'text'."
                )
            return self
        kinds: dict[str, Literal["class", "number"]] = {"class": "class", "number": "number"}
        return replace(self, mixed=False, target=kinds.get(corpus.answer, "text"))

    @property
    def place(self) -> str:
        """What the number of a row counts in its file."""
        return "picture" if self.pictures else "line"

    @property
    def is_stream(self) -> bool:
        """Is there only a target: a long text, or documents?"""
        return not self.sources

    @property
    def writes(self) -> bool:
        """Are answers texts?"""
        return self.target == "text"

    @property
    def has_texts(self) -> bool:
        """Are both the source and the target texts?"""
        return self.writes and not self.is_stream

    @property
    def has_labels(self) -> bool:
        """Are answers a small set of names?"""
        return self.target in ("class", "tags")


NO_COLUMNS = Columns()  # of an encoding that is asked only about ids


class Pick(NamedTuple):
    """The columns of a row's texts, counted from 0; a stream has only a target."""

    source: int | None
    target: int
    second: int | None = None

    @property
    def widest(self) -> int:
        """The last column that is needed."""
        return max(place or 0 for place in self)

    @property
    def places(self) -> tuple[int | None, ...]:
        """The columns of the source, the target and, if there is one, the second text."""
        return self[:2] if self.second is None else self


def looks_like_header(cells: Sequence[str], corpus: CorpusConfig, columns: Columns) -> bool:
    """Whether the first line of a table names its columns.

    It does if a column was requested by name, if both the text and the answer have a known name, if one of
    two columns has, or if all columns are named after languages.

    >>> reviews = Columns(sources=("sentence", "text"), targets=("label",))
    >>> looks_like_header(["sentence", "label"], CorpusConfig(file="reviews.tsv"), reviews)
    True
    >>> looks_like_header(["It rains.", "weather"], CorpusConfig(file="reviews.tsv"), reviews)
    False
    """
    if not all(column.isdecimal() for column in asked(corpus)):
        return True
    names = [_plain(cell) for cell in cells]
    sources, targets = columns.sources, columns.targets
    known_source, known_target = _known(names, sources), _known(names, targets)
    if columns.is_stream:
        return known_target is not None
    if known_source is not None and known_target is not None:
        return known_source != known_target
    if len(names) == 2 and (names[0] in sources or names[1] in targets):
        return True
    return columns.languages and 2 <= len(set(names)) == len(names) and _LANGUAGES.issuperset(names)


def pick_columns(names: Sequence[str], corpus: CorpusConfig, columns: Columns, where: str) -> Pick:
    """Choose the columns of a row by their names, which are all empty if columns have none."""
    if columns.is_stream:
        return Pick(None, _pick_text(names, corpus, columns, where))
    if len(names) < 2:
        raise UserError(
            f"{where} has {counted(len(names), 'column')}, and the task '{columns.task}' needs two: a text "
            "and its answer."
        )
    named = (corpus.second_column, corpus.source_column, corpus.target_column)
    second, source, target = (None if one is None else find_column(one, names, where) for one in named)
    plain = [_plain(name) for name in names]
    if source is None:
        source = _known(plain, columns.sources, besides=target)
    if target is None:
        target = _known(plain, columns.targets, besides=source)
    places = [place for place, name in enumerate(plain) if name not in _NUMBERING and place != second]
    if source is None:
        source = next(place for place in (*places, *range(len(names))) if place != target)
    if target is None:
        target = next(place for place in (*places, *range(len(names))) if place != source)
    if source == target:
        raise UserError(f"The source and the target of {where} are the same column: name two different ones.")
    if second in (source, target):
        raise UserError(f"The second text of {where} needs a column of its own: name a different one.")
    return Pick(source, target, second)


def row_of(values: Sequence[Any], columns: Columns, where: str, line: int) -> Row:
    """A row from the values of a record: its source, its target, and its second text if it has one."""
    source, target, *second = values
    texts = [None if one is None else whole(text_of(one, columns, False, where)) for one in (source, *second)]
    return Row(texts[0] or "", whole(text_of(target, columns, True, where)), line, *texts[1:])


def text_of(value: Any, columns: Columns, answer: bool, where: str) -> str:
    """A value as text: a string, None, a list of words or tags, or a class or an answer as a number."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if columns.target == "tags" and isinstance(value, Sequence):
        return " ".join(_word(item, where) for item in value)
    if columns.target == "number" and answer and isinstance(value, (int, float)):
        return repr(value)
    if columns.target == "class" and answer:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
            return str(int(value))
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "…"
    raise UserError(f"{where} has {shown} where a text should be.")


def whole(text: str) -> str:
    """The text without lone surrogates, which JSON's escapes can write and UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def paths_of(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The columns of a record; each one inside a table, as in {"translation": {"en": …}}, counts separately.

    >>> paths_of({"id": 1, "translation": {"en": "yes", "fr": "oui"}})
    [('id',), ('translation', 'en'), ('translation', 'fr')]
    """
    paths: list[tuple[str, ...]] = []
    for name, value in record.items():
        if isinstance(value, Mapping) and value:
            paths += [(str(name), str(inner)) for inner in value]
        else:
            paths.append((str(name),))
    return paths


def at_path(record: Any, path: tuple[str, ...], where: str) -> Any:
    """The value of a column in a record."""
    if not isinstance(record, Mapping):
        raise UserError(f"{where} is not a JSON object, although the lines before it are.")
    value: Any = record
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            there = ", ".join(f"'{'.'.join(known)}'" for known in paths_of(record)) or "none"
            raise UserError(f"{where} has no column '{'.'.join(path)}'; its columns: {there}.")
        value = value[name]
    return value


def asked(corpus: CorpusConfig) -> list[str]:
    """The columns that were requested."""
    named = (corpus.source_column, corpus.second_column, corpus.target_column)
    return [column for column in named if column is not None]


def _pick_text(names: Sequence[str], corpus: CorpusConfig, columns: Columns, where: str) -> int:
    named = asked(corpus)
    if len(named) > 1:
        raise UserError(
            f"The task '{columns.task}' learns from one column: give 'source_column' or 'target_column'."
        )
    if named:
        return find_column(named[0], names, where)
    plain = [_plain(name) for name in names]
    known = _known(plain, columns.targets)
    if known is not None:
        return known
    return next((place for place, name in enumerate(plain) if name not in _NUMBERING), 0)


def find_column(column: str, names: Sequence[str], where: str) -> int:
    """The index of a column given by its name, its last name ("fr" of "translation.fr") or its number."""
    for shown in ([*names], [_plain(name) for name in names], [name.rpartition(".")[2] for name in names]):
        for wanted in (column, _plain(column)):
            if wanted in shown:
                return shown.index(wanted)
    if column.isdecimal() and len(column) < 10:
        if 1 <= int(column) <= len(names):
            return int(column) - 1
        raise UserError(
            f"{where} has no column {int(column)}: it has {counted(len(names), 'column')}, counted from 1."
        )
    there = (
        ", ".join(f"'{name}'" for name in names)
        if any(names)
        else "none of them has a name, so give a number"
    )
    raise UserError(f"{where} has no column '{column}'; its columns: {there}.")


def _known(names: Sequence[str], known: Sequence[str], besides: int | None = None) -> int | None:
    for name in known:
        if name in names and names.index(name) != besides:
            return names.index(name)
    return None


def _plain(name: str) -> str:
    return name.strip().casefold()


def _word(item: Any, where: str) -> str:
    text = str(item) if isinstance(item, (str, int)) and not isinstance(item, bool) else ""
    text = text.translate(_NO_BREAK)
    if text.split() != [text]:
        raise UserError(f"{where} has {item!r} in a list where one word or tag without spaces should be.")
    return text
