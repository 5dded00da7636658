"""The folder of a run: the bundle, and under `training/` everything that produced it.

    runs/en-fr/                 a bundle, as soon as there are weights
      training/run.json         the whole config, the user's settings, and why each value was chosen
      training/data/            tokenizer, tokenised corpora, held-out texts
      training/checkpoints/     what a resumed run continues from
      training/weights/         weights at the last validations, and the best
      training/parts.json       into how many parts sharded ranks split a batch, if memory ran out
      training/log.jsonl        losses and validations; timing.jsonl has the times
      training/*.png            curves

Only one process may work in a folder at a time: any process that changes it holds its lock.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.base.atomic import atomic_write_text
from clearhead.base.checksums import KEY, fault, with_checksum
from clearhead.base.errors import UserError
from clearhead.base.lock import held
from clearhead.base.reading import Unreadable, read_json
from clearhead.bundle import is_bundle
from clearhead.bundle.metadata import COMPANION as TRAINING
from clearhead.bundle.metadata import FILES, LOCK
from clearhead.bundle.metadata import RECORD as RUN
from clearhead.training.config import TrainConfig

KNOWN = ("format", "config", "settings", "notes")  # the entries of a run.json of release 0.1
READY = "ready.json"  # the last file of `data` to be written
TARGET_TOKENIZER, SOURCE_TOKENIZER = "tokenizer.json", "source_tokenizer.json"  # in `data`

# What `training` and `training/data` may contain before a run has taken a step.
_OF_A_RUN = re.compile(
    r"lock|(run|parts)\.json|(log|timing)\.jsonl|events\.out\..*|data|checkpoints|weights|SHA256SUMS|\..*\.writing-.*"
)
_OF_DATA = re.compile(
    r"(ready|tokenizer|source_tokenizer)\.json|(validation|test|old-domain)\.jsonl|start\.safetensors"
    r"|train-[0-9]+|validation|SHA256SUMS"
    r"|\..*\.(writing-.*|previous)"
)


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

    def refuse_place(self) -> None:
        """Raise an error if no folder can be here; checks names only, so it needs no lock."""
        path = self.path
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise UserError(f"Cannot train into '{path}': a file or link of that name is in the way.")
        home = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not home.is_dir():
            raise UserError(f"Cannot train into '{path}': '{home}' is not a folder.")
        if not os.access(home, os.W_OK | os.X_OK):
            raise UserError(f"Cannot train into '{path}': the folder '{home}' cannot be written to.")

    def refuse_occupied(self) -> None:
        """Raise an error if the folder has other files, or a run that has taken a step; needs the lock."""
        path = self.path
        if not path.is_dir():
            return
        if self.record.exists() and (self._took_a_step() or is_bundle(path)):
            raise UserError(
                f"There is already a run in '{path}': resume it with `clearhead train --resume {path}`, "
                "or choose another --out."
            )
        foreign = self._foreign()
        if foreign is not None:
            raise UserError(
                f"The folder '{path}' is not empty (it contains '{foreign}'): choose another --out."
            )

    def _took_a_step(self) -> bool:
        """Is there anything that would be lost with this run?"""
        saved = (self.training / name for name in ("checkpoints", "weights"))
        if any(path.name.startswith("step-") for folder in saved for path in folder.glob("*")):
            return True
        log = self.training / "log.jsonl"
        return log.is_file() and log.stat().st_size > 0

    def _foreign(self) -> Path | None:
        """The first file or folder that a run does not write before its first step."""
        for path in sorted(self.path.iterdir()):
            if path != self.training or path.is_symlink() or not path.is_dir():
                return path.relative_to(self.path)
        for folder, ours in ((self.training, _OF_A_RUN), (self.data, _OF_DATA)):
            for path in sorted(folder.glob("*")):
                if not ours.fullmatch(path.name):
                    return path.relative_to(self.path)
        return None

    def empty(self) -> None:
        """Remove a run and its bundle, and nothing else; the caller holds the lock."""
        for path in (*(self.path / name for name in FILES), *self.training.glob("*")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink(missing_ok=True)

    def is_used(self) -> bool:
        """Is there a run or a bundle?"""
        return self.record.exists() or is_bundle(self.path)

    def write_record(self, config: TrainConfig, notes: dict[str, Any]) -> None:
        """Record what this run is, before it starts."""
        plain = {"format": 1, "config": config.to_dict(), **notes}
        atomic_write_text(self.record, as_json(with_checksum(plain)))

    def refuse_absent(self) -> None:
        """Raise an error if there is no run."""
        if not self.path.exists():
            raise UserError(f"There is no run to resume in '{self.path}': the folder does not exist.")
        if not self.record.is_file():
            raise UserError(f"There is no run to resume in '{self.path}': it has no {TRAINING}/{RUN}.")

    def read_record(self) -> tuple[TrainConfig, dict[str, Any]]:
        """The config of the run in this folder, and its notes."""
        self.refuse_absent()
        name = f"{TRAINING}/{RUN}"
        try:
            plain = read_json(self.record)
        except Unreadable as error:
            raise self._damaged(error.about(name)) from error
        wrong = fault(plain, KNOWN)
        if wrong is not None:
            raise self._damaged(f"{name} {wrong}")
        try:
            config = TrainConfig.from_dict(plain.get("config", {}))
        except UserError as error:
            raise UserError(f"The run in '{self.path}' cannot be resumed: {error}") from error
        notes = plain.get("notes")
        if not isinstance(notes, dict) or not {"corpus", "labels"} <= set(notes):
            raise self._damaged(f"{name} lacks the run's notes")
        return config, {key: value for key, value in plain.items() if key not in ("config", KEY)}

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"The run in '{self.path}' is damaged: {what}. Restore it from a copy, or start a new run."
        )

    @contextmanager
    def emptied_on_error(self) -> Iterator[None]:
        """If the corpus turns out to be unusable, leave the folder as it was: absent, or empty."""
        try:
            yield
        except (UserError, OSError):
            self.empty()
            raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from training in this folder; the lock of a killed process disappears with it."""
        try:
            with held(
                self.training / LOCK, f"Another process is training in '{self.path}': wait for it to finish."
            ):
                yield
        finally:
            with suppress(OSError):  # not empty: it holds a run
                self.training.rmdir()


def as_json(plain: Mapping[str, Any]) -> str:
    """JSON in the format of a run's files."""
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
