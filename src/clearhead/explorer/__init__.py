"""See a model think: what happened to one text inside it, as exact numbers, for pictures.

Every view is a function from a `Session` (a bundle made ready) to plain data. The page and its server stand
in `built` and `server`, and nothing else here needs the web extra. Sits above `decoding`; knows nothing about
training or the command line.
"""
