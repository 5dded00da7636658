"""Python and the compiled engine agree about every struct and function, or the engine is not used.

`tests/native/test_interface.py` tries libraries made from changed sources.
"""

from __future__ import annotations

import pytest

from clearhead.base import library as build
from clearhead.decoding.native import binding, why_not
from clearhead.decoding.native.binding import believed, said

pytestmark = pytest.mark.skipif(build.why_not() is not None, reason=f"no native engine: {build.why_not()}")


def test_they_agree() -> None:
    assert why_not() is None
    assert said(build.library()) == believed()


def test_all_fields_are_spoken_of() -> None:
    theirs = said(build.library())
    for struct in binding.STRUCTS:
        assert len(theirs[struct.__name__].split()) == len(struct._fields_) + 1
    assert theirs["Norm"] == "16 weight:p@0 bias:p@8"
    assert theirs["clearhead_longest()"] == "i8 p"


def test_where_they_disagree_the_engine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    binding._functions.cache_clear()
    monkeypatch.setattr(binding, "INTERFACE", 0)
    try:
        assert "another version" in str(why_not())
        assert "'interface'" in str(why_not())
    finally:
        binding._functions.cache_clear()
