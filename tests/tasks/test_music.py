"""Music from its files to pieces that a model writes."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.cli.main import main
from clearhead.data.batch import Widths
from clearhead.data.columns import Columns
from clearhead.data.config import CorpusConfig
from clearhead.data.encoding import Specials
from clearhead.data.encodings import Pieces
from clearhead.data.music import chorales, midi_files, midi_notes, performance, read_music
from clearhead.data.notes import STEP, Note, in_steps, notes_of, played
from clearhead.data.plan import Draw
from clearhead.data.ragged import Ragged
from clearhead.data.read import check_corpus
from clearhead.explorer.session import PIECES, Session
from clearhead.jobs.music import draw_roll, write_midi
from clearhead.jobs.train import resume, train
from clearhead.tasks import TASKS
from clearhead.text.events import SIZE, WORDS, events_tokenizer, pitches

from ..jobs.making import TINY
from ..jobs.test_image import Stopped, stop_after

pytestmark = pytest.mark.usefixtures("no_curves")

EVENTS = events_tokenizer()
SPECIALS = Specials.of(EVENTS)


def a_chorale(steps: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randint(60, 72), 60, chance.choice([-1, 55]), 48] for _ in range(steps)]


def chorale_file(folder: Path) -> Path:
    pieces = [a_chorale(16, seed) for seed in range(24)]
    plain = json.dumps({"train": pieces[:16], "valid": pieces[16:20], "test": pieces[20:]})
    path = folder / "chorales.json.gz"
    path.write_bytes(gzip.compress(plain.encode()))
    return path


def test_the_vocabulary_is_fixed() -> None:
    assert EVENTS.vocabulary_size == SIZE == 4 + 1 + 3 * 128 + 100 + 32
    assert EVENTS.decode(EVENTS.encode(" ".join(WORDS))) == " ".join(WORDS)


def test_chorales_are_read_voice_by_voice(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"train": [[[60, 57.0, -1, 48], [62]]], "valid": [[[64, 60, 55, 48]]]}))
    assert chorales(str(path), "train") == ["pitch60 pitch57 rest pitch48 pitch62 rest rest rest"]
    assert len(chorales(str(path))) == 2
    assert [row.target for row in read_music(CorpusConfig(file=str(path), target_column="valid"))] == [
        "pitch64 pitch60 pitch55 pitch48"
    ]


@pytest.mark.parametrize(
    "plain, sentence",
    [
        ("[[[60, 61, 62, 63, 64]]]", "step 1 of piece 1 has 5 notes"),
        ("[[60, 61]]", "step 1 of piece 1 is not a list"),
        ('[[["c"]]]', "has 'c' where a pitch should be"),
        ("[[[128]]]", "has 128 where a pitch should be"),
        ("[[[60.5]]]", "has 60.5 where a pitch should be"),
        ("[]", "contains no music"),
        ("7", "it is not a list"),
        ("[[[60", "is not valid JSON"),
    ],
)
def test_json_of_another_shape_is_refused(plain: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(plain)
    said = {"task": "music", "data": {"train": [{"file": str(path)}]}}
    with pytest.raises(UserError, match=sentence):
        train(tmp_path / "run", said, view="quiet")
    assert not (tmp_path / "run").exists()


def test_a_part_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no part 'tset'; its parts: 'train', 'valid', 'test'"):
        chorales(str(chorale_file(tmp_path)), "tset")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    pytest.importorskip("mido")
    text = "velocity16 on60 on64 shift50 off60 shift100 shift20 on60 off64 shift5 off60"
    notes = notes_of(text)
    assert notes == [Note(0.0, 0.5, 60, 66), Note(0.0, 1.7, 64, 66), Note(1.7, 1.75, 60, 66)]
    write_midi(tmp_path / "a.mid", notes)
    assert notes_of(performance(str(tmp_path / "a.mid"))) == notes
    folder = CorpusConfig(file=str(tmp_path))
    assert len(list(read_music(folder))) == 1
    check_corpus(folder, TASKS["music"].columns)
    for music in (tmp_path, tmp_path / "a.mid"):
        with pytest.raises(UserError, match="train with --task music"):
            check_corpus(CorpusConfig(file=str(music)), Columns(task="generate", targets=("text",)))


TIMES = st.integers(0, 400)  # hundredths of a second
HEARD = st.builds(Note, TIMES, TIMES, st.integers(58, 61), st.integers(1, 127), st.integers(0, 1))


@settings(deadline=None)
@given(st.lists(HEARD, min_size=1))
def test_notes_come_back_from_their_events(found: list[Note]) -> None:
    """Whatever overlaps: a pitch sounds when one of its notes does, and starts when each of them does."""
    notes = [one._replace(begin=one.begin / 100, end=(one.begin + one.end) / 100) for one in found]
    text = played(notes)
    again = notes_of(text)
    assert played(again) == text

    def sounding(some: list[Note]) -> set[tuple[int, int]]:
        spans = [(one.pitch, round(100 * one.begin), round(100 * one.end)) for one in some]
        return {(pitch, time) for pitch, begin, end in spans for time in range(begin, max(end, begin + 1))}

    assert sounding(again) == sounding(notes)
    assert {(one.begin, one.pitch) for one in again} == {(one.begin, one.pitch) for one in notes}


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-1, 127), min_size=4, max_size=4), min_size=1, max_size=12))
def test_a_chorale_comes_back_from_its_notes(steps: list[list[int]]) -> None:
    steps.append([60, -1, -1, -1])  # silence at the end has no notes
    text = " ".join("rest" if pitch < 0 else f"pitch{pitch}" for step in steps for pitch in step)
    assert in_steps(notes_of(text)) == text


def test_notes_of_other_voices_become_those_of_a_chorale() -> None:
    chord = [Note(0.0, STEP, pitch, voice=7) for pitch in (48, 64, 60)]
    assert in_steps(chord) == "pitch64 pitch60 pitch48 rest"
    with pytest.raises(UserError, match="the piece has 5 after 0 quarters"):
        in_steps([*chord, Note(0.0, 1.0, 70), Note(0.0, 1.0, 71)])


def test_keys_pedals_and_silence(tmp_path: Path) -> None:
    """What a synthesizer would play: hundredths of a second, at 120 quarters per minute."""
    mido = pytest.importorskip("mido")

    def heard(*events: tuple[int, str, int, int]) -> str:
        file, now = mido.MidiFile(ticks_per_beat=50), 0
        file.tracks.append(mido.MidiTrack())
        for time, kind, number, value in events:
            names = ("control", "value") if kind == "control_change" else ("note", "velocity")
            said = dict(zip(names, (number, value), strict=True))
            file.tracks[0].append(mido.Message(kind, time=time - now, **said))
            now = time
        file.save(tmp_path / "keys.mid")
        return performance(str(tmp_path / "keys.mid")).partition(" ")[2]  # after the velocity

    on, off, control = "note_on", "note_off", "control_change"
    down, up = (control, 64, 127), (control, 64, 0)
    one = (on, 60, 80)
    pedal = heard((0, *down), (0, *one), (10, off, 60, 0), (30, *one), (40, on, 60, 0), (90, *up))
    assert pedal == "on60 shift30 off60 on60 shift60 off60"
    assert heard((0, *down), (0, *one), (5, *up), (20, off, 60, 0)) == "on60 shift20 off60"
    assert heard((0, *one), (10, control, 123, 0), (20, on, 62, 80)) == (
        "on60 shift10 off60 shift10 on62 shift1 off62"
    )
    assert (
        heard((0, *one), (0, off, 60, 0), (50, on, 62, 80)) == "on60 shift1 off60 shift49 on62 shift1 off62"
    )
    again = heard(
        (0, *one), (10, *one), (10, off, 60, 0), (30, off, 60, 0)
    )  # the first note's end comes late
    assert again == "on60 shift10 off60 on60 shift20 off60"
    chord = heard((0, on, 67, 80), (0, on, 60, 80), (10, on, 64, 80), (10, off, 60, 0), (20, off, 64, 0))
    assert chord == "on60 on67 shift10 off60 on64 shift10 off64 off67"


@pytest.mark.parametrize("keep, sentence", [(-9, "is truncated"), (0, "is empty"), (6, "'cut.mid'|cut")])
def test_damaged_midi_is_refused(keep: int, sentence: str, tmp_path: Path) -> None:
    pytest.importorskip("mido")
    write_midi(tmp_path / "a.mid", [Note(0.0, 1.0, 60)])
    (tmp_path / "cut.mid").write_bytes((tmp_path / "a.mid").read_bytes()[:keep])
    with pytest.raises(UserError, match=sentence):
        performance(str(tmp_path / "cut.mid"))
    write_midi(tmp_path / "none.mid", [])
    with pytest.raises(UserError, match="contains no notes"):
        performance(str(tmp_path / "none.mid"))
    (tmp_path / "text.mid").write_text("Allegro ma non troppo")
    with pytest.raises(UserError, match=r"text\.mid' is not a MIDI file"):
        performance(str(tmp_path / "text.mid"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"There is no \.mid file in the folder"):
        check_corpus(CorpusConfig(file=str(tmp_path / "folder")), TASKS["music"].columns)


def test_a_pitch_that_two_channels_hold_ends_with_the_last(tmp_path: Path) -> None:
    write_midi(tmp_path / "a.mid", [Note(0.0, 1.0, 60, voice=0), Note(0.5, 1.5, 60, voice=1)])
    found = notes_of(performance(str(tmp_path / "a.mid")))
    assert [(note.begin, note.end) for note in found] == [(0.0, 0.5), (0.5, 1.5)]
    film = (tmp_path / "a.mid").read_bytes()
    (tmp_path / "film.mid").write_bytes(
        film[:12] + b"\xe7\x28" + film[14:]
    )  # 25 frames a second, 40 ticks each
    with pytest.raises(UserError, match="SMPTE"):
        performance(str(tmp_path / "film.mid"))
    (tmp_path / "._a.mid").write_bytes(b"what a Mac leaves behind")
    (tmp_path / "film.mid").unlink()
    assert midi_files(str(tmp_path)) == [str(tmp_path / "a.mid")]


def test_a_damaged_file_among_good_ones_stops_a_run_before_it_writes(tmp_path: Path) -> None:
    pytest.importorskip("mido")
    folder = tmp_path / "midi"
    folder.mkdir()
    for name in ("a", "b"):
        write_midi(folder / f"{name}.mid", [Note(0.0, 1.0, 60)])
    (folder / "b.mid").write_bytes((folder / "b.mid").read_bytes()[:-9])
    with pytest.raises(UserError, match=r"b\.mid' is truncated"):
        train(tmp_path / "run", {"task": "music", "data": {"train": [{"file": str(folder)}]}}, view="quiet")
    assert not (tmp_path / "run").exists()


def test_held_pitches_are_one_note() -> None:
    steps = [[60, 57, -1, 48], [60, 58, -1, 48], [62, 58, 50, 48]]
    text = " ".join("rest" if pitch < 0 else f"pitch{pitch}" for step in steps for pitch in step)
    found = {(note.begin / 0.125, note.end / 0.125, note.pitch, note.voice) for note in notes_of(text)}
    assert found == {(0, 2, 60, 0), (2, 3, 62, 0), (0, 1, 57, 1), (1, 3, 58, 1), (2, 3, 50, 2), (0, 3, 48, 3)}


def test_a_chunk_is_transposed_as_a_whole() -> None:
    texts = ["pitch60 rest pitch72 pitch48", "on3 shift7 off3 velocity9", "pitch126 pitch60 rest rest"] * 20
    store = Ragged.of(EVENTS.encode_batch(texts))
    chunks = Ragged(store.items.astype(np.uint16), store.lengths)  # as stores have them
    encoding, widths = Pieces(transpose=5), Widths(len(texts), 0, 3)

    def moves(epoch: int, rows: list[int]) -> list[int]:
        some = Ragged.of([chunks.rows()[row] for row in rows])
        batch = encoding.collate(
            {"target": some}, Widths(len(rows), 0, 3), SPECIALS, Draw(1, epoch, np.array(rows))
        )
        found = []
        for row, ids in zip(rows, batch.inputs.tolist(), strict=True):
            before, after = np.array(some.rows()[len(found)][:3]), np.array(ids)
            sounds = pitches(before) >= 0
            assert (after[~sounds] == before[~sounds]).all()
            [move] = set((after - before)[sounds].tolist())
            assert (pitches(after)[sounds] == pitches(before)[sounds] + move).all()
            found.append(move)
            assert row % 3 != 1 or move >= -3
            assert row % 3 != 2 or move <= 1
        return found

    every = list(range(len(texts)))
    first = moves(0, every)
    assert set(first[::3]) <= set(range(-5, 6))
    assert len(set(first)) > 6
    assert moves(0, every[7:9]) == first[7:9]  # whatever the batch is
    assert moves(1, every) != first
    plain = encoding.plain().collate({"target": chunks}, widths, SPECIALS, Draw(1, 0, np.array(every)))
    assert plain.inputs.tolist() == [row[:3] for row in store.rows()]


def tiny(file: Path, **more: Any) -> dict[str, Any]:
    plain = {name: table for name, table in TINY.items() if name != "tokenizer"}
    parts = {"train": "train", "validation": "valid", "test": "test"}
    data: dict[str, Any] = {part: {"file": str(file), "target_column": key} for part, key in parts.items()}
    data["train"] = [data["train"]]
    return {
        **plain,
        "task": "music",
        "data": data,
        "batch": {"tokens": 512, "workers": 0, "context": 64},
        **more,
    }


def test_a_model_of_chorales_is_trained_judged_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mido")
    run = tmp_path / "run"
    train(run, tiny(chorale_file(tmp_path)), view="quiet")
    bundle = load(run)
    assert bundle.config.position.name == "music"
    assert bundle.tokenizer is not None
    assert bundle.tokenizer.decode([5 + 60]) == "pitch60"
    [piece] = chorales(str(chorale_file(tmp_path)), "test")[:1]
    found = TASKS["music"].judge(bundle, [("", piece)]).metrics
    ids = [1, *EVENTS.encode(piece), 2]
    nats = 0.0
    for begin in range(0, len(ids) - 1, 64):
        some = torch.tensor(ids[begin : begin + 65])
        with torch.no_grad():
            nats += float(F.cross_entropy(bundle.model(some[None, :-1]).logits[0], some[1:], reduction="sum"))
    assert found["nats per voice"] == pytest.approx(nats / 64, rel=1e-5)
    assert found["nats per time step"] == pytest.approx(nats / 16, rel=1e-5)
    out, picture = tmp_path / "piece.mid", tmp_path / "piece.png"
    prompt = "pitch60 pitch57 rest pitch48"
    asked = ["generate", str(run), prompt, "--out", str(out), "--picture", str(picture), "--max-length", "32"]
    assert main(asked) == 0
    assert any(note.pitch == 60 and note.begin == 0 for note in notes_of(performance(str(out))))
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main(asked) != 0  # both are there
    capsys.readouterr()
    assert main(["generate", str(run), str(out), "--max-length", "1"]) == 0
    assert capsys.readouterr().out.startswith(in_steps(midi_notes(str(out))) + " ")
    assert main(["score", str(run), str(out)]) == 0
    assert Session(bundle, "tiny").examples == [PIECES["chorales"]]
    for other in (["generate", str(run), "on60"], ["score", str(run), "hello"]):
        assert main(other) != 0
        assert "not one that this model has learned: write pitch60 or rest" in capsys.readouterr().err
    assert main(["generate", str(run), "hello", "--out", str(tmp_path / "b.mid")]) != 0
    assert main(["generate", str(run), prompt, "--out", str(tmp_path / "b.txt")]) != 0
    assert main(["generate", str(run), "hello", "--max-length", "4"]) != 0
    assert main(["explain", str(run), "hello", "--out", str(tmp_path / "b.html")]) != 0
    (tmp_path / "folder.png").mkdir()
    two = ["--out", str(tmp_path / "b.mid"), "--picture", str(tmp_path / "folder.png"), "--force"]
    assert main(["generate", str(run), prompt, *two, "--max-length", "16"]) != 0
    assert not list(tmp_path.glob("b.*"))


def test_a_run_that_was_stopped_ends_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are transposed by (seed, epoch, chunk), whenever they are read."""
    said = tiny(chorale_file(tmp_path), steps=6)
    said["data"]["transpose"] = 5
    said["validation"] = {**said.get("validation", {}), "every": 3}
    whole = train(tmp_path / "whole", said, view="quiet").bundle
    with monkeypatch.context() as patched:
        stop_after(patched, 4)
        with pytest.raises(Stopped):
            train(tmp_path / "half", said, view="quiet")
    again = resume(tmp_path / "half", view="quiet").bundle
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    for command in (
        ["inspect", str(tmp_path / "half")],
        ["plan", "--config", str(model_of(tmp_path / "half"))],
    ):
        assert main(command) == 0


def model_of(run: Path) -> Path:
    """The settings of a run's model, as `plan` reads them."""
    path = run.parent / "model.json"
    path.write_text(json.dumps(load(run).config.to_dict()))
    return path


def test_other_vocabularies_and_tasks_are_refused(tmp_path: Path) -> None:
    said = tiny(chorale_file(tmp_path), tokenizer={"kind": "words", "vocabulary": 600})
    with pytest.raises(UserError, match="uses a fixed vocabulary of events"):
        train(tmp_path / "run", said, view="quiet")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="only applies to the task 'music'"):
        TASKS["generate"].encoding(transpose=3)


def test_a_roll_without_a_prompt_is_drawn(tmp_path: Path) -> None:
    draw_roll(tmp_path / "a.png", [Note(0.0, 1.0, 60), Note(1.0, 2.0, 64, voice=1)])
    assert (tmp_path / "a.png").stat().st_size > 1000
