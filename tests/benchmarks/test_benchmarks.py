"""The benchmarks measure what they say: like models, the same batches, a corpus of aligned lines."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

import clearhead
from clearhead.data.batch import IGNORED

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))  # as Python does for a script: they import their parts from there
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def training() -> ModuleType:
    return load("training")


def test_contenders_have_like_models(training: ModuleType) -> None:
    pytest.importorskip("transformers")
    size = training.Size(width=32, layers=2, vocabulary=100, tokens=200)
    models = [
        clearhead.build(training.our_config(size)),
        *(training.peers(size)[name](size) for name in ("torch.nn", "Hugging Face (Marian)")),
    ]
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad) for model in models]
    assert max(counts) < 1.01 * min(counts)  # PyTorch's has a norm more at the end of each stack


def test_every_contender_learns_from_the_same_batches(
    training: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    size = training.Size(width=32, layers=1, vocabulary=20, tokens=300, dropout=0.0)
    device = torch.device("cpu")
    batches = training.batches(size, 2, device)
    assert len(batches) == 2
    assert all(batch.inputs.numel() <= size.tokens for batch in batches)
    makers = training.contenders(size, device, torch.float32)
    begun = {name: training.begin(make, batches, gpu=False) for name, make in makers.items()}
    times = training.measure(begun, 2, time.perf_counter, gpu=False)
    assert {"clearhead", "torch.nn"} <= set(times)
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in times.values())
    training.report(begun, times, training.our_config(size), 1e12)
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 1 + len(times)
    assert table[1].split()[4] == "1.00"


def test_decoders_and_packed_batches_of_the_same_corpus(training: ModuleType) -> None:
    size = training.Size(32, 1, 50, tokens=64, dropout=0.0, family="decoder", longest=16)
    device = torch.device("cpu")
    batch = training.batches(size, 1, device)[0]
    assert batch.inputs.shape == (4, 16)
    makers = training.contenders(size, device, torch.float32)
    assert training.begin(makers["clearhead"], [batch], gpu=False).first > 0
    pairs = training.Size(width=32, layers=1, vocabulary=20, tokens=300, dropout=0.0)
    packed = training.batches(pairs, 3, device, "uniform", packed=True)
    assert len({batch.inputs.shape for batch in packed}) == 1
    assert all(batch.packing is not None for batch in packed)
    with pytest.raises(SystemExit, match="older GPUs"):
        training.refuse_old_kernels(["flash", "memory-efficient"])


def test_a_plain_loop_learns(training: ModuleType) -> None:
    size = training.Size(width=32, layers=1, vocabulary=20, tokens=300, dropout=0.0)
    batch = training.batches(size, 1, torch.device("cpu"))[0]
    model = training.peers(size)["torch.nn"](size)
    step = training.plain_loop(model, torch.device("cpu"), torch.float32, None)
    seen = torch.arange(batch.source.shape[1]) < batch.source_lengths[:, None]

    def loss() -> float:
        with torch.no_grad():
            logits = model(batch.source, batch.inputs, seen).flatten(0, 1)
            return float(
                torch.nn.functional.cross_entropy(logits, batch.labels.flatten(), ignore_index=IGNORED)
            )

    before = loss()
    for _ in range(30):
        step(batch)
    assert loss() < before - 0.05


def test_the_corpus_is_aligned_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("resource")  # which Windows has not
    corpus = load("corpus")
    monkeypatch.setattr(corpus, "WORDS", 500)
    paths = tmp_path / "a", tmp_path / "b"
    corpus.write_corpus(paths, 300)
    source, target = (path.read_text(encoding="utf-8").splitlines() for path in paths)
    assert len(source) == len(target) == 300
    assert [len(line.split()) for line in source] == [len(line.split()) for line in target]
    assert len(set(source)) > 250


def test_growth_of_costs_is_fitted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    growth = load("growth")
    assert growth.exponent([1, 2, 4, 8], [5, 3, 12, 48]) == pytest.approx(2.0)
    assert [point.length for point in growth.ladder("length", growth.Point(length=64), 300, 20)] == [
        64,
        128,
        256,
    ]
    arguments = ["growth.py", "--device", "cpu", "--only", "depth", "--doublings", "1", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    growth.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("| depth | depth^")


@pytest.mark.slow
def test_ranks_share_what_one_would_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked before this process has threads of its own: each rank keeps its share of the activations."""
    growth = load("growth")
    monkeypatch.setattr(growth, "RANKS", (1, 2))
    one, two = growth.costs_of_ranks(growth.Point(64, 64, 2, 8, 256), 1)
    assert one.bytes == pytest.approx(2 * two.bytes, rel=0.05)
    assert min(one.seconds, two.seconds) > 0
