"""Musical events as notes (time, pitch, loudness, voice), and notes as events.

Knows nothing about files or models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clearhead.base.errors import UserError
from clearhead.text.events import BINS, SHIFTS, VOICES

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


def played(notes: Iterable[Note]) -> str:
    """Notes as the events of a performance, in hundredths of a second.

    Every note lasts at least one of them. A pitch sounds once at a time: a note ends where the next one of
    its pitch begins, which then lasts as long as the longer of the two. At the same time, notes end before
    others begin, from low to high.

    >>> played([Note(0.0, 0.5, 64), Note(0.0, 1.2, 60)])
    'velocity20 on60 on64 shift50 off64 shift70 off60'
    """
    lines: dict[int, list[tuple[int, int, int]]] = {}  # pitch → the begin, end and velocity of its notes
    for note in sorted(notes):
        begin, line, loud = round(100 * note.begin), lines.setdefault(note.pitch, []), note.velocity
        end = max(round(100 * note.end), begin + 1)
        if line and line[-1][1] > begin:
            earlier, later, before = line.pop()
            if earlier < begin:
                line.append((earlier, begin, before))
            else:
                loud = max(loud, before)
            end = max(end, later)
        line.append((begin, end, loud))
    changes = [
        change
        for pitch, line in lines.items()
        for begin, end, loud in line
        for change in ((begin, 1, pitch, loud * BINS // 128), (end, 0, pitch, 0))
    ]
    words: list[str] = []
    now, bin = 0, -1
    for time, starts, pitch, loud in sorted(changes):
        seconds, rest = divmod(time - now, SHIFTS)
        words += ["shift100"] * seconds + ([f"shift{rest}"] if rest else [])
        now = time
        if starts and loud != bin:
            words.append(f"velocity{loud}")
            bin = loud
        words.append(f"on{pitch}" if starts else f"off{pitch}")
    return " ".join(words)


def in_steps(notes: Iterable[Note]) -> str:
    """Notes as the events of a chorale, at 120 quarters per minute.

    The notes keep their voices where these are the first four and sing one note at a time; otherwise the
    voices of each step are its notes from high to low.

    >>> in_steps([Note(0.0, 0.25, 72), Note(0.125, 0.25, 48, voice=3)])
    'pitch72 rest rest rest pitch72 rest rest pitch48'
    """
    steps: list[list[Note]] = []
    for note in sorted(notes):
        begin = round(note.begin / STEP)
        end = max(round(note.end / STEP), begin + 1)
        steps += [[] for _ in range(len(steps), end)]
        for step in steps[begin:end]:
            step.append(note)
    for number, step in enumerate(steps):
        if len(step) > VOICES:
            raise UserError(
                f"A chorale has at most four notes at a time, and the piece has {len(step)} after "
                f"{number / 4:g} quarters: leave out voices."
            )
    parted = all(len({note.voice for note in step} & set(range(VOICES))) == len(step) for step in steps)
    words: list[str] = []
    for step in steps:
        falling = sorted(step, key=lambda note: -note.pitch)
        sung = {note.voice if parted else place: note.pitch for place, note in enumerate(falling)}
        words += [f"pitch{sung[voice]}" if voice in sung else "rest" for voice in range(VOICES)]
    return " ".join(words)
