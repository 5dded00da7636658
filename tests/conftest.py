"""What all tests share: the long ones begin first; `gpu` ones are skipped, with the reason, without a GPU."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # so that no worker is left alone with them at the end
    items.sort(key=lambda item: "tests/system" not in item.path.as_posix())
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
