"""`metadata.json`: which files a bundle has, their checksums, who wrote them, and the user's notes.

It is the last file to be written and the first to be read: it says what kind of
folder this is, and which files must be in it. Knows nothing about weights.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from clearhead.base import checksums, preload, reading
from clearhead.base.atomic import atomic_write_text, recover_folder, sha256_of
from clearhead.base.checksums import with_checksum
from clearhead.base.errors import UserError

FORMAT = "clearhead-bundle"
FORMAT_VERSION = 1

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
SOURCE_TOKENIZER = "source_tokenizer.json"  # if the source has a separate vocabulary
METADATA = "metadata.json"
ALWAYS = (WEIGHTS, CONFIG)  # besides metadata.json itself
FILES = (*ALWAYS, TOKENIZER, SOURCE_TOKENIZER, METADATA)
COMPANION = "training"  # the subfolder in which a run keeps its state
LOCK = "lock"  # in there: held by the process that changes the folder
RECORD = "run.json"  # in there: what the run is

ADAPTER = "adapter"  # the note of a bundle that holds only what differs from its base

AGAIN = "Copy it here again, or make it again."
ON_PURPOSE = "If you changed it on purpose, load it with verify=False and save it again."
# The entries of the file before it had a checksum.
KNOWN = ("format", "format_version", "created", "versions", "parameters", "sha256", "metadata")


@dataclass(frozen=True)
class Facts:
    """The contents of a `metadata.json`."""

    created: str
    versions: dict[str, str]
    parameters: int
    sha256: dict[str, str]  # file name → checksum
    metadata: dict[str, Any]  # the user's own


def to_json(plain: Mapping[str, Any], what: str) -> str:
    """JSON as written in a bundle; raises a UserError if `plain` holds what could not be read back."""
    try:
        text = json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        if len(text.encode("utf-8")) > reading.LARGEST:
            raise ValueError(f"it has more than {reading.LARGEST:,} bytes")
        reading.parse_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"The {what} cannot be written as JSON ({error}): use texts, finite numbers, lists and tables."
        ) from error
    return text


def read_json(path: Path) -> dict[str, Any]:
    """The table in a JSON file of a bundle; raises a UserError if there is none."""
    name, bundle = path.name, path.parent
    try:
        return reading.read_json(path)
    except reading.Unreadable as error:
        if error.missing:
            raise UserError(f"The bundle '{bundle}' is incomplete: {name} is missing. {AGAIN}") from error
        raise UserError(f"The bundle '{bundle}' is damaged: {error.about(name)}. {AGAIN}") from error


def write_metadata(folder: Path, parameters: int, metadata: Mapping[str, Any]) -> None:
    """Describe the files that are in `folder` now."""
    # The package is loaded, since this is a part of it; importing it by name would reverse the layering.
    package = sys.modules[__name__.partition(".")[0]]
    plain = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "versions": {
            "clearhead": package.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "parameters": parameters,
        "sha256": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
        "metadata": dict(metadata),
    }
    (folder / METADATA).write_text(to_json(with_checksum(plain), "metadata"), encoding="utf-8")


def replace_notes(folder: Path, notes: Mapping[str, Any]) -> None:
    """Replace the notes of the bundle in a folder, atomically; everything else is unchanged."""
    plain = read_json(folder / METADATA)
    plain.pop(checksums.KEY, None)
    text = to_json(with_checksum({**plain, "metadata": dict(notes)}), "metadata")
    atomic_write_text(folder / METADATA, text)


def read_metadata(folder: Path, *, verify: bool = True) -> Facts:
    """Read and check a `metadata.json`: format, version, checksum, and that it lists the files present."""
    if not folder.exists():
        raise UserError(f"There is no bundle '{folder}': the folder does not exist.")
    if not folder.is_dir():
        raise UserError(f"A bundle is a folder, and '{folder}' is a file.")
    if not (folder / METADATA).exists():
        raise UserError(f"The folder '{folder}' is not a bundle: it has no {METADATA}.{_advice(folder)}")
    plain = read_json(folder / METADATA)
    if plain.get("format") != FORMAT:
        raise UserError(
            f'The folder \'{folder}\' is not a bundle: its {METADATA} does not say "format": "{FORMAT}".'
            f"{_advice(folder)}"
        )
    version = plain.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"The bundle '{folder}' was made by a newer clearhead (format version {version}; this one reads "
            f"{FORMAT_VERSION}): upgrade clearhead."
        )
    facts = _facts(plain)
    if version != FORMAT_VERSION or isinstance(version, bool) or facts is None:
        raise UserError(
            f"The bundle '{folder}' is damaged: {METADATA} is not as clearhead writes it. {AGAIN}"
        )
    wrong = checksums.fault(plain, KNOWN)
    if verify and wrong is not None:
        raise UserError(f"The bundle '{folder}' is damaged: {METADATA} {wrong}. {AGAIN} {ON_PURPOSE}")
    _check_listing(folder, facts)
    return facts


def is_bundle(folder: str | Path) -> bool:
    """Does the folder claim to be a bundle, of any version and in any state?"""
    path = Path(folder) / METADATA
    try:
        return path.is_file() and read_json(path).get("format") == FORMAT
    except (UserError, OSError):
        return False


def recover(folder: Path) -> None:
    """`recover_folder` for any spelling of a path: `.` and `..` have no siblings by name."""
    whole = Path(os.path.abspath(folder))
    if whole.name:  # the root of the disk is not a bundle
        recover_folder(whole)


@contextmanager
def being_read(folder: Path) -> Iterator[None]:
    """Restore a bundle whose replacement was interrupted; turn the system's errors into messages."""
    try:
        recover(folder)
        yield
    except OSError as error:
        raise UserError(f"Cannot read the bundle '{folder}': {error.strerror}.") from error


def check_file(folder: Path, facts: Facts, name: str) -> None:
    """Compare one file with its checksum."""
    path = folder / name
    if (preload.sha256(path) or sha256_of(path)) != facts.sha256[name]:
        raise UserError(
            f"The bundle '{folder}' is damaged: {name} does not match its checksum. {AGAIN} {ON_PURPOSE}"
        )


def _facts(plain: Mapping[str, Any]) -> Facts | None:
    """The entries by name; None if one is missing or has the wrong type."""
    kinds = {"created": str, "versions": dict, "parameters": int, "sha256": dict, "metadata": dict}
    if not all(isinstance(plain.get(name), kind) for name, kind in kinds.items()):
        return None
    if isinstance(plain["parameters"], bool) or plain["parameters"] < 0:
        return None
    texts = [*plain["versions"].values(), *plain["sha256"].values()]
    if not all(isinstance(text, str) for text in texts):
        return None
    return Facts(**{name: plain[name] for name in kinds})


def _check_listing(folder: Path, facts: Facts) -> None:
    """Every file that belongs to a bundle is listed, and every listed file exists."""
    for name in facts.sha256:
        if name not in FILES or name == METADATA:
            raise UserError(
                f"The bundle '{folder}' is damaged: {METADATA} lists the unknown file {name!r}. {AGAIN}"
            )
    for name in (*ALWAYS, TOKENIZER, SOURCE_TOKENIZER):
        there, listed = (folder / name).is_file(), name in facts.sha256
        if listed and not there:
            raise UserError(f"The bundle '{folder}' is incomplete: {name} is missing. {AGAIN}")
        if not listed and (there or name in ALWAYS):
            raise UserError(f"The bundle '{folder}' is damaged: {METADATA} does not list {name}. {AGAIN}")


def _advice(folder: Path) -> str:
    """What to do with a folder that looks like a model of another toolkit."""
    try:
        plain = read_json(folder / CONFIG)
    except UserError:
        return ""
    if "model_type" in plain or "architectures" in plain:
        return f" It looks like a Hugging Face model: run `clearhead import {folder} --out NEW` first."
    return ""
