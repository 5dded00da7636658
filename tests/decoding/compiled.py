"""Tests of the C++ engine are skipped where there is none; where it is demanded, its absence is a failure.

`.ci/run` sets the variable CLEARHEAD_DEMAND_ENGINE: there, sources that do not compile are red, not skipped.
"""

from __future__ import annotations

import os

import pytest

from clearhead.decoding.native import why_not

DEMANDED = bool(os.environ.get("CLEARHEAD_DEMAND_ENGINE"))
needs_engine = pytest.mark.skipif(why_not() is not None, reason=f"no native engine: {why_not()}")
