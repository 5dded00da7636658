"""Corpora and batches: from files of text to the padded or packed tensors a model reads.

A corpus passes through `lines` (bytes to lines) → `records`, `columns` (tables to pairs of texts) → `read`
(any corpus as rows) → `survey` (one pass that counts and, with `keys` and `split`, decides what becomes of
each row) → `tokenise` and `store` (rows of ids on disk) → `plan` and `load` (which rows make which batch) →
`encodings` (a `batch`, its target shifted right). May import `text` and `base`; knows nothing about models,
losses or schedules.
"""
