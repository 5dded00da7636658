"""How models of music are judged: by their loss, in the units that are used for music."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clearhead.bundle.folder import Bundle
from clearhead.evaluation.evaluate import Device, Evaluation, EvaluationConfig, Rows
from clearhead.evaluation.judges import LongTexts
from clearhead.training.distributed.ranks import Ranks

VOICES = 4


@dataclass(frozen=True)
class Pieces(LongTexts):
    """Nats an event; of chorales, nats a voice and nats a time step, which is all four voices.

    The end of a piece is an event, too. In the figures of chorales its nats are in the sum, divided by the
    voices or steps alone. Every chunk of the context's length is read by itself, from its first event on.
    """

    def __call__(
        self,
        bundle: Bundle,
        rows: Rows,
        config: EvaluationConfig | None = None,
        *,
        references: Sequence[Sequence[str]] | None = None,
        device: Device = None,
        show: bool = False,
        ranks: Ranks | None = None,
    ) -> Evaluation:
        found = super().__call__(
            bundle, rows, config, references=references, device=device, show=show, ranks=ranks
        )
        kept = {name: found.metrics[name] for name in ("nats per token", "perplexity")}
        events = [text.split() for _, text in rows]
        voices = sum(word.startswith(("pitch", "rest")) for piece in events for word in piece)
        if voices and voices == sum(map(len, events)):
            ends = sum(1 for piece in events if piece)
            kept["nats per voice"] = kept["nats per token"] * (voices + ends) / voices
            kept["nats per time step"] = VOICES * kept["nats per voice"]
        return replace(found, metrics=kept)
