"""What all tests share: long ones begin first; tests of what is absent here are left out, and it is said."""

from __future__ import annotations

import gc
import importlib.util
import signal
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
LONG = ("tests/training/distributed", "tests/system")  # where tests take minutes together
# files that cannot even be read without these packages, which `make test` installs
NEEDS = {
    "cli/test_explore.py": ("fastapi", "httpx"),
    "explorer/serving.py": ("fastapi", "uvicorn"),
    "explorer/test_fuzz.py": ("fastapi", "httpx", "schemathesis"),
    "explorer/test_guard.py": ("fastapi", "httpx", "uvicorn"),
    "explorer/test_server.py": ("fastapi", "httpx"),
}


# What a shell without job control starts in the background ignores Ctrl-C, and so does all that it starts.
# Tests, and their processes, take it as in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # The quick suite tries the same examples everywhere, and none fails for being slow on a busy machine;
    # `make test-slow` draws new ones (--hypothesis-profile random).
    settings.register_profile("quick", deadline=None, derandomize=True)
    settings.register_profile("random", deadline=None)
    settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected is never garbage; going through it takes half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    name = collection_path.relative_to(HERE).as_posix() if collection_path.is_relative_to(HERE) else ""
    missing = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    if not missing:
        return None
    warnings.warn(f"tests/{name} is left out: it needs {', '.join(missing)} (make setup)", stacklevel=1)
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # so that no worker is left alone with them at the end
    items.sort(key=lambda item: not any(name in item.path.as_posix() for name in LONG))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="module")
def no_curves() -> Iterator[None]:
    """Runs of a file draw no curves, which have tests of their own and take longer than a tiny training."""
    from clearhead.jobs import finish

    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(finish.FIGURES, "drawing its curves")
        yield
