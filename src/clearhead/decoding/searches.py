"""Which search decides for a batch: the one place where strategies are told apart."""

from __future__ import annotations

from clearhead.decoding.backend import Batch, Extra, Search
from clearhead.decoding.beam import Beam
from clearhead.decoding.constraints import Pieces, constraint_processors
from clearhead.decoding.contrastive import Contrastive
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.native.beam import NativeBeam
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline


def make_search(
    batch: Batch, has_source: bool, pieces: Pieces | None = None, *, compiled: bool = False
) -> Search:
    """The search that a batch's options ask for.

    `pieces` are the bytes that each token adds to a text; constraints on texts need them. `compiled`:
    the rows are the compiled engine's, which can keep a plain beam's books as well.
    """
    options = batch.options
    prompts = None if has_source else batch.prompts
    more = constraint_processors(options, batch.symbols, pieces, batch.limits, prompts)
    ready = pipeline(options, batch.symbols, batch.vocabulary, has_source, more=more)
    if options.contrastive:
        return Contrastive(batch, ready.before)
    if options.beam > 1:
        if compiled and ready.plain(0) and NativeBeam.fits(batch):
            return NativeBeam(batch)
        return Beam(batch, ready.before)
    return GreedyOrSampling(batch, ready)


def extras_of(options: Options) -> frozenset[Extra]:
    """What a search must see beside log-probabilities."""
    found: set[Extra] = set()
    if options.contrastive:
        found.add("hidden")
    if options.coverage:
        found.add("attention")
    return frozenset(found)
