"""See a model think: what happened to one text inside it, as exact numbers to draw.

Every view is a function from a `Session` (a prepared bundle) to plain data. `built` has the page and `server`
its server; nothing else here needs the web extra. Builds on `decoding`; knows nothing about training or the
command line.
"""
