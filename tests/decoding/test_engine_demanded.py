"""Where the C++ engine is demanded it is there; elsewhere its tests are skipped, and that is all."""

from __future__ import annotations

import pytest

from clearhead.decoding.native import why_not

from .compiled import DEMANDED


def test_engine_is_there_where_it_is_demanded() -> None:
    if DEMANDED and (reason := why_not()) is not None:
        pytest.fail(reason)
