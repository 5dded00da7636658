"""Texts as requests, and what was written as texts again: a bundle's tokenizers, framings and limits at work.

`Texts` turns a text into requests, several where it is too long to be read in one piece, and joins what was
written for them. `Writing` is one text that an engine is writing. Knows nothing about what writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice

from clearhead.base.errors import UserError
from clearhead.base.exiting import compiled_work, too_late
from clearhead.bundle.folder import Bundle
from clearhead.data.length_limits import LengthLimits
from clearhead.decoding.backend import Finished, Request, Wrote
from clearhead.decoding.batches import (
    framings_of,
    heads_read,
    opening,
    read_sources,
    symbols_of,
    tokenizers_of,
    translates,
)
from clearhead.decoding.constraints import before_stop, until_stop
from clearhead.decoding.engine import Caller, Engine
from clearhead.decoding.options import Options
from clearhead.decoding.split_long_sources import NOTHING, Parts, Source, split
from clearhead.decoding.steps import Hypothesis, config_of, limit_of, longest_source, positions_of

CHUNK = 512  # texts that are tokenised together
HELD = "\ufffd"  # what an unfinished character looks like


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


class Texts:
    """A bundle's side of decoding that has to do with text."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.config = config_of(bundle.model)
        self.reader, self.tokenizer = tokenizers_of(bundle)
        self.symbols = symbols_of(bundle)
        self.framings = framings_of(bundle)
        known = bundle.metadata.get("reach")
        self.reach = None if known is None else LengthLimits.from_list(known)  # how long texts get
        self.has_source = translates(bundle)  # a given text is a source, and no prompt
        self._token = cache(self.tokenizer.token)  # few tokens make most of all texts

    # -- texts to requests ------------------------------------------------------------------------

    def requests(self, text: str, options: Options) -> list[Request]:
        """What one text asks for: as many requests as it is read in parts."""
        return self.asked(text, options)[0]

    def asked(self, text: str, options: Options) -> tuple[list[Request], Source]:
        """What one text asks for, and how the answers belong together."""
        owners: dict[int, tuple[Source, int]] = {}
        requests = [one for one in self._requests([text], options, None, owners, []) if one is not None]
        return requests, owners[0][0] if owners else Source(0, NOTHING)

    def _requests(
        self,
        texts: Iterable[str | None],
        options: Options,
        seeds: Iterable[int] | None,
        owners: dict[int, tuple[Source, int]],
        empty: list[int],
    ) -> Iterator[Request | None]:
        """What texts ask for; notes whose part each request is, and which texts ask for nothing."""
        coming, texts_read, asked = iter(texts), 0, 0
        seed_of = None if seeds is None else iter(seeds)
        while chunk := _chunk(coming):
            sources: list[Source] = []
            with compiled_work():  # the tokenizer
                for text in chunk:
                    if text is not None:
                        parts = self._cut(text) if self.has_source else Parts((text,), ("", ""))
                        sources.append(Source(texts_read + len(sources), parts))
                given = self._given([part for source in sources for part in source.parts.texts], sources)
            texts_read += len(sources)
            for source in sources:
                own = options if seed_of is None else replace(options, seed=next(seed_of))
                if not source.parts.texts:
                    empty.append(source.number)
                for part in range(len(source.parts.texts)):
                    ids = next(given)
                    lengths = own.max_length, self.reach, own.max_total
                    limit = limit_of(self.config, len(ids), *lengths, is_source=self.has_source)
                    owners[asked], asked = (source, part), asked + 1
                    yield Request(tuple(ids), limit, _behind_prompt(own, len(ids), limit))
            if chunk[-1] is None:
                yield None

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

    def _given(self, texts: Sequence[str], sources: Sequence[Source]) -> Iterator[list[int]]:
        """The ids of the texts that these sources are read in."""
        if self.has_source:
            found = read_sources(self.bundle, texts)
            heads = iter(heads_read(self.bundle, texts, found))
            for source in sources:
                for _ in source.parts.texts:
                    source.head = next(heads)
            return iter(found)
        found = [opening(self.bundle, text, self.framings.target) for text in texts]
        positions = positions_of(self.config)
        for ids in found:
            if positions is not None and len(ids) >= positions:
                raise UserError(
                    f"The prompt has {len(ids)} tokens, and this model has learned positions for "
                    f"{positions}, its continuation included: shorten it."
                )
        return iter(found)

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
                    text=before_stop(whole, stops) if stops else whole,
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
        text = self.tokenizer.decode(one.ids)
        return Written(
            text=before_stop(text, stops) if stops else text,
            score=one.score,
            logp=one.logp,
            tokens=tuple(map(self._token, one.ids)),
            token_logps=one.token_logps,
            stopped=one.stopped,
            ids=one.ids,
        )


class Writing:
    """One text that is being written: it can be watched, waited for, dropped, or put aside for a while.

    For one thread at a time. What nobody holds any more is dropped.
    """

    def __init__(self, texts: Texts, engine: Engine, text: str, options: Options, stream: bool) -> None:
        self.texts, self.options = texts, options
        self.searched = options.beam > 1 or options.nbest > 1  # certain at its end alone
        requests, self.source = texts.asked(text, options)
        self.prompts = [() if texts.has_source else one.given for one in requests]
        self.certain: list[list[int]] = [[] for _ in requests]  # by part: ids that will not change any more
        self.parked, self.caller = False, Caller(engine)
        self.tickets = self.caller.submit(
            replace(one, stream=stream and not self.searched) for one in requests
        )

    def pieces(self) -> Iterator[str]:
        """What is written, piece by piece, as soon as it is certain; a beam is certain at its end alone."""
        return until_stop(self._pieces(), self.options.stop_texts)

    def _pieces(self) -> Iterator[str]:
        shown = ""
        for part, prompt in enumerate(self.prompts):  # spaces at the beginning may depend on the prompt
            if part:
                yield self.source.parts.joiner(part - 1, shown)
            with compiled_work():
                given = self.texts.tokenizer.decode(prompt)
            shown, ended = "", False
            while not ended:
                ended = part in self.source.answers
                ids = self.source.answers[part][0].ids if ended else self.certain[part]
                with compiled_work():
                    whole = self.texts.tokenizer.decode([*prompt, *ids]).removeprefix(given)
                certain = not whole.endswith(HELD) or (ended and self.searched)
                if whole != shown and whole.startswith(shown) and certain:
                    yield whole[len(shown) :]
                    shown = whole
                if not ended:
                    self._wait()

    def written(self) -> list[Written]:
        """The whole text, best first where several were asked for, as `Writer.write` gives it."""
        while not self.source.answered:
            self._wait()
        with compiled_work():
            return self.texts.joined(self.source, self.options.stop_texts)

    def _wait(self) -> None:
        if not self.caller.open:
            raise UserError("This text was dropped: submit it again.")
        if self.parked:
            raise UserError("This text is parked: resume it before waiting for it.")
        for ticket, event in self.caller.wait():
            if isinstance(event, Wrote):
                self.certain[ticket.number] += event.ids
            elif isinstance(event, Finished):
                self.source.answers[ticket.number] = event.texts
            else:
                self.abort()
                raise event.error

    def abort(self) -> None:
        """Drop it; may be called at any moment, in any thread."""
        self.caller.close()

    def park(self) -> None:
        """Let it leave its place, with its memory, until `resume`; the text will be the same."""
        self.parked = True
        for one in self.tickets:
            one.park()

    def resume(self) -> None:
        """Let it go on."""
        self.parked = False
        for one in self.tickets:
            one.resume()

    def __del__(self) -> None:
        if not too_late() and hasattr(self, "tickets"):
            self.abort()


def _chunk(coming: Iterator[str | None]) -> list[str | None]:
    """The next texts to be tokenised together; None, if it is there, is the last of them."""
    found: list[str | None] = []
    for text in islice(coming, CHUNK):
        found.append(text)
        if text is None:
            break
    return found


def _behind_prompt(options: Options, size: int, limit: int) -> Options:
    """Settings that count the prompt's `size` tokens, for a text that may have `limit` of its own."""
    if options.max_total is not None and options.max_length is None and limit == 0:
        raise UserError(
            f"The prompt has {size} tokens, and with what is written behind it there may be "
            f"{options.max_total}: shorten it, or say how many tokens to write (--max-length)."
        )
    least = min(options.min_total - size, limit)
    return options.replace(min_length=least, min_total=0) if least > options.min_length else options
