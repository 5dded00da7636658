"""Music files as rows of event words: MIDI files, folders of them, and chorales in JSON.

A chorale file is {"train": [piece, …], "valid": …, "test": …} or a list of pieces; a piece is a list of
steps, and a step a list of at most four MIDI pitches, one per voice (−1: silent). Steps with fewer than four
are filled with rests. MIDI files give notes and their velocities; the sustain pedal prolongs notes, and other
pedals and drums are ignored.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from clearhead.base.errors import UserError
from clearhead.base.reading import Malformed, Unreadable, parse_json, read_bytes
from clearhead.data.columns import Row, asked
from clearhead.data.config import CorpusConfig
from clearhead.data.lines import OnRead, check_file, is_hidden, megabytes, without_gz
from clearhead.data.notes import Note, played
from clearhead.text.events import PITCHES, VOICES

MIDI = (".mid", ".midi")
LARGEST = 1 << 30  # bytes of a file, which is read whole
_LONGEST = 24 * 3600  # seconds in a MIDI file
_DRUMS = 9  # the channel where note numbers are instruments
_PEDAL = 64  # the controller that holds notes, from 64 on
_SILENCE = (120, 123)  # the controllers that end all notes of a channel
_SHAPE = (
    'give {"train": [piece, …]} or [piece, …], where a piece is a list of steps and a step a list of at most '
    "four MIDI pitches"
)


def midi_files(folder: str) -> list[str]:
    """The MIDI files in a folder and below, in the order of their names, without hidden ones."""
    found = (path for path in Path(folder).rglob("*") if without_gz(path) in MIDI and path.is_file())
    return sorted(str(path) for path in found if not is_hidden(path, Path(folder)))


def kind_of(event: str) -> str:
    """Whether an event is one of chorales or of performances.

    >>> kind_of("pitch60"), kind_of("on60")
    ('chorales', 'performances')
    """
    return "chorales" if event.startswith(("pitch", "rest")) else "performances"


def kinds_learned(recipe: Any) -> list[str]:
    """Which kinds of music a run read, by its settings; both, if they do not say it."""
    try:
        files = [one["file"] for one in recipe["data"]["train"]]
        found = {"chorales" if without_gz(file) == ".json" else "performances" for file in files}
    except (TypeError, KeyError):  # a bundle of which the origin is unknown
        found = set()
    return sorted(found) or ["chorales", "performances"]


def read_music(corpus: CorpusConfig, on_read: OnRead | None = None) -> Iterator[Row]:
    """The pieces of a corpus, one per row. A chorale file's part ("valid") is requested like a column."""
    named = asked(corpus)
    if corpus.file is None or len(named) > 1:
        raise UserError(
            "The task 'music' learns from one file or folder: give a .mid file, a folder of them, or "
            "chorales in .json, of which 'target_column' may name a part."
        )
    if without_gz(corpus.file) == ".json":
        pieces = chorales(corpus.file, named[0] if named else None)
        yield from (Row("", piece, number) for number, piece in enumerate(pieces, start=1))
        if on_read is not None:
            on_read(megabytes(corpus.file))
        return
    files = midi_files(corpus.file) if Path(corpus.file).is_dir() else [corpus.file]
    if not files:
        raise UserError(f"There is no .mid file in the folder '{corpus.file}'.")
    if named:
        raise UserError(f"'{corpus.file}' is read as a whole and has no parts: leave the column out.")
    for number, path in enumerate(files, start=1):
        yield Row("", performance(path), number)
        if on_read is not None:
            on_read(megabytes(path))


# -- chorales ---------------------------------------------------------------------------------------------


def chorales(path: str, part: str | None = None) -> list[str]:
    """The pieces of a chorale file, all of them or those of one part, as words."""
    try:
        found = parse_json(_bytes_of(path))
    except Malformed as error:
        raise UserError(f"'{path}' cannot be read: {error}.") from error
    if isinstance(found, dict):
        if part is not None and part not in found:
            known = ", ".join(f"'{name}'" for name in found) or "none"
            raise UserError(f"'{path}' has no part '{part}'; its parts: {known}.")
        found = [
            piece
            for name, pieces in found.items()
            if part in (None, name)
            for piece in _listed(pieces, path, f"part '{name}'")
        ]
    elif part is not None:
        raise UserError(f"'{path}' is one list of pieces and has no part '{part}': leave the column out.")
    words = [_chorale(piece, path, f"piece {n}") for n, piece in enumerate(_listed(found, path, "it"), 1)]
    if not any(words):
        raise UserError(f"'{path}' contains no music: {_SHAPE}.")
    return words


def _chorale(piece: Any, path: str, where: str) -> str:
    words: list[str] = []
    for number, step in enumerate(_listed(piece, path, where), start=1):
        notes = _listed(step, path, f"step {number} of {where}")
        if len(notes) > VOICES:
            raise _misshaped(path, f"step {number} of {where} has {len(notes)} notes")
        for note in notes:
            whole = isinstance(note, (int, float)) and not isinstance(note, bool) and note == int(note)
            if not whole or not -1 <= note < PITCHES:
                raise _misshaped(path, f"step {number} of {where} has {note!r:.40} where a pitch should be")
            words.append("rest" if note < 0 else f"pitch{int(note)}")
        words += ["rest"] * (VOICES - len(notes))
    return " ".join(words)


def _listed(value: Any, path: str, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _misshaped(path, f"{where} is not a list")
    return value


def _misshaped(path: str, what: str) -> UserError:
    return UserError(f"'{path}' does not hold chorales, as {what}: {_SHAPE}.")


# -- performances -----------------------------------------------------------------------------------------


def mido_library() -> Any:
    """The package that reads and writes MIDI, imported when it is needed."""
    try:
        import mido
    except ImportError as error:
        raise UserError("MIDI files need the package mido: pip install 'clearhead[music]'") from error
    return mido


class _Keys:
    """The keys that are down in each channel, and the notes that they make."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._down: dict[tuple[int, int], tuple[float, int]] = {}  # channel, pitch → begin, velocity
        self._released: set[tuple[int, int]] = set()  # keys whose notes the pedal holds
        self._pedals: set[int] = set()
        self._struck: dict[tuple[int, int], float] = {}  # when a key that was down was struck again

    def take(self, message: Any, now: float) -> None:
        """Note on, note off, or a controller."""
        channel = message.channel
        if message.type == "control_change":
            if message.control == _PEDAL and message.value >= 64:
                self._pedals.add(channel)
            elif message.control == _PEDAL:
                self._pedals.discard(channel)
                self.end(now, [key for key in self._released if key[0] == channel])
            else:
                self.end(now, [key for key in self._down if key[0] == channel])
            return
        key = (channel, message.note)
        if message.type == "note_on" and message.velocity > 0:
            if key in self._down and key not in self._released:
                self._struck[key] = now
            self.end(now, [key])
            self._down[key] = now, message.velocity
        elif self._struck.pop(key, None) == now:
            pass  # the end of the note before, which has ended already
        elif channel in self._pedals:
            self._released.add(key)
        else:
            self.end(now, [key])

    def end(self, now: float, keys: Iterable[tuple[int, int]] | None = None) -> None:
        """End the notes of these keys, or all."""
        for key in list(self._down) if keys is None else keys:
            self._released.discard(key)
            if key in self._down:
                begin, velocity = self._down.pop(key)
                self.notes.append(Note(begin, now, key[1], velocity, key[0]))


def midi_notes(path: str, in_tempo: bool = True) -> list[Note]:
    """The notes of a MIDI file, in the voices of their channels, as long as the pedal holds them.

    Without `in_tempo`, at 120 quarters per minute.
    """
    mido, data = mido_library(), _bytes_of(path)
    if not data.startswith(b"MThd"):
        raise UserError(f"'{path}' is not a MIDI file: give another, or leave it out.")
    keys, seconds, now = _Keys(), 0.0, 0.0
    try:
        file = mido.MidiFile(file=io.BytesIO(data), clip=True)
        if file.ticks_per_beat < 0:
            raise UserError(
                f"'{path}' counts time in frames of film (SMPTE), not in ticks per quarter: export it again."
            )
        for track in [] if in_tempo else file.tracks:
            track[:] = [one.copy(tempo=500_000) if one.type == "set_tempo" else one for one in track]
        for message in file:
            seconds += message.time
            controls = message.type == "control_change" and message.control in (_PEDAL, *_SILENCE)
            if not (controls or message.type in ("note_on", "note_off")) or message.channel == _DRUMS:
                continue
            if seconds > _LONGEST:
                raise UserError(
                    f"'{path}' holds more than a day of music: it is damaged, or not a piece of music."
                )
            now = seconds
            keys.take(message, now)
    except UserError:
        raise
    except EOFError as error:
        raise UserError(f"The MIDI file '{path}' is truncated: download it again.") from error
    except Exception as error:  # the library raises various errors
        raise UserError(
            f"'{path}' is not a readable MIDI file ({error or 'damaged'}): export it again, or leave it out."
        ) from error
    keys.end(now)
    if not keys.notes:
        raise UserError(f"'{path}' contains no notes: leave it out.")
    return keys.notes


def performance(path: str) -> str:
    """The notes of a MIDI file as words."""
    return played(midi_notes(path))


def _bytes_of(path: str) -> bytes:
    check_file(path)
    try:
        data = read_bytes(path, LARGEST)
        if path.lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise UserError(
                    f"'{path}' has more than {LARGEST:,} bytes, which is too large for a piece of music."
                )
    except Unreadable as error:
        raise UserError(f"'{path}' cannot be read: {error.reason}.") from error
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"'{path}' is damaged and cannot be unpacked: download it again.") from error
    return data
