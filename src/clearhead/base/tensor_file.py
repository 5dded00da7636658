"""The layout of a safetensors file: where each tensor lies in it. No torch.

Eight bytes say how long the head is; then comes the head (JSON: names with kinds, shapes and places), and
then the tensors one after another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from clearhead.base.reading import parse_json

LONGEST = 100 << 20  # bytes of a head


class Place(NamedTuple):
    """Where a tensor lies behind the head, and what it is."""

    kind: str  # as the file says it: "F32", "BF16", …
    shape: tuple[int, ...]
    begin: int
    end: int


class Head(NamedTuple):
    """The beginning of a file, and what it says."""

    text: bytes  # the eight bytes included
    places: dict[str, Place]


def read_head(file: Any, size: int) -> Head:
    """The head of an open file of so many bytes; ValueError, KeyError or TypeError where it is none."""
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if not 0 < length <= LONGEST or size - 8 - length <= 0:
        raise ValueError("this is no file of tensors")
    head = file.read(length)
    plain = parse_json(head)
    plain.pop("__metadata__", None)
    places = {
        name: Place(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
        for name, entry in plain.items()
    }
    for place in places.values():
        if type(place.kind) is not str or {type(one) for one in (*place.shape, *place[2:])} != {int}:
            raise ValueError("this is no head of a file of tensors")
    return Head(first + head, places)
