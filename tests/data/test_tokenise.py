"""From text to stores: the conventions of every task, the filters and their counts, and the errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from clearhead.base.errors import UserError
from clearhead.data import encoding as module
from clearhead.data.batch import IGNORED
from clearhead.data.columns import Row
from clearhead.data.config import FilterConfig
from clearhead.data.encoding import Answers, Dropped, Encoder, Tokenizers, encode_words, tokenise
from clearhead.data.encodings import SKIP
from clearhead.data.load import Loader
from clearhead.data.plan import BatchConfig
from clearhead.data.store import Store
from clearhead.data.store_writer import StoreWriter
from clearhead.decoding.text_requests import encode_sources
from clearhead.tasks import TASKS
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer

from .storing import all_of

WORDS = Tokenizer.words("a b c d e f g h i j k l m n")
LETTERS = Tokenizer.characters("abcdefghijklmn \n")
PAD, START, STOP, UNKNOWN = range(4)


def stored(
    folder: Path,
    task: str,
    rows: Sequence[tuple[str, str]],
    filter: FilterConfig | None = None,
    labels: Sequence[str] = (),
    documents: bool = False,
    tokenizers: Tokenizers | None = None,
) -> tuple[Store, Dropped]:
    tokenizers = tokenizers or Tokenizers.of(WORDS)
    encoding = TASKS[task].encoding()
    with StoreWriter(folder, task, encoding.ranges(tokenizers, labels)) as writer:
        stream = (Row(source, target, line) for line, (source, target) in enumerate(rows, start=1))
        encode = Encoder(encoding, tokenizers, filter, Answers(tuple(labels)), documents)
        dropped = tokenise(stream, encode, writer)
    return Store(folder), dropped


def column(store: Store, name: str) -> list[list[int]]:
    return store.gather(np.arange(len(store)), name).rows()


def test_pairs_end_their_source_and_leave_the_target_bare(tmp_path: Path) -> None:
    store, dropped = stored(tmp_path / "s", "translate", [("a b", "c"), ("d", "e f g")])
    assert column(store, "source") == [[*WORDS.encode("a b"), STOP], [*WORDS.encode("d"), STOP]]
    assert column(store, "target") == [WORDS.encode("c"), WORDS.encode("e f g")]
    assert dropped == Dropped(read=2, kept=2)
    assert dropped.report() == "2 of 2 examples kept."


def test_each_side_may_have_its_own_tokenizer(tmp_path: Path) -> None:
    other = Tokenizer.words("z y x")
    store, _ = stored(tmp_path / "s", "translate", [("x y", "a b")], tokenizers=Tokenizers.of(WORDS, other))
    assert column(store, "source") == [[*other.encode("x y"), STOP]]
    assert column(store, "target") == [WORDS.encode("a b")]


def test_too_long_is_dropped_and_counted_by_reason(tmp_path: Path) -> None:
    rows = [
        ("a b c", "a b c"),  # with stop and start just 4
        ("a b c d", "a"),
        ("a", "a b c d"),
        ("a b c d", "a b c d"),  # counts once
        ("", "a"),
        ("a", " "),
    ]
    limits = FilterConfig(source_tokens=4, target_tokens=4)
    store, dropped = stored(tmp_path / "s", "translate", rows, limits)
    assert len(store) == 1
    assert dropped == Dropped(read=6, kept=1, empty=2, source_too_long=2, target_too_long=1)
    assert dropped.to_dict()["source_too_long"] == 2
    assert dropped.report() == (
        "1 of 6 examples kept; left out: 2 without tokens, 2 with too long a source, 1 with too long a "
        "target."
    )


def test_cutting_keeps_the_stop_and_never_cuts_a_target(tmp_path: Path) -> None:
    rows = [("a b c d e", "a"), ("a b c", "b"), ("a b c d", "a b c d e")]
    limits = FilterConfig(source_tokens=4, target_tokens=4, too_long="cut")
    store, dropped = stored(tmp_path / "s", "summarise", rows, limits)
    assert column(store, "source") == [[*WORDS.encode("a b c"), STOP]] * 2
    assert column(store, "target") == [WORDS.encode("a"), WORDS.encode("b")]
    assert dropped == Dropped(read=3, kept=2, cut=1, target_too_long=1)
    assert "1 of them shortened" in dropped.report()


def test_unlike_lengths_are_dropped_in_translation_only(tmp_path: Path) -> None:
    rows = [("a " * 12, "a " * 3), ("a " * 13, "a " * 3), ("a a", "a " * 9), ("a a", "a " * 10)]
    _, dropped = stored(tmp_path / "s", "translate", rows, FilterConfig(ratio=4.0))
    assert dropped == Dropped(read=4, kept=2, ratio=2)
    _, dropped = stored(tmp_path / "t", "summarise", rows, FilterConfig(ratio=4.0))
    assert dropped.kept == 4
    _, dropped = stored(tmp_path / "u", "translate", [("a " * 500, "a")], None)
    assert dropped.kept == 1  # without a filter everything is kept


def test_classes_are_numbered_as_given(tmp_path: Path) -> None:
    rows = [("a b", "good"), ("c", "bad"), ("", "bad")]
    store, dropped = stored(tmp_path / "s", "classify", rows, FilterConfig(), ["bad", "good"])
    assert column(store, "source") == [WORDS.encode("a b"), WORDS.encode("c")]
    assert column(store, "target") == [[1], [0]]
    assert dropped == Dropped(read=3, kept=2, empty=1)


def test_an_unknown_class_or_tag_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"class 'fine' on line 2 does not occur .* which have 'bad', 'good'"):
        stored(tmp_path / "s", "classify", [("a", "bad"), ("a", "fine")], None, ["bad", "good"])
    many = [str(number) for number in range(20)]
    with pytest.raises(UserError, match=r"tag 'X' on line 1 does not occur .* and 12 more"):
        stored(tmp_path / "s", "tag", [("a b", "1 X")], None, many)
    assert list(tmp_path.iterdir()) == []


def test_tags_stand_on_the_first_piece_of_a_word(tmp_path: Path) -> None:
    both = Tokenizers.of(LETTERS)
    rows = [("ab c", "X Y"), ("d", "Y"), ("", "")]
    store, dropped = stored(tmp_path / "s", "tag", rows, FilterConfig(), ["X", "Y"], tokenizers=both)
    assert column(store, "source") == [LETTERS.encode("ab c"), LETTERS.encode("d")]
    assert column(store, "target") == [[0, SKIP, 1, SKIP], [1]]  # "c" is told with the space before it
    assert dropped == Dropped(read=3, kept=2, empty=1)


def test_tags_are_cut_with_their_words(tmp_path: Path) -> None:
    limits = FilterConfig(source_tokens=3, too_long="cut")
    store, dropped = stored(
        tmp_path / "s", "tag", [("ab c", "X Y")], limits, ["X", "Y"], tokenizers=Tokenizers.of(LETTERS)
    )
    assert column(store, "source") == [LETTERS.encode("ab ")]
    assert column(store, "target") == [[0, SKIP, 1]]
    assert dropped.cut == 1
    _, dropped = stored(tmp_path / "t", "tag", [("a b c d", "X " * 4)], FilterConfig(source_tokens=3), ["X"])
    assert dropped == Dropped(read=1, kept=0, source_too_long=1)


def test_words_and_tags_must_be_as_many(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Line 2 has 2 words but 1 tag"):
        stored(tmp_path / "s", "tag", [("a", "X"), ("a b", "X")], None, ["X"])


def test_a_word_that_tokenising_swallows_still_has_a_place(tmp_path: Path) -> None:
    nothing = Tokenizer.words("a b")
    nothing.backend.normalizer = normalizers.Replace("b", "")
    assert encode_words(nothing, ["a", "b"]) == [[nothing.id("a")], [UNKNOWN]]
    store, _ = stored(
        tmp_path / "s", "tag", [("a b", "X Y")], None, ["X", "Y"], tokenizers=Tokenizers.of(nothing)
    )
    assert column(store, "target") == [[0, 1]]


def test_documents_start_and_stop_and_a_long_text_starts_once(tmp_path: Path) -> None:
    rows = [("", "a b"), ("", ""), ("", "c")]
    store, dropped = stored(tmp_path / "s", "generate", rows, documents=True)
    assert column(store, "target") == [[START, *WORDS.encode("a b"), STOP], [START, *WORDS.encode("c"), STOP]]
    assert dropped.empty == 1
    store, _ = stored(tmp_path / "t", "generate", rows)
    assert all_of(store).tolist() == [START, *WORDS.encode("a b c")]


def test_chunks_of_rows_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a " * (1 + n % 5), "b " * (1 + n % 3)) for n in range(23)]
    texts = [("", "a b\n"), ("", "c\n"), ("", "d\n")]
    whole, _ = stored(tmp_path / "s", "translate", rows)
    text, _ = stored(tmp_path / "t", "generate", texts, tokenizers=Tokenizers.of(LETTERS))
    monkeypatch.setattr(module, "CHUNK", 2)
    parts, dropped = stored(tmp_path / "u", "translate", rows)
    again, _ = stored(tmp_path / "v", "generate", texts, tokenizers=Tokenizers.of(LETTERS))
    assert column(parts, "source") == column(whole, "source")
    assert column(parts, "target") == column(whole, "target")
    assert dropped.read == 23
    assert all_of(again).tolist() == all_of(text).tolist()


@pytest.mark.parametrize("task", ["translate", "summarise", "classify", "tag", "generate"])
@pytest.mark.parametrize("limit", [None, 3])
def test_decoding_is_fed_what_training_was_fed(tmp_path: Path, task: str, limit: int | None) -> None:
    """`encode_sources`, with the framing that a bundle stores, and the batch made from a store agree."""
    subwords = learn_tokenizer(["the cat sleeps here", "a dog barks"] * 5, TokenizerConfig(vocabulary=300))
    texts = ["the cat sleeps", "a dog", "zebra crossing"]
    targets = {"classify": "X", "tag": ""}
    rows = [(text, targets.get(task, "a dog") or "X " * len(text.split())) for text in texts]
    if task == "generate":
        rows = [("", text) for text in texts]
    filter = None if limit is None else FilterConfig(source_tokens=limit, too_long="cut")
    both = Tokenizers.of(subwords)
    store, dropped = stored(tmp_path / "s", task, rows, filter, ["X"], documents=True, tokenizers=both)
    assert dropped.kept == 3
    framings = TASKS[task].encoding().framings(both, documents=True)
    framing = framings.target if task == "generate" else framings.source
    fed = encode_sources(subwords, texts, framing, limit, words=task == "tag")
    assert limit is None or max(map(len, fed)) <= limit
    if task == "generate":
        assert [row[: len(ids)] for row, ids in zip(column(store, "target"), fed, strict=True)] == fed
        return
    [batch] = Loader(
        [store], TASKS[task].encoding(), BatchConfig(), both.specials(), 1, evaluation=True
    ).batches()
    ids, lengths = (
        (batch.inputs, batch.lengths) if batch.source is None else (batch.source, batch.source_lengths)
    )
    assert lengths is not None
    assert [row[: int(n)].tolist() for row, n in zip(ids, lengths, strict=True)] == fed
    assert batch.tokens == int((batch.labels != IGNORED).sum())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_any_text_survives_the_way_to_a_batch(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    tokenizer = SUBWORDS
    folder = tmp_path_factory.mktemp("any")
    rows = [(text, text) for text in texts]
    store, dropped = stored(folder / "s", "translate", rows, tokenizers=Tokenizers.of(tokenizer))
    kept = [text for text in texts if text]
    assert dropped.kept == len(kept)
    assert [tokenizer.decode(ids) for ids in column(store, "target")] == kept
    assert [tokenizer.decode(ids[:-1]) for ids in column(store, "source")] == kept


SUBWORDS = learn_tokenizer(["the cat sleeps here", "ein Hund bellt"] * 3, TokenizerConfig(vocabulary=280))


def test_a_tokenizer_without_a_stop_is_a_sentence(tmp_path: Path) -> None:
    bare = Tokenizer(WORDS.backend, {"pad": 0, "start": 1})
    with pytest.raises(UserError, match="no 'stop' token"):
        stored(tmp_path / "s", "translate", [("a", "b")], tokenizers=Tokenizers.of(bare))
    with pytest.raises(UserError, match="no 'stop' token"):
        TASKS["translate"].encoding().framings(Tokenizers.of(bare))
