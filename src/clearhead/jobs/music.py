"""The output of a music model, as a MIDI file and as a picture of a piano roll."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from clearhead.base.atomic import atomic_write_bytes
from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.data.lines import without_gz
from clearhead.data.music import MIDI, kind_of, kinds_learned, midi_notes, mido_library, performance
from clearhead.data.notes import Note, in_steps
from clearhead.text.events import WORDS

_KNOWN = frozenset(WORDS)
TICKS = 960  # per second: 480 per quarter
_HOW = {
    "chorales": "pitch60 or rest for each of four voices",
    "performances": "on60, off60, shift50 and velocity20",
}


def prompt_of(bundle: Bundle, prompt: str) -> str:
    """A prompt of a music model as events, which a MIDI file can hold; other models' prompts as they are."""
    if bundle.metadata.get("task") != "music":
        return prompt
    kinds = kinds_learned(bundle.metadata.get("recipe"))
    if without_gz(prompt) in MIDI:
        alone = kinds == ["chorales"]
        return in_steps(midi_notes(prompt, in_tempo=False)) if alone else performance(prompt)
    for word in prompt.split():
        if word not in _KNOWN or kind_of(word) not in kinds:
            raise UserError(
                f"Music is written in events, and '{word:.40}' is not one that this model has learned: write "
                f"{', or '.join(_HOW[kind] for kind in kinds)}; or name a MIDI file."
            )
    return prompt


def check_place(path: Path, endings: Sequence[str], force: bool) -> None:
    """Refuse, before anything is computed, a file that cannot be written."""
    if path.suffix.lower() not in endings:
        raise UserError(f"'{path}' must end in {' or '.join(endings)}.")
    if path.is_dir():
        raise UserError(f"'{path}' is a folder: name a file in it.")
    if path.exists() and not force:
        raise UserError(f"'{path}' already exists: give --force to replace it, or another name.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"There is no folder '{path.absolute().parent}' to write into: create it first.")
    if endings == MIDI:
        mido_library()


def write_midi(path: Path, notes: Sequence[Note]) -> None:
    """A MIDI file with a track for each voice."""
    mido = mido_library()
    file = mido.MidiFile(type=1, ticks_per_beat=TICKS // 2)  # at MIDI's default of 120 quarters per minute
    for voice in range(1 + max((note.voice for note in notes), default=0)):
        track = mido.MidiTrack()
        file.tracks.append(track)
        own = [note for note in notes if note.voice == voice]
        # ends come before starts at the same time, so a note can be repeated
        events = [(round(note.begin * TICKS), 1, note.pitch, note.velocity) for note in own]
        events += [(round(note.end * TICKS), 0, note.pitch, 0) for note in own]
        now = 0
        for time, starts, pitch, velocity in sorted(events):
            kind = "note_on" if starts else "note_off"
            track.append(mido.Message(kind, channel=voice, note=pitch, velocity=velocity, time=time - now))
            now = time
    buffer = io.BytesIO()
    file.save(file=buffer)
    atomic_write_bytes(path, buffer.getvalue())


def draw_roll(path: Path, notes: Sequence[Note], given: float = 0.0) -> None:
    """A picture of the notes, time to the right and pitch upwards; the `given` part is on grey."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    ends = max((note.end for note in notes), default=1.0)
    figure = Figure(figsize=(min(max(6.0, ends * 0.6), 40.0), 4.0), layout="constrained")
    axes = figure.add_subplot()
    voices = {note.voice for note in notes}
    labels = {voice: f"voice {voice + 1}" for voice in sorted(voices)} if len(voices) > 1 else {}
    for note in sorted(notes, key=lambda note: note.voice):
        axes.barh(
            note.pitch,
            note.end - note.begin,
            left=note.begin,
            height=0.9,
            color=f"C{note.voice}",
            alpha=0.35 + 0.65 * note.velocity / 127,
            edgecolor="white",
            linewidth=0.3,
            label=labels.pop(note.voice, None),
        )
    if given:
        axes.axvspan(0, given, color="0.9", zorder=0, label="given")
    axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if given or len(voices) > 1:
        figure.legend(loc="outside upper right", ncols=5, frameon=False)
    axes.set(xlabel="seconds", ylabel="MIDI pitch (60 is middle C)", xlim=(0, ends))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    atomic_write_bytes(path, buffer.getvalue())
