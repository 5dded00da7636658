"""`training/data` of a run: which files it has, and whether each is still as it was written.

`ready.json` is written last. It has notes on the corpus and the checksums of the tokenizers, the held-out
texts and the manifests of the tokenised corpora, which in turn have those of their own files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clearhead.base import checksums
from clearhead.base.atomic import atomic_write_text, sha256_of
from clearhead.base.checksums import with_checksum
from clearhead.base.errors import UserError
from clearhead.base.reading import Unreadable, read_json
from clearhead.data.length_limits import LengthLimits
from clearhead.data.store import Store
from clearhead.training.config import TrainConfig
from clearhead.training.run_folder import READY, SOURCE_TOKENIZER, TARGET_TOKENIZER, as_json

__all__ = ["SOURCE_TOKENIZER", "TARGET_TOKENIZER", "damaged_data", "is_ready", "read_ready", "write_ready"]

FILES = "files"  # the entry with the checksums of the other files
KNOWN = ("survey", "tokenised", "labels", "documents", "normalisation")  # the entries of release 0.1
# Files that every run has, including runs of release 0.1, which list none.
ALWAYS = (
    TARGET_TOKENIZER,
    "validation.jsonl",
    "test.jsonl",
    "train-0/manifest.json",
    "validation/manifest.json",
)


def is_ready(folder: Path) -> bool:
    """Is the folder complete, with nothing removed from it since?"""
    if not (folder / READY).exists():
        return False
    files = set(ALWAYS)
    with suppress(Unreadable):  # `read_ready` reports it
        listed = read_json(folder / READY).get(FILES)
        files |= set(listed) if isinstance(listed, dict) else set()
    return all((folder / name).exists() for name in files)


def write_ready(folder: Path, notes: Mapping[str, Any], files: Iterable[str]) -> None:
    """Mark the folder as complete: `files`, by their names in it, are final."""
    sums = {name: sha256_of(folder / name) for name in files}
    atomic_write_text(folder / READY, as_json(with_checksum({**notes, FILES: sums})))


def read_ready(folder: Path, files: Iterable[str] | None = None) -> dict[str, Any]:
    """The notes; verifies every file with a checksum, or those of `files` that have one."""
    path = folder / READY
    try:
        notes = read_json(path)
    except Unreadable as error:
        raise damaged_data(path, error.reason) from error
    wrong = checksums.fault(notes, KNOWN)
    if wrong is not None:
        raise damaged_data(path, f"it {wrong}")
    labels, sums = notes.get("labels"), notes.get(FILES, {})
    if not isinstance(labels, list) or not all(isinstance(name, str) for name in labels):
        raise damaged_data(path, "it does not list the labels")
    if not isinstance(sums, dict):
        raise damaged_data(path, "it does not list the files")
    for name in sums if files is None else sums.keys() & set(files):
        try:
            found = sha256_of(folder / name)
        except Unreadable as error:
            raise damaged_data(folder / name, error.reason) from error
        if found != sums[name]:
            raise damaged_data(folder / name, "it does not match its checksum")
    return {name: value for name, value in notes.items() if name not in (FILES, checksums.KEY)}


def length_notes(config: TrainConfig, notes: Mapping[str, Any], stores: Iterable[Store]) -> dict[str, Any]:
    """For the metadata of a run's bundle: how long its targets are, if it writes them from sources."""
    if config.model.head.kind != "none" or "context" in notes:  # labels, or a long text
        return {}
    found = LengthLimits.of((store.lengths("source"), store.lengths("target")) for store in stores)
    return {} if found is None else {"reach": found.to_list()}


def damaged_data(path: Path, what: str) -> UserError:
    """An error that says what to do about a damaged file."""
    return UserError(
        f"The file '{path}' of this run is damaged: {what}. Delete it and resume: it will be made again "
        "from the corpus."
    )
