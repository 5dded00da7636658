"""From text files to everything a run needs: tokenizers, tokenised corpora, held-out texts.

First everything is read and checked in memory; nothing is written before it is known that training can start.
Then it is written into the run's folder, `ready.json` last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clearhead.base.atomic import atomic_write_lines
from clearhead.base.errors import UserError
from clearhead.base.memory import give_memory_back, trim
from clearhead.base.reading import Malformed, Unreadable, parse_json, read_lines
from clearhead.data.columns import Row
from clearhead.data.config import DataConfig, FilterConfig
from clearhead.data.encoding import Answers, Dropped, Encoder, Encoding, Tokenizers, tokenise
from clearhead.data.findings import Survey
from clearhead.data.picture_corpora import channels_of
from clearhead.data.pictures import in_words, packed, shape_of, unpacked
from clearhead.data.read import ends_documents, name_of, read_rows
from clearhead.data.split import TEST, TRAIN, VALIDATION, rows_with_fate
from clearhead.data.store import MANIFEST, Store
from clearhead.data.store_writer import StoreWriter
from clearhead.data.survey import sample_texts
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.run_data import (
    SOURCE_TOKENIZER,
    TARGET_TOKENIZER,
    damaged_data,
    read_ready,
    write_ready,
)
from clearhead.training.sizing import Choice, Facts, PictureFacts

LARGEST = 1 << 30  # bytes of a held-out row in its file, where the largest picture takes 100 million
HELD_OUT = {VALIDATION: "validation", TEST: "test"}
SAMPLE = 4000  # texts that are tokenised to estimate lengths in tokens

Text = str | tuple[str, str]  # one text, or two that are read together
Pair = tuple[Text, str]


@dataclass(frozen=True)
class Prepared:
    """What a run reads from its folder."""

    tokenizers: Tokenizers
    labels: tuple[str, ...]
    train: tuple[Store, ...]
    validation: Store
    held_out: dict[str, list[Pair]]  # "validation" and "test": the original texts
    notes: dict[str, Any]  # for the bundle's metadata

    @property
    def source_tokenizer(self) -> Tokenizer | None:
        """The source's own tokenizer, if it has one."""
        return None if self.tokenizers.source is self.tokenizers.target else self.tokenizers.source


class _Listener:
    """Passes texts on, and keeps an evenly spaced sample to measure afterwards."""

    def __init__(self, texts: Iterable[str], expected: int) -> None:
        self._texts = texts
        self._every = max(expected // SAMPLE, 1)
        self.kept: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for number, text in enumerate(self._texts):
            if number % self._every == 0:
                self.kept.append(text)
            yield text


def learn_tokenizers(found: Survey, config: TokenizerConfig, patch: Any = None) -> tuple[Tokenizers, Facts]:
    """One vocabulary for both sides, or one for each; and the corpus measured in tokens, by a sample.

    `patch`: the side of a picture's patches, if it was asked for.
    """
    if found.columns.pictures:
        return _without_text(found, patch)
    rows = min(found.count(TRAIN), config.sample)
    pairs = found.columns.has_texts
    if not config.shared and pairs:
        heard = [_Listener(sample_texts(found, config.sample, side), rows) for side in ("source", "target")]
        source, target = (learn_tokenizer(listener, config) for listener in heard)
        return Tokenizers(source, target), _measured(found, Tokenizers(source, target), heard)
    listener = _Listener(sample_texts(found, config.sample), rows * (2 if pairs else 1))
    tokenizers = Tokenizers.of(learn_tokenizer(listener, config))
    return tokenizers, _measured(found, tokenizers, [listener, listener])


def in_one_colour(data: DataConfig) -> list[Choice]:
    """The choice to read every picture in colour if those of one corpus are, and those of another are not."""
    corpora = [*data.train, *data.held_out("validation"), *data.held_out("test")]
    if len(corpora) == 1 or len({one.picture_channels or channels_of(one) for one in corpora}) == 1:
        return []
    return [Choice("data.picture_channels", 3, "some of the files are grey, others in colour")]


def _without_text(found: Survey, patch: Any) -> tuple[Tokenizers, Facts]:
    """Only the special symbols, which batches need, and the corpus measured in patches of its pictures."""
    tokenizers = Tokenizers.of(Tokenizer.words(()))
    parts = [*found.train, *(part for some in found.held.values() for part in some)]
    first = [next(read_rows(part.corpus, found.columns)).source for part in parts]
    for part, one in zip(parts, first, strict=True):
        if shape_of(one) != shape_of(first[0]):
            raise UserError(
                f"{name_of(part.corpus)} starts with {in_words(one)}, but {name_of(parts[0].corpus)} with "
                f"{in_words(first[0])}: set data.picture_size=64, which "
                "scales them, or convert all pictures to the same size and colours."
            )
    picture = PictureFacts.of(*shape_of(first[0]), patch)
    examples = found.count(TRAIN)
    vocabulary = tokenizers.target.vocabulary_size
    return tokenizers, Facts(
        examples, examples * picture.patches, 0, vocabulary, classes=len(found.labels), picture=picture
    )


def known_tokenizers(
    found: Survey, tokenizers: Tokenizers, config: TokenizerConfig, patch: Any = None
) -> Facts:
    """The corpus measured in tokens of existing vocabularies, by a sample; or in patches."""
    if found.columns.pictures:
        return _without_text(found, patch)[1]
    rows = min(found.count(TRAIN), config.sample)
    sides: tuple[Literal["source", "target"], ...] = ("source", "target")
    heard = [_Listener(sample_texts(found, config.sample, side), rows) for side in sides]
    for listener in heard:
        for _ in listener:
            pass
    return _measured(found, tokenizers, heard)


def _measured(found: Survey, tokenizers: Tokenizers, heard: Sequence[_Listener]) -> Facts:
    def tokens(characters: int, listener: _Listener, tokenizer: Tokenizer) -> int:
        length = sum(len(text) for text in listener.kept)
        count = sum(len(ids) + 1 for ids in tokenizer.encode_batch(listener.kept))
        return round(characters * count / length) if length else 0

    shared = tokenizers.source is tokenizers.target
    reads, writes = not found.columns.is_stream, found.columns.writes
    return Facts(
        examples=found.count(TRAIN),
        source_tokens=tokens(found.source.total, heard[0], tokenizers.source) if reads else 0,
        target_tokens=tokens(found.target.total, heard[1], tokenizers.target) if writes else 0,
        vocabulary=tokenizers.target.vocabulary_size,
        source_vocabulary=None if shared else tokenizers.source.vocabulary_size,
        classes=len(found.labels),
        tag_columns=found.tag_columns,
    )


def words_in(found: Survey) -> int:
    """About how many words the training text has, at six characters per word with its space."""
    source = 0 if found.columns.is_stream else found.source.total
    return (source + (found.target.total if found.columns.writes else 0)) // 6


def write_all(
    found: Survey,
    data: DataConfig,
    tokenizers: Tokenizers,
    encoding: Encoding,
    folder: Path,
    beside: Sequence[str] = (),
) -> list[str]:
    """Tokenise everything into the run's folder; returns messages about it.

    `beside` are files that are already in it and belong to the run.
    """
    give_memory_back()  # left over from training the tokenizers
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers.target.save(folder / TARGET_TOKENIZER)
    if tokenizers.source is not tokenizers.target:
        tokenizers.source.save(folder / SOURCE_TOKENIZER)
    answers = Answers(tuple(found.labels), found.numbers, found.tag_columns)
    said, counts = [], {}
    for number, part in enumerate(found.train):
        rows = rows_with_fate(part.corpus, found.columns, part.fates, TRAIN)
        encode = Encoder(encoding, tokenizers, data.filter, answers, ends_documents(part.corpus))
        dropped = _write(rows, encode, folder / f"train-{number}")
        counts[f"train-{number}"] = dropped.to_dict()
        said.append(f"Tokenised: {dropped.report()}")
        if dropped.kept == 0:
            raise UserError(
                f"No training example is left after the filters ({dropped.report()[:-1]}): "
                "allow more with data.filter."
            )
    for fate, name in HELD_OUT.items():
        held = list(found.rows(fate))
        atomic_write_lines(folder / f"{name}.jsonl", as_lines(held))
        if fate == VALIDATION:
            given = found.held.get(fate, found.train)[0]
            encode = Encoder(
                encoding, tokenizers, lenient(data.filter), answers, ends_documents(given.corpus)
            )
            dropped = _write(held, encode, folder / name)
            counts[name] = dropped.to_dict()
            if dropped.kept == 0:
                raise UserError(
                    "There is no validation example: give validation files, or data.split.validation."
                )
        del held  # before the next are read: pictures are large
    notes: dict[str, Any] = {
        "survey": found.to_dict(),
        "tokenised": counts,
        "labels": list(answers.labels),
        "documents": ends_documents(found.train[0].corpus),
        "normalisation": tokenizers.target.normalisation,
    }
    stores = [f"{name}/{MANIFEST}" for name in counts]  # these have the checksums of the stores' files
    texts = [f"{name}.jsonl" for name in HELD_OUT.values()]
    own = [] if tokenizers.source is tokenizers.target else [SOURCE_TOKENIZER]
    write_ready(folder, notes, [TARGET_TOKENIZER, *own, *texts, *stores, *beside])
    give_memory_back()
    return said


def open_all(folder: Path, corpora: int) -> Prepared:
    """Read what `write_all` wrote, and verify every file."""
    notes = read_ready(folder)
    target = Tokenizer.load(folder / TARGET_TOKENIZER)
    own = folder / SOURCE_TOKENIZER
    source = Tokenizer.load(own) if own.is_file() else target
    held_out = {name: from_lines(folder / f"{name}.jsonl") for name in HELD_OUT.values()}
    trim()  # left over from parsing the lines
    return Prepared(
        tokenizers=Tokenizers(source, target),
        labels=tuple(notes["labels"]),
        train=tuple(Store(folder / f"train-{number}") for number in range(corpora)),
        validation=Store(folder / "validation"),
        held_out=held_out,
        notes=notes,
    )


def _write(rows: Iterable[Row], encode: Encoder, folder: Path) -> Dropped:
    encoding = encode.encoding
    ranges = encoding.ranges(encode.tokenizers, encode.answers.labels)
    with StoreWriter(folder, encoding.columns.task, ranges) as writer:
        dropped = tokenise(rows, encode, writer)
        writer.note(dropped=dropped.to_dict())
    return dropped


def lenient(filter: FilterConfig) -> FilterConfig | None:
    """The filter for held-out examples: all are kept, but truncated if training truncates long texts."""
    return filter.replace(target_tokens=2**30, ratio=1e9) if filter.too_long == "cut" else None


def as_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Rows in the format of a run's folder."""
    for row in rows:
        plain = [unpacked(row.source), row.target]
        yield json.dumps(plain if row.second is None else [*plain, row.second], ensure_ascii=False)


def from_lines(path: Path) -> list[Pair]:
    """Read a file of `as_lines`."""
    found: list[Pair] = []
    try:
        for line in read_lines(path, LARGEST):
            row = parse_json(line)
            texts = isinstance(row, list) and all(isinstance(x, str) for x in row)
            if not texts or len(row) not in (2, 3):
                raise damaged_data(path, "a line of it is not a pair of texts")
            found.append((packed(row[0]) if len(row) == 2 else (row[0], row[2]), row[1]))
    except Unreadable as error:
        raise damaged_data(path, error.reason) from error
    except Malformed as error:
        raise damaged_data(path, str(error)) from error
    return found
