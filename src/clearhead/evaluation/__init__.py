"""How good a model is: metrics, losses, comparisons of two bundles, reports.

Gets bundles and texts and uses `decoding` to run them. Knows nothing about
training: whoever wires a run makes a validator from this and hands it over.
"""
