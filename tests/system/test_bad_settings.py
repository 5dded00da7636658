"""Every row of the table of bad settings: refused in one sentence, before the corpus, nothing written."""

from __future__ import annotations

from pathlib import Path

from .bad_settings import rows, try_row


def test_every_row_is_refused_before_the_corpus_is_read(tmp_path: Path) -> None:
    faults = []
    table = list(rows())
    assert len(table) >= 150
    for arguments, wanted in table:
        tried = try_row(arguments, tmp_path)
        fault = tried.fault(wanted)
        if fault is not None:
            faults.append(f"{' '.join(arguments)[:200]}: {fault}: {tried.sentence[:200]}")
    assert not faults, f"{len(faults)} of {len(table)}:\n" + "\n".join(faults)
