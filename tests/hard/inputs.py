"""Bad input of every kind: settings, options, hostile files. Each gets one sentence, and writes nothing."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import clearhead

from ..fuzzed import CASES
from ..fuzzing import Case, judge, spoilt
from ..system.bad_settings import rows, try_row
from .tally import Tally

KEPT = Path(__file__).parent.parent / "kept" / "0.1"
NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "0",
    "1e9",
    "99999999999999999999",
    "1_0",
    "",
    "x",
    "٣",
    "0x10",
)
OPTIONS = (
    *("--beam", "--nbest", "--length-penalty", "--coverage", "--groups", "--diversity", "--temperature"),
    *("--top-k", "--top-p", "--min-p", "--typical", "--seed", "--contrastive", "--repetition", "--frequency"),
    *("--presence", "--no-repeat", "--min-length", "--max-length", "--threads"),
)
WORDS = (
    ("--dtype", "float8"),
    ("--device", "meta"),
    ("--device", "cuda:99"),
    ("--length-kind", "long"),
    ("--bias", "x"),
    ("--bias", "=nan"),
    ("--ban", ""),
    ("--include", " "),
    ("--regex", "("),
    ("--regex", "[" * 5000),
    ("--regex", "a{1000000000}"),
    ("--choice", "\U0001f600"),
    ("--input", "."),
    ("--input", "no-such-file"),
    ("--output", "no/such/folder/out"),
    ("--output", "."),
    ("--output", "o" * 300),
    ("--draft", "no-such-bundle"),
)


def run(count: int, first: int, folder: Path) -> Tally:
    """Every row of the tables, then hostile files up to the count."""
    tally = Tally("bad inputs")
    home = folder / "inputs"
    home.mkdir()
    clearhead.save(clearhead.load(KEPT / "translate"), home / "bundle")
    for arguments, wanted in rows():
        fault = try_row(arguments, home).fault(wanted)
        if fault is None:
            tally.one("settings refused")
        else:
            tally.bad("not refused", f"{' '.join(arguments)[:200]}: {fault}")
    _decoding(tally, home, random.Random(first))
    left = max(count - tally.tried, 0)
    for number, case in enumerate(CASES):
        share = left // len(CASES) + (number < left % len(CASES))
        if share:
            _files(tally, case, home / f"case-{number}", share, first)
    return tally


def _decoding(tally: Tally, home: Path, chance: random.Random) -> None:
    """Values of decoding options, some of which are fine: then a text is written."""
    lines = [(option, value) for option in OPTIONS for value in chance.sample(NUMBERS, 6)]
    for option, value in (*lines, *WORDS):
        more = {"--top-k": ["--sample"], "--diversity": ["--beam", "4", "--groups", "2"]}.get(option, [])
        tried = try_row(("translate", "bundle", "the cat", option, value, *more), home)
        if tried.code == 0:
            tally.one("options served")
        elif tried.code == 2 and tried.sentence.startswith("clearhead: ") and not tried.written:
            tally.one("options refused")
        else:
            tally.bad("traceback", f"{option} {value[:50]!r}: {tried.code}: {tried.sentence[-300:]}")


def _files(tally: Tally, case: Case, home: Path, count: int, first: int) -> None:
    """One kind of file, spoilt in so many ways."""
    good, scratch = home / "good", home / "scratch"
    good.mkdir(parents=True)
    case.make(good)

    @seed(first)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def read(data: st.DataObject) -> None:
        spoilt_bytes = data.draw(spoilt(case, good))
        if done[0] >= count:  # hypothesis may ask a few times more
            return
        done[0] += 1
        try:
            said = judge(case, good, spoilt_bytes, scratch)
        except Exception as error:
            tally.bad("traceback", f"{case.name}: {type(error).__name__}: {str(error)[:300]}")
        else:
            tally.one("files refused" if said else "files read")

    done = [0]
    read()
