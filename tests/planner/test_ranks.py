"""What many ranks have to do: sums that hold whatever the model, and refusals."""

from __future__ import annotations

import pytest

import clearhead
from clearhead.base.errors import UserError
from clearhead.models.build import build, preset
from clearhead.planner.ranks import count_weights


def spreads(
    name: str = "base", ranks: int = 8, layout: str | None = None, **asked: object
) -> dict[str, object]:
    found = clearhead.plan(name, device="h100", ranks=ranks, layout=layout, **asked)
    return {one.layout: one for one in found.spreads}


def test_weights_are_all_counted() -> None:
    for name in ("base", "gpt2", "llama3-8b"):
        model = build(preset(name), device="meta")
        found = count_weights(model)
        assert found.cut + found.uncut == sum(weight.numel() for weight in model.parameters())
        assert 0.5 < found.cut / (found.cut + found.uncut) < 1


def test_shards_shrink_with_ranks_and_traffic_does_not() -> None:
    eight, sixteen = (spreads(ranks=ranks)[f"fsdp{ranks}"] for ranks in (8, 16))
    assert eight.shards == pytest.approx(2 * sixteen.shards, rel=1e-6)
    assert eight.traffic < sixteen.traffic < 1.1 * eight.traffic


def test_a_ring_sends_what_is_known() -> None:
    """ddp: every gradient twice, but for a rank's own part; fsdp in bf16: 2 + 2 + 4 bytes a weight."""
    count = clearhead.count_parameters("base")
    found = spreads(ranks=8)
    assert found["ddp8"].traffic == pytest.approx(2 * 7 / 8 * 4 * count, rel=1e-6)
    assert found["fsdp8"].traffic == pytest.approx(7 / 8 * 8 * count, rel=1e-6)


def test_what_does_not_fit_is_taken_in_more_passes() -> None:
    found = spreads("llama3-8b", 64, "fsdp8xtp8", batch_tokens=1_000_000)
    assert next(iter(found)) == "fsdp8xtp8"
    assert found["fsdp8xtp8"].fits
    assert found["fsdp8xtp8"].accumulate == 32
    assert not found["ddp64"].fits
    assert found["fsdp64"].traffic_between == found["fsdp64"].traffic
    assert found["ddp8xfsdp8"].traffic_between < found["fsdp64"].traffic_between


@pytest.mark.parametrize(
    ("ranks", "layout", "said"),
    [
        (None, "fsdp8", "needs the number of ranks"),
        (64, "fsdp8", "made for 8"),
        (1, None, "must be 2"),
        (3, "tp3", "cut"),
    ],
)
def test_refusals(ranks: int | None, layout: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        clearhead.plan("base", device="h100", ranks=ranks, layout=layout)
