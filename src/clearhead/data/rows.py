"""One example as text, on its way from a file to a store."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A pair of texts and the line it came from.

    translate, summarise: source and target. classify: a text and the name of its class. tag: words and
    their tags, both separated by spaces. generate: an empty source and a document, or a piece of one.
    """

    source: str
    target: str
    line: int  # from 1, in the file it was read from


IGNORED = -100  # a place where nothing is to be predicted: padding, and pieces inside a tagged word
