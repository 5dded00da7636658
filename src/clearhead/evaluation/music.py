"""How models of music are judged: by their loss, in the units usual for music."""

from __future__ import annotations

from dataclasses import dataclass

from clearhead.data.music import kind_of
from clearhead.evaluation.evaluate import Rows
from clearhead.evaluation.judges import LongTexts
from clearhead.text.events import VOICES


@dataclass(frozen=True)
class Pieces(LongTexts):
    """Nats per event; for chorales, nats per voice and nats per time step, which is all four voices.

    The end of a piece is an event, too. In the figures of chorales its nats are in the sum, which is divided
    by the voices or steps alone. Every chunk of the context's length is read by itself, from its first event.
    """

    def told(self, metrics: dict[str, float], rows: Rows) -> dict[str, float]:
        """In these units."""
        kept = {name: metrics[name] for name in ("nats per token", "perplexity")}
        events = [text.split() for _, text in rows]
        voices = sum(kind_of(word) == "chorales" for piece in events for word in piece)
        if voices and voices == sum(map(len, events)):
            ends = sum(1 for piece in events if piece)
            kept["nats per voice"] = kept["nats per token"] * (voices + ends) / voices
            kept["nats per time step"] = VOICES * kept["nats per voice"]
        return kept
