"""As `warm.py`, for runs that put on record how far they are after every line: more records to be cut off."""

from __future__ import annotations

import json
import signal
import sys

from warm import obey

import clearhead.jobs.part

clearhead.jobs.part.EVERY = 0.0

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)
