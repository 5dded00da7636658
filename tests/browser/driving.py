"""A real explorer and a real browser: `clearhead explore` as its own process, and Chromium at its page.

Knows nothing about what is tested. The browser is the system's own, found by the name `chromium` or by what
CLEARHEAD_CHROMIUM says; Playwright only drives it and downloads nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

VARIABLE = "CLEARHEAD_CHROMIUM"


def chromium() -> str | None:
    """The browser's program, or None where there is none."""
    return os.environ.get(VARIABLE) or shutil.which("chromium") or shutil.which("chromium-browser")


def lacking() -> str | None:
    """What is missing for a browser to be driven, as a sentence; None: nothing."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install playwright (it need not download a browser)."
    program = chromium()
    if program is None or shutil.which(program) is None:
        return f"There is no Chromium: install it, or say with {VARIABLE} where it is."
    return None


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright  # here, for it need not be there

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium())
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def explorer(*bundles: Path) -> Iterator[str]:
    """The address at which a `clearhead explore` of its own process answers, without a slash at its end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", "explore", *map(str, bundles), "--port", "0", "--device", "cpu"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        home = next((line for line in process.stdout if "http://" in line), None)
        if home is None:
            raise RuntimeError("The explorer ended before it answered; what it said stands above.")
        yield home.strip().split(": ", 1)[1].rstrip("/")
    finally:
        process.terminate()
        process.communicate(timeout=20)
