"""Which search decides for a cohort: the one place where strategies are told apart."""

from __future__ import annotations

from clearhead.decoding.beam import Beam
from clearhead.decoding.constraints import Pieces, constraint_processors
from clearhead.decoding.contrastive import Contrastive
from clearhead.decoding.engine import Cohort, Search
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.native.beam import NativeBeam
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.rows import Extra


def make_search(
    cohort: Cohort, has_source: bool, pieces: Pieces | None = None, *, compiled: bool = False
) -> Search:
    """The search that a cohort's options ask for.

    `pieces` are the bytes that each token adds to a text; constraints on texts need them. `compiled`:
    the rows are the compiled engine's, which can keep a plain beam's books as well.
    """
    options = cohort.options
    prompts = None if has_source else cohort.prompts
    more = constraint_processors(options, cohort.symbols, pieces, cohort.limits, prompts)
    ready = pipeline(options, cohort.symbols, cohort.vocabulary, has_source, more=more)
    if options.contrastive:
        return Contrastive(cohort, ready.before)
    if options.beam > 1:
        if compiled and ready.plain(0) and NativeBeam.fits(cohort):
            return NativeBeam(cohort)
        return Beam(cohort, ready.before)
    return GreedyOrSampling(cohort, ready)


def extras_of(options: Options) -> frozenset[Extra]:
    """What a search must see beside log-probabilities."""
    found: set[Extra] = set()
    if options.contrastive:
        found.add("hidden")
    if options.coverage:
        found.add("attention")
    return frozenset(found)
