"""`python -m clearhead` is the command `clearhead`."""

from __future__ import annotations

import sys

from clearhead.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
