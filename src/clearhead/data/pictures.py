"""Pictures: read from a file, converted to one size and colours, and written as the source of a row.

A row's source is the picture itself, written as its size and its values, so all code that reads rows of text
(the survey, the split, held-out files) can read pictures as well. In files, addresses and keys the values are
hexadecimal. Rows in memory have one character per value, which Python stores in one byte. Every function
here reads both. Knows nothing about models.

Shapes: C channels (1: grey, 3: colour), H rows and W columns of pixels.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError

Pixels = NDArray[np.uint8]  # (C, H, W)
_MARK = "picture"
_PACKED = "\0picture"  # no text that somebody writes begins like this
_PATCHES = 7  # per side, about: 49 tokens are cheap to read, and still show where a stroke ends
AT_ONCE = 16  # pictures whose texts are in memory together
LARGEST = 4096  # pixels of a side …
_LARGEST_SCALED = 16384  # … and of one that is scaled down
_SENT = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")  # Pillow reads more, some with other programs
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L")  # Pillow's names of modes without colour


class Form(NamedTuple):
    """What pictures are converted to; None: as stored."""

    channels: int | None = None  # 1: grey, 3: colour
    size: int | None = None  # pixels of the longer side, and of the square around it …
    stretched: bool = False  # … or of both sides
    resample: str = "bilinear"  # the filter that scales; Pillow's names


AS_STORED = Form()


class Sent(io.BytesIO):
    """A picture file that is not on the disk, which errors call by its name.

    >>> f"'{Sent(b'', 'cat.png')}'"
    "'cat.png'"
    """

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self._called = name

    def __str__(self) -> str:
        return self._called


def as_source(pixels: Pixels) -> str:
    r"""A picture as the source of a row in memory.

    >>> as_source(np.array([[[65, 255]]], np.uint8))
    '\x00picture 1x1x2 Aÿ'
    """
    return f"{_PACKED} {_shape(pixels)} {pixels.tobytes().decode('latin-1')}"


def as_text(pixels: Pixels) -> str:
    """A picture as text that can be written anywhere.

    >>> as_text(np.array([[[0, 255]]], np.uint8))
    'picture 1x1x2 00ff'
    """
    return f"{_MARK} {_shape(pixels)} {pixels.tobytes().hex()}"


def packed(text: str) -> str:
    """What `as_text` wrote, as `as_source` writes it; any other text as it is."""
    found = _parsed(text) if text.startswith(f"{_MARK} ") else None
    return text if found is None else as_source(found)


def unpacked(text: str) -> str:
    """What `as_source` wrote, as `as_text` writes it; any other text as it is."""
    found = _parsed(text) if text.startswith(f"{_PACKED} ") else None
    return text if found is None else as_text(found)


def is_picture(text: object) -> bool:
    """Whether a source is a picture rather than a text."""
    marks = (f"{_MARK} ", f"{_PACKED} ")
    return isinstance(text, str) and text.startswith(marks) and _parsed(text) is not None


def pixels_of(text: str) -> Pixels:
    """The pixels that `as_source` or `as_text` wrote."""
    found = _parsed(text)
    if found is None:
        raise UserError(f"This model reads pictures, and '{text[:40]}' is text: give a picture file.")
    return found


def shape_of(text: str) -> tuple[int, int, int]:
    """C, H and W of a picture, without reading its pixels."""
    channels, height, width = (int(one) for one in text.split(" ", 2)[1].split("x"))
    return channels, height, width


def as_png(pixels: Pixels) -> bytes:
    """A picture as a PNG file."""
    from PIL import Image  # imported here, as below

    file = io.BytesIO()
    dots = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    Image.fromarray(np.ascontiguousarray(dots)).save(file, "PNG")
    return file.getvalue()


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


def read_picture(path: str | Path | Sent, form: Form = AS_STORED) -> Pixels:
    """A PNG, JPEG or similar file, upright and on white, in a form; of an animation, the first frame."""
    from PIL import ImageOps  # imported here, so text tasks do not wait for it

    with opened(path, LARGEST if form.size is None else _LARGEST_SCALED) as image:
        grey = is_grey(image) if form.channels is None else form.channels == 1
        # A large JPEG is read at a smaller scale, at least twice what is needed. Not a stretched one: that is
        # how imported models read pictures, and `transformers` scales all pixels.
        if form.size is not None and not form.stretched:
            longer = max(image.size)
            image.draft(None, tuple(max(1, 2 * side * form.size // longer) for side in image.size))
        found = np.asarray(_plain(ImageOps.exif_transpose(image)).convert("L" if grey else "RGB"), np.uint8)
    return fitted(np.ascontiguousarray(found[None] if found.ndim == 2 else found.transpose(2, 0, 1)), form)


def fitted(pixels: Pixels, form: Form) -> Pixels:
    """A picture scaled so that its longer side has `size` pixels, centred in a square of that side.

    A stretched one fills the square; without a size it stays as it is. Except by "nearest", all channels are
    averaged over the area that becomes one pixel, so fine patterns do not alias.

    >>> wide = np.full((1, 4, 8), 9, np.uint8)
    >>> fitted(wide, Form(size=4))[0].tolist()
    [[0, 0, 0, 0], [9, 9, 9, 9], [9, 9, 9, 9], [0, 0, 0, 0]]
    >>> fitted(wide, Form(size=2, stretched=True))[0].tolist()
    [[9, 9], [9, 9]]
    """
    from PIL import Image

    size = form.size
    if size is None or pixels.shape[1:] == (size, size):
        return pixels
    _, height, width = pixels.shape
    longer = max(height, width)
    rows, columns = (
        size if form.stretched else max(1, round(side * size / longer)) for side in (height, width)
    )
    found, how = np.zeros((len(pixels), size, size), np.uint8), Image.Resampling[form.resample.upper()]
    top, left = (size - rows) // 2, (size - columns) // 2
    for channel, whole in zip(found, pixels, strict=True):
        scaled = Image.fromarray(whole).resize((columns, rows), how)
        channel[top : top + rows, left : left + columns] = np.asarray(scaled)
    return found


def is_grey(image: Any) -> bool:
    """Whether an opened file is stored without colour."""
    return image.mode in _GREY


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
def opened(path: str | Path | Sent, largest: int = _LARGEST_SCALED) -> Iterator[Any]:
    """A picture file; what the library raises about it becomes one sentence."""
    from PIL import Image, UnidentifiedImageError

    formats = _SENT if isinstance(path, Sent) else None
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path, formats=formats) as image:
            if max(image.size) > largest:
                raise UserError(
                    f"'{path}' has a side of {max(image.size):,} pixels, and at most {largest:,} are "
                    "allowed: scale it down."
                )
            if image.mode == "F":  # nothing says which number is white
                raise UserError(f"'{path}' has floating-point pixels: convert it to 8 bits per channel.")
            yield image
    except UserError:
        raise
    except UnidentifiedImageError:
        raise UserError(f"'{path}' is not a readable picture: give PNG or JPEG files.") from None
    except FileNotFoundError:
        raise UserError(f"There is no picture '{path}': check the path.") from None
    except PermissionError:
        raise UserError(f"The picture '{path}' may not be read: change its permissions.") from None
    except IsADirectoryError:
        raise UserError(f"'{path}' is a folder: give a picture file.") from None
    except Image.DecompressionBombError:
        raise UserError(f"'{path}' has more pixels than any camera takes: scale it down.") from None
    except (OSError, ValueError, SyntaxError, EOFError, TypeError) as error:  # the last by damaged TIFF files
        raise UserError(f"The picture '{path}' is damaged: replace it.") from error


def coloured(pixels: Pixels, channels: int | None) -> Pixels:
    """A picture with this many channels, converted as `read_picture` converts files; None: as it is.

    >>> coloured(np.array([[[9]], [[200]], [[90]]], np.uint8), 1).tolist()
    [[[130]]]
    """
    from PIL import Image

    if channels is None or channels == len(pixels):
        return pixels
    if channels == 3:
        return pixels.repeat(3, axis=0)
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).convert("L"))[None]


def _shape(pixels: Pixels) -> str:
    return "x".join(map(str, pixels.shape))


def _parsed(text: str) -> Pixels | None:
    try:
        shape, values = shape_of(text), text.split(" ", 2)[2]
        if min(shape) < 0:  # which numpy would take for "whatever fits"
            return None
        plain = values.encode("latin-1") if text.startswith(_PACKED) else bytes.fromhex(values)
        return np.frombuffer(plain, np.uint8).reshape(shape)
    except (ValueError, IndexError):
        return None
