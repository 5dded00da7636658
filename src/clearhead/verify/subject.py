"""The model under test: copies in the number formats that checks need, texts, and how much to test.

How many texts and tokens a check gets depends only on the model's size, so two runs on one model are the
same run.

Shapes: V vocabulary.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle, framings_of, tokenizers_of
from clearhead.decoding.backend import Hypothesis, MakeSearch, Request, Rows, Symbols, extras_of
from clearhead.decoding.options import WITH_SOURCE, Options, limit_of, positions_of
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.text_requests import read_sources, symbols_of, translates
from clearhead.decoding.writer import Writer
from clearhead.models.build import count_parameters
from clearhead.models.config import ModelConfig
from clearhead.nn.attention.multihead import Attention
from clearhead.text.tokenizer import Tokenizer
from clearhead.verify.passes import Passes

# Parameters: the fewer there are, the more is tested; above the last, float64 does not fit in memory.
TINY, SMALL, LARGE = 10**6, 10**7, 10**9


SEES_MORE = (
    "Reformer's steps attend to every past token, a pass over the text only to those with similar hashes: "
    "they differ by design."
)


@dataclass(frozen=True)
class Effort:
    """How much is tested."""

    texts: int
    longest: int  # tokens of a text that is read
    write: int  # tokens written for one
    draws: int  # of each distribution
    searched: int  # texts for which beams of all widths are compared
    long: int = 0  # tokens written for one text when states are tested: their buffers must grow

    @classmethod
    def of(cls, parameters: int, quick: bool) -> Effort:
        if parameters < TINY:
            return cls(6, 12, 10, 800, 2, 70) if quick else cls(24, 24, 20, 5000, 8, 150)
        if parameters < SMALL:
            return cls(4, 10, 8, 400, 1, 70) if quick else cls(12, 20, 12, 1500, 3, 100)
        return cls(3, 8, 6, 400, 1) if quick else cls(8, 16, 12, 1000, 3)


@dataclass
class Subject:
    """A model under test, with its texts. `bundle` is float32, `exact` float64 if it fits in memory."""

    bundle: Bundle
    exact: Bundle
    texts: tuple[str, ...]
    given: tuple[tuple[int, ...], ...]  # what the model reads for each text
    effort: Effort
    seed: int
    _rows: dict[object, Rows] = field(default_factory=dict)

    @property
    def numbers(self) -> range:
        """The indices of all texts."""
        return range(len(self.given))

    @property
    def decodes_as_it_reads(self) -> bool:
        """Whether a decoding step attends to what the same token attends to in a pass over the whole text."""
        parts = [one for one in self.exact.model.modules() if isinstance(one, Attention)]
        return all(one.decodes_as_it_reads for one in parts)

    @property
    def config(self) -> ModelConfig:
        return self.bundle.config

    @property
    def device(self) -> torch.device:
        return next(self.bundle.model.parameters()).device

    @cached_property
    def has_source(self) -> bool:
        """Whether a given text is a source, not a prompt to continue."""
        return translates(self.bundle)

    @property
    def reads_apart(self) -> bool:
        """Whether the model has a separate encoder for its input."""
        return self.config.family in WITH_SOURCE

    @property
    def writes(self) -> bool:
        return self.config.head.kind == "none" and (self.reads_apart or self.config.family == "decoder")

    @cached_property
    def symbols(self) -> Symbols:
        return symbols_of(self.bundle)

    def before(self, number: int) -> tuple[int, ...]:
        """What a text follows, which penalties on earlier tokens count."""
        if not self.has_source:
            return self.given[number]
        return () if self.symbols.start is None else (self.symbols.start,)

    @cached_property
    def writer(self) -> Writer:
        """The float32 model, run by PyTorch."""
        return Writer(self.bundle, way="torch")

    @cached_property
    def exact_writer(self) -> Writer:
        return Writer(self.exact, way="torch")

    @cached_property
    def passes(self) -> Passes:
        """Whole passes of the exact copy, each computed once for all checks."""
        return Passes(self.exact.model, self.symbols, self.given)

    @property
    def bound(self) -> float:
        """How far two ways to the same log-probability may differ in the exact copy.

        Rounding costs about 1e-13 in float64 and 1e-5 in float32, a mistake far more than either bound.
        """
        return 1e-9 if next(self.exact.model.parameters()).dtype == torch.float64 else 1e-3

    @cached_property
    def ordinary(self) -> list[int]:
        """Ids of the target vocabulary that a text may contain."""
        writer = tokenizers_of(self.bundle)[1]
        special = {writer.pad, writer.start, writer.stop, writer.unknown, *self.symbols.stops}
        most = min(writer.vocabulary_size, self.config.vocabulary)
        return [id for id in range(most) if id not in special]

    def limit(self, number: int, most: int | None = None) -> int:
        """Tokens that may be written for text `number`: `most`, if the model has that many positions."""
        return limit_of(self.config, len(self.given[number]), self.effort.write if most is None else most)

    def limits(self) -> list[int]:
        """The `limit` of each text; the first one's is long enough for buffers to grow."""
        first = self.limit(0, max(self.effort.long, self.effort.write))
        return [first, *(self.limit(number) for number in range(1, len(self.given)))]

    def target(self, number: int, length: int | None = None) -> tuple[int, ...]:
        """Some ids that could have been written for text `number`: always the same, of different lengths."""
        chance = random.Random(self.seed * 1000 + number)
        most = self.limit(number)
        size = chance.randint(min(2, most), most) if length is None else min(length, most)
        return tuple(chance.choices(self.ordinary, k=size))

    def rows(self) -> Rows:
        """Rows of the exact copy."""
        return TorchRows(self.exact.model, self.symbols)

    def decode(
        self, writer: Writer, options: Options, numbers: Sequence[int], room: int = 64
    ) -> dict[int, list[Hypothesis]]:
        """What a writer's search writes for some of the texts, all in one run of the engine."""
        # rows are created once and reused, for compiled ones copy all weights
        key = (writer, extras_of(options))  # kept alive: another could get the id of one that is gone
        rows = self._rows.pop(key, None) or writer.rows(options)
        found = self.search(rows, writer.search, options, numbers, room)
        self._rows[key] = rows  # only now: after a fault they would not be empty
        return found

    def search(
        self, rows: Rows, make: MakeSearch, options: Options, numbers: Sequence[int], room: int = 64
    ) -> dict[int, list[Hypothesis]]:
        """The same with the caller's own rows and search."""
        requests = [Request(self.given[n], self.limit(n, options.max_length), options) for n in numbers]
        engine = rows_engine(rows, self.symbols, make, room)
        return {numbers[at]: texts for at, texts in engine.run(requests)}


def prepare(bundle: Bundle, texts: Sequence[str] | None, effort: Effort, seed: int) -> Subject:
    """Prepare a bundle; without `texts` some are made up from its vocabulary."""
    family = bundle.config.family
    if family == "vision":
        raise UserError("Verification needs a model that reads text, and this bundle holds a vision model.")
    reader, _ = tokenizers_of(bundle)
    model = bundle.model
    if any(one.dtype != torch.float32 for one in model.parameters()):
        model = copy.deepcopy(model).float()
    own = Bundle(model.eval(), bundle.tokenizer, bundle.metadata, bundle.source_tokenizer)
    exact = Bundle(_exact(model), bundle.tokenizer, bundle.metadata, bundle.source_tokenizer)
    subject = Subject(own, exact, (), (), effort, seed)
    longest = _longest(subject)
    if texts is None:
        chosen = _made_up(subject, longest)
    else:
        spread = [text for text in texts if text.strip()]
        if not spread:
            raise UserError("There is no text to verify with: every line is empty.")
        chosen = [_shortened(text, longest, reader) for text in spread[: effort.texts]]
    subject.texts = tuple(chosen)
    subject.given = tuple(_read(subject, text) for text in chosen)
    return subject


def _exact(model: nn.Module) -> nn.Module:
    device = next(model.parameters()).device
    if device.type == "mps" or count_parameters(model) > LARGE:  # no such numbers there, or not enough memory
        return model
    return copy.deepcopy(model).double()


def _longest(subject: Subject) -> int:
    """Tokens of a text that leave the model positions for what it writes and adds."""
    positions, framings = positions_of(subject.config), framings_of(subject.bundle)
    most = subject.effort.longest
    if positions is None:
        return most
    if subject.config.family == "decoder":
        extra = max(framings.source.extra, framings.target.extra, 1)
        return max(1, min(most, positions // 2 - extra))
    return max(1, min(most, positions - 1 - max(framings.source.extra, 1)))


def _made_up(subject: Subject, longest: int) -> list[str]:
    """Texts of random tokens, short and long ones."""
    chance = random.Random(subject.seed)
    reader, _ = tokenizers_of(subject.bundle)
    special = {reader.pad, reader.start, reader.stop, reader.unknown}
    table = subject.config.source_vocabulary or subject.config.vocabulary
    ids = [id for id in range(min(reader.vocabulary_size, table)) if id not in special]
    if not ids:
        raise UserError("This vocabulary has only special tokens, so no test texts can be made from it.")
    texts: list[str] = []
    for attempt in range(100 * subject.effort.texts):
        size = 1 + (len(texts) + attempt) % longest
        text = _shortened(reader.decode(chance.choices(ids, k=size)), longest, reader)
        if text.strip():
            texts.append(text)
        if len(texts) == subject.effort.texts:
            return texts
    raise UserError("No test texts could be made from this vocabulary: give some with --texts FILE.")


def _shortened(text: str, most: int, reader: Tokenizer) -> str:
    while len(reader.encode(text)) > most and len(text) > 1:
        text = text[: max(1, len(text) * 3 // 4)].rstrip() or text[:1]
    return text


def _read(subject: Subject, text: str) -> tuple[int, ...]:
    if subject.writes:
        return subject.writer.requests(text, Options())[0].given
    [ids] = read_sources(subject.bundle, [text])
    return tuple(ids) or (0,)
