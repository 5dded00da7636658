"""A writer whose model is helped by the guesses of a smaller one: the same texts, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding.backend import Request
from clearhead.decoding.batches import tokenizers_of
from clearhead.decoding.constraints import constraint_processors
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.speculative import speculate
from clearhead.decoding.steps import Hypothesis
from clearhead.decoding.writer import Dtype, Writer, Written


class DraftedWriter(Writer):
    """As `Writer`, with PyTorch alone and without batches: it answers soonest, not most."""

    def __init__(self, bundle: Bundle, draft: Bundle, *, dtype: Dtype = "float32") -> None:
        if dtype in ("int8", "fast"):
            said = "--fast" if dtype == "fast" else "--dtype int8"
            raise UserError(f"With --draft, numbers are float32 or bf16: leave {said} away.")
        super().__init__(bundle, dtype=dtype, way="torch")
        for mine, other in zip(tokenizers_of(bundle), tokenizers_of(draft), strict=True):
            if mine.backend.get_vocab() != other.backend.get_vocab():
                raise UserError(
                    "The model and the --draft have different vocabularies: guesses can only be checked "
                    "where both write the same tokens."
                )
        self.draft = draft.model.to(self.device).eval()

    def write(
        self, texts: Iterable[str], options: Options | None = None, seeds: Iterable[int] | None = None
    ) -> Iterator[tuple[int, list[Written]]]:
        asked = self.defaults if options is None else options
        chances = repeat(asked.seed) if seeds is None else iter(seeds)
        for number, text in enumerate(texts):
            own = asked.replace(seed=next(iter(chances)))
            requests, source = self.asked(text, own)
            source.answers = {part: [self._guessed(request)] for part, request in enumerate(requests)}
            yield number, self.joined(source, asked.stop_texts)

    def _guessed(self, request: Request) -> Hypothesis:
        options, symbols, vocabulary = request.options, self.symbols, self.config.vocabulary
        prompts = None if self.has_source else [request.given]
        more = constraint_processors(options, symbols, self.pieces_for(options), [request.limit], prompts)
        shaped = pipeline(options, symbols, vocabulary, self.has_source, more=more)
        return speculate(
            self._torch_model(),
            self.draft,
            request.given,
            symbols=symbols,
            limit=request.limit,
            options=options,
            before=shaped.before,
            after=shaped.after,
        ).hypothesis
