"""The phrasebook: a grammar that expresses one meaning in English, French and German.

Endless sentence pairs with exact answers, for the demo and tests: `pairs` generates them, `split`
splits them so that held-out combinations of words are new, `examples` shows a few. Imports `base`
only; no torch.
"""

from clearhead.phrasebook.book import PAIRS, Split, examples, pairs, size, split

__all__ = ["PAIRS", "Split", "examples", "pairs", "size", "split"]
