"""`check_position` tells the truth about every scheme, and about the tutorial's candidates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.nn.positions import POSITIONS, Position, Rotary, Shaw, TransformerXL
from clearhead.nn.positions.check import CANDIDATES, SAME, check_position, slow_cosines
from clearhead.nn.tokens import Tokens

# scheme -> (unique, consistent, bounded) when one may look both ways
TRUTH = {
    "none": (False, True, True),
    "sinusoidal": (True, True, True),
    "learned": (True, True, True),
    "rotary": (True, True, True),
    "t5": (False, True, True),
    "alibi": (False, True, False),
    "transformer_xl": (True, True, True),
    "shaw": (False, True, True),
    "music": (False, True, True),
    "t": (True, True, False),
    "t/T": (True, False, True),
    "cos(t(k+1)/(T_max·d))": (True, True, True),
}


def verdicts(report: object) -> tuple[bool, ...]:
    return tuple(bool(getattr(report, name)) for name in ("unique", "consistent", "bounded"))


def test_every_scheme_has_a_row() -> None:
    assert set(TRUTH) == {*POSITIONS, *CANDIDATES}


@pytest.mark.parametrize("name", TRUTH)
def test_the_truth_about(name: str) -> None:
    report = check_position(name)
    assert verdicts(report) == TRUTH[name], str(report)
    for verdict in (report.unique, report.consistent, report.bounded):
        assert verdict.reason
        assert verdict.witness


@pytest.mark.parametrize(
    "name, first, second",
    [("none", 0, 1), ("t5", -8, -9), ("alibi", -1, 1), ("shaw", -128, -129)],
)
def test_the_witness_of_two_that_coincide(name: str, first: int, second: int) -> None:
    report = check_position(name)
    assert (report.unique.witness["first"], report.unique.witness["second"]) == (first, second)
    assert str(first) in report.unique.reason
    assert str(second) in report.unique.reason


def test_the_witness_of_lengths_that_disagree() -> None:
    witness = check_position("t/T").consistent.witness
    at, short, long = int(witness["position"]), int(witness["length"]), int(witness["other length"])
    encode = CANDIDATES["t/T"]
    assert abs(encode(short)[at] - encode(long)[at]) == pytest.approx(witness["gap"])
    assert witness["gap"] > 0.1


def test_the_witness_of_growth() -> None:
    witness = check_position("t").bounded.witness
    assert (witness["length"], witness["largest"], witness["longest"]) == (128, 127, 1024)
    assert witness["far"] > 4 * witness["largest"]


def test_looking_back_only() -> None:
    assert verdicts(check_position("alibi", causal=True)) == (True, True, False)
    assert check_position("t5", causal=True).unique.witness["first"] == -16  # twice the buckets look back
    assert check_position("shaw", causal=True, max_distance=20).unique.witness["first"] == -20
    assert check_position("shaw", causal=True, max_distance=2000).unique


def test_learned_positions_end() -> None:
    report = check_position("learned", max_length=100)
    assert report.longest == 100
    assert "no position past 99" in report.note
    assert "no position past 99" in str(report)
    assert not check_position("sinusoidal").note


def test_modules_know_their_own_sizes() -> None:
    for module in (Rotary(6), Shaw(5, 300), TransformerXL(12, 3, 7), clearhead.position("learned", width=5)):
        assert check_position(module, longest=256).unique
    assert module.table.dtype == torch.float32  # looked at, not changed


def test_a_function_of_ones_own() -> None:
    def logarithm(length: int) -> Tensor:
        return torch.log1p(torch.arange(length).float())

    report = check_position(logarithm)
    assert report.scheme == "logarithm"
    assert verdicts(report) == (True, True, False)


def test_a_circle_is_fine_and_half_of_it_is_not() -> None:
    def circle(length: int) -> Tensor:
        angle = torch.arange(length) / 10
        return torch.stack([angle.sin(), angle.cos()], dim=-1)

    assert verdicts(check_position(circle)) == (True, True, True)
    assert not check_position(
        lambda n: torch.sin(torch.arange(n)), tolerance=1e-5
    ).unique  # the sine comes by each value twice


class Leaning(Position):
    """A bias that looks at the query's position and not at the distance alone."""

    has_bias = True

    def bias(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, scale: float, heads: Tensor | slice
    ) -> Tensor:
        distance = keys.position.unsqueeze(-2) - queries.position.unsqueeze(-1)
        return torch.sin(distance + 0.1 * queries.position.unsqueeze(-1)).double()[:, None]


def test_a_distance_that_means_something_else_elsewhere() -> None:
    report = check_position(Leaning())
    assert not report.consistent
    assert "distance" in report.consistent.reason


def test_the_table_it_prints() -> None:
    lines = str(check_position("rotary")).splitlines()
    assert lines[0] == "rotary: a signal for each position, measured up to length 1024"
    assert [line.split()[:2] for line in lines[1:-1]] == [
        [n, "yes"] for n in ("unique", "consistent", "bounded")
    ]
    assert lines[-1] == "  tolerance        signals within 1.2e-07 of the largest count as the same"


@pytest.mark.parametrize(
    "t_max, features, gap", [(64, 64, 1.22068e-4), (512, 512, 1.90735e-6), (1024, 64, 4.76837e-7)]
)
def test_the_third_candidate_keeps_all_rules_by_a_gap_that_half_precision_loses(
    t_max: int, features: int, gap: float
) -> None:
    encode = slow_cosines(t_max, features)
    report = check_position(encode, longest=t_max + 1)
    assert verdicts(report) == (True, True, True)
    assert report.unique.witness == {"first": 0, "second": 1, "gap": pytest.approx(gap, rel=1e-5)}
    assert gap == pytest.approx(1 - math.cos(1 / t_max), rel=1e-5)
    rows = encode(t_max + 1)
    assert (rows.min().item(), rows.max().item()) == pytest.approx((math.cos(1), 1.0))
    assert not check_position(encode, longest=t_max + 1, tolerance=2**-7).unique
    assert len(rows.bfloat16().unique(dim=0)) < t_max + 1 == len(rows.float().unique(dim=0))


def test_the_tolerance_is_stated_and_decides() -> None:
    encode = CANDIDATES["cos(t(k+1)/(T_max·d))"]
    assert check_position(encode).tolerance == SAME
    coarse = check_position(encode, tolerance=1e-5)  # the release before called it ambiguous without a word
    assert not coarse.unique
    assert "within 1e-05 of the largest" in str(coarse)


def test_same_report_each_time_and_no_random_number_used() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert check_position("learned") == check_position("learned")
    assert torch.rand(1) == expected


@pytest.mark.parametrize(
    "scheme, settings, sentence",
    [
        ("rotery", {}, "did you mean 'rotary'"),
        ("rotary", {"longest": 4}, "at least 16 tokens, not 4"),
        ("rotary", {"bse": 1.0}, "did you mean 'base'"),
        ("rotary", {"tolerance": -1.0}, "at least 0 and below 1"),
        ("rotary", {"tolerance": math.nan}, "at least 0 and below 1"),
        (7, {}, "a Position or a function"),
        (Rotary(4), {"base": 1.0}, "Settings go with the name of a scheme"),
        (lambda n: torch.zeros(n + 1), {}, "one row for each of 16 positions"),
    ],
)
def test_mistakes_are_one_sentence(scheme: object, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check_position(scheme, **settings)  # type: ignore[arg-type]


def test_waves_too_slow_to_tell_neighbours_apart() -> None:
    """The tolerance is real: positions a millionth of a turn apart do not count as different."""
    slow = check_position(lambda n: torch.sin(2 * math.pi * 1e-9 * torch.arange(n)[:, None].double()) + 1)
    assert not slow.unique
