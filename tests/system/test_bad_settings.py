"""Every row of the table of bad settings: refused in one sentence, before the corpus, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

import clearhead
from clearhead.tasks import TASKS
from clearhead.text.tokenizer import Tokenizer

from .bad_settings import FAMILIES, TRAIN, lines_with_a_bundle, rows, try_row


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


def test_what_makes_sense_is_not_refused_before_the_corpus(tmp_path: Path) -> None:
    """The other half of the table of tasks and families: nothing is wrong with these but the missing file."""
    assert set(FAMILIES) == set(TASKS)
    for task, families in FAMILIES.items():
        for family in families:
            tried = try_row((*TRAIN, "--task", task, "--set", f"model.family={family}"), tmp_path)
            missing = "file or folder" if task == "image" else "file"
            assert f"There is no {missing} 'no-such-file.tsv'" in tried.sentence, (task, family)


@pytest.mark.slow
def test_every_option_of_every_command_is_refused_in_a_sentence(tmp_path: Path) -> None:
    tokenizer = Tokenizer.words("a b c d e f")
    model = clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size)
    clearhead.save(model, tmp_path / "bundle", tokenizer=tokenizer, metadata={"task": "translate"})
    faults = []
    for arguments in lines_with_a_bundle("bundle"):
        tried = try_row(arguments, tmp_path)
        fault = tried.fault("")
        if fault is not None:
            faults.append(f"{' '.join(arguments)[:200]}: {fault}: {tried.sentence[:200]}")
    assert not faults, "\n".join(faults)
