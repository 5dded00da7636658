"""Speculative decoding: a smaller model drafts for the writer's model. The same texts, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.bundle.folder import tokenizers_of
from clearhead.decoding.backend import (
    Backend,
    Batch,
    Capacity,
    Cost,
    Event,
    Failed,
    Finished,
    Hypothesis,
    Parked,
    Request,
    Slot,
)
from clearhead.decoding.speculative import refuse_pair, speculate
from clearhead.decoding.writer import Dtype, Writer, pipeline_of


@dataclass(frozen=True)
class Untouched:
    """A parked request with nothing written yet."""

    request: Request


class OneByOne:
    """A `Backend` that writes each text in a single call."""

    capacity = Capacity(1)

    def __init__(self, write: Callable[[Request], Hypothesis]) -> None:
        self._write, self._active, self._slots = write, dict[Slot, Request](), count()

    @property
    def free(self) -> Capacity:
        return Capacity(1 - len(self._active))

    def why_not(self, request: Request) -> str | None:
        return None

    def cost(self, request: Request) -> Cost:
        return Cost(1, len(request.given) + request.limit)

    def admit(self, requests: Sequence[Request]) -> list[Slot]:
        if self._active:
            return []
        slot = next(self._slots)
        self._active[slot] = requests[0]
        return [slot]

    def advance(self, most_steps: int) -> list[Event]:
        [(slot, request)] = self._active.items()
        try:
            event: Event = Finished(slot, [self._write(request)])
        except UserError as error:
            event = Failed(slot, error)
        del self._active[slot]
        return [event]

    def evict(self, slot: Slot) -> None:
        del self._active[slot]

    def park(self, slot: Slot) -> Untouched:
        return Untouched(self._active.pop(slot))

    def resume(self, parked: Parked) -> Slot:
        return self.admit([parked.request])[0]

    def rest(self) -> None:
        pass

    def reset(self) -> None:
        self._active.clear()


class DraftedWriter(Writer):
    """Like `Writer`, with PyTorch only and without batches: for low latency, not high throughput."""

    window = 1

    def __init__(self, bundle: Bundle, draft: Bundle, *, dtype: Dtype = "float32") -> None:
        if dtype in ("int8", "fast"):
            said = "--fast" if dtype == "fast" else "--dtype int8"
            raise UserError(f"--draft only works with float32 or bf16: leave out {said}.")
        super().__init__(bundle, dtype=dtype, way="torch")
        for mine, other in zip(tokenizers_of(bundle), tokenizers_of(draft), strict=True):
            if mine.backend.get_vocab() != other.backend.get_vocab():
                raise UserError(
                    "The model and the --draft model have different vocabularies: speculative decoding "
                    "needs the same one in both."
                )
        refuse_pair(bundle.model, draft.model)  # before anything is written
        self.draft = draft.model.to(self.device).eval()

    def backends(self) -> list[Backend]:
        return [OneByOne(self._guessed)]

    def _guessed(self, request: Request) -> Hypothesis:
        options = request.options
        batch = Batch([request], options, self.symbols, self.config.vocabulary, self.device)
        return speculate(
            self._torch_model(),
            self.draft,
            request.given,
            symbols=self.symbols,
            limit=request.limit,
            options=options,
            pipeline=pipeline_of(batch, self.has_source, self.pieces_for(options)),
        ).hypothesis
