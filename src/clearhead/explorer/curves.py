"""View 8: the records of the run that made a bundle: curves, samples over time, FLOPs; also while it runs.

Reads the files of the run's folder and nothing else: `log.jsonl` (losses, rates,
validations), the event files (samples), `timing.jsonl` and `run.json` (speed,
plan), and checks the lock to see whether training is running now. From a file that
is missing, or incomplete because it is being written, it takes what is intact.

Non-finite numbers, such as the loss of a run that diverged, are null.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

from clearhead.base import reading
from clearhead.base.errors import UserError
from clearhead.explorer.words import Plain
from clearhead.planner.totals import RUNS
from clearhead.training.log import LARGEST, finite, read_line

if os.name != "nt":
    import fcntl

MOST_POINTS = 2000  # of the training curve that are sent; a longer one is thinned evenly
MOST_SAMPLES = 600  # the newest are kept
LARGEST_RECORD = 1 << 24  # bytes of one event; anything larger is damage
TRAIN_VALUES = ("loss", "rate", "gradient_norm", "flops")

# The slides' table of training costs on WMT 2014, as printed; the Transformer's two rows are the planner's.
OTHERS_ON_WMT = (
    ("ConvS2S, En–De", 9.6e18),
    ("Mixture of experts, En–De", 2.0e19),
    ("GNMT + RL, En–De", 2.3e19),
    ("ConvS2S ensemble, En–De", 7.7e19),
    ("GNMT + RL ensemble, En–De", 1.8e20),
    ("Deep-Att + PosUnk, En–Fr", 1.0e20),
    ("Mixture of experts, En–Fr", 1.2e20),
    ("GNMT + RL, En–Fr", 1.4e20),
    ("ConvS2S, En–Fr", 1.5e20),
    ("Deep-Att + PosUnk ensemble, En–Fr", 8.0e20),
    ("GNMT + RL ensemble, En–Fr", 1.1e21),
    ("ConvS2S ensemble, En–Fr", 1.2e21),
)


def of_folder(folder: str | Path | None, metadata: Mapping[str, Any]) -> Plain:
    """Everything the page shows of the run that made the bundle in a folder; None: there is no folder."""
    place = None if folder is None else Path(folder) / "training"
    log = b"" if place is None else _content(place / "log.jsonl")
    train, validation = _curves(log)
    made = metadata.get("training")
    made = made if isinstance(made, Mapping) else {}
    spent = train[-1]["flops"] if train else None
    spent = finite(made.get("flops")) if spent is None else spent
    running = place is not None and is_locked(place / "lock")
    return {
        "there": bool(train or validation),
        "running": running,
        "curves": {"train": train, "validation": validation},
        "samples": [] if place is None else samples_in(place),
        "flops": {"spent": spent, "table": _table(spent)},
        "facts": _facts(place, metadata, made, running),
    }


# --- the log ------------------------------------------------------------------------------------


def _content(path: Path) -> bytes:
    """A file's bytes; empty if it cannot be read."""
    try:
        return reading.read_bytes(path, LARGEST)
    except UserError:
        return b""


def _curves(log: bytes) -> tuple[list[Plain], list[Plain]]:
    """Training and validation points by step; of two for a step the later counts.

    A long curve is thinned before its lines are parsed, so a log of any length is fast.
    """
    lines = log.split(b"\n")[:-1]  # after the last newline: nothing, or an incomplete line
    train = _thinned([line for line in lines if b'"kind": "train"' in line], MOST_POINTS)
    points: dict[str, dict[int, Plain]] = {"train": {}, "validation": {}}
    for line in [*train, *(line for line in lines if b'"kind": "validation"' in line)]:
        record = read_line(line)
        if record is not None and record.get("kind") in points:
            points[record["kind"]][record["step"]] = record
    return (
        [_train_point(points["train"][step]) for step in sorted(points["train"])],
        [_validation_point(points["validation"][step]) for step in sorted(points["validation"])],
    )


def _thinned(lines: Sequence[bytes], most: int) -> list[bytes]:
    """Evenly chosen, always including the first and the last.

    >>> _thinned([b"0", b"1", b"2", b"3", b"4"], 3)
    [b'0', b'2', b'4']
    """
    if len(lines) <= most:
        return list(lines)
    return [lines[number * (len(lines) - 1) // (most - 1)] for number in range(most)]


def _train_point(record: Plain) -> Plain:
    return {"step": record["step"], **{name: finite(record.get(name)) for name in TRAIN_VALUES}}


def _validation_point(record: Plain) -> Plain:
    """All of a validation's numbers."""
    values = {name: finite(value) for name, value in record.items() if name not in ("kind", "step", "best")}
    return {"step": record["step"], **values}


# --- is it running? -----------------------------------------------------------------------------


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock that training takes on this file.

    Tries a shared lock, which fails while training holds its exclusive one, and releases it at once. The
    lock of a killed run is gone with it. Windows has no such lock, so there the answer is no.
    """
    if os.name == "nt":
        return False
    try:
        with os.fdopen(reading.open_regular(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except (OSError, UserError):
        return False
    return False


# --- samples: the texts in the event files ------------------------------------------------------


def samples_in(place: Path) -> list[Plain]:
    """What the model wrote at each validation, oldest first, from the event files of a run.

    A resumed run records after which step; what earlier files say about later steps is dropped.
    """
    found: list[Plain] = []
    try:
        files = sorted(place.glob("events.out.tfevents.*"))
    except OSError:
        return []
    for file in files:
        for message in _messages(_content(file)):
            if b"samples" not in message and len(message) > 32:
                continue  # one of the many points of curves
            try:
                step, texts, restarted = _event(message)
            except (ValueError, LookupError, TypeError, AttributeError):
                continue  # damaged
            if restarted:
                found = [sample for sample in found if sample["step"] < step]
            found += [sample for text in texts for sample in _samples(step, text)]
    return found[-MOST_SAMPLES:]


def _messages(content: bytes) -> Iterator[bytes]:
    """The records of an event file: length (8 bytes), its checksum (4), message, its checksum (4)."""
    at = 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        if length > LARGEST_RECORD or at + 16 + length > len(content):
            return  # incomplete: it is being written
        yield content[at + 12 : at + 12 + length]
        at += 16 + length


def _event(message: bytes) -> tuple[int, list[str], bool]:
    """An event's step (field 2), its texts (in field 5), and whether a run resumes here (field 7).

    The texts are the strings (8) in the tensor (8) of each value (1) of a summary with the tag (1) `samples`.
    """
    event = _fields(message)
    [step] = event.get(2, [0])
    values = [_fields(value) for summary in event.get(5, []) for value in _fields(summary).get(1, [])]
    tensors = [_fields(one) for value in values if value.get(1) == [b"samples"] for one in value.get(8, [])]
    texts = [text.decode("utf-8", "replace") for tensor in tensors for text in tensor.get(8, [])]
    return index(step), texts, 7 in event


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The fields of a Protocol Buffers message by number: integers, or bytes."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        layout, value = key & 7, found.setdefault(key >> 3, [])
        if layout == 0:
            number, at = _varint(message, at)
            value.append(number)
            continue
        size, at = _varint(message, at) if layout == 2 else ({1: 8, 5: 4}[layout], at)
        value.append(message[at : at + size])
        at += size
        if at > len(message):
            raise ValueError("a field reaches past its message")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """An integer, seven bits per byte with the lowest first, and where the next field begins."""
    number, shift = 0, 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
        if shift > 63:
            raise ValueError("a number has no end")


def _samples(step: int, text: str) -> list[Plain]:
    """Blocks of `  source: …`, `  reference: …`, `  output: …` lines; a part may have several."""
    found = []
    for block in text.split("\n\n---\n\n"):
        parts: dict[str, list[str]] = {"source": [], "reference": [], "output": []}
        for line in block.split("\n"):
            name, colon, rest = line.removeprefix("    ").partition(":")
            if colon and name in parts:
                parts[name].append(rest.removeprefix(" "))
        source, reference, written = ("\n".join(lines) for lines in parts.values())
        found.append({"step": step, "source": source, "written": written, "reference": reference})
    return found


# --- costs and facts ----------------------------------------------------------------------------


def _table(spent: float | None) -> list[Plain]:
    """This run among those of the slides, cheapest first."""
    transformers = [(f"Transformer {run.name}", run.table) for run in RUNS]
    rows = [*transformers, *OTHERS_ON_WMT]
    if spent is not None:
        rows.append(("this model", spent))
    return [{"name": name, "flops": flops} for name, flops in sorted(rows, key=lambda row: row[1])]


def _facts(place: Path | None, metadata: Mapping[str, Any], made: Mapping[str, Any], running: bool) -> Plain:
    """Short facts by name: the plan, what was done, the speed, and the test results."""
    facts: Plain = {"task": metadata.get("task")}
    plan = _json(place / "run.json") if place is not None else {}
    config = plan.get("config")
    if isinstance(config, Mapping):
        facts["planned steps"] = config.get("steps")
        facts["seed"] = config.get("seed")
    corpus = metadata.get("corpus")
    rows = corpus.get("rows") if isinstance(corpus, Mapping) else None
    if isinstance(rows, Mapping):
        facts["training examples"] = rows.get("train")
    names = {"steps": "steps", "best_step": "best step", "seconds": "seconds", "ended": "ended"}
    facts |= {name: made.get(key) for key, name in {**names, "device": "device", "dtype": "dtype"}.items()}
    lines = [] if place is None else _content(place / "timing.jsonl").split(b"\n")[:-1]
    clock = read_line(lines[-1]) if lines else None
    if clock is not None:
        facts["tokens per second"] = finite(clock.get("tokens_per_second"))
        facts["seconds left"] = finite(clock.get("seconds_left")) if running else None
    test = metadata.get("test")
    if isinstance(test, Mapping):
        facts |= {f"test {name}": value for name, value in test.items()}
    return {
        name: value
        for name, value in facts.items()
        if isinstance(value, str | bool) or finite(value) is not None
    }


def _json(path: Path) -> Plain:
    try:
        return reading.read_json(path)
    except UserError:
        return {}
