"""Which request is which part of which text, and what was written for it. Knows nothing about models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from clearhead.decoding.split_long_sources import Parts
from clearhead.decoding.steps import Hypothesis

NOTHING = Parts((), ("",))  # of an empty text


@dataclass
class Source:
    """A text in the parts in which it is read, and what was written for each so far."""

    number: int
    parts: Parts
    answers: dict[int, list[Hypothesis]] = field(default_factory=dict)  # by part
    head: tuple[int, int] | None = None  # tokens read and tokens there are, where only the head is read


@dataclass
class Book:
    """Which request is which part of which text."""

    sources: dict[int, Source] = field(default_factory=dict)  # by number, those under way
    owner: dict[int, tuple[int, int]] = field(default_factory=dict)  # request → its text and which part
    nothing: list[int] = field(default_factory=list)  # texts without any part
    requests: int = 0

    def expect(self, number: int, parts: Parts) -> None:
        """Text `number` comes in these parts; their requests follow each other."""
        if not parts.texts:
            self.nothing.append(number)
            return
        self.sources[number] = Source(number, parts)
        for part in range(len(parts.texts)):
            self.owner[self.requests] = (number, part)
            self.requests += 1

    def take(self, request: int, found: list[Hypothesis]) -> Source | None:
        """A text whose last part this was, with the answers to all its parts."""
        number, part = self.owner.pop(request)
        source = self.sources[number]
        source.answers[part] = found
        return self.sources.pop(number) if len(source.answers) == len(source.parts.texts) else None

    def empty(self) -> Iterator[int]:
        """Texts without any part, each told once: nothing is written for them."""
        while self.nothing:
            yield self.nothing.pop(0)
