"""Musical events as notes: time, pitch, loudness, voice, and the events that make up each note.

Knows nothing about files or models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from clearhead.data.music import VOICES
from clearhead.text.events import BINS

STEP = 0.125  # seconds of a sixteenth, at 120 quarters per minute
LOUDNESS = 80  # of a chorale's notes, for which it is unknown
_EVENT = re.compile(r"([a-z]+)(\d*)")

Placed = tuple["Note", tuple[int, ...]]  # a note, and the positions of its events in the text
_Event = tuple[str, int, int]  # kind, number, position in the text


class Note(NamedTuple):
    """One note: when, in seconds, how high, how loud, and in which voice."""

    begin: float
    end: float
    pitch: int
    velocity: int = LOUDNESS
    voice: int = 0


def notes_of(text: str) -> list[Note]:
    """The notes of a text of events; those still held at the end, end there.

    The first event tells a chorale from a performance; events of the other kind are ignored.

    >>> notes_of("pitch60 rest rest rest pitch60 rest rest rest")
    [Note(begin=0.0, end=0.25, pitch=60, velocity=80, voice=0)]
    >>> notes_of("velocity16 on64 shift50 off64")
    [Note(begin=0.0, end=0.5, pitch=64, velocity=66, voice=0)]
    """
    return [note for note, _ in placed_notes(text.split())]


def placed_notes(words: Sequence[str]) -> list[Placed]:
    """The same from words, with the positions of the events that make up each note.

    >>> placed_notes(["<start>", "pitch60", "rest", "rest", "rest", "pitch60"])
    [(Note(begin=0.0, end=0.25, pitch=60, velocity=80, voice=0), (1, 5))]
    """
    found = [(_EVENT.fullmatch(word), place) for place, word in enumerate(words)]
    events = [(one[1], int(one[2] or 0), place) for one, place in found if one]
    steps = [event for event in events if event[0] in ("pitch", "rest")]
    first = events[0][0] if events else "on"
    return sorted(_chorale(steps) if first in ("pitch", "rest") else _performance(events))


def _chorale(events: Sequence[_Event]) -> list[Placed]:
    """A pitch that a voice keeps over consecutive steps is one note."""
    notes: list[Placed] = []
    for voice in range(VOICES):
        own = events[voice::VOICES]
        line = [number if kind == "pitch" else None for kind, number, _ in own]
        begin = 0
        for step in range(1, len(line) + 1):
            if step == len(line) or line[step] != line[begin]:
                pitch = line[begin]
                if pitch is not None:
                    places = tuple(place for _, _, place in own[begin:step])
                    notes.append((Note(begin * STEP, step * STEP, pitch, voice=voice), places))
                begin = step
    return notes


def _performance(events: Sequence[_Event]) -> list[Placed]:
    notes: list[Placed] = []
    sounding: dict[int, tuple[int, int, int]] = {}  # pitch → when it began, how loud, and where in the text
    now, velocity = 0, LOUDNESS
    for kind, number, place in [*events, *(("off", pitch, -1) for pitch in range(128))]:
        if kind == "shift":
            now += number
        elif kind == "velocity":
            velocity = number * 128 // BINS + 128 // BINS // 2
        elif kind in ("on", "off"):
            if number in sounding:
                begin, loud, start = sounding.pop(number)
                if now > begin:
                    places = (start,) if place < 0 or kind == "on" else (start, place)
                    notes.append((Note(begin / 100, now / 100, number, loud), places))
            if kind == "on":
                sounding[number] = now, velocity, place
    return notes
