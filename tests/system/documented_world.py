"""A folder with every file and model that the commands in the documents name, as small as they can be."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import clearhead
from clearhead import phrasebook
from clearhead.bundle import Bundle, save
from clearhead.interop import export_folder, import_folder
from clearhead.jobs import train as job
from clearhead.jobs.recipe import Table, merged, read_recipe

from ..documented import blocks
from ..jobs.making import TINY, lines, write_corpus

ENDS: Table = {  # stands above what a command says: the same run, over at once
    "steps": 2,
    "validation": {"every": 1, "decode": 2, "patience": None},
    "schedule": {"warmup": 1},
    "averaging": {"snapshots": 0},
    "compute": {"device": "cpu"},
}
COPIES = ("runs/mine", "runs/other", "runs/demo-en-fr", "runs/en-fr-small", "runs/a", "en-fr", "BUNDLE")


def small(said: Table) -> Table:
    """A run's settings with the smallest sizes, unless a base or the settings say which; it ends at once."""
    sizes = {"batch": TINY["batch"]} if "start" in said else merged(TINY, {"tokenizer": {"vocabulary": 600}})
    return merged(sizes, said, ENDS)


def write_world(folder: Path, minilm: Path) -> Path:
    """All of it; `minilm` is the folder of a real encoder."""
    write_texts(folder)
    write_tables(folder)
    write_pictures(folder)
    write_bundles(folder)
    (folder / "MINILM").symlink_to(minilm)
    outside = folder.with_name(f"{folder.name}-minilm")  # not copied for every command
    save(import_folder(minilm), outside)
    (folder / "runs" / "minilm").symlink_to(outside)
    return folder


def write_lines(path: Path, texts: Iterable[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def write_texts(folder: Path) -> None:
    """Files of one sentence a line."""
    french = list(phrasebook.pairs("en-fr", 240))
    german = list(phrasebook.pairs("en-de", 240))
    spans = {"train": (0, 90), "test": (90, 100), "new": (100, 170), "a": (0, 80), "b": (80, 160)}
    for name, (first, last) in spans.items():
        write_lines(folder / f"{name}.en", [source for source, _ in french[first:last]])
        write_lines(folder / f"{name}.fr", [target for _, target in french[first:last]])
    # the same English with German beside it
    write_lines(folder / "a.de", [target for _, target in german[:80]])
    write_lines(folder / "train.de", [target for _, target in german[:90]])
    write_lines(folder / "lines.en", [source for source, _ in french[:5]])
    write_lines(folder / "lines.fr", [target for _, target in french[:5]])
    for name in ("lines.txt", "sentences.txt"):
        write_lines(folder / name, lines(4))
    write_lines(folder / "book.txt", lines(120))
    write_lines(folder / "corpus.txt", lines(120, seed=1))


def write_tables(folder: Path) -> None:
    """Files with columns, and the recipe that a page shows."""
    pairs = [f"{source}\t{target}" for source, target in phrasebook.pairs("en-fr", 90)]
    write_lines(folder / "pairs.tsv", pairs)
    (folder / "pairs.tsv.gz").write_bytes(gzip.compress((folder / "pairs.tsv").read_bytes()))
    header = "source\ttarget\ta\tb\tscore"  # for several commands, each of which names its columns
    rows = [f"{line}\tgood\t{line}\ta cat\t{len(line) / 10}" for line in lines(12)]
    write_lines(folder / "test.tsv", [header, *rows])
    write_lines(folder / "validation.tsv", pairs[:12])
    kinds = [(line, "positive" if number % 2 else "negative") for number, line in enumerate(lines(90))]
    write_lines(folder / "reviews.csv", ["text,label", *(f"{text},{kind}" for text, kind in kinds)])
    write_lines(folder / "test.csv", ["text,label", *(f"{text},{kind}" for text, kind in kinds[:9])])
    write_lines(folder / "reviews.tsv", [f"{text}\t{kind}" for text, kind in kinds])
    nli = [f"{text}\tan animal rests\t{kind}" for text, kind in kinds]
    write_lines(folder / "nli.tsv", ["premise\thypothesis\tlabel", *nli])
    alike = [f"{line}\ta small cat\t{len(line) / 10}" for line in lines(90)]
    write_lines(folder / "alike.tsv", ["a\tb\tscore", *alike])
    mails = [{"body": f"{line} {line} {line}", "subject": line} for line in lines(90)]
    write_lines(folder / "mails.jsonl", map(json.dumps, mails))
    sentences = ["".join(map(word_of, range(1, 9), line.split())) for line in lines(90)]
    (folder / "train.conllu").write_text("\n".join(sentences), encoding="utf-8")
    (folder / "test.conllu").write_text("\n".join(sentences[:9]), encoding="utf-8")
    (recipe,) = [one.text for one in blocks() if one.kind == "toml" and "[[data.train]]" in one.text]
    (folder / "tasks.toml").write_text(recipe, encoding="utf-8")


def word_of(place: int, word: str) -> str:
    """A line of CoNLL-U."""
    kind, feature = ("NOUN", "Number=Sing") if place % 2 else ("ADJ", "_")
    return f"{place}\t{word}\t_\t{kind}\t_\t{feature}\t_\t_\t_\t_\n"


def write_pictures(folder: Path) -> None:
    """Pictures in each form that is read, and pieces of music."""
    arrays = write_corpus(folder, "image", 60)
    arrays.rename(folder / "data.npz")
    with np.load(folder / "data.npz") as stored:
        images, labels = stored["images"], stored["labels"]
    for number, (picture, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / "pictures" / str(label) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place)
    Image.fromarray(images[0]).save(folder / "digit.png")
    for number in range(40):
        kind, size = ("cats", "dogs")[number % 2], (20 + number, 16)  # of all sizes, in colour
        place = folder / "photos" / kind / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (6 * number, 255 * (number % 2), 90)).save(place)
    shutil.copy(folder / "photos" / "cats" / "0.jpg", folder / "cat.jpg")
    shutil.copy(folder / "photos" / "dogs" / "1.jpg", folder / "holiday.jpg")
    numbers = np.array([int(label == "left") for label in labels], np.uint8)
    for name, array in (("images", images), ("labels", numbers)):
        header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (folder / f"train-{name}.gz").write_bytes(gzip.compress(header + array.tobytes()))
    pieces = json.loads(write_corpus(folder, "music", 60).read_text(encoding="utf-8"))
    (folder / "chorales.json").write_text(json.dumps({"train": pieces, "test": pieces[:9]}), encoding="utf-8")
    write_midi(folder / "midi")
    for name in ("beginning", "piece"):
        shutil.copy(folder / "midi" / "0.mid", folder / f"{name}.mid")


def write_midi(folder: Path) -> None:
    import mido

    folder.mkdir()
    for number in range(24):
        piece, track = mido.MidiFile(), mido.MidiTrack()
        for note in range(12):
            pitch = 40 + number + (note * (number % 5 + 1)) % 12
            track.append(mido.Message("note_on", note=pitch, velocity=64, time=30))
            track.append(mido.Message("note_off", note=pitch, velocity=64, time=90))
        piece.tracks.append(track)
        piece.save(folder / f"{number}.mid")


def write_bundles(folder: Path) -> None:
    """A model of each kind, after two steps of training, under the names that the pages use."""
    pair = {"source": str(folder / "train.en"), "target": str(folder / "train.fr")}
    trained(folder, "en-fr", "translate", pair, model={"layers": 2})
    many = read_recipe(folder / "tasks.toml", None)
    job.train(folder / "runs" / "many", small(many), view="quiet")
    for name, task, corpus in (
        ("book", "generate", {"file": "book.txt"}),
        ("bert", "mask", {"file": "corpus.txt"}),
        ("t5", "denoise", {"file": "corpus.txt"}),
        ("reviews", "classify", {"file": "reviews.csv"}),
        ("nli", "classify", {"file": "nli.tsv", "source_column": "premise", "second_column": "hypothesis"}),
        ("alike", "regress", {"file": "alike.tsv", "source_column": "a", "second_column": "b"}),
        ("tagger", "tag", {"file": "train.conllu", "target_column": "upos,feats"}),
        ("mnist", "image", {"file": "data.npz"}),
        ("pictures", "image", {"file": "pictures"}),
        ("photos", "image", {"file": "photos", "picture_size": 16}),
        ("chorales", "music", {"file": "chorales.json", "target_column": "train"}),
        ("piano", "music", {"file": "midi"}),
    ):
        trained(folder, name, task, {**corpus, "file": str(folder / corpus["file"])})
    for copy in COPIES:
        shutil.copytree(folder / "runs" / "en-fr", folder / copy)
    write_foreign(folder)


def trained(folder: Path, name: str, task: str, corpus: dict[str, Any], **tables: Any) -> None:
    said = {"task": task, "data": {"train": [corpus]}, **tables}
    job.train(folder / "runs" / name, small(said), view="quiet")


def write_foreign(folder: Path) -> None:
    """Folders in Hugging Face's layout: a translator of the original form, a picture model."""
    tokenizer = clearhead.Tokenizer.load(folder / "runs" / "en-fr" / "tokenizer.json")
    model = clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size)
    for name in ("imported", "en-de", "runs/marian"):
        save(Bundle(model, tokenizer, {"task": "translate"}), folder / name)
    for name in ("FOLDER", "opus-mt-en-de", "en-fr-hf"):
        export_folder(Bundle(model, tokenizer), folder / name, to="huggingface")
    vision = clearhead.build(
        "vit-b16",
        **{"layers": 1, "width": 16, "attention__heads": 2, "feedforward__width": 32},
        **{"image__size": 8, "image__patch": 4, "image__channels": 1},
        **{"head__kind": "classify", "head__classes": 2},
    )
    export_folder(Bundle(vision, metadata={"labels": ["left", "none"]}), folder / "VIT", to="huggingface")


def without_output(folder: Path, line: str) -> None:
    """Remove what a command is going to write, which the world may already have."""
    for name in re.findall(r"--out(?:put)? (\S+)", line):
        place = folder / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
