"""A bundle, or a run that has not come to its bundle yet: opened at this one place for all that use a model.

Reads nothing of a run itself (`unfinished`), and imports that only where there is one: a command that uses a
bundle does not wait for what only training needs.
"""

from __future__ import annotations

from pathlib import Path

import torch

from clearhead.bundle import Bundle, Description, describe, load_bundle
from clearhead.bundle.folder import placement
from clearhead.bundle.metadata import COMPANION, FILES, RECORD


def is_unfinished(folder: Path) -> bool:
    """Is there a run that has not come to its bundle yet? A damaged bundle is not taken for one."""
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
    """`load_bundle`; a run that has not finished is read as far as it has come, which is said on stderr."""
    path = Path(folder)
    if not is_unfinished(path):
        return load_bundle(path, device=device, dtype=dtype, verify=verify, mapped=mapped)
    from clearhead.training.unfinished import load_run

    return load_run(path, *placement(device, dtype))


def describe_bundle_or_run(folder: str | Path) -> Description:
    """`describe`; a run that has not finished is told about as far as it has come."""
    path = Path(folder)
    if not is_unfinished(path):
        return describe(path)
    from clearhead.training.unfinished import describe_run

    return describe_run(path)
