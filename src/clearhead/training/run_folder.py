"""The folder of a run: the bundle that is used, and beside it, under `training/`, all that made it.

    runs/en-fr/                 a bundle, as soon as there are weights
      training/run.json         the whole config, what the user said, and why each value was chosen
      training/data/            tokenizer, tokenised corpora, held-out texts
      training/checkpoints/     where a resumed run goes on
      training/weights/         weights at the last validations, and the best
      training/log.jsonl        losses and validations; timing.jsonl beside it has what the clock says
      training/*.png            curves

Only one process may train in a folder at a time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.base.atomic import atomic_write_text
from clearhead.base.errors import UserError
from clearhead.bundle import is_bundle
from clearhead.training.config import TrainConfig

if os.name != "nt":
    import fcntl

TRAINING = "training"
RUN = "run.json"
LOCK = "lock"
READY = "ready.json"  # the last file of `data` to be written
TARGET_TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"  # in `data`


@dataclass(frozen=True)
class RunFolder:
    """Names in a run's folder."""

    path: Path

    @property
    def training(self) -> Path:
        return self.path / TRAINING

    @property
    def data(self) -> Path:
        return self.training / "data"

    @property
    def record(self) -> Path:
        return self.training / RUN

    def refuse_occupied(self) -> None:
        """A new run needs a folder of its own."""
        path = self.path
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise UserError(f"Cannot train into '{path}': a file or link of that name is in the way.")
        if self.record.exists():
            raise UserError(
                f"There is a run in '{path}' already: go on with `clearhead train --resume {path}`, "
                f"or give another --out."
            )
        if path.is_dir() and not self._untouched():
            raise UserError(f"The folder '{path}' is not empty: give another --out.")
        home = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not home.is_dir():
            raise UserError(f"Cannot train into '{path}': '{home}' is no folder.")
        if not os.access(home, os.W_OK | os.X_OK):
            raise UserError(f"Cannot train into '{path}': the folder '{home}' cannot be written to.")

    def _untouched(self) -> bool:
        """Is there nothing in the folder but what a run leaves that was killed before it had begun?"""
        if any(path != self.training or not path.is_dir() for path in self.path.iterdir()):
            return False
        return all(path.name == LOCK or path.name.startswith(f".{RUN}.") for path in self.training.glob("*"))

    def remove(self) -> None:
        """Remove a run and its bundle; anything else is left alone."""
        if self.record.exists() or is_bundle(self.path):
            shutil.rmtree(self.path)

    def write_record(self, config: TrainConfig, notes: dict[str, Any]) -> None:
        """Put down what this run is, before it begins."""
        atomic_write_text(self.record, as_json({"format": 1, "config": config.to_dict(), **notes}))

    def read_record(self) -> tuple[TrainConfig, dict[str, Any]]:
        """The config of the run that is in this folder, and the notes beside it."""
        if not self.path.exists():
            raise UserError(f"There is no run to resume in '{self.path}': the folder does not exist.")
        if not self.record.is_file():
            raise UserError(f"There is no run to resume in '{self.path}': it has no {TRAINING}/{RUN}.")
        try:
            plain = json.loads(self.record.read_text(encoding="utf-8"))
            config = TrainConfig.from_dict(plain["config"])
            notes = {key: value for key, value in plain.items() if key != "config"}
            if not {"corpus", "labels"} <= set(notes["notes"]):
                raise KeyError("notes")
            return config, notes
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            if isinstance(error, UserError):
                raise UserError(f"The run in '{self.path}' cannot be resumed: {error}") from error
            raise UserError(f"The run in '{self.path}' is damaged: {TRAINING}/{RUN} is not valid.") from error

    @contextmanager
    def emptied_on_error(self) -> Iterator[None]:
        """A run whose corpus turns out to be of no use leaves the folder as it was: absent, or empty."""
        try:
            yield
        except (UserError, OSError):
            shutil.rmtree(self.training, ignore_errors=True)
            with suppress(OSError):
                self.path.rmdir()
            raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains in this folder meanwhile; a killed process's lock is gone with it."""
        try:
            self.training.mkdir(parents=True, exist_ok=True)
            lock = open(self.training / LOCK, "a+b")  # noqa: SIM115 - closed by the next block
        except OSError as error:
            raise UserError(f"Cannot train in '{self.path}': {error.strerror}.") from error
        with lock as file:
            if os.name != "nt":
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise UserError(f"Another process is training in '{self.path}': wait for it.") from error
            yield


def as_json(plain: Mapping[str, Any]) -> str:
    """JSON as it stands in a run's folder."""
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
