"""Averages of weights against the same sums done plainly in float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from clearhead.base.errors import UserError
from clearhead.training.averaging import AveragingConfig, Ema, average_files

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@torch.no_grad()
def wander(model: nn.Module, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    for parameter in trained(model):
        parameter.add_(torch.randn(parameter.shape, generator=chance).to(parameter.device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
def test_ema_is_its_formula(decay: float, device: str) -> None:
    model = nn.Linear(3, 2).to(device)
    ema = Ema(model, decay)
    expected = [parameter.detach().double() for parameter in model.parameters()]
    for t in range(40):
        wander(model, t)
        ema.update(trained(model))
        d = min(decay, (1 + t) / (10 + t))
        expected = [
            d * e + (1 - d) * p.detach().double() for e, p in zip(expected, model.parameters(), strict=True)
        ]
    for average, wanted in zip(ema.averages, expected, strict=True):
        torch.testing.assert_close(average.double(), wanted, rtol=1e-5, atol=1e-5)
    assert list(ema.weights()) == ["weight", "bias"]


@pytest.mark.parametrize("device", DEVICES)
def test_ema_goes_on_bit_exact(device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).to(device)
    ema = Ema(model, 0.99)
    for t in range(5):
        wander(model, t)
        ema.update(trained(model))
    stored = {name: tensor.detach().cpu().clone() for name, tensor in ema.tensors().items()}
    resumed = Ema(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)).to(device), 0.99)
    resumed.load_tensors(stored)
    for t in range(5, 10):
        wander(model, t)
        ema.update(trained(model))
        resumed.update(trained(model))
    assert ema.tensors().keys() == resumed.tensors().keys()
    assert all(torch.equal(tensor, resumed.tensors()[name]) for name, tensor in ema.tensors().items())
    assert float(ema.count) == 10


@pytest.mark.gpu
def test_a_recorded_ema_counts_on() -> None:
    model = nn.Linear(3, 2).cuda()
    recorded, plain = Ema(model, 0.99), Ema(model, 0.99)
    weights = trained(model)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        recorded.update(weights)
    for t in range(5):
        wander(model, t)
        graph.replay()
        plain.update(weights)
    assert all(torch.equal(tensor, plain.tensors()[name]) for name, tensor in recorded.tensors().items())


def test_ema_of_frozen_and_tied_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    ema = Ema(model, 0.9)
    assert ema.names == ["0.weight"]
    ema.update(trained(model))
    with pytest.raises(ValueError, match="2 parameters for 1 averages"):
        ema.update(model.parameters())


def test_averages_applied_and_taken_back() -> None:
    model = nn.Linear(3, 2)
    ema = Ema(model, 0.9)
    wander(model, 1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with pytest.raises(ZeroDivisionError), ema.applied(model):
        assert torch.equal(model.weight, ema.weights()["weight"])
        assert not torch.equal(model.weight, before[0])
        raise ZeroDivisionError
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert places == [parameter.data_ptr() for parameter in model.parameters()]


def test_averages_of_another_model_are_refused() -> None:
    ema, other = Ema(nn.Linear(3, 2), 0.9), Ema(nn.Linear(3, 4), 0.9)
    before = ema.averages[0].clone()
    with pytest.raises(UserError, match="does not match 'average/weight'"):
        ema.load_tensors(other.tensors())
    with pytest.raises(UserError, match="does not match 'count'"):
        ema.load_tensors({})
    assert torch.equal(before, ema.averages[0])


@settings(max_examples=15, deadline=None)
@given(
    count=st.integers(1, 12),
    kind=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 99),
)
def test_files_are_averaged_in_float64(
    tmp_path_factory: pytest.TempPathFactory, count: int, kind: torch.dtype, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("averaged")
    chance = torch.Generator().manual_seed(seed)
    files = []
    stacked = []
    for number in range(count):
        tensor = torch.randn(5, 3, generator=chance).to(kind) * 1000
        stacked.append(tensor.double())
        files.append(folder / f"{number}.safetensors")
        save_file({"a": tensor, "b": torch.tensor(1.5, dtype=kind), "n": torch.tensor(number)}, files[-1])
    found = average_files(files)
    total = stacked[0].clone()
    for tensor in stacked[1:]:
        total += tensor
    assert torch.equal(found["a"], (total / count).to(kind))
    assert found["a"].dtype == kind
    assert torch.equal(found["b"], torch.tensor(1.5, dtype=kind))  # the mean of equals is itself
    assert int(found["n"]) == count - 1
    save_file(
        {"a": torch.zeros(5, 3, dtype=kind), "b": torch.tensor(0.0, dtype=kind), "n": torch.tensor(0)},
        files[0],
    )
    assert torch.equal(found["a"], (total / count).to(kind))  # what was read does not hang on the file


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, two, cut = (tmp_path / f"{name}.safetensors" for name in ("one", "two", "cut"))
    save_file({"a": torch.zeros(3)}, one)
    save_file({"a": torch.zeros(4)}, two)
    with pytest.raises(UserError, match=r"'a' is \(3,\) float32 in one and \(4,\) float32 in the other"):
        average_files([one, two])
    save_file({"a": torch.zeros(3, dtype=torch.bfloat16)}, two)
    with pytest.raises(UserError, match=r"\(3,\) bfloat16"):
        average_files([one, two])
    save_file({"a": torch.zeros(3), "b": torch.zeros(1)}, two)
    with pytest.raises(UserError, match="only one of them has the tensor 'b'"):
        average_files([one, two])
    cut.write_bytes(one.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"cut\.safetensors' are damaged or truncated"):
        average_files([one, cut])
    with pytest.raises(UserError, match=r"gone\.safetensors"):
        average_files([one, tmp_path / "gone.safetensors"])
    with pytest.raises(UserError, match="no snapshots"):
        average_files([])


MEASURE = """
import resource, sys
from clearhead.training.averaging import average_files
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
average_files(sys.argv[1:])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units elsewhere")
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    tensors = {str(number): torch.zeros(256, 1024) for number in range(32)}  # 32 MiB
    files = [tmp_path / f"{number}.safetensors" for number in range(10)]
    for file in files:
        save_file(tensors, file)
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, files)], capture_output=True, text=True, check=True
    )
    assert float(run.stdout) < 32 * 2 + 32 + 24  # float64 sums, one file's pages, some room


def test_impossible_settings_are_refused() -> None:
    assert AveragingConfig().ema == 0.0
    with pytest.raises(UserError, match="'ema' must be at least 0 and below 1"):
        AveragingConfig(ema=1.0)
    with pytest.raises(UserError, match="'snapshots' must be a whole number from 0"):
        AveragingConfig(snapshots=-1)
    with pytest.raises(UserError, match="decay of a moving average"):
        Ema(nn.Linear(2, 2), 1.0)
    with pytest.raises(UserError, match="no parameter to average"):
        Ema(nn.ReLU(), 0.5)
