"""Text to text with a bundle, in one call: translate (or summarise) and generate, at once or token by token.

Short ways to `Writer`, which does the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch

from clearhead.base.errors import UserError
from clearhead.base.exiting import too_late
from clearhead.base.progress import Bar, progress
from clearhead.bundle.folder import Bundle
from clearhead.decoding.batches import opening, translates
from clearhead.decoding.constraints import before_stop
from clearhead.decoding.options import Options
from clearhead.decoding.text_requests import Written
from clearhead.decoding.writer import Dtype, Way, Writer


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
    writing = writer.submit(text, options)
    try:
        yield from writing.pieces()
    finally:
        writing.abort()  # nothing is left to drop, unless whoever listened has gone


def continuation(writer: Writer, prompt: str, written: Written, stops: Sequence[str] = ()) -> str:
    """What was written behind a prompt, with the space between them where there is one."""
    before = opening(writer.bundle, prompt)
    whole = writer.tokenizer.decode([*before, *written.ids]).removeprefix(writer.tokenizer.decode(before))
    return before_stop(whole, stops)


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
