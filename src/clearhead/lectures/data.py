"""The worked examples of the lectures as data: `sources.toml` has what the slides give and print."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Source:
    """One example as a slide gives it."""

    deck: str
    title: str
    about: str
    inputs: Mapping[str, Any]
    printed: Mapping[str, Any] = field(default_factory=dict)
    erratum: str | None = None  # what the slide has wrong, and what is right


_READ = tomllib.loads(files(__package__).joinpath("sources.toml").read_text("utf-8"))
SOURCES: dict[str, Source] = {name: Source(**table) for name, table in _READ.items()}
