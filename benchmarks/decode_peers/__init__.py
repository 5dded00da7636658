"""The contenders of `benchmarks/decode.py`, a process each, and what drives, feeds and compares them."""
