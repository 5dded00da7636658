"""Two threads on one writer, by each backend: mixed settings, aborts and parking at random moments."""

from __future__ import annotations

from ..decoding.bundles import ENGLISH, translator, writer
from ..decoding.together import PROMPTS, WAYS, together
from .tally import Tally


def run(count: int, seed: int) -> Tally:
    """So many requests, a fifth of them aborted, for each backend and each of two kinds of models."""
    tally = Tally("threads on one writer")
    for bundle, texts in ((translator(), ENGLISH), (writer(), PROMPTS)):
        for way in WAYS:
            try:
                compared = together(bundle, texts, way, count, count // 5, seed)
            except Exception as error:
                tally.bad("wrong", f"seed {seed}, {bundle.config.family}, {way}: {error!r}")
            else:
                tally.tried += count
                tally.counts["texts compared"] += compared
    return tally
