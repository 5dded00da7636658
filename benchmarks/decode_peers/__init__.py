"""The contenders of `benchmarks/decode.py`, one process each, and the code that drives and compares them."""
