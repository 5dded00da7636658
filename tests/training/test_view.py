"""The views of a run: what they say, when, and that no text or terminal breaks them."""

from __future__ import annotations

import fcntl
import io
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from clearhead.base.errors import UserError
from clearhead.training.view import (
    LiveView,
    PlainView,
    Progress,
    Sample,
    View,
    choices_table,
    make_view,
)
from clearhead.training.view.live import History
from clearhead.training.view.words import duration, short, sparkline, visible

NASTY = [
    "I love [bold]deep[/bold] learning [/] [not closed",
    "an emoji 👩‍👩‍👧‍👦 and :smile: and 🇫🇷",
    "مرحبا بالعالم, שלום עולם",
    "日本語のとても長い文章です。" * 40,
    "x" * 5000,
    "\x1b[2J\x1b[31mred\x07\x00 tab\tnew\nline\r",
    "left \u202eright\u2066 \u200bzero",
    "half a pair \ud83d",
    "",
]


def progress(step: int = 500, steps: int = 1000, **changes: object) -> Progress:
    facts: dict[str, object] = {
        "epoch": 2,
        "loss": 2.3141,
        "perplexity": math.exp(2.3141),
        "rate": 5e-4,
        "tokens_per_second": 12_345.0,
        "mfu": 0.312,
        "seconds_left": 3900.0,
        "skipped": 0,
        "gradient_norm": 0.83,
    }
    return Progress(step=step, steps=steps, **{**facts, **changes})  # type: ignore[arg-type]


def screen(view: LiveView, width: int = 80, height: int = 60) -> str:
    """The panel as plain text."""
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(view)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def filled(samples: list[Sample] | None = None) -> LiveView:
    view = LiveView(Console(file=io.StringIO(), width=80))
    for step in range(1, 101):
        view.step(progress(step * 5, loss=10 / step))
    view.validation(250, {"loss": 2.5, "perplexity": 12.2, "bleu": 30.1, "accuracy": 0.7}, True, [])
    view.validation(
        500, {"loss": 2.6, "perplexity": 13.5, "bleu": 31.2, "accuracy": 0.712}, False, samples or []
    )
    return view


class TestLive:
    def test_shows_everything(self) -> None:
        shown = screen(filled([Sample("the source", "the reference", "the output")]))
        for wanted in (
            "50 %",
            "step 500 of 1,000",
            "epoch 3",
            "1h 05m left",
            "0.100",
            "5.0e-4",
            "12.3k tokens/s",
            "31 %",
            "0.830",
            "training loss",
            "validation loss",
            "BLEU",
            "31.20",
            "71.2 %",
            "step 250 ★ best",
            "the source",
            "the reference",
            "the output",
        ):
            assert wanted in shown, wanted
        assert "step 500 ★" not in shown
        assert re.search("█.*▁", shown)

    def test_the_last_validation_may_be_the_best(self) -> None:
        view = filled()
        view.validation(750, {"loss": 2.2}, True)
        assert "step 750 ★ best" in screen(view)
        assert "step 250" not in screen(view)

    @pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
    @pytest.mark.parametrize("text", NASTY)
    def test_no_text_breaks_any_width(self, width: int, text: str) -> None:
        view = filled([Sample(text, text, text)] * 3)
        view._title = text
        view.validation(800, {text: 1.0, "loss": math.nan}, True, [Sample(text, text, text)])
        shown = screen(view, width)
        assert all(cell_len(line) <= width for line in shown.split("\n"))
        assert "\x1b" not in shown.replace("\\x1b", "")
        assert "\x07" not in shown
        assert "\u202e" not in shown

    def test_markup_is_text(self) -> None:
        shown = screen(filled([Sample("[bold]a[/bold] :smile: [/x]", "[red]", "")]))
        assert "[bold]a[/bold] :smile: [/x]" in shown
        assert "[red]" in shown

    @pytest.mark.parametrize("height", [5, 15, 24, 60])
    def test_a_low_screen_has_fewer_samples(self, height: int) -> None:
        view = filled([Sample(f"source {i}", "r", "o") for i in range(9)])
        shown = re.findall(r"source \d", screen(view, 80, height))
        assert len(shown) == {5: 0, 15: 0, 24: 1, 60: 3}[height]

    def test_before_anything_is_known(self) -> None:
        view = LiveView(Console(file=io.StringIO(), width=80))
        assert "preparing" in screen(view)
        nothing = progress(0, 0, loss=math.nan, perplexity=math.inf, mfu=None, seconds_left=None, rate=0.0)
        view.step(nothing)
        assert "–" in screen(view)

    def test_a_frame_is_drawn_anew_only_after_a_change(self) -> None:
        view = filled()
        before = screen(view)
        drawn = view._drawn
        assert screen(view) == before
        assert view._drawn is drawn
        view.step(progress(505))
        assert "step 505" in screen(view)
        assert "step 505" in screen(view, 60)  # another width is another frame

    def test_a_step_costs_next_to_nothing(self) -> None:
        view, same = LiveView(Console(file=io.StringIO())), progress()
        start = time.perf_counter()
        for _ in range(10_000):
            view.step(same)
        assert (time.perf_counter() - start) / 10_000 < 50e-6
        assert len(view._training.values) <= 512

    def test_start_say_stop(self) -> None:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=80, color_system=None)
        with LiveView(console) as view:
            view.start("A [run]", ["first [line]"])
            view.step(progress())
            view.say("Kept: [sentence]\nand its \x1b[2J second line")
            threads = set(threading.enumerate())
        view.stop()  # again
        shown = file.getvalue()
        assert "first [line]" in shown
        assert "Kept: [sentence]" in shown
        assert "and its \\x1b[2J second line" in shown
        assert shown.rindex("step 500 of 1,000") > shown.rindex("Kept")  # the last frame stays at the foot
        assert "A [run]" in shown
        deadline = time.monotonic() + 5
        while not threads - set(threading.enumerate()):  # the thread that draws ends soon after
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def test_an_error_in_the_run_passes_and_restores_the_screen(self) -> None:
        file = io.StringIO()
        with pytest.raises(ZeroDivisionError), LiveView(Console(file=file, force_terminal=True)) as view:
            view.start("run")
            raise ZeroDivisionError
        assert file.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is back


@given(st.lists(st.floats(-1e6, 1e6), max_size=300))
def test_a_history_is_bounded_and_keeps_the_mean(values: list[float]) -> None:
    history = History(longest=16)
    for value in [*values, math.nan, math.inf]:
        history.add(value)
    assert len(history.values) < 16
    weight = history._group
    total = math.fsum(history.values) * weight + history._sum
    assert total == pytest.approx(math.fsum(values), abs=1e-3)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(seconds_a_step: float, steps: int) -> list[str]:
    file, clock = io.StringIO(), Clock()
    with PlainView(file, clock) as view:
        for step in range(1, steps + 1):
            clock.now += seconds_a_step
            view.step(progress(step, steps))
    return file.getvalue().splitlines()


class TestPlain:
    def test_a_line_reads_well(self) -> None:
        file = io.StringIO()
        PlainView(file).step(progress())
        assert file.getvalue() == (
            "step 500 of 1,000 (50 %) · epoch 3 · loss 2.314 · perplexity 10.12 · learning rate 5.0e-4 · "
            "gradient norm 0.830 · 12.3k tokens/s · MFU 31 % · 1h 05m left\n"
        )

    def test_a_fast_run_writes_every_ten_seconds(self) -> None:
        lines = plain(0.03, 1000)  # 30 s
        assert [int(line.split()[1].replace(",", "")) for line in lines] == [1, 335, 669, 1000]

    def test_a_run_of_minutes_writes_every_tenth(self) -> None:
        lines = plain(0.5, 1000)  # 500 s
        steps = [int(line.split()[1].replace(",", "")) for line in lines]
        assert steps == [1, *range(101, 1000, 100), 1000]

    def test_a_long_run_is_never_silent_for_long(self) -> None:
        steps = [int(line.split()[1].replace(",", "")) for line in plain(60.0, 1000)]
        assert steps == [*range(1, 1000, 10), 1000]

    def test_a_run_cut_short_says_how_far_it_came(self) -> None:
        file, clock = io.StringIO(), Clock()
        with PlainView(file, clock) as view:
            for step in range(1, 40):
                view.step(progress(step))
        assert [line.split()[1] for line in file.getvalue().splitlines()] == ["1", "39"]

    def test_validation_and_messages(self) -> None:
        file = io.StringIO()
        view = PlainView(file)
        view.start("A run", ["4 layers"])
        view.validation(
            500, {"loss": 2.1, "bleu": 31.2}, True, [Sample("a\nb", "", "c"), Sample("2", "2", "2")]
        )
        view.validation(600, {"loss": 2.2}, False)
        view.say("Two\nlines")
        assert file.getvalue().splitlines() == [
            "A run",
            "4 layers",
            "validation at step 500: loss 2.100 · BLEU 31.20 · best",
            "  source:    a\\nb",
            "  output:    c",
            "validation at step 600: loss 2.200",
            "Two",
            "lines",
        ]

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
    @pytest.mark.parametrize("text", NASTY)
    def test_any_text_in_any_encoding(self, encoding: str, text: str) -> None:
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")
        view = PlainView(file)
        view.start(text, [text])
        view.step(progress())
        view.validation(1, {text: 1.0}, True, [Sample(text, text, text)])
        choices_table([(text, text, text)], file)
        written = raw.getvalue().decode(encoding)
        assert "\x1b" not in written
        assert "\x07" not in written

    def test_a_log_that_cannot_be_written_does_not_end_the_run(self) -> None:
        closed = io.StringIO()
        closed.close()
        PlainView(closed).say("lost")
        if os.path.exists("/dev/full"):
            with suppress(OSError), open("/dev/full", "w") as full:  # closing it fails, which is not ours
                PlainView(full).say("lost")
                passed = True
            assert passed

    def test_follows_stderr(self, capsys: pytest.CaptureFixture[str]) -> None:
        PlainView().say("here")
        caught = capsys.readouterr()
        assert (caught.out, caught.err) == ("", "here\n")


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with View() as view:
        view.start("run", ["line"])
        view.step(progress())
        view.validation(1, {"loss": 1.0}, True)
        view.say("sentence")
    caught = capsys.readouterr()
    assert (caught.out, caught.err) == ("", "")


def test_views_by_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(make_view()) is PlainView  # stderr is caught here, so it is no terminal
    assert type(make_view("live")) is LiveView
    assert type(make_view("quiet")) is View
    with pytest.raises(UserError, match="did you mean 'plain'"):
        make_view("plane")
    monkeypatch.setattr(sys, "stderr", None)
    assert type(make_view()) is View


@given(st.floats(0, 1e7))
def test_durations_read_back(seconds: float) -> None:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    parts = duration(seconds).split()
    read = sum(int(part[:-1]) * units[part[-1]] for part in parts)
    assert abs(read - seconds) <= max(0.5, units[parts[-1][-1]] / 2 + 0.5)
    assert all(int(part[:-1]) < 60 for part in parts[1:])


@given(st.floats(0, 1e12))
def test_short_numbers_read_back(number: float) -> None:
    text = short(number)
    scale = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1.0)
    assert float(text.rstrip("kMG")) * scale == pytest.approx(
        number, rel=0.006, abs=0.51 if number >= 10 else 0.01
    )


@given(st.text())
def test_visible_hides_nothing(text: str) -> None:
    shown = visible(text)
    assert not any(
        ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or 0xD800 <= ord(letter) < 0xE000 for letter in shown
    )
    assert "\n" not in shown
    assert len(shown.splitlines()) <= 1
    if text.isprintable():
        assert shown == text


@given(st.lists(st.floats(-1e300, 1e300), max_size=200), st.integers(0, 50))
def test_sparklines(values: list[float], width: int) -> None:
    drawn = sparkline(values, width)
    assert len(drawn) == min(len(values), width)
    assert set(drawn) <= set("▁▂▃▄▅▆▇█")


CHOICES = [("model.layers", "4", "a small corpus [see the table]"), ("größe", "日本", "why " * 40)]


def test_choices_in_a_log_are_plain_columns() -> None:
    file = io.StringIO()
    choices_table(CHOICES, file)
    assert file.getvalue().splitlines() == [
        "setting       value  why",
        "model.layers  4      a small corpus [see the table]",
        "größe         日本   " + ("why " * 40).rstrip(),
    ]
    file = io.StringIO()
    choices_table([], file)
    assert file.getvalue() == ""


SCRIPT = r"""
import sys, time
from clearhead.training.view import Progress, Sample, choices_table, make_view
choices_table([("model.layers", "4", "a small corpus [of] pairs " * 5)])
with make_view() as view:
    print(type(view).__name__)
    view.start("English → French", ["a line that stays"])
    for step in range(1, 13):
        view.step(Progress(step, 12, 0, 3.0 / step, 9.0, 1e-4, 1234.0, None, 60.0, 0, 1.0))
        print("data", step)
        if step == 6:
            view.validation(6, {"loss": 1.0}, True, [Sample("[b]x[/b]", "مرحبا", "y" * 500)])
            view.say("a message [kept]")
        time.sleep(0.1)
print("after")
"""


def on_a_terminal(columns: int, **variables: str) -> tuple[str, str]:
    """Run the script with stderr on a pseudo terminal and stdout in a pipe; what came out of each."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **variables}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI"):
        environment.pop(name, None)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        seen = b"".join(read_all(ours))
        assert process.stdout is not None
        out = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0, seen.decode()
    return out, seen.decode()


def read_all(handle: int) -> Iterator[bytes]:
    while True:
        try:
            block = os.read(handle, 65536)
        except OSError:  # Linux says so when the other end is closed
            return
        if not block:
            return
        yield block


@pytest.mark.parametrize("columns", [60, 120])
def test_on_a_real_terminal(columns: int) -> None:
    out, seen = on_a_terminal(columns)
    # what is printed while the panel moves goes where stdout leads, untouched
    assert out.split("\n") == ["LiveView", *(f"data {i}" for i in range(1, 13)), "after", ""]
    assert "a line that stays" in seen
    assert "a message [kept]" in seen
    assert "model.layers" in seen
    assert "\x1b[?25l" in seen  # the cursor was hidden while the panel moved
    assert "\x1b[?25h" in seen
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen[seen.rindex("English → French") :])
    for wanted in ("step 12 of 12", "100 %", "★ best", "[b]x[/b]", "مرحبا"):
        assert wanted in last, wanted
    assert all(cell_len(line.rstrip("\r")) <= columns for line in last.split("\n"))
    assert 2 <= seen.count("English → French") <= 12  # frames of 1.2 s at no more than 4 a second, and those
    # that follow a message


def test_a_dumb_terminal_gets_plain_lines() -> None:
    out, seen = on_a_terminal(80, TERM="dumb")
    assert out.startswith("PlainView\n")
    assert "\x1b" not in seen
    assert "step 12 of 12 (100 %)" in seen
