"""One-call shortcuts to the engine.

With a bundle, from text to text: translate (or summarise) and generate, at once or token by token; `Writer`
does the work. With a model alone, from ids to ids: greedy, sample, beam_search.

Shapes: B rows, S given tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.base.exiting import too_late
from clearhead.base.progress import Bar, progress
from clearhead.bundle.folder import Bundle
from clearhead.decoding.backend import Hypothesis, MakeSearch, Request, Symbols, width_of
from clearhead.decoding.beam import Beam
from clearhead.decoding.constraints import before_stop
from clearhead.decoding.options import WITH_SOURCE, LengthPenalty, Options, config_of, limit_of
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.text_requests import Written, opening, translates
from clearhead.decoding.writer import Dtype, Way, Writer, make_search


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

    Without options: the bundle's own settings, or greedy search if it has none. `show`: a progress line if
    there is a terminal.

    >>> import clearhead
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> bundle = Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size), tokenizer)
    >>> [one.text for one in translate(bundle, ["", "  "])]
    ['', '']
    """
    if not translates(bundle):
        raise UserError(
            f"The model in this bundle, of the family '{bundle.config.family}', cannot translate."
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
    """The prompt and the model's continuation.

    Without options: the bundle's own settings, or greedy search if it has none. Ends at a stop symbol, at the
    length limit, or where the model has no more positions.
    """
    if translates(bundle):
        raise UserError(
            f"The model in this bundle, of the family '{bundle.config.family}', cannot continue text."
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

    A beam is certain of nothing before its end, so it yields one piece.
    """
    with _resting(bundle):
        yield from stream_with(Writer(bundle, device=device, dtype=dtype, way=way), text, options)


def stream_with(writer: Writer, text: str, options: Options | None = None) -> Iterator[str]:
    """As `stream`, with an existing writer."""
    writing = writer.submit(text, options)
    try:
        yield from writing.pieces()
    finally:
        writing.abort()  # does nothing, unless the consumer has left early


def continuation(writer: Writer, prompt: str, written: Written, stops: Sequence[str] = ()) -> str:
    """What was written after a prompt, with the space between them if there is one."""
    before = opening(writer.bundle, prompt)
    whole = writer.tokenizer.decode([*before, *written.ids]).removeprefix(writer.tokenizer.decode(before))
    return before_stop(whole, stops)


def greedy(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    max_length: int | None = None,
) -> list[Hypothesis]:
    """The most probable token at each step; one hypothesis for each row of `given` (B, S).

    `given` is the source of an encoder-decoder or the prompt of a decoder, `lengths` are the lengths of its
    rows. `max_length`: see `limit_of`; at the limit the stop symbol is written whatever the model prefers.

    >>> import clearhead, torch
    >>> model = clearhead.build("tiny").eval()
    >>> found = greedy(model, torch.tensor([[5, 6, 2]]), symbols=Symbols(1, 2, (0, 1)), max_length=4)
    >>> len(found), len(found[0].ids) <= 4
    (1, True)
    """
    options = Options(max_length=max_length)
    return [texts[0] for texts in _written(model, given, lengths, options, symbols)]


def sample(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    max_length: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[Hypothesis]:
    """As `greedy`, each token drawn with its probability to the power 1/temperature, normalised.

    The log-probabilities returned are the model's own, at temperature 1. Row i has the seed `seed` + i, and
    its draws depend on nothing else.
    """
    options = Options(sample=True, temperature=temperature, max_length=max_length, seed=seed)
    return [texts[0] for texts in _written(model, given, lengths, options, symbols)]


def beam_search(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None = None,
    *,
    symbols: Symbols,
    beams: int = 5,
    penalty: LengthPenalty | None = None,
    max_length: int | None = None,
    nbest: int = 1,
) -> list[list[Hypothesis]]:
    """For each row of `given` (B, S) its `nbest` best texts, best first; fewer if there are no more.

    `given`, `lengths` and `max_length` are as for `greedy`. The default penalty is the plain average.

    >>> import clearhead, torch
    >>> model = clearhead.build("tiny").eval()
    >>> row = torch.tensor([[5, 6, 2]])
    >>> [texts] = beam_search(model, row, symbols=Symbols(1, 2, (0, 1)), beams=3, nbest=2)
    >>> len(texts), texts[0].score >= texts[1].score
    (2, True)
    """
    if beams < 1:
        raise UserError(f"The beam size must be at least 1, not {beams}.")
    divisor = penalty or LengthPenalty()
    options = Options(
        beam=beams,
        nbest=nbest,
        length_penalty=divisor.alpha,
        length_kind=divisor.kind,
        max_length=max_length,
    )
    return _written(model, given, lengths, options, symbols, Beam)


def _written(
    model: nn.Module,
    given: Tensor,
    lengths: Sequence[int] | Tensor | None,
    options: Options,
    symbols: Symbols,
    make: MakeSearch | None = None,
) -> list[list[Hypothesis]]:
    """The texts for padded rows (B, S) of ids; a row's length sets its limit, its number its seed."""
    if given.dim() != 2 or not given.numel():
        raise UserError("Decoding starts from padded rows (two dimensions) with at least one token.")
    config = config_of(model)
    sizes = [given.shape[1]] * len(given) if lengths is None else torch.as_tensor(lengths).tolist()
    requests = []
    for number, (row, size) in enumerate(zip(given.tolist(), sizes, strict=True)):
        own = options.replace(seed=options.seed + number) if options.sample else options
        requests.append(Request(tuple(row[:size]), limit_of(config, size, options.max_length), own))
    has_source = config.family in WITH_SOURCE
    make = make or (lambda one: make_search(one, has_source))
    room = width_of(options) * len(requests)
    found = dict(rows_engine(TorchRows(model, symbols), symbols, make, room).run(requests))
    return [found[number] for number in range(len(requests))]


@contextmanager
def _resting(bundle: Bundle) -> Iterator[None]:
    """Without dropout; a model that was in training mode returns to it."""
    training = bundle.model.training
    bundle.model.eval()
    try:
        yield
    finally:
        if not too_late():
            bundle.model.train(training)
