"""Pictures, from files to a bundle that names them: readers, augmentation, training, resuming, refusals."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import clearhead
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, save
from clearhead.cli.main import app
from clearhead.data.columns import Row
from clearhead.data.config import AugmentationConfig, CorpusConfig, DataConfig
from clearhead.data.encodings.pictures import augmented
from clearhead.data.picture_corpora import read_pictures
from clearhead.data.pictures import (
    Form,
    as_source,
    as_text,
    packed,
    patch_for,
    pixels_of,
    read_picture,
    side_for,
    squared,
    unpacked,
)
from clearhead.data.plan import Draw
from clearhead.data.survey import survey
from clearhead.decoding import classify
from clearhead.decoding.pictures import picture_tensor, picture_text
from clearhead.explorer.session import Session
from clearhead.explorer.verdict import verdict
from clearhead.jobs import train as job
from clearhead.jobs.evaluate import measure
from clearhead.jobs.recipe import merged
from clearhead.models import build
from clearhead.tasks.image import IMAGE
from clearhead.training.loop import Trainer

from .making import settings, write_corpus

pytestmark = pytest.mark.usefixtures("no_curves")

SMALL = {
    "model": {"width": 16, "layers": 1, "attention": {"heads": 2}, "feedforward": {"width": 16}},
    "batch": {"tokens": 1024},
}


def some_pixels(count: int = 12, side: int = 6, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, channels, side, side), np.uint8)


def as_idx(array: np.ndarray) -> bytes:
    """IDX, written by hand: two zeros, the type, how many dimensions, their sizes, the bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def as_folder(folder: Path, pictures: np.ndarray, names: list[str]) -> Path:
    for number, (picture, name) in enumerate(zip(pictures, names, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
        Image.fromarray(pixels).save(folder / name / f"{number:03}.png")
    return folder


def rows_of(**corpus: str | int) -> list[Row]:
    return list(read_pictures(CorpusConfig.from_dict(corpus)))


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_and_an_npz_file_give_the_same_pictures(channels: int, tmp_path: Path) -> None:
    pictures, names = some_pixels(channels=channels), ["a"] * 6 + ["b"] * 6
    folder = as_folder(tmp_path / "all", pictures, names)
    last = pictures.transpose(0, 2, 3, 1).squeeze(-1) if channels == 1 else pictures.transpose(0, 2, 3, 1)
    np.savez(tmp_path / "all.npz", images=last, labels=np.array(names))
    for rows in (rows_of(file=str(folder)), rows_of(file=str(tmp_path / "all.npz"))):
        assert [row.target for row in rows] == names
        assert np.array_equal(np.stack([pixels_of(row.source) for row in rows]), pictures)


def test_files_are_read_as_a_viewer_shows_them(tmp_path: Path) -> None:
    """16 bits become 8, transparent pixels white, and a camera's orientation is followed."""
    wide = np.linspace(0, 65535, 48).reshape(6, 8).astype(np.uint16)
    Image.fromarray(wide).save(tmp_path / "16.png")
    assert np.array_equal(read_picture(tmp_path / "16.png"), np.rint(wide / 257).astype(np.uint8)[None])
    assert np.array_equal(read_picture(tmp_path / "16.png", Form(3))[1], read_picture(tmp_path / "16.png")[0])
    shape = np.zeros((4, 4, 4), np.uint8)
    shape[1:3, 1:3, 3] = 255  # black in the middle, transparent around it
    Image.fromarray(shape).save(tmp_path / "icon.png")
    Image.fromarray(shape).convert("LA").save(tmp_path / "grey.png")
    for name, channels in (("icon.png", 1), ("icon.png", None), ("grey.png", None)):
        found = read_picture(tmp_path / name, Form(channels))
        assert len(found) == (3 if (name, channels) == ("icon.png", None) else 1)
        assert np.array_equal(found[0], np.where(shape[..., 3] > 0, 0, 255))
    turned, how = Image.fromarray(some_pixels()[0, 0]), Image.Exif()
    how[0x0112] = 6  # the camera was held upright
    turned.save(tmp_path / "upright.png", exif=how)
    assert np.array_equal(read_picture(tmp_path / "upright.png")[0], np.rot90(some_pixels()[0, 0], -1))


@pytest.mark.parametrize(("width", "height"), [(40, 20), (20, 40), (3, 2), (1, 300), (10, 10)])
def test_scaled_pictures_keep_their_shape_in_a_square(width: int, height: int, tmp_path: Path) -> None:
    (tmp_path / "all" / "a").mkdir(parents=True)
    Image.new("RGB", (width, height), (200, 100, 50)).save(tmp_path / "all" / "a" / "0.png")
    [row] = rows_of(file=str(tmp_path / "all"), picture_size=10)
    pixels = pixels_of(row.source)
    assert pixels.shape == (3, 10, 10)
    inside = pixels[0] == 200
    wide, high = (max(1, round(side * 10 / max(width, height))) for side in (width, height))
    assert inside.sum() == wide * high
    assert inside[(10 - high) // 2, (10 - wide) // 2]
    assert (pixels[:, ~inside] == 0).all()
    assert (pixels[:, inside].T == (200, 100, 50)).all()
    np.savez(tmp_path / "all.npz", images=np.full((1, height, width, 3), (200, 100, 50)), labels=["a"])
    assert rows_of(file=str(tmp_path / "all.npz"), picture_size=10) == [row]


def test_one_picture_in_colour_makes_all_of_them_colour(tmp_path: Path) -> None:
    grey, colour = some_pixels(), some_pixels(channels=3)
    as_folder(tmp_path / "all", grey, ["a"] * 12)
    as_folder(tmp_path / "all", colour, ["b"] * 12)
    (tmp_path / "all" / "b" / "._0.png").write_bytes(b"what a Mac leaves behind")
    as_folder(tmp_path / "all" / "b", grey, [".checkpoints"] * 12)
    rows = rows_of(file=str(tmp_path / "all"))
    assert [row.target for row in rows] == ["a"] * 12 + ["b"] * 12
    assert np.array_equal(pixels_of(rows[0].source), np.repeat(grey[0], 3, axis=0))
    assert np.array_equal(pixels_of(rows[12].source), colour[0])


@pytest.mark.parametrize("dtype", [np.uint8, bool, np.float32, np.int64])
def test_pixels_of_nought_and_one_are_black_and_white(dtype: type, tmp_path: Path) -> None:
    labels = np.array([0.0, 1.0] * 6) if dtype is bool else np.array([b"0", b"1"] * 6)
    np.savez(tmp_path / "all.npz", images=(some_pixels() > 99).astype(dtype), labels=labels)
    rows = rows_of(file=str(tmp_path / "all.npz"))
    assert [row.target for row in rows] == ["0", "1"] * 6
    assert np.array_equal(pixels_of(rows[3].source), np.where(some_pixels()[3] > 99, 255, 0))


def test_idx_files_plain_gzipped_and_in_a_folder(tmp_path: Path) -> None:
    pictures, classes = some_pixels()[:, 0], np.arange(12, dtype=np.uint8) % 3
    (tmp_path / "train-images-idx3-ubyte").write_bytes(as_idx(pictures))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(as_idx(classes)))
    pair = {
        "source": str(tmp_path / "train-images-idx3-ubyte"),
        "target": str(tmp_path / "train-labels-idx1-ubyte.gz"),
    }
    rows = rows_of(**pair)
    assert rows == rows_of(file=str(tmp_path))
    assert [row.target for row in rows] == [str(one) for one in classes]
    assert np.array_equal(np.stack([pixels_of(row.source)[0] for row in rows]), pictures)


@pytest.mark.parametrize("size", [(5, 9), (29, 28), (28, 28), (1, 1), (97, 31)])
def test_a_picture_lies_whole_in_its_square(size: tuple[int, int]) -> None:
    picture = np.random.default_rng(0).integers(1, 256, (3, *size), np.uint8)
    side = side_for(*size, patch_for(*size))
    found = squared(picture, side)
    assert found.shape == (3, side, side)
    assert side % patch_for(*size) == 0
    assert found.sum(dtype=np.int64) == picture.sum(dtype=np.int64)


def one_by_one(picture: np.ndarray, how: AugmentationConfig, chance: np.ndarray) -> np.ndarray:
    """What is done to one picture, pixel by pixel."""
    channels, side, _ = picture.shape
    shift = side // 14 if how.crop is None else how.crop
    down, right = (int(one * (2 * shift + 1)) - shift for one in chance[:2])
    middle = [int(one * side) for one in chance[3:5]]
    found = np.zeros_like(picture)
    for c, y, x in np.ndindex(channels, side, side):
        from_x = side - 1 - x if how.flip and chance[2] < 0.5 else x
        if 0 <= y + down < side and 0 <= from_x + right < side:
            found[c, y, x] = picture[c, y + down, from_x + right]
        begins = [one - how.cutout // 2 for one in middle]
        if all(one <= at < one + how.cutout for one, at in zip(begins, (y, x), strict=True)):
            found[c, y, x] = 0
    return found


@pytest.mark.parametrize(
    "how",
    [{}, {"crop": 2, "flip": True}, {"crop": 0, "cutout": 3}, {"crop": 1, "flip": True, "cutout": 2}],
)
def test_augmentation_pixel_by_pixel(how: dict[str, int]) -> None:
    config, pictures = AugmentationConfig.from_dict(how), some_pixels(side=7, channels=3)
    draw = Draw(5, 2, np.arange(12))
    chance = draw.uniform(np.full(12, 8), "augment").items.reshape(12, 8)
    found, answers = augmented(pictures, np.arange(12), config, draw)
    wanted = [one_by_one(picture, config, row) for picture, row in zip(pictures, chance, strict=True)]
    assert np.array_equal(found, np.stack(wanted))
    assert answers.tolist() == list(range(12))


def test_a_picture_fares_alike_in_any_batch() -> None:
    config, pictures = AugmentationConfig(crop=2, flip=True, cutout=2), some_pixels()
    whole, _ = augmented(pictures, np.arange(12), config, Draw(1, 4, np.arange(12)))
    part, _ = augmented(pictures[[3, 7]], np.arange(2), config, Draw(1, 4, np.array([3, 7])))
    assert np.array_equal(whole[[3, 7]], part)
    later, _ = augmented(pictures, np.arange(12), config, Draw(1, 5, np.arange(12)))
    assert not np.array_equal(whole, later)


def test_the_classes_of_mixed_pictures_are_drawn_by_their_shares() -> None:
    count = 4000
    pictures = np.repeat(np.array([0, 255], np.uint8), count // 2).reshape(count, 1, 1, 1)[
        np.random.default_rng(0).permutation(count)
    ]
    answers = pictures.reshape(-1) // 255
    how, draw = AugmentationConfig(crop=0, mixup=1.0), Draw(1, 0, np.arange(count))
    mixed, drawn = augmented(pictures, answers, how, draw)
    share = mixed.reshape(-1) / 255  # of the class 1
    for low in (0.1, 0.4, 0.7):
        inside = (share > low) & (share < low + 0.2)
        assert abs(drawn[inside].mean() - share[inside].mean()) < 0.08


def test_a_corpus_in_the_order_of_its_classes_is_mixed_across_them() -> None:
    pictures = np.repeat(np.array([0, 255], np.uint8), 500).reshape(1000, 1, 1, 1)
    how, draw = AugmentationConfig(crop=0, mixup=1.0), Draw(1, 0, np.arange(1000))
    mixed, drawn = augmented(pictures, np.arange(1000), how, draw)
    assert 400 < ((mixed > 0) & (mixed < 255)).sum() < 600  # of two classes
    swapped = drawn != np.arange(1000)
    assert 400 < swapped.sum() < 600  # λ is uniform, and no picture is mixed with itself
    one, answer = augmented(pictures[:1], np.array([7]), how, Draw(1, 0, np.arange(1)))
    assert (one.item(), answer.item()) == (0, 7)


def test_from_pictures_to_a_bundle_that_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_corpus(tmp_path, "image", count=60)
    said = settings(file, "image", steps=30, schedule={"rate": 0.02}, **SMALL)
    said["data"]["picture_size"] = 8  # they have that size; others are scaled to it
    finished = job.train(tmp_path / "run", said, view="quiet")
    assert not finished.failed
    assert finished.test is not None
    assert finished.test.metrics["accuracy"] > 90
    bundle = clearhead.load(tmp_path / "run")
    assert bundle.config.image.to_dict() == {"size": 8, "patch": 1, "channels": 1, "class_token": False}
    bright = np.full((24, 24), 50, np.uint8)
    bright[:, :12] = 220
    Image.fromarray(bright).save(tmp_path / "bright.png")
    named = _said(capsys, "label", tmp_path / "run", tmp_path / "bright.png", tmp_path / "bright.png")
    assert [line.split("\t")[::2] for line in named.splitlines()] == [["left", f"{tmp_path}/bright.png"]] * 2
    dark = np.zeros((1, 8, 8), np.uint8)  # is not on the left, whatever its file says
    wrong = as_folder(tmp_path / "wrong-set", np.stack([dark, bright[None, ::3, ::3]]), ["left"] * 2)
    as_folder(tmp_path / "larger", np.stack([bright[None]] * 2), ["left"] * 2)
    assert '"accuracy": 100' in _said(
        capsys, "evaluate", tmp_path / "run", "--file", tmp_path / "larger", "--json"
    )
    assert '"accuracy"' in _said(capsys, "evaluate", tmp_path / "run", "--file", file, "--json")
    _said(capsys, "evaluate", tmp_path / "run", "--file", file, "--out", tmp_path / "judged")
    assert "words" not in (tmp_path / "judged" / "report.md").read_text(encoding="utf-8")
    _said(capsys, "evaluate", tmp_path / "run", "--file", wrong, "--out", tmp_path / "wrong")
    page = (tmp_path / "wrong" / "report.html").read_text(encoding="utf-8")
    [drawn] = re.findall(r'<img alt="" src="data:image/png;base64,([^"]+)">', page)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(drawn)))), dark[0])
    assert "vision" in _said(capsys, "inspect", tmp_path / "run")
    (tmp_path / "model.json").write_text(json.dumps(bundle.config.to_dict()))
    assert "images" in _said(capsys, "plan", "--config", tmp_path / "model.json")
    session = Session(bundle, "run", tmp_path / "run")  # as `clearhead explore` opens it
    assert session.examples
    assert all(verdict(session, one)["label"] in ("left", "none") for one in session.examples)
    Image.fromarray(bright).resize((40, 40)).save(tmp_path / "large.png")
    assert pixels_of(picture_text(bundle, tmp_path / "large.png")).shape == (1, 8, 8)
    data = bundle.metadata["recipe"]["data"]
    del data["picture_size"]  # said of a single corpus
    assert pixels_of(picture_text(bundle, tmp_path / "large.png")).shape == (1, 8, 8)
    del data["train"][0]["picture_size"]  # trained on pictures of one size
    with pytest.raises(UserError, match="40 × 40"):
        picture_text(bundle, tmp_path / "large.png")


def test_fine_tuning_scales_and_converts_to_what_the_base_reads(tmp_path: Path) -> None:
    base = job.train(
        tmp_path / "base", settings(write_corpus(tmp_path, "image"), "image", steps=4, **SMALL), view="quiet"
    )
    colours, greys = some_pixels(24, 12, 3), some_pixels(24, 10)
    folder = as_folder(tmp_path / "colours", colours, ["a", "b", "c"] * 8)
    old = as_folder(tmp_path / "old", greys[:, :, :5], ["left", "none"] * 12)
    start = {"base": str(tmp_path / "base"), "old_domain": {"file": str(old)}}
    said = {"task": "image", "data": {"train": [{"file": str(folder)}]}, "start": start, "steps": 4}
    tuned = job.train(tmp_path / "tuned", said, view="quiet")
    assert not tuned.failed
    assert tuned.bundle.config.image == base.bundle.config.image
    assert tuned.bundle.metadata["labels"] == ["a", "b", "c"]
    [(name, _)] = classify(tuned.bundle, [str(folder / "a" / "000.png")])
    assert name in tuned.bundle.metadata["labels"]
    with pytest.raises(UserError, match=r"would read pictures of 8 × 8 .* given are 4 × 4"):
        job.train(tmp_path / "no", merged(said, {"data": {"picture_size": 4}}), view="quiet")
    assert not (tmp_path / "no").exists()
    foreign = build("tiny", family="vision", image__size=20, image__patch=5, head__kind="classify").eval()
    save(Bundle(foreign, None, {"task": "image"}), tmp_path / "foreign")  # without a tokenizer, as imported
    begun = merged(said, {"start": {"base": str(tmp_path / "foreign"), "old_domain": None}})
    assert job.train(tmp_path / "own", begun, view="quiet").bundle.config.image.size == 20


def test_few_pictures_are_in_memory_at_a_time(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", images=some_pixels(96, 160, 3), labels=["a", "b"] * 48)
    tracemalloc.start()
    try:
        survey(DataConfig(train=(CorpusConfig(file=str(tmp_path / "all.npz")),)), IMAGE.columns)
        assert tracemalloc.get_traced_memory()[1] < 3 * 96 * 160 * 160 * 3  # bytes; handled as texts: 40
    finally:
        tracemalloc.stop()


def test_stretched_pictures_fill_their_square(tmp_path: Path) -> None:
    large = np.zeros((30, 60, 3), np.uint8)
    large[:, :30] = 200
    Image.fromarray(large).save(tmp_path / "wide.jpg", quality=95)
    padded, stretched = (read_picture(tmp_path / "wide.jpg", Form(1, 6, one)) for one in (False, True))
    assert stretched.shape == padded.shape == (1, 6, 6)
    assert (padded[0, 0] == 0).all()
    assert (stretched[0, :, 0] > 190).all()
    assert (stretched[0, :, -1] < 10).all()
    said = settings(write_corpus(tmp_path, "image"), "image", steps=4, **SMALL)
    said["data"]["picture_stretched"] = True
    with pytest.raises(UserError, match=r"picture_stretched=true needs data\.picture_size"):
        job.train(tmp_path / "run", said, view="quiet")
    said["data"]["picture_resample"] = "bicubic"
    with pytest.raises(UserError, match=r"picture_resample only has an effect with data\.picture_size"):
        job.train(tmp_path / "run", said, view="quiet")


def test_grey_and_colour_mix(tmp_path: Path) -> None:
    """A held-out set, a test set, or a picture in other colours than the training set is converted."""
    names = ["a", "b"] * 12
    grey = as_folder(tmp_path / "grey", some_pixels(24), names)
    colours = as_folder(tmp_path / "colours", some_pixels(24, channels=3), names)
    for one, other, channels in ((grey, colours, 3), (colours, grey, 3)):
        said = settings(one, "image", steps=4, **SMALL)
        said["data"]["validation"] = {"file": str(other)}
        bundle = job.train(tmp_path / f"run-{one.name}", said, view="quiet").bundle
        assert bundle.config.image.channels == channels
        for test in (grey, colours):
            found = measure([tmp_path / f"run-{one.name}"], CorpusConfig(file=str(test)), device="cpu")
            assert len(found.first.examples) == 24
    [row, *_] = rows_of(file=str(colours), picture_channels=1)
    np.savez(tmp_path / "all.npz", images=some_pixels(24, channels=3), labels=names)
    assert row == rows_of(file=str(tmp_path / "all.npz"), picture_channels=1)[0]


@pytest.mark.parametrize(("side", "patch", "whole"), [(32, 8, 32), (20, 10, 20), (20, 6, 24)])
def test_patches_of_any_side(side: int, patch: int, whole: int, tmp_path: Path) -> None:
    """The picture's square follows from the patches that were asked for."""
    folder = as_folder(tmp_path / "all", some_pixels(24, side), ["a", "b"] * 12)
    said = settings(folder, "image", steps=4, **SMALL)
    said["model"] = {**said["model"], "image": {"patch": patch}}
    bundle = job.train(tmp_path / "run", said, view="quiet").bundle
    assert (bundle.config.image.size, bundle.config.image.patch) == (whole, patch)
    text = picture_text(bundle, folder / "a" / "000.png")
    assert picture_tensor(bundle, text).shape == (1, whole, whole)
    assert len(Session(bundle, "run", tmp_path / "run").examples) > 0


def _said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with suppress(SystemExit):
        app()([str(one) for one in arguments])
    return capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_ends_alike(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_corpus(tmp_path, "image")
    ways = {"crop": 1, "flip": True, "cutout": 2, "mixup": 0.5}
    said = settings(file, "image", steps=8, compute={"dtype": dtype}, **SMALL)
    said["data"]["augmentation"] = ways
    said["validation"] = {**said.get("validation", {}), "every": 4}
    whole = job.train(tmp_path / "whole", said, view="quiet").bundle
    with monkeypatch.context() as patched:
        stop_after(patched, 5)
        with pytest.raises(Stopped):
            job.train(tmp_path / "half", said, view="quiet")
    again = job.resume(tmp_path / "half", view="quiet").bundle
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name


class Stopped(Exception):
    pass


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let a run save itself after so many steps, and die."""
    update = Trainer._update

    def dying(self: Trainer, *given: Any) -> None:
        update(self, *given)
        if self.state.step == steps:
            self.save()
            raise Stopped

    monkeypatch.setattr(Trainer, "_update", dying)


def png(side: int) -> bytes:
    found = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(found, "PNG")
    return found.getvalue()


def floats() -> bytes:
    found = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.float32)).save(found, "TIFF")
    return found.getvalue()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"a/1.png": png(8), "b/2.png": b"\x89PNG\r\n\x1a\n" + png(64)[8:60]}, "damaged"),
        ({"a/1.png": png(8), "b/2.png": b"a text"}, "is not a readable picture"),
        ({"a/1.png": png(8), "b/2.png": png(9)}, "9 × 9 pixels and .* is 8 × 8"),
        ({f"a/{n}.png": png(n + 8) for n in range(1)}, "only 1 usable"),
        ({"a/notes.txt": b"nothing"}, "contains no PNG or JPEG"),
        ({"a/1.png": png(8), "photos/1.heic": b"ftypheic"}, "photos' contains no PNG or JPEG"),
        ({"a/1.png": png(8), "a\tb/2.png": png(8)}, r"a\\tb' cannot be printed"),
        ({"a/1.png": png(8), "b/2.tif": floats()}, "2.tif' has floating-point pixels"),
        ({"1.png": png(8)}, "contains no folders"),
        ({"train/a/1.png": png(8), "Test/a/2.png": png(8)}, r"parts of a corpus \('Test', 'train'\)"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(
    files: dict[str, bytes], sentence: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        path = tmp_path / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        job.train(tmp_path / "run", settings(tmp_path / "all", "image", steps=4), view="quiet")
    assert not (tmp_path / "run").exists()


def test_sizes_are_of_pictures_alone(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a text\n" * 300)
    said = settings(tmp_path / "text.txt", "generate", steps=4)
    said["data"]["picture_size"] = 8
    with pytest.raises(UserError, match=r"data\.picture_size only applies to the task 'image'"):
        job.train(tmp_path / "run", said, view="quiet")


def test_one_class_and_sets_of_different_sizes(tmp_path: Path) -> None:
    one = as_folder(tmp_path / "one", some_pixels(), ["a"] * 12)
    with pytest.raises(UserError, match="have the class 'a'"):
        job.train(tmp_path / "run", settings(one, "image", steps=4), view="quiet")
    two = as_folder(tmp_path / "two", some_pixels(40), ["a", "b"] * 20)
    other = as_folder(tmp_path / "other", some_pixels(4, side=9), ["a", "b"] * 2)
    said = settings(two, "image", steps=4)
    said["data"]["test"] = {"file": str(other)}
    with pytest.raises(UserError, match=r"9 × 9 pixels, but .* convert all pictures to the same size"):
        job.train(tmp_path / "run", said, view="quiet")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", ["short", "kind", "counts"])
def test_damaged_idx_files(damage: str, tmp_path: Path) -> None:
    pictures, classes = as_idx(some_pixels()[:, 0]), as_idx(np.zeros(12, np.uint8))
    pictures = {"short": pictures[:-1], "kind": b"\0\0\x0d" + pictures[3:], "counts": pictures}[damage]
    classes = as_idx(np.zeros(11, np.uint8)) if damage == "counts" else classes
    (tmp_path / "x").write_bytes(pictures)
    (tmp_path / "y").write_bytes(classes)
    with pytest.raises(
        UserError, match=r"length its header states|not an IDX file|12 pictures .* 11 classes"
    ):
        rows_of(source=str(tmp_path / "x"), target=str(tmp_path / "y"))


def test_text_is_no_picture() -> None:
    pixels = some_pixels()[0]
    text, source = as_text(pixels), as_source(pixels)
    assert (packed(text), packed(source)) == (source, source)
    assert (unpacked(text), unpacked(source)) == (text, text)
    assert np.array_equal(pixels_of(text), pixels)
    assert np.array_equal(pixels_of(source), pixels)
    for text in ("hello", "picture of a cat", "picture 1x1x2 00", "\0picture 1x1x2 0", "\0picture 1x1x1 €"):
        assert packed(text) == unpacked(text) == text
        with pytest.raises(UserError, match="is text"):
            pixels_of(text)
