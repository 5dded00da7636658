"""Lines through a writer: read, kept in order, counted, and words turned into ids."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.decoding.options import Options
from clearhead.decoding.text_requests import Written
from clearhead.decoding.writer import Writer
from clearhead.jobs.formats import Format, one_line
from clearhead.jobs.lines import Answer, Done, Lines, answers, count_lines, file_lines, seed_of
from clearhead.jobs.resumable_output import PartFile
from clearhead.jobs.wording import Phrases, settings_of, single, spellings
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer

from ..decoding.bundles import ENGLISH, FRENCH, translator


class Shuffling:
    """Stands in for a writer: says each text in capitals, in any order that stays within a window."""

    def __init__(self, window: int, order: int = 1) -> None:
        self.window, self.order, self.most = window, order, 0
        self.seeds: list[int] = []

    def write(
        self, texts: Iterable[str], options: Options | None = None, seeds: Iterator[int] | None = None
    ) -> Iterator[tuple[int, list[Written]]]:
        coming = enumerate(texts)
        while chunk := list(itertools.islice(coming, self.window)):
            if seeds is not None:
                self.seeds += [next(seeds) for _ in chunk]
            for place in range(len(chunk)):
                number, text = chunk[(place * self.order + self.window // 2) % len(chunk)]
                yield number, [Written(text.upper())]


def said(writer: object, lines: Lines, done: Done | None = None, sample: bool = False) -> list[Answer]:
    return list(answers(writer, lines, Options(sample=sample), done))  # type: ignore[arg-type]


text_lines = st.lists(st.sampled_from(["", " ", "a", "b c", "\t", "d"]), max_size=60)


@given(lines=text_lines, window=st.integers(1, 9), stop=st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_order_and_count_are_kept_and_any_place_can_be_gone_on_from(
    lines: list[str], window: int, stop: int
) -> None:
    every = said(Shuffling(window), Lines(lines, "x"))
    assert [one.number for one in every] == list(range(len(lines)))
    assert [one.source for one in every] == lines
    assert [one.written[0].text for one in every] == [line.upper() if line.strip() else "" for line in lines]
    known = [one for one in every[: stop + 1] if one.digest is not None]
    if known:
        last = known[-1]
        assert (
            last.digest
            == hashlib.sha256("".join(f"{x}\n" for x in lines[: last.number + 1]).encode()).hexdigest()
        )
        rest = said(Shuffling(window), Lines(lines, "x"), Done(last.number + 1, last.digest))
        assert rest == every[last.number + 1 :]


def test_every_line_but_the_first_has_a_seed_of_its_own() -> None:
    writer = Shuffling(3)
    said(writer, Lines(["a", "", "b", "c"], "x"), sample=True)
    assert writer.seeds == [seed_of(0, number) for number in (0, 2, 3)]
    assert writer.seeds[0] == 0
    assert len(set(writer.seeds)) == 3
    first = said(Shuffling(3), Lines(["a", "", "b", "c"], "x"))
    later = Shuffling(3)
    said(later, Lines(["a", "", "b", "c"], "x"), Done(2, first[1].digest or ""), sample=True)
    assert later.seeds == writer.seeds[1:]


def test_lines_that_are_not_the_same_are_refused() -> None:
    for lines in (["a", "x", "c"], ["a"]):
        with pytest.raises(UserError, match="The first 2 lines of 'it' are not the ones"):
            said(Shuffling(2), Lines(lines, "'it'"), Done(2, hashlib.sha256(b"a\nb\n").hexdigest()))


def test_what_is_wrong_waits_until_everything_before_it_is_written() -> None:
    def lines() -> Iterator[str]:
        yield from ("a", "b", "", "c")
        raise UserError("The fifth is not good.")

    given = Lines(lines(), "x")
    assert [one.written[0].text for one in said(Shuffling(3), given)] == ["A", "B", "", "C"]
    assert str(given.problem) == "The fifth is not good."


@pytest.mark.parametrize("line", ["", " ", "a"])
def test_memory_does_not_grow_with_the_number_of_lines(line: str) -> None:
    """Blank ones too, however many stand in a row."""
    count = 20_000

    def lines() -> Iterator[str]:
        yield "first"
        yield from itertools.repeat(line, count)
        yield "last"

    tracemalloc.start()
    total = sum(1 for _ in answers(Shuffling(50), Lines(lines(), "x"), Options()))  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == count + 2
    assert peak < 200_000


def test_a_real_writer_needs_bounded_memory_and_keeps_order() -> None:
    writer = Writer(translator(), way="torch", room=8)
    words = " ".join(ENGLISH).split()
    taken = 0

    def lines() -> Iterator[str]:
        nonlocal taken
        for number in range(2000):
            taken = number
            yield " ".join(words[: 1 + number % 5])

    ahead = 0
    for number, one in enumerate(answers(writer, Lines(lines(), "x"), Options(max_length=2))):
        assert one.number == number
        ahead = max(ahead, taken - number)
        if number == 300:
            break
    assert ahead < 900, "lines are read far ahead of what is written"


# -- files --------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=6), max_size=6
    )
)
@settings(max_examples=100, deadline=None)
def test_a_line_ends_with_a_line_end_and_nothing_else(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        data = "".join(f"{line}\n" for line in lines).encode()
        if data.startswith((b"\xef\xbb\xbf", b"\x1f\x8b")):
            return
        path.write_bytes(data)
        assert list(file_lines(path)) == lines
        assert count_lines(path) == len(lines)
        path.write_bytes(gzip.compress(data.replace(b"\n", b"\r\n")))
        assert list(file_lines(path)) == lines
        path.write_bytes(data.removesuffix(b"\n"))
        assert count_lines(path) == len(lines) - (bool(lines) and lines[-1] == "")


def test_damaged_files_end_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"a line\n" * 100_000)[:-30])
    with pytest.raises(UserError, match="is damaged or truncated after line"):
        list(file_lines(path))
    path.write_bytes(b"good\n\xff\xfebad\n")
    with pytest.raises(UserError, match="is not UTF-8: line 2, byte 1 is 0xff"):
        list(file_lines(path))
    with pytest.raises(UserError, match="is a folder"):
        file_lines(tmp_path)
    with pytest.raises(UserError, match="There is no file"):
        file_lines(tmp_path / "absent")


def test_a_record_is_never_ahead_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.jobs.resumable_output.EVERY", 0.0)
    sink = PartFile(tmp_path / "out", {"--beam": 3}, restart=False, force=False)
    for number in range(5):
        sink.add(f"line {number}\n", f"digest {number}")
        record = json.loads((tmp_path / "out.part.json").read_bytes())
        assert (record["lines"], record["digest"]) == (number + 1, f"digest {number}")
        assert (tmp_path / "out.part").read_bytes()[: record["bytes"]].endswith(f"line {number}\n".encode())
    sink.add("no digest\n", None)
    assert "5" in (sink.stop() or "")
    again = PartFile(tmp_path / "out", {"--beam": 3}, restart=False, force=False)
    assert again.done == Done(5, "digest 4")
    assert (tmp_path / "out.part").read_bytes().count(b"\n") == 5
    again.finish()
    assert (tmp_path / "out").read_bytes().count(b"\n") == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize(
    "name, reason", [("out.part", "does not match its checksum"), ("out.part.json", "is damaged")]
)
def test_what_was_written_is_what_is_gone_on_with(tmp_path: Path, name: str, reason: str) -> None:
    def sink() -> PartFile:
        return PartFile(tmp_path / "out", {"--beam": 3}, restart=False, force=False)

    first = sink()
    for number in range(3):
        first.add(f"line {number}\n", f"digest {number}")
    first.stop()
    again = sink()
    again.add("line 3\n", "digest 3")  # the checksum goes on over what was there
    again.stop()
    assert sink().done == Done(4, "digest 3")
    data = bytearray((tmp_path / name).read_bytes())
    data[12] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{reason}.*start over with --restart"):
        sink()


def test_a_named_pipe_in_place_of_a_part_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("out.part", "other.part.json"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match=r"is in the way|is a named pipe"):
            PartFile(tmp_path / name.partition(".")[0], {}, restart=False, force=False)


def test_nothing_done_leaves_nothing(tmp_path: Path) -> None:
    sink = PartFile(tmp_path / "out", {}, restart=False, force=False)
    assert sink.stop() is None
    assert list(tmp_path.iterdir()) == []


# -- words to ids -------------------------------------------------------------------------------------


def learnt(split: str = "words", kind: str = "bpe") -> Tokenizer:
    config = TokenizerConfig.from_dict({"vocabulary": 700, "split": split, "kind": kind})
    return learn_tokenizer([*ENGLISH, *FRENCH] * 30, config)


@pytest.mark.parametrize("split", ["words", "spaces"])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("word", ["chat", "vieille maison", "oiseau"])
def test_a_word_is_found_wherever_it_stands(split: str, kind: str, word: str) -> None:
    tokenizer = learnt(split, kind)
    known = spellings(tokenizer, word)
    for text in (word, f"{word} dort", f"le {word}", f"le {word} dort"):
        ids = tokenizer.encode(text)
        assert any(_holds(ids, one) for one in known), (text, known)
    for one in known:
        assert word in tokenizer.decode(one)
    other = tokenizer.encode("un chien mange le poisson")
    assert not any(_holds(other, one) for one in known)


def test_a_bias_is_on_every_spelling_that_is_one_token() -> None:
    tokenizer = learnt()
    ids = single(tokenizer, "le")
    assert len(ids) == 2
    assert {tokenizer.decode([id]) for id in ids} == {"le", " le"}
    assert single(tokenizer, "<stop>") == [tokenizer.stop]
    with pytest.raises(UserError, match=r"This vocabulary has no token 'zebra' .* It is written z"):
        single(tokenizer, "zebra")
    with pytest.raises(UserError, match=r"This vocabulary has no token 'zebra' to give a bias to\.$"):
        single(Tokenizer.words("a b"), "zebra")


def test_what_cannot_be_written() -> None:
    tokenizer = Tokenizer.words("le chat dort")
    for phrases in (
        Phrases(prefix="le zebra"),
        Phrases(choice=["chat", "zebra"]),
    ):
        with pytest.raises(UserError, match="cannot be written with this bundle's vocabulary"):
            settings_of(phrases, tokenizer, continues=False)
    for phrases in (Phrases(ban=[" "]), Phrases(include=[""]), Phrases(prefix=" ")):
        with pytest.raises(UserError, match="must not be empty"):
            settings_of(phrases, tokenizer, continues=False)


def test_a_prefix_keeps_the_space_that_its_words_have() -> None:
    for split in ("words", "spaces"):
        tokenizer = learnt(split)
        whole = tuple(tokenizer.encode("le chat dort"))
        prefix = settings_of(Phrases(prefix="le chat "), tokenizer, continues=False)["prefix"]
        assert whole[: len(prefix)] == prefix


def test_choices_behind_a_prompt_may_begin_with_a_space() -> None:
    tokenizer = learnt()
    assert len(settings_of(Phrases(choice=["chat"]), tokenizer, continues=False)["choices"]) == 1
    found = settings_of(Phrases(choice=["chat", " dort"]), tokenizer, continues=True)["choices"]
    assert [tokenizer.decode(ids) for ids in found] == ["chat", " chat", " dort"]


def _holds(ids: Iterable[int], part: Iterable[int]) -> bool:
    text, inner = list(ids), list(part)
    return any(text[at : at + len(inner)] == inner for at in range(len(text)))


# -- forms --------------------------------------------------------------------------------------------


@given(st.text(max_size=20), st.booleans())
def test_whatever_was_written_is_one_line(text: str, nbest: bool) -> None:
    answer = Answer(3, "x", [Written(text), Written(text)], None)
    line = Format(nbest=nbest).render(answer)
    assert line.count("\n") == 1 + nbest
    assert line.endswith("\n")
    assert "\r" not in line
    assert one_line(text).replace(" ", "") == "".join(text.replace("\r", "").replace("\n", "").split(" "))


def test_json_has_no_infinity() -> None:
    answer = Answer(0, "x", [Written("y", logp=float("-inf"), token_logps=(float("-inf"), -1.0))], None)
    plain = json.loads(Format(as_json=True).render(answer))
    assert (plain["logp"], plain["token_logps"]) == (None, [None, -1.0])
