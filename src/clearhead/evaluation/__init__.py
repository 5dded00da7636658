"""How good a model is: metrics, losses, comparisons of two bundles, reports.

Gets bundles and texts and uses `decoding` to run them. Knows nothing about
training: the code that sets up a run builds a validator from this and passes it in.
"""
