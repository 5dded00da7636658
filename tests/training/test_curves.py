"""A run's curves: which pictures are drawn, what they hold, and that bad values do no harm."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

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


def drawn(records: list[dict[str, Any]]) -> dict[str, Figure]:
    found = {name: (title, panels_of(records)) for name, (title, panels_of) in curves.PICTURES.items()}
    return {name: curves.draw(title, panels) for name, (title, panels) in found.items() if panels}


def words(figure: Figure) -> list[str]:
    figure.draw_without_rendering()  # which makes the ticks
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible()]  # type: ignore[attr-defined]


def lines(figure: Figure, panel: int = 0) -> dict[str, Line2D]:
    """The curves of a panel by name; the raw one, which has none, is called by what Matplotlib calls it."""
    return {str(line.get_label()): line for line in figure.axes[panel].lines if line.get_linestyle() == "-"}


def test_a_whole_run_gives_three_pictures(tmp_path: Path) -> None:
    written = draw_curves(a_run(), tmp_path)
    assert written == [tmp_path / name for name in NAMES]
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES  # and no leftovers
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in draw_curves(a_run(), tmp_path)] == before


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
    figure = drawn(a_run())["metrics.png"]
    assert {"BLEU", "accuracy in %", "step"} <= set(words(figure))
    assert "loss" not in words(figure)
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
        figure = drawn(records)["curves.png"]
        values = numpy.asarray(lines(figure)["validation"].get_ydata(), dtype=float)
        low, high = figure.axes[0].get_ylim()
        return float(values.max() - values.min()) / (high - low)

    calm, wild = a_run(), a_run()
    wild[50]["loss"] = 1e6
    assert height(wild) > 0.4 * height(calm)
    assert curves._calm_limits([r["loss"] for r in calm]) is None
    assert all(line.get_clip_on() for line in drawn(wild)["curves.png"].axes[0].lines)  # the peak is cut off


def test_the_loss_has_names_last_values_and_a_mark() -> None:
    records = a_run(300)
    figure = drawn(records)["curves.png"]
    wanted = ["Loss", "nats", "step", "training", "validation", "best: 2.300 at step 300", "2.116", "300"]
    assert set(wanted) <= set(words(figure))
    found = lines(figure)
    assert list(found["training"].get_xdata()) == list(range(10, 301, 10))
    assert [found[name].get_color() for name in ("training", "validation")] == list(curves.COLOURS)
    assert figure.axes[0].get_xlim()[0] == 0  # where that is near
    (mark,) = [line for line in figure.axes[0].lines if line.get_linestyle() != "-"]
    assert set(mark.get_xdata()) == {300}


def test_the_raw_loss_lies_behind_without_a_name() -> None:
    figure = drawn(a_run())["curves.png"]
    raw, smooth, _ = lines(figure).values()
    assert (raw.get_color(), raw.get_alpha()) == (smooth.get_color(), 0.3)
    assert curves.RAW not in words(figure)
    assert smooth.get_marker() == ""  # and many points are no dots


def boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """The words that are drawn, and where; the names of ticks beyond the ends of an axis are not."""
    figure.draw_without_rendering()
    beyond = [
        tick.label1
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis))
        for tick in set(axis.get_major_ticks()) - set(axis._update_ticks())  # type: ignore[attr-defined]
    ]
    texts: list[Text] = figure.findobj(Text)  # type: ignore[assignment]
    shown = [text for text in texts if text.get_visible() and text.get_text() and text not in beyond]
    return [(text.get_text(), text.get_window_extent().shrunk(0.98, 0.9)) for text in shown]


@pytest.mark.parametrize("seed", range(6))
def test_no_words_overlap_or_leave_the_picture(seed: int) -> None:
    random = numpy.random.default_rng(seed)
    count, every = int(random.integers(1, 70)), int(10 ** random.uniform(0, 7))
    losses = (random.normal(size=count + 2) * 10 ** random.uniform(-9, 9)).tolist()
    records = [
        {"kind": "train", "step": i * every, "loss": loss, "rate": loss, "extras": {"load": loss}}
        for i, loss in enumerate(losses[2:], 1)
    ]
    records += [
        {"kind": "validation", "step": step * every, "loss": losses[step > 1], "bleu": losses[step > 1]}
        for step in (1, count)
    ]
    for figure in drawn(records).values():
        found = boxes(figure)
        assert len(found) > 6
        for number, (text, box) in enumerate(found):
            assert box.x0 >= 0 <= box.y0, text
            assert box.x1 <= figure.bbox.width, text
            assert box.y1 <= figure.bbox.height, text
            assert not [(text, other) for other, place in found[number + 1 :] if box.overlaps(place)]


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


@settings(max_examples=30, deadline=None)
@given(records_of_any_kind)
@pytest.mark.filterwarnings("ignore")  # of ticks beyond what a float can tell apart
def test_no_record_breaks_it(records: list[dict[str, Any]]) -> None:
    for figure in drawn(records).values():
        words(figure)
        for axes in figure.axes:
            for line in axes.lines:
                assert numpy.isfinite(line.get_xydata()).all()


@pytest.mark.parametrize("name", ["$\\frac{$", "日本語 👩‍👩‍👧", "\x00\n\ud83d", "_hidden", "x" * 300, ""])
def test_no_name_breaks_it(name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    records = [
        {"kind": "train", "step": 1, "extras": {name: 2.0}},
        {"kind": "validation", "step": 1, name: 2.0, "best": True},
    ]
    written = draw_curves(records, tmp_path)
    assert [path.name for path in written] == ["metrics.png", "extras.png"]
    assert not recwarn.list


def test_panels_lie_below_each_other(tmp_path: Path) -> None:
    heights = []
    for count in (1, 2, 9):
        records = [{"kind": "validation", "step": 1, **{f"metric{i}": 1.0 for i in range(count)}}]
        (path,) = draw_curves(records, tmp_path)
        heights.append(Image.open(path).size)
    assert heights == [(1800, 600), (1800, 1120), (1800, 80 + 6 * 520)]  # and no more than six


def test_matplotlib_is_imported_only_to_draw(tmp_path: Path) -> None:
    code = (
        "import sys, clearhead, clearhead.jobs.train; from clearhead.training.curves import draw_curves;"
        f"draw_curves([], {str(tmp_path)!r}); assert not {{'matplotlib', 'PIL'}} & set(sys.modules);"
        f"draw_curves([dict(kind='train', step=1, loss=1.0)], {str(tmp_path)!r});"
        "assert 'matplotlib.figure' in sys.modules; assert 'matplotlib.pyplot' not in sys.modules"
    )
    # a new home, so that Matplotlib makes its font cache, of which nobody is told
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MPLCONFIGDIR": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_draws_what_a_run_logged(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        for step in range(1, 4):
            log.write("train", step, {"loss": math.nan if step == 2 else 3.0 / step, "rate": 1e-4})
        log.write("validation", 3, {"loss": 1.5, "perplexity": math.exp(1.5), "accuracy": 0.4, "best": True})
    records = read_log(tmp_path)
    assert [path.name for path in draw_curves(records, tmp_path)] == NAMES
    figure = drawn(records)["curves.png"]
    assert list(lines(figure)["training"].get_xdata()) == [1, 3]  # the NaN is left out
    assert lines(figure)["validation"].get_marker() == "o"  # one point, which is no line


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        draw_curves(a_run(), tmp_path / "file")
