"""Files with one word per line, its tags in columns, and a blank line after each sentence (CoNLL).

`.conllu` files follow Universal Dependencies: ten named columns, comments, and lines for several words or
none, which are skipped. In all others the word comes first and its tag last, unless a column is requested.
"""

from __future__ import annotations

from collections.abc import Iterator

from clearhead.base.errors import UserError, counted
from clearhead.data.columns import Columns, Row, find_column
from clearhead.data.config import CorpusConfig
from clearhead.data.lines import OnRead, read_lines, without_gz

UNIVERSAL = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
DOCUMENT = "-DOCSTART-"  # a line of CoNLL-2003 that is not a word

Cells = tuple[int, list[str]]  # a line number and the cells found there


def read_conll(corpus: CorpusConfig, columns: Columns, on_read: OnRead | None) -> Iterator[Row]:
    """A row for each sentence, with the line number of its first word."""
    path = corpus.file
    assert path is not None
    if columns.target != "tags":
        raise UserError(f"'{path}' has one word with its tags per line: train on it with --task tag.")
    picked: tuple[int, int] | None = None
    width = 0  # columns of the first word
    for sentence in _sentences(path, on_read):
        words, tags = [], []
        for number, cells in sentence:
            if picked is None:
                picked, width = _pick(cells, corpus, path), len(cells)
            where = f"'{path}' line {number}"
            if len(cells) <= max(picked):
                raise UserError(
                    f"{where} has {counted(len(cells), 'column')}, but column {max(picked) + 1} is needed."
                )
            if len(cells) > width:
                raise UserError(
                    f"{where} has {len(cells)} columns, and the first word {width}: there is one "
                    "separator too many in it."
                )
            word, tag = ("".join(cells[place].split()) for place in picked)
            if not word or not tag:
                raise UserError(f"{where} has no {'tag' if word else 'word'}: every word needs one tag.")
            words.append(word)
            tags.append(tag)
        yield Row(" ".join(words), " ".join(tags), sentence[0][0])


def _pick(cells: list[str], corpus: CorpusConfig, path: str) -> tuple[int, int]:
    universal = without_gz(path) == ".conllu"
    names = list(UNIVERSAL) if universal else [""] * len(cells)
    source = corpus.source_column or ("form" if universal else "1")
    target = corpus.target_column or ("upos" if universal else str(len(cells)))
    found = find_column(source, names, f"'{path}'"), find_column(target, names, f"'{path}'")
    if found[0] == found[1]:
        raise UserError(f"The words and the tags of '{path}' are the same column: name two different ones.")
    return found


def _sentences(path: str, on_read: OnRead | None) -> Iterator[list[Cells]]:
    universal = without_gz(path) == ".conllu"
    sentence: list[Cells] = []
    for number, line in enumerate(read_lines(path, on_read), start=1):
        text = line.rstrip("\r\n")
        if not text.strip():
            if sentence:
                yield sentence
            sentence = []
            continue
        if universal and text.startswith("#"):
            continue
        cells = text.split("\t") if "\t" in text else text.split()
        if cells[0] == DOCUMENT or (universal and not cells[0].isdecimal()):
            continue
        sentence.append((number, cells))
    if sentence:
        yield sentence
