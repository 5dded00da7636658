"""A bundle made ready to write: texts in, texts out, with any settings, on the fastest way there is.

`Writer` turns texts into requests, hands them to the engine, and turns ids back into text. What becomes of a
text does not depend on the others. What does the work (C++ on a CPU, recorded steps on a GPU, PyTorch
elsewhere) is decided here and nowhere else.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from typing import Literal

import torch
from torch import nn

from clearhead.base.device import pick_device
from clearhead.base.errors import UserError
from clearhead.base.exiting import compiled_work, too_late
from clearhead.bundle.folder import Bundle
from clearhead.bundle.mapped import own_memory
from clearhead.data.length_limits import LengthLimits
from clearhead.decoding import graphs, native
from clearhead.decoding.backend import Batch, Capacity, Extra, Request, Rows, Search
from clearhead.decoding.batches import (
    framings_of,
    heads_read,
    is_imported,
    read_sources,
    symbols_of,
    tokenizers_of,
    translates,
)
from clearhead.decoding.constraints import Pieces, before_stop, needs_pieces, pieces_of
from clearhead.decoding.defaults import own_options
from clearhead.decoding.engine import Engine
from clearhead.decoding.number_formats import fast, trained_in
from clearhead.decoding.options import Options
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.searches import extras_of, make_search
from clearhead.decoding.source_parts import NOTHING, Book, Source
from clearhead.decoding.split_long_sources import Parts, split
from clearhead.decoding.steps import Hypothesis, config_of, limit_of, longest_source, positions_of
from clearhead.text.framing import Framing
from clearhead.text.tokenizer import Tokenizer

Dtype = Literal["auto", "fast", "float32", "bf16", "int8"]
Way = Literal["auto", "native", "torch"]
CPU_ROOM, GPU_ROOM = 160, 512  # rows under way
CHUNK = 512  # texts that are tokenised together


@dataclass(frozen=True)
class Written:
    """What a model wrote for one text."""

    text: str
    score: float = 0.0  # what texts are compared by: log-probability over the length penalty, as a rule
    logp: float = 0.0  # natural log-probability, the stop symbol's included
    tokens: tuple[str, ...] = ()
    token_logps: tuple[float, ...] = ()  # of each token, and of the stop symbol
    stopped: bool = True  # False: it was cut at the limit of length
    parts: int = 1  # so many parts was the source cut into, being too long
    # where a bundle reads only the head of a long source: tokens read, and tokens there are; else None
    source_read: int | None = None
    source_tokens: int | None = None
    ids: tuple[int, ...] = ()


class Writer:
    """One bundle on one device, ready for any number of texts.

    `dtype` is that of weights and products: on a CPU float32, bf16 or int8, on a GPU float32 or bf16; `auto`
    is float32 on a CPU and what the bundle was trained in on a GPU, `fast` the fastest that costs this bundle
    little (`number_formats`; `why_not_fast` says why there is none). `way`: `native` insists on C++, `torch`
    on PyTorch step by step. `room` bounds the rows under way. `int8_embeddings`: with int8, embeddings
    are read from int8 weights too, which takes less memory. `sharing`: whether the C++ engine's packed
    weights of a bundle loaded with `mapped=True` are in memory once for all processes: `auto`, where the
    system maps files with huge pages, `always`, or `never`.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        device: str | torch.device | None = None,
        dtype: Dtype = "float32",
        way: Way = "auto",
        room: int | None = None,
        int8_embeddings: bool = False,
        sharing: native.Sharing = "auto",
    ) -> None:
        self.bundle = bundle
        self.int8_embeddings, self.sharing = int8_embeddings, sharing
        self.config = config_of(bundle.model)
        self.reader, self.tokenizer = tokenizers_of(bundle)
        self.symbols = symbols_of(bundle)
        self.framings = framings_of(bundle)
        self.own = own_options(bundle.metadata, bundle.config.family)  # None: the bundle has no say
        self.defaults = self.own or Options()  # what is asked where nothing is said
        known = bundle.metadata.get("reach")
        self.reach = None if known is None else LengthLimits.from_list(known)  # how long texts get
        self.has_source = translates(bundle)  # a given text is a source, and no prompt
        if device is not None:
            bundle.model.to(pick_device(device) if isinstance(device, str) else device)
        bundle.model.eval()
        self.device = next(bundle.model.parameters()).device
        self.why_not_native = "it was not asked for" if way == "torch" else self._why_not_native()
        if way == "native" and self.why_not_native is not None:
            reason = self.why_not_native.removesuffix(".")
            raise UserError(f"The C++ engine cannot be used here: {reason}.")
        if way == "auto" and dtype not in ("fast", "int8"):  # which have a sentence of their own for it
            self._say_what_is_lost()
        self.why_not_fast: str | None = None
        self.dtype = self._checked_dtype(dtype)
        if int8_embeddings and self.dtype != "int8":
            raise UserError(f"int8 embeddings go with int8 weights, and not with {self.dtype}.")
        self.room = room or (GPU_ROOM if self.device.type == "cuda" else CPU_ROOM)
        self._token = cache(self.tokenizer.token)  # few tokens make most of all texts
        self._pieces: Pieces | None = None
        self._converted: nn.Module | None = None
        self.why_not_graphs = (
            "it was not asked for" if way == "torch" else graphs.why_not(bundle.model, self.device)
        )
        self._graphs: graphs.GraphBackend | None = None

    def _why_not_native(self) -> str | None:
        if self.device.type != "cpu":
            return "it is for CPUs."
        return native.supports(self.bundle.model) or native.why_not()  # nothing is compiled in vain

    def _say_what_is_lost(self) -> None:
        """A model that the C++ engine serves, and no such engine: the user can do something about that."""
        reason = self.why_not_native
        if self.device.type == "cpu" and reason and native.supports(self.bundle.model) is None:
            _say_once(f"PyTorch decodes, several times slower than the C++ engine would. {reason}")

    def _checked_dtype(self, dtype: Dtype) -> native.Dtype:
        if dtype == "auto":
            return trained_in(self.bundle) if self.device.type == "cuda" else "float32"
        if dtype == "fast":
            found, self.why_not_fast = fast(self.bundle, self.device, self.why_not_native)
            return found
        if dtype == "int8" and self.why_not_native is not None:
            raise UserError(
                f"int8 weights need the C++ engine, which cannot be used here: "
                f"{self.why_not_native.removesuffix('.')}. Use float32."
            )
        return dtype

    # -- texts to texts ---------------------------------------------------------------------------

    def write(
        self, texts: Iterable[str], options: Options | None = None, seeds: Iterable[int] | None = None
    ) -> Iterator[tuple[int, list[Written]]]:
        """The number of each text and what was written for it, best first, as they are ready.

        Without options: the bundle's own settings, greedy where it has none. An empty text gives an empty
        one. `seeds` gives every text its own, in place of the options'.
        """
        asked = self.defaults if options is None else options
        book = Book()
        with compiled_work():
            engine = self.engine(asked)
        try:
            for number, found in engine.run(self._requests(texts, asked, seeds, book)):
                done = book.take(number, found)
                yield from ((one, [Written("")]) for one in book.empty())
                if done is not None:
                    with compiled_work():
                        joined = self.joined(done, asked.stop_texts)
                    yield done.number, joined
            yield from ((one, [Written("")]) for one in book.empty())
        finally:
            if not too_late():
                with compiled_work():
                    del engine  # its tensors are freed here, and not on the way out

    def in_order(self, texts: Iterable[str], options: Options | None = None) -> Iterator[list[Written]]:
        """As `write`, in the order of the texts; what is ready early waits for those before it."""
        waiting: dict[int, list[Written]] = {}
        turn = 0
        for number, found in self.write(texts, options):
            waiting[number] = found
            while turn in waiting:
                yield waiting.pop(turn)
                turn += 1

    def engine(self, options: Options, room: int | None = None) -> Engine | graphs.GraphBackend:
        """What serves requests with such settings, `room` rows at a time."""
        room = room or self.room
        if self.why_not_graphs is None and graphs.why_not_options(options) is None:
            if self._graphs is None:
                self._graphs = graphs.GraphBackend(self._torch_model(), self.symbols, room)
            self._graphs.capacity = Capacity(room)
            return self._graphs
        return Engine(self.rows(options), self.symbols, self.search, room)

    def rows(self, options: Options) -> Rows:
        """Rows for requests with such settings."""
        keep = extras_of(options)
        if self._compiled(keep):
            return native.NativeRows(
                self.bundle.model,
                self.symbols,
                dtype=self.dtype,
                keep=keep,
                int8_embeddings=self.int8_embeddings,
                sharing=self.sharing,
            )
        return TorchRows(self._torch_model(), self.symbols, keep)

    def _compiled(self, keep: frozenset[Extra]) -> bool:
        """Whether the C++ engine's rows are used; the hidden states of a prompt are PyTorch's to give."""
        return self.why_not_native is None and "hidden" not in keep

    def _torch_model(self) -> nn.Module:
        """The model in the dtype asked for; a copy, where that is not its own."""
        own_memory(self.bundle.model)
        own = next(self.bundle.model.parameters()).dtype
        wanted = torch.bfloat16 if self.dtype == "bf16" else torch.float32
        if own in (wanted, torch.float64):  # float64 is asked for by loading it so
            return self.bundle.model
        if self._converted is None:
            self._converted = copy.deepcopy(self.bundle.model).to(wanted)
        return self._converted

    def search(self, batch: Batch) -> Search:
        """The search that decides for these requests."""
        compiled = self._compiled(extras_of(batch.options))
        return make_search(batch, self.has_source, self.pieces_for(batch.options), compiled=compiled)

    def pieces_for(self, options: Options) -> Pieces | None:
        """What tokens add to a text, where settings speak about texts."""
        if not needs_pieces(options):
            return None
        if self._pieces is None:
            self._pieces = pieces_of(self.tokenizer)
        return self._pieces

    # -- texts to requests ------------------------------------------------------------------------

    def requests(self, text: str, options: Options) -> list[Request]:
        """What one text asks for: as many requests as it is read in parts."""
        return self.asked(text, options)[0]

    def asked(self, text: str, options: Options) -> tuple[list[Request], Source]:
        """What one text asks for, and how the answers belong together."""
        book = Book()
        requests = list(self._requests([text], options, None, book))
        return requests, book.sources.get(0, Source(0, NOTHING))

    def _requests(
        self, texts: Iterable[str], options: Options, seeds: Iterable[int] | None, book: Book
    ) -> Iterator[Request]:
        coming = enumerate(texts)
        seed_of = None if seeds is None else iter(seeds)
        while chunk := list(islice(coming, CHUNK)):
            pieces: list[tuple[int, str]] = []
            with compiled_work():  # the tokenizer
                for number, text in chunk:
                    parts = self._cut(text) if self.has_source else Parts((text,), ("", ""))
                    book.expect(number, parts)
                    pieces += [(number, part) for part in parts.texts]
                texts_read = [text for _, text in pieces]
                given = self._given(texts_read)
                if self.has_source:
                    heads = heads_read(self.bundle, texts_read, given)
                    for (number, _), head in zip(pieces, heads, strict=True):
                        book.sources[number].head = head
            own = {
                number: options if seed_of is None else replace(options, seed=next(seed_of))
                for number, _ in chunk
            }
            for (number, _), ids in zip(pieces, given, strict=True):
                asked = own[number]
                lengths = asked.max_length, self.reach, asked.max_total
                limit = limit_of(self.config, len(ids), *lengths, is_source=self.has_source)
                yield Request(tuple(ids), limit, _behind_prompt(asked, len(ids), limit))

    def _cut(self, text: str) -> Parts:
        """A source in the parts in which it is read; none at all for an empty one."""
        if not text.strip():
            return NOTHING
        most = max(self.longest - self.framings.source.extra, 1)
        if len(text.encode("utf-8", "surrogatepass")) <= most:  # no token is shorter than a byte
            return Parts((text,), ("", ""))
        return split(text, most, lambda part: len(self.reader.encode(part)))

    @cached_property
    def longest(self) -> int:
        """Tokens of a source that is read in one piece."""
        if isinstance(self.bundle.metadata.get("source_limit"), int):
            return 2**31  # training cut long sources, and so does reading
        return longest_source(self.config, self.reach)

    def _given(self, texts: Sequence[str]) -> list[list[int]]:
        if self.has_source:
            return read_sources(self.bundle, texts)
        found = [opening(self.bundle, text, self.framings.target) for text in texts]
        positions = positions_of(self.config)
        for ids in found:
            if positions is not None and len(ids) >= positions:
                raise UserError(
                    f"The prompt has {len(ids)} tokens, and this model has learned positions for "
                    f"{positions}, its continuation included: shorten it."
                )
        return found

    # -- ids to texts -----------------------------------------------------------------------------

    def joined(self, source: Source, stops: Sequence[str] = ()) -> list[Written]:
        """The texts written for the parts of one source, joined rank by rank by what stood between these."""
        found = source.answers
        read, tokens = source.head or (None, None)
        if len(found) == 1:
            each = [self.written(one, stops) for one in found[0]]
            if source.head is None:
                return each
            return [replace(one, source_read=read, source_tokens=tokens) for one in each]
        joined = []
        for rank in range(min((len(one) for one in found.values()), default=0)):
            each = [self.written(found[part][rank]) for part in range(len(found))]
            glue = [source.parts.joiner(part, one.text) for part, one in enumerate(each[:-1])]
            whole = "".join(one.text + gap for one, gap in zip(each, [*glue, ""], strict=True))
            joined.append(
                Written(
                    text=before_stop(whole, stops),
                    score=sum(one.score for one in each),
                    logp=sum(one.logp for one in each),
                    tokens=tuple(token for one in each for token in one.tokens),
                    token_logps=tuple(logp for one in each for logp in one.token_logps),
                    stopped=all(one.stopped for one in each),
                    parts=len(each),
                    ids=tuple(id for one in each for id in one.ids),
                )
            )
        return joined or [Written("")]

    def written(self, one: Hypothesis, stops: Sequence[str] = ()) -> Written:
        """Ids as text, which ends before the first of the `stops`; the ids are all that were written."""
        return Written(
            text=before_stop(self.tokenizer.decode(one.ids), stops),
            score=one.score,
            logp=one.logp,
            tokens=tuple(map(self._token, one.ids)),
            token_logps=one.token_logps,
            stopped=one.stopped,
            ids=one.ids,
        )


@cache
def _say_once(sentence: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # nobody listens any more
            print(f"clearhead: {sentence}", file=sys.stderr)


def _behind_prompt(options: Options, size: int, limit: int) -> Options:
    """Settings that count the prompt's `size` tokens, for a text that may have `limit` of its own."""
    if options.max_total is not None and options.max_length is None and limit == 0:
        raise UserError(
            f"The prompt has {size} tokens, and with what is written behind it there may be "
            f"{options.max_total}: shorten it, or say how many tokens to write (--max-length)."
        )
    least = min(options.min_total - size, limit)
    return options.replace(min_length=least, min_total=0) if least > options.min_length else options


def opening(bundle: Bundle, prompt: str, framing: Framing | None = None) -> list[int]:
    """The ids a decoder starts from: the prompt and what stands around it (None: as the bundle says).

    A model of one long text (nothing stands around those) starts from a new line where there is no prompt;
    one from elsewhere, of which nothing is left, from the start symbol.
    """
    _, tokenizer = tokenizers_of(bundle)
    framing = framing or framings_of(bundle).target
    text = prompt if prompt or framing.extra or is_imported(bundle) else "\n"
    found = framing.around(tokenizer.encode(text))
    return found or [_start(bundle, tokenizer)]


def _start(bundle: Bundle, tokenizer: Tokenizer) -> int:
    """What a text begins with, or what a vocabulary without such a token ends the one before it with."""
    known = symbols_of(bundle)
    if tokenizer.start is None and known.start is None and not is_imported(bundle):
        raise UserError("This tokenizer has no 'start' token, which an empty prompt needs: give it one.")
    return next(id for id in (known.start, tokenizer.start, known.stop) if id is not None)
