"""The explorer's local server: requests in, the views' plain data out, and the built page.

The only package that needs the extra `explore` (FastAPI and uvicorn). It checks who asks and what is asked,
and knows nothing about how a view is computed.
"""
