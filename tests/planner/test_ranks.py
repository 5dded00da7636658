"""What many ranks have to do: sums that hold whatever the model, and refusals."""

from __future__ import annotations

import pytest

import clearhead
from clearhead.base.errors import UserError
from clearhead.models.build import build, preset
from clearhead.models.config import ModelConfig
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


EXPERTS = ModelConfig.from_dict(
    {
        "family": "decoder",
        "width": 64,
        "layers": 4,
        "attention": {"heads": 4},
        "layer_pattern": [{"first": 1, "feedforward": {"kind": "experts", "experts": 8, "width": 32}}],
    }
)


def test_experts_are_dealt_and_their_tokens_travel() -> None:
    """16 bytes for each weight; two choices of each token there and back, and their gradients, in bf16."""
    found = clearhead.plan(EXPERTS, 8192, target_length=128, device="h100", ranks=8, layout="ddp2xep4")
    one = found.spreads[0]
    experts = 3 * 8 * 2 * 64 * 32
    assert one.accumulate == 8
    assert one.shards == 16 * (found.parameters - experts * 3 // 4)
    rest, tokens = found.parameters - experts, 8192 // 8
    choices = 3 * 2 * tokens * 64 * 2
    sums = 2 * 3 / 4 * 4 * rest + 2 * 1 / 2 * 4 * (rest + experts / 4)  # over `ep`, over `ddp`
    assert one.traffic == pytest.approx(sums + 4 * 3 / 4 * choices, abs=8)
    assert {"ddp4xep2", "ep8"} < {spread.layout for spread in found.spreads}
    assert not any("tp" in spread.layout for spread in found.spreads)  # training would refuse it
    dense = clearhead.plan("base", device="h100", ranks=8).spreads
    assert not any("ep" in spread.layout for spread in dense)


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
        (64, "fsdp8", "needs 8"),
        (1, None, "must be 2"),
        (3, "tp3", "partition"),
        (4, "ep4", "cannot partition this model"),
    ],
)
def test_refusals(ranks: int | None, layout: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        clearhead.plan("base", device="h100", ranks=ranks, layout=layout)
