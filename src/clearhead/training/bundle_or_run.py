"""Open a bundle, or a run that has not written its bundle yet: one entry point for all users of a model.

`unfinished` reads the run, and is imported only if there is one: a command that uses a bundle does not wait
for modules that only training needs.
"""

from __future__ import annotations

from pathlib import Path

import torch

from clearhead.bundle import Bundle, Description, describe, load_bundle
from clearhead.bundle.folder import placement
from clearhead.bundle.metadata import COMPANION, FILES, RECORD


def is_unfinished(folder: Path) -> bool:
    """Does the folder hold a run that has not written its bundle yet? A damaged bundle does not count."""
    there = any((folder / name).exists() for name in FILES)
    return not there and (folder / COMPANION / RECORD).is_file()


def load_bundle_or_run(
    folder: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    verify: bool = True,
    mapped: bool = False,
) -> Bundle:
    """`load_bundle`, or the current state of an unfinished run, with a note on stderr."""
    path = Path(folder)
    if not is_unfinished(path):
        return load_bundle(path, device=device, dtype=dtype, verify=verify, mapped=mapped)
    from clearhead.training.unfinished import load_run

    return load_run(path, *placement(device, dtype))


def describe_bundle_or_run(folder: str | Path) -> Description:
    """`describe`, or the current state of an unfinished run."""
    path = Path(folder)
    if not is_unfinished(path):
        return describe(path)
    from clearhead.training.unfinished import describe_run

    return describe_run(path)
