"""Corpora of pictures as rows: a folder for each class, IDX files, or an .npz file.

Every pass over the same files gives the same rows in the same order.
"""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError
from clearhead.data.columns import Row, asked
from clearhead.data.config import CorpusConfig
from clearhead.data.lines import is_hidden
from clearhead.data.pictures import (
    AS_STORED,
    LARGEST,
    Form,
    Pixels,
    as_source,
    coloured,
    fitted,
    is_grey,
    opened,
    read_picture,
    shape_of,
)

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")  # animated: the first frame
_IDX = {8: np.dtype(np.uint8)}  # the only number type of pictures and classes
_NAMES = (
    ("images", "x_train", "train_images", "x", "data", "pixels"),
    ("labels", "y_train", "train_labels", "y", "target", "classes"),
)
_TEST_NAMES = ("x_test", "y_test"), ("test_images", "test_labels")
# never names of classes
_PARTS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")


def read_pictures(corpus: CorpusConfig, needed: NDArray[np.bool_] | None = None) -> Iterator[Row]:
    """The rows of a corpus of pictures: the picture, and the name of its class.

    `needed`: files of other rows are not decoded, which takes nearly all of the time; their sources are
    empty.
    """
    arrays = Path(corpus.file or "").suffix.lower() == ".npz"  # the only file with something like columns
    columns = arrays and corpus.second_column is None
    if (asked(corpus) and not columns) or corpus.prefix or corpus.hub is not None:
        raise UserError(
            "Pictures come from folders, IDX or .npz files: leave columns (except names of arrays in .npz), "
            "prefixes and --hub out."
        )
    stretched, resample = bool(corpus.picture_stretched), corpus.picture_resample or AS_STORED.resample
    form = Form(corpus.picture_channels, corpus.picture_size, stretched, resample)
    if corpus.file is None:
        assert corpus.source is not None or corpus.target is not None
        return _read_idx(corpus.source, corpus.target, form)
    path = Path(corpus.file)
    if path.is_dir():
        pair = _idx_in(path)
        return _read_idx(*pair, form) if pair is not None else _read_folder(path, form, needed)
    if arrays:
        return _read_npz(path, form, (corpus.source_column, corpus.target_column))
    if not path.exists():
        raise UserError(f"There is no file or folder '{path}': check the path.")
    raise UserError(
        f"'{path}' is neither a folder of pictures nor an .npz file: give a folder with one folder for each "
        "class, or IDX files with --source (pictures) and --target (classes)."
    )


def for_testing(corpus: CorpusConfig) -> CorpusConfig:
    """The test pictures of files that have training pictures as well, as MNIST's folder does; else, all."""
    path = Path(corpus.file or "")
    if corpus.file is None or asked(corpus):
        return corpus
    if path.is_dir():
        pair = _idx_in(path, "t10k")
        return corpus if pair is None else corpus.replace(file=None, source=pair[0], target=pair[1])
    if path.suffix.lower() == ".npz":
        known = _arrays(path, lambda names: ())[0]
        for source, target in _TEST_NAMES:
            if source in known and target in known:
                return corpus.replace(source_column=source, target_column=target)
    return corpus


def channels_of(corpus: CorpusConfig) -> int:
    """How a corpus of pictures is read if nothing else is said: as grey (1) or in colour (3)."""
    path = Path(corpus.file or "")
    if corpus.file is not None and path.is_dir() and _idx_in(path) is None:
        return 1 if all(_is_grey(picture) for _, picture in _files_in(path)) else 3
    first = next(read_pictures(corpus), None)
    return 1 if first is None else shape_of(first.source)[0]


def _files_in(folder: Path) -> list[tuple[str, Path]]:
    """The pictures in one folder for each class, sorted by name, as are the files in them."""
    classes = sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not classes:
        raise UserError(
            f"'{folder}' contains no folders: put the pictures of each class into a folder of their own."
        )
    if all(one.name.lower() in _PARTS and any(inner.is_dir() for inner in one.iterdir()) for one in classes):
        parts = ", ".join(f"'{one.name}'" for one in classes)
        raise UserError(
            f"'{folder}' has folders for the parts of a corpus ({parts}), not for classes: give the training "
            "part with --file, and the others with --validation and --test."
        )
    for one in classes:
        if not one.name.isprintable():  # it is printed, in lines and columns
            raise UserError(f"The name of the class folder {str(one)!a} cannot be printed: rename it.")
    return [(one.name, path) for one in classes for path in _pictures_in(one)]


def _read_folder(folder: Path, form: Form, needed: NDArray[np.bool_] | None) -> Iterator[Row]:
    files = _files_in(folder)
    channels = form.channels or (1 if all(_is_grey(path) for _, path in files) else 3)
    shape: tuple[int, ...] = ()
    for number, (name, path) in enumerate(files, start=1):
        if needed is not None and not needed[number - 1 : number].any():
            yield Row("", name, number)
            continue
        pixels = read_picture(path, form._replace(channels=channels))
        shape = shape or pixels.shape
        if pixels.shape != shape:
            sizes = [f"{width} × {height}" for _, height, width in (pixels.shape, shape)]
            raise UserError(
                f"'{path}' is {sizes[0]} pixels and '{files[0][1]}' is {sizes[1]}: scale all pictures to "
                "one size, or train with --set data.picture_size=64, which scales them."
            )
        yield Row(as_source(pixels), name, number)


def _pictures_in(folder: Path) -> list[Path]:
    """The pictures of a class, without hidden files and folders."""
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in ENDINGS and path.is_file() and not is_hidden(path, folder)
    ]
    if not found:
        raise UserError(
            f"The folder '{folder}' contains no PNG or JPEG file (nor WebP, BMP, GIF, TIFF): convert the "
            "pictures of this class, or remove the folder."
        )
    return found


def _is_grey(path: Path) -> bool:
    with opened(path) as image:
        return is_grey(image)


def _idx_in(folder: Path, part: str = "train") -> tuple[str, str] | None:
    """The two files of a training or test set in a folder, named as in the MNIST distribution."""
    found = []
    for stem in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
        there = [folder / name for name in (stem, f"{stem}.gz") if (folder / name).is_file()]
        if not there:
            return None
        found.append(str(there[0]))
    return found[0], found[1]


def _read_idx(source: str | None, target: str | None, form: Form) -> Iterator[Row]:
    if source is None or target is None:
        raise UserError(
            "IDX files come in pairs: --source with the pictures, and --target with their classes."
        )
    pictures, classes = _idx(source), _idx(target)
    return _rows(pictures, classes.reshape(-1).tolist(), f"'{source}'", f"'{target}'", form)


def _idx(path: str) -> NDArray[Any]:
    """The array in an IDX file, plain or gzipped."""
    try:
        plain = Path(path).read_bytes()
        plain = gzip.decompress(plain) if plain[:2] == b"\x1f\x8b" else plain
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}': check the path.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' is damaged or cannot be read: download it again.") from error
    kind, dimensions = (plain[2], plain[3]) if len(plain) > 4 and plain[:2] == b"\0\0" else (0, 0)
    if kind not in _IDX or not 1 <= dimensions <= 4:
        raise UserError(
            f"'{path}' is not an IDX file of bytes: give one, a folder of pictures, or an .npz file."
        )
    start = 4 + 4 * dimensions
    shape = np.frombuffer(plain[4:start], ">u4").astype(np.int64) if len(plain) >= start else np.zeros(1)
    if len(shape) != dimensions or len(plain) - start != math.prod(shape.tolist()):
        raise UserError(f"'{path}' does not have the length its header states: download it again.")
    return np.frombuffer(plain, _IDX[kind], offset=start).reshape(shape)


def _arrays(path: Path, pick: Callable[[list[str]], Sequence[str]]) -> tuple[list[str], list[NDArray[Any]]]:
    """The names of all arrays in an .npz file, and those arrays that `pick` names."""
    try:
        with path.open("rb") as handle:
            file = np.load(handle, allow_pickle=False)
            names = list(getattr(file, "files", ()))
            return names, [file[name] for name in pick(names)]
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}': check the path.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"'{path}' is damaged, or not an .npz file of plain arrays.") from error


def _read_npz(path: Path, form: Form, named: tuple[str | None, str | None]) -> Iterator[Row]:
    def pick(known: list[str]) -> list[str]:
        wanted = [[one] if one is not None else usual for one, usual in zip(named, _NAMES, strict=True)]
        found = [next((name for name in names if name in known), None) for names in wanted]
        if None in found:
            raise UserError(
                f"'{path}' has the arrays {', '.join(known) or 'none'}: name the pictures 'images' and their "
                "classes 'labels', or give their names with --source-column and --target-column."
            )
        return [str(one) for one in found]

    pictures, classes = _arrays(path, pick)[1]
    if classes.ndim > 1 and classes.size != len(classes):
        raise UserError(
            f"The classes in '{path}' have the shape {classes.shape}: store one class for each picture (of "
            "one-hot rows: argmax)."
        )
    return _rows(_bytes(pictures, path), classes.reshape(-1).tolist(), f"'{path}'", "the same file", form)


def _bytes(pictures: NDArray[Any], path: Path) -> Pixels:
    """Pixels from 0 to 255; those from 0 to 1 are scaled."""
    if pictures.size == 0 or (pictures.dtype == np.uint8 and pictures.max() > 1):
        return pictures.astype(np.uint8, copy=False)
    if pictures.dtype.kind in "biuf":
        whole = pictures * 255.0 if pictures.max() <= 1 else pictures
        if np.isfinite(whole).all() and whole.min() >= 0 and whole.max() <= 255:
            return np.rint(whole).astype(np.uint8)
    raise UserError(f"The pixels in '{path}' are not from 0 to 255, nor from 0 to 1: scale them.")


def _class_name(value: Any, number: int, where: str) -> str:
    """A class as text: 3 and 3.0 are the same.

    >>> [_class_name(value, 1, "'x.npz'") for value in (3, 3.0, b"cat", "dog")]
    ['3', '3', 'cat', 'dog']
    """
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UserError(
                f"Picture {number:,} in {where} has no class, but {value}: name it, or leave it out."
            )
        return str(int(value)) if value == int(value) else str(value)
    return str(value)


def _rows(pictures: Pixels, classes: Sequence[Any], source: str, target: str, form: Form) -> Iterator[Row]:
    if pictures.ndim == 4 and pictures.shape[3] in (1, 3):  # channels come last
        pictures = pictures.transpose(0, 3, 1, 2)
    pictures = pictures[:, None] if pictures.ndim == 3 else pictures
    if (
        pictures.ndim != 4
        or pictures.shape[1] not in (1, 3)
        or not all(0 < side <= LARGEST for side in pictures.shape[2:])
    ):
        raise UserError(
            f"The pictures in {source} have the shape {pictures.shape[1:]}: they must be height × width, "
            "grey or with three colours."
        )
    if len(pictures) != len(classes):
        raise UserError(
            f"{source} has {len(pictures):,} pictures but {target} has {len(classes):,} classes: they "
            "must have the same number."
        )
    for number, (pixels, name) in enumerate(zip(pictures, classes, strict=True), start=1):
        picture = fitted(coloured(pixels, form.channels), form)
        yield Row(as_source(picture), _class_name(name, number, source), number)
