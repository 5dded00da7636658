"""Which pictures and classes the files of a corpus give: formats, arrays by name, training and test parts."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clearhead.base.errors import UserError
from clearhead.data import picture_corpora
from clearhead.data.config import CorpusConfig
from clearhead.data.picture_corpora import for_testing, read_pictures
from clearhead.data.pictures import Form, Pixels, pixels_of, read_picture
from clearhead.data.split import TEST, TRAIN, Fates, rows_with_fate
from clearhead.tasks.image import IMAGE

from ..jobs.test_image import as_folder, as_idx, rows_of, some_pixels


@pytest.mark.parametrize("ending", ["webp", "bmp", "GIF", "tif", "TIFF"])
def test_formats_without_loss(ending: str, tmp_path: Path) -> None:
    """A class of other formats than PNG and JPEG is not skipped, and an animation gives its first frame."""
    (tmp_path / "all" / "a").mkdir(parents=True)
    first, second = (Image.fromarray(one[0]) for one in some_pixels()[:2])
    more = {"save_all": True, "append_images": [second]} if ending == "GIF" else {"lossless": True}
    first.save(tmp_path / "all" / "a" / f"0.{ending}", **more)
    [row] = rows_of(file=str(tmp_path / "all"))
    assert np.array_equal(pixels_of(row.source)[0], some_pixels()[0, 0])


def test_arrays_by_name_and_the_test_part(tmp_path: Path) -> None:
    """Training reads the training arrays, an evaluation those for testing, unless others are named."""
    pictures, classes, path = some_pixels()[:, 0], np.arange(12) % 3, tmp_path / "all.npz"
    unread = np.array([{}])  # pickled; only the arrays that are asked for are opened
    parts = {"train_images": pictures[:8], "train_labels": classes[:8, None], "unread": unread}
    np.savez(path, **parts, test_images=pictures[8:], test_labels=classes[8:, None])
    whole = CorpusConfig(file=str(path))
    tested = for_testing(whole)
    named = whole.replace(source_column="train_images", target_column="train_labels")
    assert for_testing(named) == named
    for corpus, begin, end in ((whole, 0, 8), (named, 0, 8), (tested, 8, 12)):
        rows = list(read_pictures(corpus))
        assert [row.target for row in rows] == [str(one) for one in classes[begin:end]]
        assert np.array_equal(np.stack([pixels_of(row.source)[0] for row in rows]), pictures[begin:end])
    with pytest.raises(
        UserError, match=r"has the arrays train_images, .* --source-column and --target-column"
    ):
        list(read_pictures(named.replace(target_column="none")))


def test_the_test_part_of_mnist_s_folder(tmp_path: Path) -> None:
    for name, (begin, end) in {"train": (0, 8), "t10k": (8, 12)}.items():
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(as_idx(some_pixels()[begin:end, 0]))
        labels = np.arange(begin, end, dtype=np.uint8)
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(as_idx(labels)))
    folder = CorpusConfig(file=str(tmp_path))
    assert [row.target for row in read_pictures(folder)] == [str(one) for one in range(8)]
    assert [row.target for row in read_pictures(for_testing(folder))] == [str(one) for one in range(8, 12)]


def test_only_the_pictures_of_a_part_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_folder(tmp_path / "all", some_pixels(), ["a", "b"] * 6)
    corpus, fates = CorpusConfig(file=str(folder)), np.full(12, TRAIN, np.uint8)
    fates[[2, 9]] = TEST
    every, opened = list(read_pictures(corpus)), []

    def noted(path: Path, form: Form) -> Pixels:
        opened.append(path)
        return read_picture(path, form)

    monkeypatch.setattr(picture_corpora, "read_picture", noted)
    assert list(rows_with_fate(corpus, IMAGE.columns, Fates(fates), TEST)) == [every[2], every[9]]
    assert len(opened) == 2
    with pytest.raises(UserError, match="changed while it was being read"):
        list(rows_with_fate(corpus, IMAGE.columns, Fates(fates[:8]), TEST))


def test_one_hot_classes_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", images=some_pixels(), labels=np.eye(12))
    with pytest.raises(UserError, match=r"have the shape \(12, 12\): store one class for each picture"):
        rows_of(file=str(tmp_path / "all.npz"))


def test_a_file_that_may_not_be_read_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: object, formats: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refused)  # the administrator's tests may read every file
    with pytest.raises(UserError, match="may not be read: change its permissions"):
        read_picture("secret.png")
