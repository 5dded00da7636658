"""What a bug report needs to know about this machine, and a self-test: `clearhead env`.

Versions, devices, the two C++ libraries (loaded, or why not), caches, and the variables that change how
clearhead computes. The self-test trains a model for a few steps, decodes with the reference and compares
every other decoding path with it. Reports leave out private data: the home folder is written as `~` and
the user's name as `USER`.
"""

from __future__ import annotations

import getpass
import importlib.metadata
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead.api import load
from clearhead.base.compiler import ENGINE, TRAINING, NoLibrary, Source
from clearhead.base.cuda import cuda_works, unused_gpu
from clearhead.base.device import memory_of, name_of_cpu
from clearhead.base.library import cache_folder, library
from clearhead.base.processor import instruction_set, multiplies_bf16, usable_cores
from clearhead.decoding.native import binding, supports
from clearhead.decoding.options import Options
from clearhead.decoding.run import translate
from clearhead.decoding.score import score_ids
from clearhead.decoding.writer import Way
from clearhead.jobs.train import train
from clearhead.phrasebook import pairs
from clearhead.training.cpu import binding as training_kernels
from clearhead.training.log import read_log
from clearhead.training.run_folder import RunFolder

REQUIRED = (
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "sacrebleu",
    "typer",
    "rich",
    "matplotlib",
    "pillow",
)
OPTIONAL = (
    *("triton", "transformers", "datasets", "ctranslate2", "onnx", "onnxruntime", "mido"),
    *("fastapi", "uvicorn"),
)
# Variables that change what is computed, how fast, or where files go.
VARIABLES = (
    *("CLEARHEAD_INSTRUCTION_SET", "CXX", "XDG_CACHE_HOME", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "TRITON_CACHE_DIR", "TOKENIZERS_PARALLELISM"),
)
SECONDS = 20.0  # how long the self-test may take
CLOSE = 1e-3  # how much two computations of a text's log-probability may differ
STEPS = 20
RECIPE: dict[str, Any] = {
    "steps": STEPS,
    "compute": {"device": "cpu"},
    "tokenizer": {"vocabulary": 300},
    "model": {"width": 32, "layers": 1, "attention": {"heads": 4}, "feedforward": {"width": 64}},
    "batch": {"tokens": 512},
    "schedule": {"rate": 1e-2, "warmup": 5},
    "validation": {"decode": 0},
    "saving": {"log_every": 1, "tensorboard": False},
}


@dataclass(frozen=True)
class Step:
    """One step of the self-test: `passed` is None if it was skipped."""

    name: str
    passed: bool | None
    seconds: float
    sentence: str

    @property
    def result(self) -> str:
        return {True: "passed", False: "FAILED", None: "skipped"}[self.passed]


# -- facts -------------------------------------------------------------------------------------------------


def facts(version: str) -> dict[str, Any]:
    """Facts about this machine, and clearhead's version; compiles the C++ engine if necessary."""
    found: dict[str, Any] = public(
        {
            "clearhead": version,
            "python": f"{platform.python_version()} ({platform.python_implementation()})",
            "system": platform.platform(),
            # torch.__version__ names its build (+cpu, +cu130); the metadata of its wheel may not
            "packages": {name: _version(name) for name in REQUIRED} | {"torch": str(torch.__version__)},
            "optional packages": {name: _version(name) for name in OPTIONAL},
            "processor": {
                "name": name_of_cpu(),
                "cores": usable_cores(os.cpu_count() or 1),
                "memory": memory_of(torch.device("cpu")),
                "instruction set": instruction_set(),
                "multiplies bf16": multiplies_bf16(),
            },
            "GPUs": _gpus(),
            "C++ engine": _library(ENGINE, binding.why_not),
            "C++ training kernels": _library(TRAINING, training_kernels.why_not),
            "caches": _caches(),
            "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        }
    )
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> dict[str, Any]:
    found: dict[str, Any] = {"CUDA of torch": torch.version.cuda, "devices": []}
    if cuda_works():
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            found["devices"].append(
                {
                    "name": about.name,
                    "memory": about.total_memory,
                    "capability": f"{about.major}.{about.minor}",
                }
            )
    if torch.backends.mps.is_available():
        found["devices"].append({"name": "mps"})
    idle = unused_gpu()
    if idle is not None:
        found["problem"] = idle
    return found


def _library(source: Source, why_not: Callable[[], str | None]) -> dict[str, Any]:
    """Whether a C++ library can be used, its file, and what it has kernels for."""
    reason = why_not()
    if reason is not None:
        return {"usable": False, "why": reason}
    with suppress(NoLibrary):
        file = library(source).file
        found = {
            "usable": True,
            "file": str(file),
            "from": "a wheel" if file.parent == source.packaged else "the cache",
        }
        if source is ENGINE:
            found |= {"instruction sets": binding.instruction_sets(), "used": binding.instruction_set()}
        return found
    return {"usable": False, "why": "the library has disappeared"}


def _caches() -> dict[str, Any]:
    """The cache folders of clearhead and Triton, for compiled code and packed weights, with their sizes."""
    folders: dict[str, Path] = {}
    with suppress(RuntimeError):  # no home folder
        folders["engine"] = cache_folder()
        folders["packed weights"] = cache_folder().parent / "packed"
        folders["triton"] = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return {
        name: {"folder": str(folder), "bytes": sum(_sizes(folder))}
        for name, folder in folders.items()
        if folder.is_dir()
    }


def _sizes(folder: Path) -> Iterator[int]:
    for where, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):  # removed in the meantime
                yield os.lstat(os.path.join(where, name)).st_size


def public(value: Any, home: str | None = None, user: str | None = None) -> Any:
    """The value with `~` for the home folder, and `USER` for the user's name in paths.

    >>> public({"folder": "/home/ann/.cache", "other": ["/scratch/ann/x", "annual"]}, "/home/ann", "ann")
    {'folder': '~/.cache', 'other': ['/scratch/USER/x', 'annual']}
    """
    home = os.path.expanduser("~") if home is None else home
    user = _user() if user is None else user
    if isinstance(value, dict):
        return {name: public(inner, home, user) for name, inner in value.items()}
    if isinstance(value, list):
        return [public(inner, home, user) for inner in value]
    if not isinstance(value, str):
        return value
    text = value.replace(home, "~") if len(home) > 1 else value
    return "/".join("USER" if part == user else part for part in text.split("/")) if user else text


def _user() -> str:
    with suppress(OSError, KeyError, ImportError):  # a user id without a name, as in some containers
        return getpass.getuser()
    return ""


# -- self-test ---------------------------------------------------------------------------------------------


def self_test() -> list[Step]:
    """Train, decode, and compare every decoding path of this machine with the reference."""
    steps: list[Step] = []
    begin = time.monotonic()

    def attempt(name: str, work: Callable[[], tuple[bool | None, str]]) -> None:
        started = time.monotonic()
        if started - begin > SECONDS:
            steps.append(Step(name, None, 0.0, f"The self-test has used up its {SECONDS:.0f} seconds."))
            return
        try:
            passed, sentence = work()
        except Exception as error:  # any error belongs in the report
            passed, sentence = False, f"{type(error).__name__}: {error}"
        steps.append(Step(name, passed, time.monotonic() - started, public(sentence)))

    with tempfile.TemporaryDirectory(prefix="clearhead-env-") as folder:
        run = Path(folder) / "run"
        sources = [source for source, _ in pairs("en-fr", 8)]
        attempt("train", lambda: _train(run))
        trained = steps[0].passed is True
        attempt("decode", lambda: _decode(run, sources, "cpu", "torch") if trained else UNTRAINED)
        attempt("C++ engine", lambda: _engine(run, sources) if trained else UNTRAINED)
        if cuda_works():
            attempt("GPU", lambda: _decode(run, sources, "cuda", "torch") if trained else UNTRAINED)
    return steps


UNTRAINED: tuple[bool | None, str] = (None, "There is no trained model to decode with.")


def _train(run: Path) -> tuple[bool, str]:
    corpus = run.with_name("pairs.tsv")
    corpus.write_text("".join(f"{a}\t{b}\n" for a, b in pairs("en-fr", 400)), encoding="utf-8")
    train(run, {"data": {"train": [{"file": str(corpus)}]}, **RECIPE}, view="quiet")
    records = read_log(RunFolder(run).training)
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    fell = losses[-1] < losses[0]
    how = "fell" if fell else "did not fall"
    return fell, f"The loss {how}: {losses[0]:.3f} before and {losses[-1]:.3f} after {STEPS} steps."


def _decode(run: Path, sources: Sequence[str], device: str, way: Way) -> tuple[bool, str]:
    """Compare the log-probabilities of the output with those of the reference model for the same texts."""
    options = Options(max_length=12)
    found = translate(load(run, device=torch.device(device)), sources, options, way=way)
    forced = score_ids(load(run), sources, [one.ids for one in found])
    apart = [abs(one.logp - other.logp) for one, other in zip(found, forced, strict=True)]
    worst = max(one if math.isfinite(one) else math.inf for one in apart)
    return worst < CLOSE, (
        f"{len(found)} texts; their log-probabilities differ from the reference's by at most {worst:.1e}."
    )


def _engine(run: Path, sources: Sequence[str]) -> tuple[bool | None, str]:
    reason = supports(load(run).model) or binding.why_not()
    return (None, reason) if reason is not None else _decode(run, sources, "cpu", "native")
