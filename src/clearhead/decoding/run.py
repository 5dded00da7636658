"""Text to text with a bundle, in one call: translate (or summarise) and generate, at once or token by token.

Short ways to `Writer`, which does the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from clearhead.base.errors import UserError
from clearhead.base.exiting import compiled_work, too_late
from clearhead.base.progress import Bar, progress
from clearhead.bundle.folder import Bundle
from clearhead.decoding.backend import Batch, Moves, Request
from clearhead.decoding.batches import translates
from clearhead.decoding.constraints import before_stop, until_stop
from clearhead.decoding.options import Options
from clearhead.decoding.writer import Dtype, Way, Writer, Written, opening

HELD = "\ufffd"  # what an unfinished character looks like
NO_MOVES = Moves(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))


def translate(
    bundle: Bundle,
    texts: Sequence[str],
    options: Options | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: Dtype = "float32",
    way: Way = "auto",
    show: bool = False,
) -> list[Written]:
    """Each text as the model renders it, in the order given; an empty line stays an empty line.

    Without options: the bundle's own settings, greedy where it has none. `show`: a progress line where there
    is a terminal.

    >>> import clearhead
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> bundle = Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size), tokenizer)
    >>> [one.text for one in translate(bundle, ["", "  "])]
    ['', '']
    """
    if not translates(bundle):
        raise UserError(
            f"This bundle holds a model of the family '{bundle.config.family}', which does not translate."
        )
    found = [Written("")] * len(texts)
    line = progress("Translating", len(texts), "texts") if show else nullcontext(Bar(None, None))
    with _resting(bundle), line as bar:
        for number, written in Writer(bundle, device=device, dtype=dtype, way=way).write(texts, options):
            found[number] = written[0]
            bar.advance(1)
    return found


def generate(
    bundle: Bundle,
    prompt: str = "",
    options: Options | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: Dtype = "float32",
    way: Way = "auto",
) -> str:
    """The prompt and how the model goes on from it.

    Without options: the bundle's own settings, greedy where it has none. Ends at a stop symbol, at the limit
    of length, or where the model has no more positions.
    """
    if translates(bundle):
        raise UserError(
            f"This bundle holds a model of the family '{bundle.config.family}', which does not continue text."
        )
    return prompt + "".join(stream(bundle, prompt, options, device=device, dtype=dtype, way=way))


def stream(
    bundle: Bundle,
    text: str,
    options: Options | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: Dtype = "float32",
    way: Way = "auto",
) -> Iterator[str]:
    """What is written for one text, piece by piece, as soon as it is certain.

    A beam is certain of nothing before its end, so it gives one piece.
    """
    with _resting(bundle):
        yield from stream_with(Writer(bundle, device=device, dtype=dtype, way=way), text, options)


def stream_with(writer: Writer, text: str, options: Options | None = None) -> Iterator[str]:
    """As `stream`, with a writer that is ready."""
    asked = writer.defaults if options is None else options
    return until_stop(_pieces(writer, text, asked), asked.stop_texts)


def _pieces(writer: Writer, text: str, asked: Options) -> Iterator[str]:
    """What is written, as soon as it is certain, with the stop text that it may end in."""
    if asked.beam > 1 or asked.nbest > 1:
        for _, found in writer.write([text], asked):
            with compiled_work():
                whole = found[0].text if writer.has_source else continuation(writer, text, found[0])
            yield whole
        return
    requests, source = writer.asked(text, asked)
    shown = ""
    for part, request in enumerate(requests):
        if part:
            yield source.parts.joiner(part - 1, shown)
        before = () if writer.has_source else request.given  # a prompt: spaces at its end depend on it
        with compiled_work():
            given = writer.tokenizer.decode(before)
        shown = ""
        for ids in _growing(writer, request):
            with compiled_work():
                whole = writer.tokenizer.decode([*before, *ids]).removeprefix(given)
            if whole != shown and whole.startswith(shown) and not whole.endswith(HELD):
                yield whole[len(shown) :]
                shown = whole


def continuation(writer: Writer, prompt: str, written: Written, stops: Sequence[str] = ()) -> str:
    """What was written behind a prompt, with the space between them where there is one."""
    before = opening(writer.bundle, prompt)
    whole = writer.tokenizer.decode([*before, *written.ids]).removeprefix(writer.tokenizer.decode(before))
    return before_stop(whole, stops)


def _growing(writer: Writer, request: Request) -> Iterator[list[int]]:
    """The ids that are certain after each step: what all rows that are under way have in common."""
    with compiled_work():
        rows = writer.rows(request.options)
        search = writer.search(
            Batch([request], request.options, writer.symbols, rows.vocabulary, rows.device)
        )
        scores, moves = rows.admit([request.given]), NO_MOVES
    texts: list[list[int]] = [[]]
    try:
        while True:
            with compiled_work():
                moves = search.advance(scores)
                ended = search.finished()
                pairs = list(zip(moves.parent.tolist(), moves.token.tolist(), strict=True))
            for _, found in ended:
                yield list(found[0].ids)
                return
            texts = [[*texts[parent], token] for parent, token in pairs]
            yield _common(texts)
            with compiled_work():
                scores = rows.step(moves.parent, moves.token)
    finally:
        if not too_late():
            with compiled_work():
                del rows, search, scores, moves  # their tensors are freed here, and not on the way out


@contextmanager
def _resting(bundle: Bundle) -> Iterator[None]:
    """Without dropout; a model that was in training goes back to it."""
    training = bundle.model.training
    bundle.model.eval()
    try:
        yield
    finally:
        if not too_late():
            bundle.model.train(training)


def _common(texts: Sequence[list[int]]) -> list[int]:
    """The longest beginning that all texts share.

    >>> _common([[1, 2, 3], [1, 2, 4]])
    [1, 2]
    """
    found = []
    for ids in zip(*texts, strict=False):
        if len(set(ids)) > 1:
            break
        found.append(ids[0])
    return found
