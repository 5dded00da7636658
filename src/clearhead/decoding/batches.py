"""Texts on their way to a model and back: a bundle's parts, batches of like length, a model made ready.

Shapes: B rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clearhead.base.device import pick_device
from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.bundle.folder import framings_of as framings_of
from clearhead.bundle.folder import is_imported as is_imported
from clearhead.bundle.folder import tokenizers_of as tokenizers_of
from clearhead.bundle.mapped import own_memory
from clearhead.data.encoding import encode_sources
from clearhead.decoding.backend import Request
from clearhead.decoding.defaults import with_own
from clearhead.decoding.options import Options
from clearhead.decoding.steps import WITH_SOURCE, Symbols, config_of, limit_of, positions_of
from clearhead.text.framing import Framing
from clearhead.text.tokenizer import Tokenizer

NUMBERS = 2**25  # most scores that one step makes at a time: rows × places in the beam × vocabulary


def symbols_of(bundle: Bundle) -> Symbols:
    """The symbols that steer a bundle's model, as its tokenizer or its metadata name them."""
    special = bundle.metadata.get("special")
    named = Symbols.of(tokenizers_of(bundle)[1], special if isinstance(special, dict) else None)
    return with_own(named, bundle)


def translates(bundle: Bundle) -> bool:
    """Is a given text a source, of which the model makes another text, rather than a prompt to continue?

    A decoder translates where its framing has a source side: the separator behind the source is where the
    target begins.
    """
    config = bundle.config
    if config.head.kind != "none":
        return False
    separated = config.family == "decoder" and bool(framings_of(bundle).source.after)
    return separated or config.family in WITH_SOURCE


def read_sources(bundle: Bundle, texts: Sequence[str]) -> list[list[int]]:
    """The ids the model is fed for each text, just as in training.

    Where training cut long sources, the bundle's metadata says so (`source_limit`, in tokens).
    """
    limit = bundle.metadata.get("source_limit")
    most = limit if isinstance(limit, int) else None
    words = bundle.config.head.kind == "tag"
    return encode_sources(tokenizers_of(bundle)[0], texts, framings_of(bundle).source, most, words=words)


def heads_read(
    bundle: Bundle, texts: Sequence[str], rows: Sequence[Sequence[int]]
) -> list[tuple[int, int] | None]:
    """For each text of which only the head was read: how many of its tokens, and how many it has.

    `rows` are what `read_sources` gave for the texts. None: all of the text was read.
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


def refuse_too_long(bundle: Bundle, sizes: Sequence[int]) -> None:
    """A sentence for the first text that has more tokens than the model has learned positions for."""
    positions = positions_of(bundle.config)
    for number, size in enumerate(sizes, start=1):
        if positions is not None and size > positions:
            raise UserError(
                f"Text {number} has {size} tokens, and this model has learned positions for {positions}: "
                f"shorten or divide it."
            )


def by_length(sizes: Sequence[int], tokens: int, rows: int | None = None) -> Iterator[list[int]]:
    """Numbers of texts in groups of like length: rows × longest is at most `tokens`, but one row at least.

    The longest come first, so that a lack of memory shows at once.

    >>> list(by_length([1, 5, 2, 4], tokens=10))
    [[1, 3], [2, 0]]
    """
    if tokens < 1:
        raise UserError(f"A batch holds at least one token, not {tokens}.")
    group: list[int] = []
    for number in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        longest = sizes[group[0]] if group else 0
        if group and ((len(group) + 1) * longest > tokens or len(group) == rows):
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def padded(rows: Sequence[Sequence[int]], fill: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """ids (B, T) and lengths (B,)."""
    lengths = [len(row) for row in rows]
    table = torch.full((len(rows), max(lengths)), fill or 0)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return table.to(device), torch.tensor(lengths, device=device)


def requests_of(
    model: nn.Module, given: Tensor, lengths: Sequence[int] | Tensor | None, options: Options
) -> list[Request]:
    """Padded rows (B, T) of ids as requests; a row's own length sets its limit."""
    if given.dim() != 2 or not given.numel():
        raise UserError("Decoding starts from padded rows (two dimensions) with at least one token.")
    config = config_of(model)
    sizes = [given.shape[1]] * len(given) if lengths is None else torch.as_tensor(lengths).tolist()
    return [
        Request(
            tuple(row[:size]), limit_of(config, size, options.max_length, None, options.max_total), options
        )
        for row, size in zip(given.tolist(), sizes, strict=True)
    ]


@contextmanager
def at_work(model: nn.Module, device: str | torch.device | None) -> Iterator[torch.device]:
    """The model on `device` (None: where it is) without dropout and gradients; yields the device.

    It goes back to training afterwards if it was, but stays on the device.
    """
    own_memory(model)
    if device is not None:
        model.to(pick_device(device) if isinstance(device, str) else device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(training)
