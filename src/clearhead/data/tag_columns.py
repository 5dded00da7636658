"""Several tags per word, each from a separate column, and the names of such tags.

Columns are requested together: `target_column="upos,ner"`. From here on a tag carries the name of its column,
"upos=NOUN", so no two columns share a name, and a row's target lists the tags of each word together. Knows
nothing about files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from clearhead.base.errors import UserError, counted
from clearhead.data.columns import Row
from clearhead.data.config import CorpusConfig

MARK = "="


def columns_asked(corpus: CorpusConfig) -> list[str]:
    """The names of several tag columns; empty if there is only one.

    >>> columns_asked(CorpusConfig(file="a.conllu", target_column="upos, feats"))
    ['upos', 'feats']
    """
    names = [name.strip() for name in (corpus.target_column or "").split(",")]
    if len(names) < 2:
        return []
    if len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"'{corpus.target_column}' names no column of tags, or one of them twice: name each column once."
        )
    for name in names:
        if MARK in name or name.split() != [name]:
            raise UserError(f"A column of tags cannot be called '{name}': give its number instead.")
    return names


def side_by_side(each: Sequence[Iterator[Row]], names: Sequence[str], where: str) -> Iterator[Row]:
    """Merge the rows of several readings that differ only in their tags.

    >>> rows = [iter([Row("the cat", "DET NOUN", 1)]), iter([Row("the cat", "O B", 1)])]
    >>> next(side_by_side(rows, ["upos", "ner"], "")).target
    'upos=DET ner=O upos=NOUN ner=B'
    """
    for rows in zip(*each, strict=True):
        words, tags = rows[0].source.split(), [row.target.split() for row in rows]
        for name, these in zip(names, tags, strict=True):
            if len(these) != len(words):
                raise UserError(
                    f"{where} line {rows[0].line} has {counted(len(words), 'word')} but "
                    f"{counted(len(these), 'tag')} in the column '{name}': every word needs one tag."
                )
        named = ([f"{name}{MARK}{tag}" for tag in these] for name, these in zip(names, tags, strict=True))
        target = " ".join(tag for word in zip(*named, strict=True) for tag in word)
        yield Row(rows[0].source, target, rows[0].line)


def by_column(labels: Iterable[str]) -> dict[str, list[str]]:
    """The tags of each column, in order.

    >>> by_column(["upos=DET", "upos=NOUN", "ner=O"])
    {'upos': ['DET', 'NOUN'], 'ner': ['O']}
    """
    pairs = (label.partition(MARK)[::2] for label in labels)
    return {name: [tag for _, tag in group] for name, group in groupby(pairs, key=lambda pair: pair[0])}


def column_sizes(labels: Iterable[str]) -> tuple[int, ...]:
    """How many tags each column has."""
    return tuple(len(tags) for tags in by_column(labels).values())


def in_column(number: int, sizes: Sequence[int]) -> tuple[int, int]:
    """The column of a label, and its number there.

    >>> in_column(4, [3, 2])
    (1, 1)
    """
    for column, size in enumerate(sizes):
        if number < size:
            return column, number
        number -= size
    raise UserError(f"There is no label {number}: the columns have fewer labels than that.")
