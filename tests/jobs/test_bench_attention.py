"""`clearhead bench attention`: who takes part, what is measured, and what is said about it."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead
from clearhead.base.errors import UserError
from clearhead.cli import main as cli
from clearhead.jobs import bench_attention as job
from clearhead.jobs import bench_attention_page as pages
from clearhead.jobs import bench_decoding
from clearhead.jobs.attention_kinds import EXACT, Contender, contenders, counted
from clearhead.jobs.bench_attention import Bench, Cell, Setting, Trained
from clearhead.jobs.charts import lines_of
from clearhead.nn.attention import KERNELS, AttentionConfig
from clearhead.nn.parts import ATTENTIONS

CPU = torch.device("cpu")
SMALL = AttentionConfig(width=16, heads=2)


def setting_of(*lengths: int, **more: Any) -> Setting:
    return Setting(SMALL, lengths, CPU, **more)


def test_every_kernel_and_every_kind_take_part() -> None:
    rows = contenders()
    assert {one.kind for one in rows} == set(ATTENTIONS)
    assert {one.settings.get("kernel") for one in rows if one.kind == "multihead"} == {None, *KERNELS}
    assert len({one.name for one in rows}) == len(rows)


@pytest.mark.parametrize("one", contenders(), ids=lambda one: one.name)
def test_every_row_can_be_built_and_counted(one: Contender) -> None:
    part = one.part(SMALL, 64)
    short, long = (counted(part, 1, tokens, False)[0] for tokens in (1 << 15, 1 << 16))
    if one.exact or one.kind == "latent":
        assert long / short == pytest.approx(4, rel=0.05)
    elif one.time == "n":
        assert long / short == pytest.approx(2, rel=0.01)
    else:
        assert 1.9 < long / short < 4.1


def test_kinds_are_chosen_by_name_by_kind_or_by_their_beginning() -> None:
    assert [one.name for one in contenders("exact, linear")] == ["exact", "linear"]
    assert len(contenders("window")) == 2
    assert [one.kind for one in contenders("sparse")] == ["sparse"] * 4
    every = [one.name for one in contenders()]
    assert [one.name for one in contenders(",".join(every))] == every  # some names have commas
    with pytest.raises(UserError, match="There is no attention 'linera': did you mean 'linear'"):
        contenders("linera")


def linear_attention(x: torch.Tensor, part: Any) -> torch.Tensor:
    """One row, one sum at a time, in the words of the paper."""
    q, k, v = (layer(x).view(len(x), 2, 8) for layer in (part.query, part.key, part.value))
    q, k = (torch.nn.functional.elu(one) + 1 for one in (q, k))
    mixed = [
        (q[:, head] @ (k[:, head].T @ v[:, head])) / (q[:, head] @ k[:, head].sum(0)).unsqueeze(1)
        for head in range(2)
    ]
    return part.output(torch.cat(mixed, 1))  # type: ignore[no-any-return]


def softmax_attention(x: torch.Tensor, part: Any) -> torch.Tensor:
    q, k, v = (layer(x).view(len(x), 2, 8) for layer in (part.query, part.key, part.value))
    weights = torch.einsum("qhd,khd->hqk", q, k).div(8**0.5).softmax(-1)
    return part.output(torch.einsum("hqk,khd->qhd", weights, v).flatten(1))  # type: ignore[no-any-return]


def test_errors_are_those_of_the_same_projections() -> None:
    rows = contenders("exact,window,linear,performer,reformer,latent")
    found = job.bench(setting_of(8, 24), rows)
    part, x = job._prepared(found.setting, EXACT, 24)
    with torch.no_grad():
        right, wrong = softmax_attention(x[0], part), linear_attention(x[0], part)
    expected = float((wrong - right).norm() / right.norm())
    assert found.cells["linear"][24].error == pytest.approx(expected, rel=1e-4)
    assert found.cells["window 256"][24].error == pytest.approx(0, abs=1e-6)  # it hides nothing
    assert 0.01 < (found.cells["performer"][24].error or 0) < 3
    assert found.cells["latent"][24].error is None  # its projections are others
    assert found.cells["reformer"][24].error == pytest.approx(0, abs=1e-6)  # one chunk holds the text
    longer = job.bench(setting_of(512), contenders("reformer"))
    assert 0.05 < (longer.cells["reformer"][512].error or 0) < 2
    for cells in found.cells.values():
        for cell in cells.values():
            assert min(cell.forward or 0, cell.both or 0, cell.bytes or 0) > 0


def test_nothing_but_times_depends_on_a_clock() -> None:
    rows = contenders("exact,linear,performer")
    both = []
    for _ in range(2):
        cells = pages.plain(job.bench(setting_of(16, 32), rows))["cells"]
        both.append(
            [{key: cell[key] for key in cell if key not in ("forward", "both", "first")} for cell in cells]
        )
    assert both[0] == both[1]


def test_memory_is_what_tensors_took_at_a_time() -> None:
    def twice() -> None:
        for _ in range(2):
            torch.zeros(1000, 1000)  # 4 MB, which are free again before the second

    assert job.peak_bytes(twice, CPU) == pytest.approx(4e6, rel=0.01)
    assert job.peak_bytes(lambda: torch.zeros(1000, 1000).add(1).add(1), CPU) == pytest.approx(8e6, rel=0.01)


def test_an_interrupt_keeps_what_has_been_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, measure = iter(range(9)), job._measure

    def stopping(*given: Any) -> None:
        if next(counts) == 3:
            raise KeyboardInterrupt
        measure(*given)

    monkeypatch.setattr(job, "_measure", stopping)
    told: list[str] = []
    rows = contenders("exact,linear")
    found = job.bench(setting_of(16, 8), rows, tell=lambda found, tokens: told.append(f"{tokens}"))
    assert told == ["8"]  # short texts first: this length is complete
    page = pages.table(found, "both")
    assert [row[2] == "stopped" for row in page.rows] == [False, True]
    assert all("ms" in row[1] for row in page.rows)
    assert found.cells["linear"][8].error is not None
    assert len(pages.table(found, "error").rows) == 2
    assert found.notes == ["You stopped it: what is missing was not measured."]
    assert pages.page(found, False).sections[-1].notes == tuple(found.notes)
    counts = iter(range(2, 9))
    found = job.bench(setting_of(8, 16), contenders("exact,linear,performer"))
    assert [one.name for one in found.contenders] == ["exact"]  # and nothing is said about the others
    assert {cell["name"] for cell in pages.plain(found)["cells"]} == {"exact"}
    monkeypatch.setattr(job, "_measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # nothing to keep
        job.bench(setting_of(8), contenders("exact"))


def test_a_cell_that_would_take_too_long_or_too_much_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    last = Cell("exact", 100, forward=0.1, both=0.4, bytes=1e9, flops=1e9, kept=1e6)
    setting = setting_of(100, 200, seconds=10.0)
    monkeypatch.setattr(job, "memory_of", lambda device: 10**10)
    assert job._why_not(setting, Cell("exact", 200, flops=4e9, kept=2e6), last) == ""
    last.first = 0.8  # 0.3 s of it were no computation, as when a kernel is compiled for the length
    assert job._why_not(setting, Cell("exact", 200, flops=4e9, kept=2e6), last) == ""
    last.first = 1.0
    assert job._why_not(setting, Cell("exact", 200, flops=4e9, kept=2e6), last) == "time"
    last.first = None
    assert job._why_not(setting, Cell("exact", 200, flops=5e9, kept=2e6), last) == "time"
    assert job._why_not(setting, Cell("exact", 200, flops=4e9, kept=6e6), last) == "memory"
    assert job._why_not(setting, Cell("exact", 400), Cell("exact", 200, why="time")) == "time"
    monkeypatch.setattr(job, "memory_of", lambda device: 5 * 10**6)
    found = job.bench(setting_of(128, 512), contenders("exact,reformer"))
    errors = [found.cells["reformer"][tokens].error for tokens in (128, 512)]
    assert [error is None for error in errors] == [False, True]  # exact there, it would hold all pairs
    found = job.bench(setting_of(8, 4096, seconds=1e-3), contenders("exact"))
    assert pages.table(found, "both").rows[0][2] == "over 0.001 s"
    times = itertools.chain([5.0], itertools.repeat(1e-4))  # the first pass of all starts the GPU
    monkeypatch.setattr(job, "quickest", lambda do, device, rounds: (do(), next(times))[1])
    found = job.bench(setting_of(8, 16, seconds=4.0), contenders("exact"))
    assert found.cells["exact"][16].both == 1e-4


def test_a_row_that_ends_at_some_length_keeps_its_shorter_ones() -> None:
    short = Contender("short texts", {"kind": "linformer", "projected": 4, "max_length": 16})
    none = Contender("no texts", {"kind": "linformer", "projected": 4, "max_length": 4})
    found = job.bench(setting_of(8, 16, 32, 64), [EXACT, short, none])
    assert [one.name for one in found.contenders] == ["exact", "short texts"]
    row = pages.table(found, "both").rows[1]
    assert ["ms" in cell for cell in row[1:3]] == [True, True]
    assert row[3:5] == ["impossible", "impossible"]
    assert found.notes[0].startswith("no texts is left out: Attention of the kind 'linformer' was built")
    assert found.notes[1].startswith("short texts is left out from 32 tokens on: Attention")
    assert len(found.notes) == 2


def made(times: dict[str, dict[int, float | None]], errors: dict[str, float]) -> Bench:
    rows = [one for one in contenders() if one.name in times]
    lengths = list(next(iter(times.values())))
    cells = {
        name: {
            n: Cell(name, n, both=took, error=errors.get(name), flops=float(n * n), kept=float(n))
            for n, took in by.items()
        }
        for name, by in times.items()
    }
    return Bench(setting_of(*lengths), rows, cells)


def test_a_sentence_for_each_length_says_where_exact_attention_wins() -> None:
    found = made(
        {
            "exact": {256: 0.001, 512: 0.004, 1024: None},
            "linear": {256: 0.002, 512: 0.003, 1024: 0.006},
            "latent": {256: 0.003, 512: 0.006, 1024: None},
        },
        {"linear": 0.5},
    )
    assert pages.verdicts(found) == [
        "At 256 tokens exact attention takes 1 ms and beats all 2 others; the next is linear, with "
        "2.00 × its time.",
        "At 512 tokens exact attention takes 4 ms and beats 1 other; faster: linear (0.75 × its time, "
        "error 0.5).",
        "At 1,024 tokens exact attention was not measured: the fastest is linear, 6 ms.",
    ]
    assert pages.near(found).endswith("on random inputs: none at any length.")
    assert pages.exponents(found, "both", "exact") == (2.0, 2.0)
    assert pages.exponents(found, "both", "linear")[0] == pytest.approx(0.79, abs=0.01)
    two = made({"exact": {256: 0.001, 512: 0.01}, "linear": {256: 0.002, 512: 0.005}}, {})
    assert pages.verdicts(two) == [
        "At 256 tokens exact attention takes 1 ms and beats linear, with 2.00 × its time.",
        "At 512 tokens exact attention takes 10 ms and beats none of the others; faster: linear (0.50 × "
        "its time).",
    ]


def test_no_two_lines_of_the_chart_look_alike() -> None:
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    lines_of(axes, {one.name: [(256.0, 1.0)] for one in contenders()}, "tokens", "seconds")
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
    assert len(looks) == len(contenders())


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    plain = {"family": "decoder", "vocabulary": 40, "width": 16, "layers": 2, "attention": {"heads": 2}}
    model = clearhead.build(clearhead.ModelConfig.from_dict({**plain, "position": {"name": "rotary"}}))
    folder = tmp_path_factory.mktemp("bench") / "words"
    words = clearhead.Tokenizer.words(["a b c d e f g"])
    model = clearhead.build(model.config.replace(vocabulary=words.vocabulary_size))
    clearhead.save(model, folder, tokenizer=words)
    return folder


def test_trained_weights_serve_every_kind_that_can_take_them(decoder: Path) -> None:
    from clearhead.bundle import load_bundle

    trained = Trained(load_bundle(decoder), "words", "a b c d", CPU)
    found = job.bench(Setting(trained.like, [6, 12], CPU, causal=trained.causal), contenders(), trained)
    errors = {name: cells[12].trained_error for name, cells in found.cells.items()}
    assert found.setting.causal
    assert errors["exact"] == 0.0
    assert errors["exact, by 'reference'"] == pytest.approx(0, abs=1e-6)
    assert (errors["linear"] or 0) > 1e-3
    assert errors["latent"] is None
    # what goes into the second layer, by hand
    model: Any = trained.model
    ids = torch.tensor([(trained.ids or [])[:4] * 3])
    look = clearhead.Look("decoder.0.output")
    with torch.no_grad():
        model(ids, look=look)
        expected = look["decoder.0.output"]
        if model.config.norm.place == "pre":
            expected = model.decoder.layers[1].attention_residual.norm(expected)
    assert torch.allclose(trained.inputs(12, 1)[1], expected, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": {"heads": 2, "score": "additive"}},  # a score with weights of its own
        {"attention": {"heads": 2, "score": "bilinear"}},
        {"attention": {"heads": 2}, "layer_pattern": [{"first": 1, "attention": {"heads": 4}}]},
    ],
    ids=["additive", "bilinear", "heads that differ"],
)
def test_exact_attention_has_no_error_on_any_trained_layer(changes: dict[str, Any], tmp_path: Path) -> None:
    from clearhead.bundle import load_bundle

    plain = {"family": "decoder", "vocabulary": 40, "width": 16, "layers": 2, **changes}
    clearhead.save(clearhead.build(clearhead.ModelConfig.from_dict(plain)), tmp_path / "bundle")
    trained = Trained(load_bundle(tmp_path / "bundle"), "b", None, CPU)
    setting = Setting(trained.like, [12], CPU, causal=trained.causal)
    found = job.bench(setting, contenders("exact,exact, by 'tiled',window"), trained)
    errors = [cells[12].trained_error for cells in found.cells.values()]
    assert errors == pytest.approx([0.0] * len(errors), abs=1e-6)  # the window hides nothing


def test_decoding_by_sums_takes_constant_memory_and_by_keys_does_not() -> None:
    steps, notes = bench_decoding.decode(
        setting_of(20, 100), contenders("exact,linear,performer,window,latent")
    )
    held = {(one.name, one.tokens): one.bytes for one in steps}
    assert held["linear", 20] == held["linear", 100] == 4 * 2 * 8 * 9
    assert held["performer", 20] == held["performer", 100]
    assert held["exact", 100] > held["exact", 20]
    assert notes == []
    shown = pages.decoding_page(setting_of(20, 100), steps, notes, draw=False)
    assert shown.sections[1].tables[0].rows[0][0] == "exact"
    steps, notes = bench_decoding.decode(setting_of(8, 16, seconds=0.0), contenders("exact"))
    assert [one.tokens for one in steps] == [8]
    assert notes == ["exact is left out from 16 tokens on: it would take over 0 s."]


def test_an_interrupt_of_decoding_keeps_what_has_been_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, step = iter(range(9)), bench_decoding._step

    def stopping(*given: Any) -> bench_decoding.Step:
        if next(counts) == 3:
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(bench_decoding, "_step", stopping)
    steps, notes = bench_decoding.decode(setting_of(20, 30), contenders("exact,linear"))
    assert [(one.name, one.tokens) for one in steps] == [("exact", 20), ("exact", 30), ("linear", 20)]
    rows = pages.decoding_page(setting_of(20, 30), steps, notes, draw=False).sections[0].tables[0].rows
    assert rows[1][2] == "–"
    assert notes == ["You stopped it: what is missing was not measured."]
    monkeypatch.setattr(bench_decoding, "_step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # nothing to keep
        bench_decoding.decode(setting_of(8), contenders("exact"))


def test_the_command(tmp_path: Path, decoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    sized = ["--width", "16", "--heads", "2", "--kinds", "exact,linear"]
    assert cli.main(["bench", "attention", "--lengths", "8-32", *sized, "--json", "--out", str(page)]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["lengths"] == [8, 16, 32]
    assert {(cell["name"], cell["tokens"]) for cell in found["cells"]} >= {("exact", 8), ("linear", 32)}
    assert len(found["verdicts"]) == 4
    assert shown.err.splitlines()[:3] == found["verdicts"][:3]  # each as soon as it is known
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 4
    assert "Where exact attention wins" in text
    assert re.search(r'<script|src=|href="http|@import', text) is None
    (tmp_path / "text.txt").write_text("a b g")
    more = ["--bundle", str(decoder), "--text", str(tmp_path / "text.txt"), "--kinds", "exact,linear"]
    assert cli.main(["bench", "attention", "--lengths", "8", *more]) == 0
    assert "Error on trained weights" in capsys.readouterr().out
    assert cli.main(["bench", "attention", "--decode", "--lengths", "8,16", *sized]) == 0
    assert "Memory of the state" in capsys.readouterr().out


def test_a_page_that_cannot_be_written_loses_no_results(capsys: pytest.CaptureFixture[str]) -> None:
    told = [
        "--width",
        "16",
        "--heads",
        "2",
        "--kinds",
        "exact",
        "--lengths",
        "8",
        "--out",
        "/dev/null/page.html",
    ]
    assert cli.main(["bench", "attention", *told]) == 2
    shown = capsys.readouterr()
    assert "Time, forward and backward" in shown.out
    assert "Cannot write '/dev/null/page.html'" in shown.err


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["decoding"], "There is no benchmark 'decoding'"),
        (["attention", "--lengths", "many"], "Write lengths as 256,1024"),
        (["attention", "--lengths", "1"], "numbers of tokens from 2"),
        (["attention", "--lengths", "9999999999"], "Write lengths as"),
        (["attention", "--lengths", "512-256"], "numbers of tokens from 2"),
        (["attention", "--kinds", "exat"], "There is no attention 'exat'"),
        (["attention", "--text", "a.txt"], "give --bundle as well"),
        (["attention", "--decode", "--bundle", "b"], "leave --bundle out"),
        (["attention", "--out", "."], "is a folder"),
        (["attention", "--width", "10", "--heads", "4"], "does not divide into 4 heads"),
        (["attention", "--bundle", "absent"], "absent"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert part in shown.err
