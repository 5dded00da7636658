"""Dots as the bytes of a PNG file, with zlib alone.

8-bit RGB, no filter, no time stamp: the same dots always give the same bytes.
Knows nothing about what the dots show.
"""

from __future__ import annotations

import struct
import zlib

import numpy
from numpy.typing import NDArray


def encode_png(dots: NDArray[numpy.uint8]) -> bytes:
    """A (height, width, 3) array of RGB dots as a PNG file."""
    if dots.ndim != 3 or dots.shape[2] != 3 or dots.dtype != numpy.uint8:
        raise ValueError(f"a picture is (height, width, 3) bytes, not {dots.shape} of {dots.dtype}")
    height, width = dots.shape[:2]
    lines = numpy.zeros((height, 1 + 3 * width), dtype=numpy.uint8)  # each line starts with 0: filter none
    lines[:, 1:] = dots.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
