"""What becomes of each row: used for training, held out for validation or test, or left out, and why.

Which rows are held out is a pure function of the texts and the seed: those whose sources come first in a
random order, whatever their position in the file. Rows that share a source stay together, and training rows
that share a target with a held-out one are left out, so a model has never seen anything held out.
Works on keys of texts (see `keys`), never on the texts themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError, counted
from clearhead.data.columns import Columns, Row
from clearhead.data.config import CorpusConfig, SplitConfig
from clearhead.data.keys import Keys, drawn_order, member
from clearhead.data.read import name_of, read_rows

TRAIN, VALIDATION, TEST, EMPTY, DUPLICATE, LEAKED = range(6)
FATES = ("train", "validation", "test", "empty", "duplicate", "leaked")

_DEFAULT_SHARE = Fraction(1, 20)
_FEWEST, _MOST = 50, 2_000  # examples in a held-out set whose size was not given
_MOST_CHARACTERS = 2_000_000
_STEP = 1 << 20  # rows processed together
_MOST_LEAKED = 0.1  # beyond this share, equal targets are not a leak but typical of the corpus

Flags = NDArray[np.bool_]
Piece = tuple[int, int, int]  # first character, end, fate


@dataclass(frozen=True, eq=False)
class Fates:
    """The fate of every row of one corpus."""

    rows: NDArray[np.uint8]
    cut: Mapping[int, tuple[Piece, ...]] = field(default_factory=dict)  # rows with several fates

    def __len__(self) -> int:
        return len(self.rows)

    def count(self, fate: int) -> int:
        """How many rows (or parts of cut rows) have this fate."""
        whole = int(np.count_nonzero(self.rows == fate))
        cut = sum(self.rows[row] == fate for row in self.cut)
        return whole - int(cut) + sum(piece[2] == fate for pieces in self.cut.values() for piece in pieces)


def rows_with_fate(corpus: CorpusConfig, columns: Columns, fates: Fates, wanted: int) -> Iterator[Row]:
    """Read a corpus again and yield only the rows with one fate, in order."""
    chosen = fates.rows == wanted
    chosen[list(fates.cut)] = True
    number = -1
    # in blocks, since indexing single elements of an array is slow
    rows = read_rows(corpus, columns, needed=chosen)
    for start in range(0, len(chosen), 4096):
        flags = chosen[start : start + 4096].tolist()
        for number, (flag, row) in enumerate(zip(flags, rows, strict=False), start=start):
            if flag and number in fates.cut:
                for first, end, fate in fates.cut[number]:
                    if fate == wanted:
                        yield row._replace(target=row.target[first:end])
            elif flag:
                yield row
    if number + 1 != len(chosen) or next(rows, None) is not None:
        raise UserError(f"{name_of(corpus)} changed while it was being read: run the command again.")


def held_out_counts(split: SplitConfig, usable: int, take: Mapping[int, bool]) -> dict[int, int]:
    """How many of `usable` examples are held out for each fate; `take`: whether any are."""
    settings = {VALIDATION: split.validation, TEST: split.test}
    counts = {fate: _count(setting, usable) if take[fate] else 0 for fate, setting in settings.items()}
    if sum(counts.values()) >= usable:
        raise UserError(
            f"The split asks for {counts[VALIDATION]:,} validation and {counts[TEST]:,} test examples, "
            f"but there are only {usable:,} usable ones in total: ask for fewer."
        )
    return counts


def _count(setting: int | float | None, usable: int) -> int:
    if setting is None:
        return min(max(int(usable * _DEFAULT_SHARE), _FEWEST), _MOST, max(usable // 10, 1))
    return round(setting * usable) if isinstance(setting, float) else setting


def split_random(
    fates: NDArray[np.uint8], keys: Keys, targets: Keys | None, counts: Mapping[int, int], seed: int
) -> None:
    """Hold out whole groups of rows with one source key, in the order drawn by the seed."""
    for fate, wanted in counts.items():
        if not wanted:
            continue
        barred = np.zeros(len(fates), dtype=bool)
        if targets is not None:  # a test row must not share its target with a validation row either
            barred = member(targets, targets[fates == VALIDATION])
        taken = _first_groups((keys, seed), fates == TRAIN, barred, wanted)
        if len(taken) == 0:
            raise UserError(
                f"No examples could be held out for {FATES[fate]}, because too many share one source: "
                f"give a file for it, or set split.{FATES[fate]} to 0."
            )
        fates[taken] = fate


def _first_groups(order: tuple[Keys, int], usable: Flags, barred: Flags, wanted: int) -> NDArray[np.int64]:
    """The rows of the first groups drawn that fit into `wanted` and contain no barred row."""
    # the first few of the order nearly always suffice, and are sorted fast
    few = min(2**64 * 16 * (wanted + 64) // max(int(np.count_nonzero(usable)), 1), 2**64 - 1)
    for limit in (few, 2**64 - 1):
        rows, ordered = _early(*order, usable, limit)
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(rows)])
        sizes = np.diff(starts, append=len(rows))
        free = np.ones(len(starts), dtype=bool)
        if barred.any() and len(rows):
            free = ~np.logical_or.reduceat(barred[rows], starts)
        taken, left = _fitting(np.where(free, sizes, wanted + 1), wanted)
        if left == 0:
            break
    return rows[np.repeat(taken, sizes)]


def _early(keys: Keys, seed: int, usable: Flags, limit: int) -> tuple[NDArray[np.int64], Keys]:
    """The usable rows whose drawn number is at most `limit`, in the order drawn, and those numbers."""
    rows, numbers = [], []
    for start in range(0, len(keys), _STEP):
        drawn = drawn_order(keys[start : start + _STEP], seed)
        early = np.flatnonzero(usable[start : start + _STEP] & (drawn <= np.uint64(limit)))
        rows.append(early + start)
        numbers.append(drawn[early])
    drawn = np.concatenate(numbers)
    order = np.argsort(drawn, kind="stable")
    return np.concatenate(rows)[order], drawn[order]


def _fitting(sizes: NDArray[np.intp], wanted: int) -> tuple[Flags, int]:
    """Which sizes, taken in order if they still fit, sum to at most `wanted`; and how much of it is left."""
    taken = np.zeros(len(sizes), dtype=bool)
    left = wanted
    for start in range(0, len(sizes), 4096):
        for place, size in enumerate(sizes[start : start + 4096].tolist(), start=start):
            if size <= left:
                taken[place] = True
                left -= size
            if left == 0:
                return taken, 0
    return taken, left


def split_tail(fates: NDArray[np.uint8], counts: Mapping[int, int]) -> None:
    """Hold out the last usable rows: training, then test, then validation."""
    usable = np.flatnonzero(fates == TRAIN)
    last = len(usable) - counts[VALIDATION]
    fates[usable[last:]] = VALIDATION
    fates[usable[last - counts[TEST] : last]] = TEST


def drop_leaks(fates: NDArray[np.uint8], keys: Keys, targets: Keys | None) -> bool:
    """Leave out training rows that share a source, or a target, with a held-out row.

    False if equal targets were ignored because too much of the corpus would be left out: then the same answer
    to different sources is no leak (yes and no, for example).
    """
    held = (fates == VALIDATION) | (fates == TEST)
    fates[(fates == TRAIN) & member(keys, keys[held])] = LEAKED
    if targets is None:
        return True
    train = fates == TRAIN
    leaked = train & member(targets, targets[held])
    if np.count_nonzero(leaked) > _MOST_LEAKED * np.count_nonzero(train):
        return False
    fates[leaked] = LEAKED
    return True


def split_text(lengths: NDArray[np.uint32], split: SplitConfig, validation: bool, test: bool) -> Fates:
    """Split one plain text, given the characters of its rows: training, then test, then validation.

    Shares count characters and may cut rows; whole numbers count rows.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    kept = [_kept(split.validation, ends) if validation else total]
    kept.append(_kept_before(split, ends, validation) if test else kept[0])
    if kept[1] <= 0:
        raise UserError(
            f"The split asks for {split.validation} for validation and {split.test} for test, and leaves "
            f"nothing of a text of {counted(len(lengths), 'line')} to train on: ask for less."
        )
    bounds = [0, kept[1], kept[0], total]
    fates = np.full(len(lengths), TRAIN, dtype=np.uint8)
    cut: dict[int, tuple[Piece, ...]] = {}
    for fate, start in ((TEST, kept[1]), (VALIDATION, kept[0])):
        row = int(np.searchsorted(ends, start, side="right"))
        fates[row:] = fate
        if start < total and start > int(ends[row]) - int(lengths[row]):
            cut[row] = _pieces(int(ends[row]) - int(lengths[row]), int(ends[row]), bounds)
    return Fates(fates, cut)


def _kept(setting: int | float | None, ends: NDArray[np.int64]) -> int:
    """How many characters come before the held-out end."""
    total = int(ends[-1])
    if isinstance(setting, int):
        return int(ends[len(ends) - setting - 1]) if setting < len(ends) else 0
    if setting is None:
        return total - min(int(total * _DEFAULT_SHARE), _MOST_CHARACTERS)
    return int(total * (1 - _exact(setting)))


def _kept_before(split: SplitConfig, ends: NDArray[np.int64], validation: bool) -> int:
    """How many characters come before the test text, which precedes the validation text."""
    if not validation:
        return _kept(split.test, ends)
    total = int(ends[-1])
    if isinstance(split.validation, float) and isinstance(split.test, float):
        return int(total * (1 - _exact(split.validation) - _exact(split.test)))
    after = _kept(split.validation, ends)
    if isinstance(split.test, int):
        rows = int(np.searchsorted(ends, after, side="left")) + 1 - split.test  # the cut row counts as one
        return after if split.test == 0 else int(ends[rows - 1]) if rows > 0 else 0
    return after - (total - _kept(split.test, ends))


def _exact(share: float) -> Fraction:
    """The share as written: 0.1 is a tenth, not the nearest binary number."""
    return Fraction(repr(share))


def _pieces(first: int, end: int, bounds: list[int]) -> tuple[Piece, ...]:
    """A row from one character to another, cut at the bounds between training, test and validation."""
    found: list[Piece] = []
    for fate, start, stop in zip((TRAIN, TEST, VALIDATION), bounds, bounds[1:], strict=False):
        low, high = max(first, start), min(end, stop)
        if low < high:
            found.append((low - first, high - first, fate))
    return tuple(found)
