"""Device names, seeds and the progress line."""

from __future__ import annotations

import io
import random
import sys
import warnings
from pathlib import Path

import numpy
import pytest
import torch

from clearhead.base import cuda
from clearhead.base.cuda import unused_gpu
from clearhead.base.device import pick_device, pick_dtype
from clearhead.base.errors import UserError
from clearhead.base.progress import progress, short
from clearhead.base.seed import seed_everything, seeded


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device().type == "cpu"
    with pytest.raises(UserError, match="'cuda:1' cannot be used because"):
        pick_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert pick_device().type == "cuda"
    with pytest.raises(UserError, match="does not exist"):
        pick_device("cuda:1")


@pytest.mark.parametrize("name", ["cdua", "cuda:x", "", "gpu"])
def test_unknown_devices(name: str) -> None:
    with pytest.raises(UserError, match="Unknown device"):
        pick_device(name)


DEAD = "Unexpected error from cudaGetDeviceCount().\nError 805: MPS client failed to connect"


def no_cuda(monkeypatch: pytest.MonkeyPatch, files: Path, error: Exception) -> None:
    """A machine on which torch warns that CUDA fails, and says why when it is asked to start it."""

    def is_available() -> bool:
        warnings.warn("CUDA initialization: it failed", UserWarning, stacklevel=2)
        return False

    def init() -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda, "_DEVICE_FILES", files)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_gpu_that_cannot_be_initialised_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_cuda(monkeypatch, tmp_path, RuntimeError(DEAD))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's own warning would say it a second time
        assert pick_device().type == "cpu"
        said = unused_gpu()
    assert said == (
        "This machine has a GPU, but torch could not initialise it, so the CPU is used: Unexpected error "
        "from cudaGetDeviceCount(). Error 805: MPS client failed to connect."
    )
    with pytest.raises(UserError, match=r"could not initialise it \(.*MPS client failed.*\); use 'cpu'"):
        pick_device("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert unused_gpu() is None


def test_a_machine_without_a_gpu_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_cuda(monkeypatch, tmp_path, RuntimeError("Found no NVIDIA driver on your system."))
    assert unused_gpu() is None
    with pytest.raises(UserError, match="no CUDA device was found"):
        pick_device("cuda")
    (tmp_path / "nvidiactl").touch()
    assert unused_gpu() is None
    (tmp_path / "nvidia0").touch()
    assert "Found no NVIDIA driver" in str(unused_gpu())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert unused_gpu() is None


def test_number_formats() -> None:
    assert pick_dtype("float64") is torch.float64
    assert pick_dtype() is torch.float32
    with pytest.raises(UserError, match="did you mean 'float32'"):
        pick_dtype("flaot32")


def draw() -> tuple[float, float, float]:
    return random.random(), float(numpy.random.rand()), float(torch.rand(1))


def test_seed_covers_all_sources() -> None:
    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first


def test_seeded_block_leaves_no_trace() -> None:
    seed_everything(3)
    expected = draw()
    seed_everything(3)
    with pytest.raises(RuntimeError, match="stop"), seeded(4):
        draw()
        raise RuntimeError("stop")
    assert draw() == expected


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, "1"])
def test_bad_seeds(seed: object) -> None:
    with pytest.raises(UserError, match="A seed must be"):
        seed_everything(seed)  # type: ignore[arg-type]


def test_progress_is_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress("Reading", total=3) as bar:
        bar.advance(3, note="done")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with progress("Training", total=2, unit="tokens") as bar:
        bar.advance(1, note="loss 2.31")
        bar.advance(1)
    shown = screen.getvalue()
    assert "Training" in shown
    assert "2/2" in shown
    assert "loss 2.31" in shown
    assert "tokens/s" in shown


NUMBERS = [(3.25, "3.25"), (912, "912"), (1234, "1234"), (12_400, "12.4k"), (3.1e6, "3.1M")]


@pytest.mark.parametrize("number, text", NUMBERS)
def test_short_numbers(number: float, text: str) -> None:
    assert short(number) == text
