"""`python -m clearhead` is the command `clearhead`."""

from __future__ import annotations

from clearhead.cli.entry import run

if __name__ == "__main__":
    run()
