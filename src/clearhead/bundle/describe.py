"""What a bundle holds, without loading it: config, parameters by part, files and their state.

Describes a damaged bundle too, as far as its metadata can be read, and says
what is wrong with it. Returns data; `cli` decides how it looks on a terminal.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from clearhead.base import checksums
from clearhead.base.atomic import sha256_of
from clearhead.base.errors import UserError
from clearhead.bundle import checking
from clearhead.bundle import metadata as manifest
from clearhead.bundle.adapter import NOTE, base_folder
from clearhead.bundle.folder import (
    config_of,
    layers_in_words,
    read_plan,
    read_tokenizers,
    vocabulary_in_words,
)
from clearhead.bundle.weights import disagreement, read_shapes, shapes_of
from clearhead.models.build import count_parameters

PART_DEPTH = 4  # `encoder.layers.*.attention` is the depth of the parts table


@dataclass(frozen=True)
class Part:
    """Tensors that belong together; those of all layers share one row."""

    name: str
    tensors: int
    parameters: int


@dataclass(frozen=True)
class File:
    """One file of the bundle; `state` is "ok", "damaged", or "no checksum" for metadata of release 0.1."""

    name: str
    bytes: int
    sha256: str
    state: str


@dataclass(frozen=True)
class Description:
    """Everything that can be said about a bundle without loading its weights."""

    folder: str
    family: str
    layers: str
    vocabulary: str
    parameters: int
    created: str  # empty, as are the versions, for an unfinished run
    versions: dict[str, str]
    metadata: dict[str, Any]
    config: dict[str, Any]
    parts: list[Part]
    files: list[File]
    problem: str | None  # what is wrong with the bundle, as a clause

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def describe(folder: str | Path) -> Description:
    """Describe a bundle.

    >>> import clearhead, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = describe(clearhead.save(clearhead.build("tiny"), f"{folder}/first"))
    >>> found.parts[0].name, found.parts[0].parameters, found.problem
    ('source_embedding.table', 3200, None)
    """
    path = Path(folder)
    with manifest.being_read(path):
        facts = manifest.read_metadata(path, verify=False)
        files = [_file(path, name, facts) for name in (*sorted(facts.sha256), manifest.METADATA)]
        model = read_plan(path)
    problem = _problem(path, files, facts, model)
    return described(path, model, facts.metadata, files, facts.created, facts.versions, problem)


def described(
    folder: Path,
    model: nn.Module,
    metadata: dict[str, Any],
    files: list[File],
    created: str,
    versions: dict[str, str],
    problem: str | None,
) -> Description:
    """Describe a model, which may be built on "meta", and where it comes from."""
    config, parts = config_of(model), _parts(shapes_of(model))
    return Description(
        folder=str(folder),
        family=config.family,
        layers=layers_in_words(config),
        vocabulary=vocabulary_in_words(config),
        parameters=count_parameters(model),
        created=created,
        versions=versions,
        metadata=metadata,
        config=config.to_dict(),
        parts=parts,
        files=files,
        problem=problem,
    )


def _file(folder: Path, name: str, facts: manifest.Facts) -> File:
    """The metadata contains its own checksum, unless it predates them."""
    path = folder / name
    found = sha256_of(path)
    state = "ok" if facts.sha256.get(name) == found else "damaged"
    if name == manifest.METADATA:
        plain = manifest.read_json(path)
        fault = checksums.fault(plain, manifest.KNOWN)
        state = "damaged" if fault is not None else "ok" if checksums.KEY in plain else "no checksum"
    return File(name, path.stat().st_size, found, state)


def _parts(shapes: dict[str, tuple[int, ...]]) -> list[Part]:
    """Rows of the table of parts, in the order of the model."""
    found: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        pieces = ["*" if piece.isdecimal() else piece for piece in name.split(".")]
        part = ".".join(pieces[:-1][:PART_DEPTH]) or name  # a tensor of the model itself is a separate part
        found.setdefault(part, []).append(math.prod(shape))
    return [Part(name, len(sizes), sum(sizes)) for name, sizes in found.items()]


def _problem(folder: Path, files: list[File], facts: manifest.Facts, model: nn.Module) -> str | None:
    """The first problem with the files, the weights, the tokenizers or the metadata."""
    damaged = [file.name for file in files if file.state == "damaged"]
    if damaged:
        return f"{damaged[0]} does not match its checksum"
    try:
        fault = None
        if NOTE in facts.metadata:
            base_folder(folder, facts.metadata[NOTE])
        else:
            fault = disagreement(read_shapes(folder / manifest.WEIGHTS), shapes_of(model))
        if fault is None:
            checking.check(config_of(model), facts.metadata, *read_tokenizers(folder, facts))
    except UserError as error:
        fault = str(error).rstrip(".")
    return fault
