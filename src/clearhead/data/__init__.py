"""Corpora and batches: from files of text to the padded or packed tensors a model reads.

Here will live the readers of parallel and plain corpora, the filters (length,
ratio, duplicates), the bucketing by token count and the batch itself, which
shifts the target right. May import `text` and `base`; knows nothing about
models, losses or schedules.
"""
