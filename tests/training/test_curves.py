"""A run's curves: which pictures are drawn, what they hold, and that bad values do no harm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.chart.draw import Line, Scene, Words
from clearhead.base.errors import UserError
from clearhead.training import curves
from clearhead.training.curves import draw_curves
from clearhead.training.log import RunLog, read_log

NAMES = ["curves.png", "metrics.png", "rate.png"]


def a_run(steps: int = 1000, every: int = 10) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step in range(every, steps + 1, every):
        records.append(
            {"kind": "train", "step": step, "loss": 1 + 5 * math.exp(-step / 200), "rate": step * 1e-6}
        )
        if step % 100 == 0:
            loss = 2 + abs(step - 600) / 1000
            records.append(
                {"kind": "validation", "step": step, "loss": loss, "bleu": step / 40, "accuracy": 0.5}
            )
    return records


def words(scene: Scene) -> list[str]:
    return [shape.text for shape in scene.shapes if isinstance(shape, Words)]


def drawn(records: list[dict[str, Any]]) -> dict[str, Scene]:
    charts = {
        "curves.png": curves._loss_chart(records, ""),
        "metrics.png": curves._metrics_chart(records, ""),
        "rate.png": curves._rate_chart(records, ""),
    }
    return {name: chart.scene for name, chart in charts.items() if chart is not None}


def test_a_whole_run_gives_three_pictures(tmp_path: Path) -> None:
    written = draw_curves(a_run(), tmp_path, "en–fr")
    assert written == [tmp_path / name for name in NAMES]
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES  # and no leftovers
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in draw_curves(a_run(), tmp_path, "en–fr")] == before


def test_the_best_is_the_lowest_loss_or_what_the_log_says() -> None:
    records = a_run()
    assert "best: 2.000 at step 600" in words(drawn(records)["curves.png"])
    for record in records:
        if record["kind"] == "validation":
            record["best"] = record["step"] in (100, 900)
    found = drawn(records)
    assert "best: 2.300 at step 900" in words(found["curves.png"])
    assert "best: 22.50 at step 900" in words(found["metrics.png"])
    assert "best: 50.0 % at step 900" in words(found["metrics.png"])


def test_metrics_have_a_panel_each() -> None:
    scene = drawn(a_run())["metrics.png"]
    assert {"BLEU", "accuracy in %", "step"} <= set(words(scene))
    assert "loss" not in words(scene)
    plain = [r for r in a_run() if r["kind"] == "train"] + [
        {"kind": "validation", "step": 5, "loss": 2.0, "perplexity": 7.4, "best": True}
    ]
    assert list(drawn(plain)) == ["curves.png", "rate.png"]  # perplexity is the loss again


def test_few_points_are_not_smoothed_and_many_are() -> None:
    few = drawn(
        [r for r in a_run(100) if r["kind"] == "train"] + [{"kind": "validation", "step": 9, "loss": 1.0}]
    )
    assert "training" in words(few["curves.png"])
    assert "training, smoothed" in words(drawn(a_run())["curves.png"])


def test_smoothing_keeps_a_straight_line_and_leaves_peaks_out() -> None:
    straight = [(float(i), 10.0 - i / 100) for i in range(500)]
    smooth = curves._smoothed(straight, math.inf)
    assert [x for x, _ in smooth] == [x for x, _ in straight]
    assert [y for _, y in smooth[:490]] == pytest.approx([y for _, y in straight[:490]])
    with_peak = [(x, 1e9 if x == 250 else y) for x, y in straight]
    again = curves._smoothed(with_peak, 20.0)
    assert [y for _, y in again] == pytest.approx([y for _, y in smooth], abs=0.01)


def test_a_rare_peak_does_not_press_the_rest_flat() -> None:
    def height(records: list[dict[str, Any]]) -> float:
        lines = [
            s for s in drawn(records)["curves.png"].shapes if isinstance(s, Line) and s.inside is not None
        ]
        ys = [y for _, y in lines[-1].points]  # the validation
        return max(ys) - min(ys)

    calm, wild = a_run(), a_run()
    wild[50]["loss"] = 1e6
    assert height(wild) > 0.4 * height(calm)
    assert curves._calm_limits([r["loss"] for r in calm]) is None


@pytest.mark.parametrize(
    "records",
    [
        [],
        [{"kind": "start"}],
        [{"kind": "train", "step": 1, "loss": math.nan, "rate": None}],
        [{"kind": "train", "loss": 2.0}],
        [{"kind": "validation", "step": 3, "loss": math.inf, "best": True, "bleu": "NaN"}],
        [{"kind": "validation", "step": math.nan, "bleu": 3.0}],
        [{"kind": "train", "step": 1, "loss": 10**400}],
    ],
)
def test_nothing_to_draw_writes_nothing(records: list[dict[str, Any]], tmp_path: Path) -> None:
    assert draw_curves(records, tmp_path / "run") == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["train", "validation"])
def test_one_point_is_enough(kind: str, tmp_path: Path) -> None:
    written = draw_curves([{"kind": kind, "step": 1, "loss": 2.0, "best": True}], tmp_path)
    assert [path.name for path in written] == ["curves.png"]


values = st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5))
records_of_any_kind = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["train", "validation", "other"])},
        optional=dict.fromkeys(("step", "loss", "rate", "bleu", "accuracy", "best", "[b]x"), values),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(records_of_any_kind)
def test_no_record_breaks_it(records: list[dict[str, Any]]) -> None:
    for scene in drawn(records).values():
        for shape in scene.shapes:
            if isinstance(shape, Line):
                assert all(math.isfinite(x) and math.isfinite(y) for x, y in shape.points)


def test_draws_what_a_run_logged(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        for step in range(1, 4):
            log.write("train", step, {"loss": math.nan if step == 2 else 3.0 / step, "rate": 1e-4})
        log.write("validation", 3, {"loss": 1.5, "perplexity": math.exp(1.5), "accuracy": 0.4, "best": True})
    records = read_log(tmp_path)
    assert [path.name for path in draw_curves(records, tmp_path)] == NAMES
    (training,) = [
        s for s in drawn(records)["curves.png"].shapes if isinstance(s, Line) and s.inside is not None
    ]
    assert len(training.points) == 2  # the NaN is left out; the validation is a single dot


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        draw_curves(a_run(), tmp_path / "file")
