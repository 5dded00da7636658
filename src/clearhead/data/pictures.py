"""Pictures as rows: from a folder for each class, IDX files or an .npz file to pixels, and back.

A row's source is the picture itself, written as its size and its bytes in hexadecimal, so all code that reads
rows of text (the survey, the split, held-out files) can read pictures as well. Every pass over the same files
gives the same rows in the same order. Knows nothing about models.

Shapes: C channels (1: grey, 3: colour), H rows and W columns of pixels.
"""

from __future__ import annotations

import gzip
import io
import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError
from clearhead.data.columns import Row, asked
from clearhead.data.config import CorpusConfig
from clearhead.data.lines import is_hidden

Pixels = NDArray[np.uint8]  # (C, H, W)
Form = tuple[int | None, int | None]  # channels and size that pictures are converted to; None: as stored

ENDINGS = (".png", ".jpg", ".jpeg")
_MARK = "picture"
_PATCHES = 7  # per side, about: 49 tokens are cheap to read, and still show where a stroke ends
_LARGEST = 4096  # pixels of a side …
_LARGEST_SCALED = 16384  # … and of one that is scaled down
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L")  # Pillow's names of modes without colour
_IDX = {8: np.dtype(np.uint8)}  # the only number type of pictures and classes
_NAMES = ("images", "x_train", "x", "data", "pixels"), ("labels", "y_train", "y", "target", "classes")


def as_text(pixels: Pixels) -> str:
    """A picture as the source of a row.

    >>> as_text(np.array([[[0, 255]]], np.uint8))
    'picture 1x1x2 00ff'
    """
    return f"{_MARK} {'x'.join(map(str, pixels.shape))} {pixels.tobytes().hex()}"


def is_picture(text: object) -> bool:
    """Whether a source is a picture rather than a text."""
    return isinstance(text, str) and text.startswith(f"{_MARK} ") and _parsed(text) is not None


def pixels_of(text: str) -> Pixels:
    """The pixels that `as_text` wrote."""
    found = _parsed(text)
    if found is None:
        raise UserError(f"This model reads pictures, and '{text[:40]}' is text: give a picture file.")
    return found


def shape_of(text: str) -> tuple[int, int, int]:
    """C, H and W of a picture, without reading its pixels."""
    channels, height, width = (int(one) for one in text.split(" ", 2)[1].split("x"))
    return channels, height, width


def in_words(text: str) -> str:
    """A description of a picture, for where only text can be shown."""
    channels, height, width = shape_of(text)
    return f"a {'grey' if channels == 1 else 'colour'} picture of {width} × {height} pixels"


def patch_for(height: int, width: int) -> int:
    """The default patch side for pictures of a size.

    >>> patch_for(28, 28), patch_for(32, 32), patch_for(224, 160), patch_for(29, 29)
    (4, 4, 32, 4)
    """
    side = max(height, width)
    near = sorted(range(max(side // 9, 1), side // 6 + 1), key=lambda one: abs(one - side / _PATCHES))
    whole = [one for one in near if side % one == 0]
    return whole[0] if whole else max(round(side / _PATCHES), 1)


def side_for(height: int, width: int, patch: int) -> int:
    """The side of the smallest square of whole patches that holds a picture in its centre.

    >>> side_for(28, 28, 4), side_for(100, 100, 10), side_for(30, 20, 7)
    (28, 100, 35)
    """
    return -(-max(height, width) // patch) * patch


def squared(pixels: Pixels, side: int) -> Pixels:
    """A picture centred in a square of this side, padded with 0."""
    _, height, width = pixels.shape
    if (height, width) == (side, side):
        return pixels
    found = np.zeros((len(pixels), side, side), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    found[:, top : top + height, left : left + width] = pixels
    return found


def read_picture(path: str | Path, channels: int | None = None, size: int | None = None) -> Pixels:
    """A PNG or JPEG file, upright and on white, scaled to a size.

    `channels`: as grey (1) or in colour (3), None: as stored.
    """
    from PIL import ImageOps  # imported here, so text tasks do not wait for it

    with _opened(path, _LARGEST if size is None else _LARGEST_SCALED) as image:
        grey = image.mode in _GREY if channels is None else channels == 1
        found = np.asarray(_plain(ImageOps.exif_transpose(image)).convert("L" if grey else "RGB"), np.uint8)
    return fitted(np.ascontiguousarray(found[None] if found.ndim == 2 else found.transpose(2, 0, 1)), size)


def fitted(pixels: Pixels, size: int | None) -> Pixels:
    """A picture scaled so that its longer side has `size` pixels, centred in a square of that side.

    None leaves it as it is. All channels are averaged over the area that becomes one pixel, so fine patterns
    do not alias.

    >>> fitted(np.full((1, 4, 8), 9, np.uint8), 4)[0].tolist()
    [[0, 0, 0, 0], [9, 9, 9, 9], [9, 9, 9, 9], [0, 0, 0, 0]]
    """
    from PIL import Image

    if size is None or pixels.shape[1:] == (size, size):
        return pixels
    _, height, width = pixels.shape
    longer = max(height, width)
    rows, columns = (max(1, round(side * size / longer)) for side in (height, width))
    found = np.zeros((len(pixels), size, size), np.uint8)
    top, left = (size - rows) // 2, (size - columns) // 2
    for channel, whole in zip(found, pixels, strict=True):
        scaled = Image.fromarray(whole).resize((columns, rows), Image.Resampling.BILINEAR)
        channel[top : top + rows, left : left + columns] = np.asarray(scaled)
    return found


def _plain(image: Any) -> Any:
    """A picture without transparency, and with 8 bits per channel."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits, which `convert` would clip
        return Image.fromarray(np.rint(np.asarray(image, np.float64) / 257).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        over = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", over.size, "white"), over).convert("RGB")
    return image


@contextmanager
def _opened(path: str | Path, largest: int = _LARGEST_SCALED) -> Iterator[Any]:
    """A picture file; what the library raises about it becomes one sentence."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
            if max(image.size) > largest:
                raise UserError(
                    f"'{path}' has a side of {max(image.size):,} pixels, and at most {largest:,} are "
                    "allowed: scale it down."
                )
            yield image
    except UserError:
        raise
    except UnidentifiedImageError:
        raise UserError(f"'{path}' is not a readable picture: give PNG or JPEG files.") from None
    except FileNotFoundError:
        raise UserError(f"There is no picture '{path}': check the path.") from None
    except IsADirectoryError:
        raise UserError(f"'{path}' is a folder: give a picture file.") from None
    except Image.DecompressionBombError:
        raise UserError(f"'{path}' has more pixels than any camera takes: scale it down.") from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise UserError(f"The picture '{path}' is damaged: replace it.") from error


def read_pictures(corpus: CorpusConfig) -> Iterator[Row]:
    """The rows of a corpus of pictures: the picture, and the name of its class."""
    if asked(corpus) or corpus.prefix or corpus.hub is not None:
        raise UserError(
            "Pictures come from folders, IDX or .npz files: leave columns, prefixes and --hub out."
        )
    form = corpus.picture_channels, corpus.picture_size
    if corpus.file is None:
        assert corpus.source is not None or corpus.target is not None
        return _read_idx(corpus.source, corpus.target, form)
    path = Path(corpus.file)
    if path.is_dir():
        pair = _idx_in(path)
        return _read_idx(*pair, form) if pair is not None else _read_folder(path, form)
    if path.suffix.lower() == ".npz":
        return _read_npz(path, form)
    if not path.exists():
        raise UserError(f"There is no file or folder '{path}': check the path.")
    raise UserError(
        f"'{path}' is neither a folder of pictures nor an .npz file: give a folder with one folder for each "
        "class, or IDX files with --source (pictures) and --target (classes)."
    )


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
    return [(one.name, path) for one in classes for path in _pictures_in(one)]


def _read_folder(folder: Path, form: Form) -> Iterator[Row]:
    files, (channels, size) = _files_in(folder), form
    channels = channels or (1 if all(_is_grey(path) for _, path in files) else 3)
    shape: tuple[int, ...] = ()
    for number, (name, path) in enumerate(files, start=1):
        pixels = read_picture(path, channels, size)
        shape = shape or pixels.shape
        if pixels.shape != shape:
            sizes = [f"{width} × {height}" for _, height, width in (pixels.shape, shape)]
            raise UserError(
                f"'{path}' is {sizes[0]} pixels and '{files[0][1]}' is {sizes[1]}: scale all pictures to "
                "one size, or train with --set data.picture_size=64, which scales them."
            )
        yield Row(as_text(pixels), name, number)


def _pictures_in(folder: Path) -> list[Path]:
    """The pictures of a class, without hidden files and folders."""
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in ENDINGS and path.is_file() and not is_hidden(path, folder)
    ]
    if not found:
        raise UserError(
            f"The folder '{folder}' contains no PNG or JPEG file: convert the pictures of this class, or "
            "remove the folder."
        )
    return found


def _is_grey(path: Path) -> bool:
    with _opened(path) as image:
        return image.mode in _GREY


def _idx_in(folder: Path) -> tuple[str, str] | None:
    """The two files of a training set in a folder, named as in the MNIST distribution."""
    found = []
    for stem in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
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


def _read_npz(path: Path, form: Form) -> Iterator[Row]:
    try:
        file = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        arrays = {name: file[name] for name in getattr(file, "files", ())}
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}': check the path.") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"'{path}' is damaged, or not an .npz file of plain arrays.") from error
    known = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    found = [next((known[name] for name in names if name in known), None) for names in _NAMES]
    pictures, classes = found
    if pictures is None or classes is None:
        raise UserError(
            f"'{path}' has the arrays {', '.join(known) or 'none'}: name the pictures 'images' and their "
            "classes 'labels'."
        )
    return _rows(_bytes(pictures, path), classes.reshape(-1).tolist(), f"'{path}'", "the same file", form)


def _bytes(pictures: NDArray[Any], path: Path) -> Pixels:
    """Pixels from 0 to 255; those from 0 to 1 are scaled."""
    if pictures.size == 0:
        return pictures.astype(np.uint8)
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
        or not all(0 < side <= _LARGEST for side in pictures.shape[2:])
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
    channels, size = form
    for number, (pixels, name) in enumerate(zip(pictures, classes, strict=True), start=1):
        yield Row(
            as_text(fitted(_coloured(pixels, channels), size)), _class_name(name, number, source), number
        )


def _coloured(pixels: Pixels, channels: int | None) -> Pixels:
    """A picture with this many channels, converted as `read_picture` converts files; None: as it is.

    >>> _coloured(np.array([[[9]], [[200]], [[90]]], np.uint8), 1).tolist()
    [[[130]]]
    """
    from PIL import Image

    if channels is None or channels == len(pixels):
        return pixels
    if channels == 3:
        return pixels.repeat(3, axis=0)
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).convert("L"))[None]


def _parsed(text: str) -> Pixels | None:
    try:
        shape = shape_of(text)
        return np.frombuffer(bytes.fromhex(text.split(" ", 2)[2]), np.uint8).reshape(shape)
    except (ValueError, IndexError):
        return None
