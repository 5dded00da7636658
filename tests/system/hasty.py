"""As `warm.py`, for runs that put on record how far they are after every line: more records to be cut off."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import clearhead.jobs.resumable_output

sys.path.insert(0, str(Path(__file__).parent))  # wherever this is loaded from

from warm import obey

if __name__ == "__main__":
    clearhead.jobs.resumable_output.EVERY = 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)
