"""A griffe extension: what our docstrings and comments say, in the form that mkdocstrings shows.

Examples become fenced blocks, which Markdown would take for quotations. A field's comment becomes its
description. Loaded by mkdocs.yml; knows nothing about what is described.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

EXAMPLE = re.compile(r"^( *)>>> .*?(?=^\s*$|\Z)", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"\s# (.+)$")


class Descriptions(Extension):
    """Fence every run of `>>>` lines, and describe the fields of configs by the comments on their lines."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe for every object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_attribute(self, *, attr: Attribute, **_: Any) -> None:
        """Called by griffe for every attribute that it has read."""
        found = COMMENT.search(attr.source) if attr.docstring is None and attr.lineno else None
        if found is not None:
            attr.docstring = Docstring(found[1], lineno=attr.lineno, parent=attr)


def fenced(text: str) -> str:
    """The docstring with each example inside a fence, at the example's own indentation."""
    return EXAMPLE.sub(lambda found: f"{found[1]}```python\n{found[0].rstrip()}\n{found[1]}```\n", text)
