"""Text and ids: what turns a string into token ids and back.

No torch here, and nothing about batches, files of many lines or models.
"""
