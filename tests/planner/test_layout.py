"""Layouts read from one line of text, and refused in one sentence."""

from __future__ import annotations

import pytest

from clearhead.base.errors import UserError
from clearhead.planner.layout import Layout


@pytest.mark.parametrize(
    ("text", "ranks", "sizes"),
    [
        ("ddp", 4, (4, 1, 1)),
        ("fsdp", 8, (1, 8, 1)),
        ("tp", 2, (1, 1, 2)),
        ("tp2xfsdp4", 8, (1, 4, 2)),
        ("ddpxfsdp4xtp2", 16, (2, 4, 2)),
        ("ddp1", 1, (1, 1, 1)),
        ("ep2xddp2", 4, (2, 1, 1)),
        ("fsdp2xep", 8, (1, 2, 1)),
    ],
)
def test_a_layout_is_read(text: str, ranks: int, sizes: tuple[int, int, int]) -> None:
    found = Layout.parse(text, ranks)
    assert (found.ddp, found.fsdp, found.tp) == sizes
    assert found.ranks == ranks
    assert Layout.parse(str(found), ranks) == found


@pytest.mark.parametrize(
    ("text", "ranks", "said"),
    [
        ("fsdp3", 4, "needs 3 ranks, and there are 4"),
        ("ddpxtp3", 4, "a multiple of 3 ranks, and there are 4"),
        ("fsdp8xtp8", 1, "needs 64 ranks, and this is one process: start .* --nproc-per-node 64 "),
        ("ddpxfsdp", 4, "more than one size open"),
        ("pp4", 4, "cannot be read at 'pp4'"),
        ("", 4, "cannot be read"),
        ("ddp2xddp2", 4, "has ddp twice"),
        ("ddp99999999999", 4, "cannot be read"),
        ("ep2xtp2", 4, "combines ep and tp"),
    ],
)
def test_a_layout_is_refused(text: str, ranks: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Layout.parse(text, ranks)
