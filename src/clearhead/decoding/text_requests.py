"""From texts to requests, and from ids back to texts, by a bundle's tokenizers, framings and limits.

`read_sources` and `opening` define, for all callers, which ids a model is fed. `Texts` turns a text into
requests, several if it is too long to read in one piece, and joins the texts written for them. Knows nothing
about what writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import chain, islice

from clearhead.base.errors import UserError
from clearhead.base.exiting import compiled_work
from clearhead.bundle.folder import Bundle, framings_of, is_imported, tokenizers_of
from clearhead.data.encoding import encode_words
from clearhead.data.length_limits import LengthLimits
from clearhead.decoding.backend import Hypothesis, Request, Symbols
from clearhead.decoding.constraints import before_stop
from clearhead.decoding.defaults import KEY, with_own
from clearhead.decoding.options import WITH_SOURCE, Options, config_of, limit_of, longest_source, positions_of
from clearhead.decoding.split_long_sources import NOTHING, Parts, split
from clearhead.text.framing import Framing
from clearhead.text.tokenizer import Tokenizer

CHUNK = 512  # texts that are tokenised together


def symbols_of(bundle: Bundle) -> Symbols:
    """The symbols that control a bundle's model, as its tokenizer or its metadata name them."""
    special = bundle.metadata.get("special")
    named = Symbols.of(tokenizers_of(bundle)[1], special if isinstance(special, dict) else None)
    return with_own(named, bundle) if KEY in bundle.metadata or is_imported(bundle) else named


def translates(bundle: Bundle) -> bool:
    """Is a given text a source, from which the model makes another text, rather than a prompt to continue?

    A decoder translates if its framing has a source side: the target begins after the separator that follows
    the source.
    """
    config = bundle.config
    if config.head.kind != "none":
        return False
    separated = config.family == "decoder" and bool(framings_of(bundle).source.after)
    return separated or config.family in WITH_SOURCE


def read_sources(bundle: Bundle, texts: Sequence[str], framing: Framing | None = None) -> list[list[int]]:
    """The ids the model is fed for each text with the special tokens around it (None: as the bundle says).

    If training cut long sources, the bundle's metadata says so (`source_limit`, in tokens).
    """
    limit = bundle.metadata.get("source_limit")
    most = limit if isinstance(limit, int) else None
    words = bundle.config.head.kind == "tag"
    framing = framing or framings_of(bundle).source
    return encode_sources(tokenizers_of(bundle)[0], texts, framing, most, words=words)


def encode_sources(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    framing: Framing,
    limit: int | None = None,
    *,
    words: bool = False,
) -> list[list[int]]:
    """The ids a model is fed for each text, with the special tokens around it; at most `limit` of each.

    `words`: the text is given as words between spaces, each of which is tagged.

    >>> encode_sources(Tokenizer.words("the cat"), ["the cat"], Framing.of(after=2))
    [[4, 5, 2]]
    """
    if words:
        found = [list(chain.from_iterable(encode_words(tokenizer, text.split()))) for text in texts]
    else:
        found = tokenizer.encode_batch(list(texts))
    return framing.around_each(found, limit)


def heads_read(
    bundle: Bundle, texts: Sequence[str], rows: Sequence[Sequence[int]]
) -> list[tuple[int, int] | None]:
    """For each text of which only the beginning was read: how many of its tokens, and how many it has.

    `rows` are what `read_sources` returned for the texts. None: all of the text was read.
    """
    limit = bundle.metadata.get("source_limit")
    if not isinstance(limit, int) or all(len(row) < limit for row in rows):
        return [None] * len(texts)
    reader, around = tokenizers_of(bundle)[0], framings_of(bundle).source.extra
    found: list[tuple[int, int] | None] = []
    for text, row in zip(texts, rows, strict=True):
        read, whole = len(row) - around, len(row) if len(row) < limit else len(reader.encode(text))
        found.append((read, whole) if len(row) >= limit and read < whole else None)
    return found


def opening(bundle: Bundle, prompt: str, framing: Framing | None = None) -> list[int]:
    """The ids a decoder starts from: the prompt with the special tokens around it (None: as the bundle says).

    Without a prompt, a model of one long text (which has no special tokens around it) starts from a new line,
    and an imported model that would then read nothing from the start symbol.
    """
    _, tokenizer = tokenizers_of(bundle)
    framing = framing or framings_of(bundle).target
    text = prompt if prompt or framing.extra or is_imported(bundle) else "\n"
    found = framing.around(tokenizer.encode(text))
    return found or [_start(bundle, tokenizer)]


def _start(bundle: Bundle, tokenizer: Tokenizer) -> int:
    """The first token of a text or, in a vocabulary without one, the last token of the text before."""
    known = symbols_of(bundle)
    if tokenizer.start is None and known.start is None and not is_imported(bundle):
        raise UserError(
            "This tokenizer has no 'start' token, which an empty prompt needs: give a prompt, or add one "
            "to the tokenizer."
        )
    return next(id for id in (known.start, tokenizer.start, known.stop) if id is not None)


@dataclass(frozen=True)
class Written:
    """What a model wrote for one text."""

    text: str
    score: float = 0.0  # what texts are ranked by: usually log-probability over the length penalty
    logp: float = 0.0  # natural log-probability, the stop symbol's included
    tokens: tuple[str, ...] = ()
    token_logps: tuple[float, ...] = ()  # of each token, and of the stop symbol
    stopped: bool = True  # False: it was cut at the length limit
    parts: int = 1  # number of parts that a source that was too long was cut into
    # if a bundle reads only the beginning of a long source: tokens read, and tokens in it; else None
    source_read: int | None = None
    source_tokens: int | None = None
    ids: tuple[int, ...] = ()


@dataclass
class Source:
    """A text in the parts in which it is read, and what was written for each so far."""

    number: int
    parts: Parts
    answers: dict[int, list[Hypothesis]] = field(default_factory=dict)  # by part
    head: tuple[int, int] | None = None  # tokens read and tokens in it, if only the beginning is read

    @property
    def answered(self) -> bool:
        return len(self.answers) == len(self.parts.texts)


class Texts:
    """The part of decoding that deals with a bundle's texts."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.config = config_of(bundle.model)
        self.reader, self.tokenizer = tokenizers_of(bundle)
        self.symbols = symbols_of(bundle)
        self.framings = framings_of(bundle)
        known = bundle.metadata.get("reach")
        self.reach = None if known is None else LengthLimits.from_list(known)  # how long texts get
        self.has_source = translates(bundle)  # a given text is a source, not a prompt
        self._token = cache(self.tokenizer.token)  # a few tokens make up most of all texts

    # -- texts to requests ------------------------------------------------------------------------

    def requests(self, text: str, options: Options) -> list[Request]:
        """The requests of one text: one for each part in which it is read."""
        return self.asked(text, options)[0]

    def asked(self, text: str, options: Options) -> tuple[list[Request], Source]:
        """The requests of one text, and how the answers belong together."""
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
        """The requests of texts; records which part each request is, and which texts need none."""
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
        """The parts in which a source is read; none for an empty one."""
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
        """The ids of the parts of these sources."""
        if self.has_source:
            found = read_sources(self.bundle, texts, self.framings.source)
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
                    f"{positions}, including the continuation: shorten it."
                )
        return iter(found)

    # -- ids to texts -----------------------------------------------------------------------------

    def joined(self, source: Source, stops: Sequence[str] = ()) -> list[Written]:
        """The texts written for the parts of one source, joined rank by rank by the source's separators."""
        found, (read, tokens) = source.answers, source.head or (None, None)
        if len(found) == 1:
            each = [self.written(one, stops) for one in found[0]]
            return (
                each
                if read is None
                else [replace(one, source_read=read, source_tokens=tokens) for one in each]
            )
        joined = []
        for ranked in zip(*(found[part] for part in range(len(found))), strict=False):
            each = [self.written(one) for one in ranked]
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


def _chunk(coming: Iterator[str | None]) -> list[str | None]:
    """The next texts to tokenise together; None, if present, is the last of them."""
    found: list[str | None] = []
    for text in islice(coming, CHUNK):
        found.append(text)
        if text is None:
            break
    return found


def _behind_prompt(options: Options, size: int, limit: int) -> Options:
    """Options that count the prompt's `size` tokens, for a text of at most `limit` tokens after it."""
    if options.max_total is not None and options.max_length is None and limit == 0:
        raise UserError(
            f"The prompt has {size} tokens, but prompt and continuation together may only have "
            f"{options.max_total}: shorten it, or set the number of tokens to write (--max-length)."
        )
    least = min(options.min_total - size, limit)
    return options.replace(min_length=least, min_total=0) if least > options.min_length else options
