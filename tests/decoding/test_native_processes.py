"""How much memory real processes take that decode with one bundle of the Transformer base's size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.bundle import Bundle
from clearhead.decoding.native import why_not
from clearhead.text.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"no native engine: {why_not()}"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the figures are Linux's"),
]

VOCABULARY = 32_000
LINE = " ".join(f"w{number}" for number in range(100, 20_000, 800))
# What a command has imported before it reads anything.
IMPORTS = "import clearhead.cli.main, clearhead.cli.translate, clearhead.jobs.writing"
COMMAND = """
import sys
sys.argv = ["clearhead", "translate", sys.argv[1], "--dtype", "int8", "--max-length", "32", sys.argv[2]]
from clearhead.cli.main import main
assert main() == 0
"""
# As the command does, but its end is waited for.
HOLD = """
import sys
from pathlib import Path
from clearhead.decoding.options import Options
from clearhead.jobs.writing import ready
writer = ready(Path(sys.argv[1]), device="cpu", dtype="int8")
writer.sharing = sys.argv[3]
list(writer.in_order([sys.argv[2]], Options(max_length=32)))
"""
WAIT = """
print("ready", flush=True)
input()
"""
PEAK = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(line.split()[1], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    changes = {"vocabulary": VOCABULARY, "dropout": 0.0}
    words = Tokenizer.words(" ".join(f"w{number}" for number in range(4, VOCABULARY)))
    model = clearhead.build("base", **changes).eval()
    return clearhead.save(Bundle(model, words), tmp_path_factory.mktemp("base") / "bundle")


@pytest.fixture(autouse=True)
def _own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine from where it is, but no packed weights of earlier runs."""
    from clearhead.base.library import cache_folder

    (tmp_path / "clearhead").mkdir()
    (tmp_path / "clearhead" / "engine").symlink_to(cache_folder())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


def peak(code: str, *arguments: str) -> float:
    """The most memory that a process had, in MB."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{PEAK}", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stderr.split()[-1]) / 1024


def private(process: subprocess.Popen[str]) -> float:
    """The memory that no other process has, in MB (USS)."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code + WAIT, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_peak_of_a_command(folder: Path) -> None:
    """Beside imports: 59 MB of packed weights, 10 of tokenizer, 20 of all else, and never 242 of float32."""
    base = peak(IMPORTS)
    first = peak(COMMAND, str(folder), LINE)  # which packs
    second = peak(COMMAND, str(folder), LINE)  # which finds what was packed
    assert first < base + 115, (base, first)
    assert second < base + 115, (base, second)


def test_a_further_process(folder: Path) -> None:
    bare = started(IMPORTS)
    processes = [bare]
    try:
        processes += [started(HOLD, str(folder), LINE, "always") for _ in range(3)]
        base, *taken = (private(process) for process in processes)
        assert all(one - base < 60 for one in taken), (
            base,
            taken,
        )  # neither the packed weights nor the others
    finally:
        for process in processes:
            process.communicate("\n")


def test_two_processes_at_once(folder: Path) -> None:
    """Both pack, both write the file, and both translate alike."""
    command = [sys.executable, "-c", COMMAND, str(folder), LINE]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] != ""
