"""From files to a run's folder of data: ready only at the end, and nothing lost on the way."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearhead.base.atomic import atomic_write_lines
from clearhead.base.errors import UserError
from clearhead.data.config import CorpusConfig, DataConfig
from clearhead.data.findings import Survey
from clearhead.data.read import read_rows
from clearhead.data.split import TEST, TRAIN, VALIDATION
from clearhead.data.survey import survey
from clearhead.jobs import prepare
from clearhead.tasks import TASKS
from clearhead.text.learn import TokenizerConfig
from clearhead.training import run_data
from clearhead.training.run_data import is_ready

from .making import write_corpus

ODD = [
    "tab\\t and \\ backslash",
    "“quotes” & <pad> <start>",
    "日本語 テスト",
    "a\u2028b\u0085c",
    "🙂 ☕",
    '{"json": 1}',
]


def surveyed(file: Path, task: str = "translate", **changes: Any) -> tuple[Survey, DataConfig]:
    data = DataConfig.from_dict({"train": [{"file": str(file)}], **changes})
    return survey(data, TASKS[task].columns), data


def prepared(
    folder: Path, file: Path, task: str = "translate", **tokenizer: Any
) -> tuple[Survey, prepare.Prepared]:
    found, data = surveyed(file, task)
    tokenizers, _ = prepare.learn_tokenizers(found, TokenizerConfig(vocabulary=320, **tokenizer))
    prepare.write_all(found, data, tokenizers, TASKS[task].encoding(), folder)
    return found, prepare.open_all(folder, 1)


@pytest.mark.parametrize("shared", [True, False])
def test_what_is_written_is_what_is_opened(shared: bool, corpus: Path, tmp_path: Path) -> None:
    found, opened = prepared(tmp_path / "data", corpus, shared=shared)
    assert is_ready(tmp_path / "data")
    assert (opened.source_tokenizer is None) == shared
    assert len(opened.train[0]) == found.count(TRAIN)
    assert len(opened.validation) == found.count(VALIDATION)
    wanted = {"validation": VALIDATION, "test": TEST}
    for name, fate in wanted.items():
        assert opened.held_out[name] == [(row.source, row.target) for row in found.rows(fate)]
        assert opened.held_out[name]
    learnt = {(row.source, row.target) for row in found.rows(TRAIN)}
    for name in wanted:
        assert not learnt & set(opened.held_out[name])
    ids, lengths = opened.train[0].gather([0], "target")
    first = next(iter(found.rows(TRAIN)))
    assert opened.tokenizers.target.decode(list(map(int, ids))) == first.target
    assert int(lengths[0]) == len(ids)


def test_two_vocabularies_are_learnt_from_their_own_sides(corpus: Path, tmp_path: Path) -> None:
    """The targets of this corpus are in capitals, which the sources have none of."""
    _, opened = prepared(tmp_path / "data", corpus, shared=False)
    source, target = opened.tokenizers
    assert len(source.encode("green house")) < len(target.encode("green house"))
    assert len(target.encode("GREEN HOUSE")) < len(source.encode("GREEN HOUSE"))


def test_odd_texts_are_held_out_unharmed(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    pairs = [{"source": f"{text} {number}", "target": text[::-1]} for number in range(30) for text in ODD]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    found, opened = prepared(tmp_path / "data", path)
    assert opened.held_out["test"] == [(row.source, row.target) for row in found.rows(TEST)]
    sources = {pair["source"] for pair in pairs}
    assert {source for source, _ in opened.held_out["test"]} <= sources


def test_a_held_out_picture_takes_a_byte_per_value(tmp_path: Path) -> None:
    """In memory; its file has the hexadecimal form, and is never in memory as a whole."""
    pictures = np.random.default_rng(1).integers(0, 256, (100, 64, 64, 3), np.uint8)
    np.savez(tmp_path / "all.npz", images=pictures, labels=np.arange(100) % 2)
    rows = list(read_rows(CorpusConfig(file=str(tmp_path / "all.npz")), TASKS["image"].columns))
    assert sum(sys.getsizeof(row.source) for row in rows) < 1.1 * pictures.nbytes
    file = tmp_path / "held.jsonl"
    tracemalloc.start()
    try:
        atomic_write_lines(file, prepare.as_lines(rows))
        assert tracemalloc.get_traced_memory()[1] < 0.3 * pictures.nbytes
        held = prepare.from_lines(file)
        assert tracemalloc.get_traced_memory()[1] < 1.3 * pictures.nbytes
    finally:
        tracemalloc.stop()
    assert held == [row.pair for row in rows]
    text, name = json.loads(file.read_bytes().split(b"\n")[0])
    assert text == f"picture 3x64x64 {pictures[0].transpose(2, 0, 1).tobytes().hex()}"
    assert name == "0"


def test_the_corpus_is_measured_in_tokens(corpus: Path, tmp_path: Path) -> None:
    found, _ = surveyed(corpus)
    tokenizers, facts = prepare.learn_tokenizers(found, TokenizerConfig(vocabulary=320))
    rows = list(found.rows(TRAIN))
    exact = sum(len(tokenizers.target.encode(row.target)) + 1 for row in rows)
    assert facts.target_tokens == pytest.approx(exact, rel=0.1)
    assert facts.examples == len(rows)
    assert facts.vocabulary == tokenizers.target.vocabulary_size
    assert facts.source_vocabulary is None
    words = sum(len(f"{row.source} {row.target}".split()) for row in rows)
    assert prepare.words_in(found) == pytest.approx(words, rel=0.4)


@pytest.mark.parametrize("task", ["classify", "tag", "generate"])
def test_facts_of_other_tasks(task: str, tmp_path: Path) -> None:
    found, opened = prepared(tmp_path / "data", write_corpus(tmp_path, task), task)
    _, facts = prepare.learn_tokenizers(found, TokenizerConfig(vocabulary=320))
    assert (facts.source_tokens > 0) == (task != "generate")
    assert (facts.target_tokens > 0) == (task == "generate")
    assert facts.classes == len(opened.labels) == (0 if task == "generate" else 2)


def test_a_corpus_that_is_all_left_out_is_not_ready(corpus: Path, tmp_path: Path) -> None:
    found, data = surveyed(corpus, filter={"source_tokens": 1})
    tokenizers, _ = prepare.learn_tokenizers(found, TokenizerConfig(vocabulary=320))
    with pytest.raises(UserError, match=r"No training example is left.*too long a source.*data\.filter"):
        prepare.write_all(found, data, tokenizers, TASKS["translate"].encoding(), tmp_path / "data")
    assert not is_ready(tmp_path / "data")


def test_ready_is_the_last_thing_written(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at any file, the folder is not ready; written again over what is there, it is."""
    found, data = surveyed(corpus)
    tokenizers, _ = prepare.learn_tokenizers(found, TokenizerConfig(vocabulary=320))
    written: list[str] = []

    def noted(room: Any, name: str) -> None:
        plain = getattr(room, name)

        def stops_at_the_second(path: Path, content: Any) -> None:
            written.append(path.name)
            if len(written) == 2:
                raise KeyboardInterrupt
            plain(path, content)

        monkeypatch.setattr(room, name, stops_at_the_second)

    noted(prepare, "atomic_write_lines")
    noted(run_data, "atomic_write_text")
    with pytest.raises(KeyboardInterrupt):
        prepare.write_all(found, data, tokenizers, TASKS["translate"].encoding(), tmp_path / "data")
    assert not is_ready(tmp_path / "data")
    written.extend(["", ""])
    prepare.write_all(found, data, tokenizers, TASKS["translate"].encoding(), tmp_path / "data")
    assert written[-1] == "ready.json"
    assert prepare.open_all(tmp_path / "data", 1).held_out["validation"]


@pytest.mark.parametrize("name", ["ready.json", "test.jsonl"])
def test_damage_is_a_sentence(name: str, corpus: Path, tmp_path: Path) -> None:
    prepared(tmp_path / "data", corpus)
    path = tmp_path / "data" / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="is damaged"):
        prepare.open_all(tmp_path / "data", 1)


def test_held_out_texts_are_cut_where_training_cuts(tmp_path: Path) -> None:
    """A classifier's long text is shortened like its training texts; a translator's is kept as it is."""
    file = write_corpus(tmp_path, "classify")
    found, data = surveyed(file, "classify", filter={"too_long": "cut", "source_tokens": 4})
    tokenizers, _ = prepare.learn_tokenizers(found, TokenizerConfig(vocabulary=320))
    prepare.write_all(found, data, tokenizers, TASKS["classify"].encoding(), tmp_path / "cut")
    opened = prepare.open_all(tmp_path / "cut", 1)
    assert max(opened.validation.lengths("source")) <= 4
    assert len(opened.validation) == found.count(VALIDATION)
