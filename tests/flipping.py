"""One flipped bit in one file of a run, and what becomes of it: told in a sentence, or without any effect.

For the quick suite a few positions of every file, for the hard harness as many as it likes:

    whole = interrupted(finished, scratch / "whole")
    reference = resumed(copied(whole, scratch / "undisturbed"))
    for flip in flips(whole, count=700, seed=1):
        flip.apply(copied(whole, scratch / "run"))
        assert wrong(flip, resumed(scratch / "run"), reference) is None

Nothing here starts a process.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.bundle.metadata import FILES
from clearhead.jobs.train import resume
from clearhead.training.log import read_log

# Files that nothing is computed from: pictures, what the clock said, what TensorBoard is shown, the lock.
WITHOUT_EFFECT = (".png", ".svg", ".html", "timing.jsonl", "lock", ".tfevents.")


@dataclass(frozen=True)
class Flip:
    """A bit of a file, by the file's name in the run's folder."""

    file: str
    bit: int

    def apply(self, folder: Path) -> None:
        """Turn the bit over."""
        path = folder / self.file
        data = bytearray(path.read_bytes())
        data[self.bit // 8] ^= 1 << (self.bit % 8)
        path.write_bytes(data)


def flips(folder: Path, count: int, seed: int = 0, files: Sequence[str] = ()) -> Iterator[Flip]:
    """As many flips as asked for: every file (or those of `files`) in turn, the place in it is drawn."""
    chance = random.Random(seed)
    sizes = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.stat().st_size
    }
    names = sorted(files or sizes)
    for number in range(count):
        name = names[number % len(names)]
        yield Flip(name, chance.randrange(8 * sizes[name]))


@dataclass(frozen=True)
class Outcome:
    """What came of a folder: how the run ended, or the sentence that refused it."""

    digests: dict[str, str]  # of the files a run is judged by
    said: tuple[str, ...]
    refused: str | None = None


def used(folder: Path, ask: Callable[[Bundle], object]) -> Outcome:
    """Load the bundle in a folder and ask it something."""
    try:
        bundle = load(folder)
        answer = ask(bundle)
    except UserError as error:
        return Outcome({}, (), str(error))
    return Outcome({"answer": _digest([answer, bundle.metadata])}, ())


def resumed(folder: Path) -> Outcome:
    """Resume the run in a folder to its end."""
    heard = io.StringIO()
    try:
        with redirect_stderr(heard):
            resume(folder, view="plain")
    except UserError as error:
        return Outcome({}, _told(heard), str(error))
    names = ("model.safetensors", "config.json", "tokenizer.json")
    found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    plain = json.loads((folder / "metadata.json").read_bytes())["metadata"]
    plain["training"] = {name: value for name, value in plain["training"].items() if name != "seconds"}
    found["metadata"] = _digest(plain)
    found["log"] = _digest(read_log(folder / "training", lenient=True))
    return Outcome(found, _told(heard))


def _told(heard: io.StringIO) -> tuple[str, ...]:
    """The lines that speak of damage; the others have the time of day in them."""
    return tuple(line for line in heard.getvalue().splitlines() if "damaged" in line or "checksum" in line)


def _digest(plain: object) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def interrupted(finished: Path, target: Path) -> Path:
    """A finished run as it was when it was killed after its last checkpoint but one."""
    copied(finished, target)
    for name in FILES:
        (target / name).unlink(missing_ok=True)
    newest = max((target / "training" / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    (target / "training" / "weights" / f"{newest.name}.safetensors").unlink(missing_ok=True)
    return target


def copied(folder: Path, target: Path) -> Path:
    """A copy to damage."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    return target


def wrong(flip: Flip, found: Outcome, reference: Outcome) -> str | None:
    """What is wrong with the outcome after a flip; None: it was told, or had no effect."""
    if found.refused is not None:
        one = found.refused.endswith((".", "?")) and "\n" not in found.refused
        return None if one else f"{flip}: not a sentence: {found.refused!r}"
    if any(flip.file.endswith(name) or name in flip.file for name in WITHOUT_EFFECT):
        return None if found.digests == reference.digests else f"{flip}: had an effect after all"
    extra = set(found.said) - set(reference.said)
    if extra or found.digests == reference.digests:
        return None
    return f"{flip}: changed the run without a word"
