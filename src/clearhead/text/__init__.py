"""Text and ids: turns a string into token ids and back.

No torch here, and nothing about batches, corpus files or models.
"""
