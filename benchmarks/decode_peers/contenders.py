"""What is compared: our own engines and the peers, each with the command that starts its process."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from decode_peers.wire import Contender, Job

BENCHMARKS = Path(__file__).resolve().parents[1]


class Own(NamedTuple):
    """A contender with a worker in this folder."""

    name: str
    worker: str
    kind: str  # the worker's setting
    computes: str  # float32, bf16 or int8
    folder: str  # next to the bundle
    needs: str = "clearhead"
    environment: dict[str, str] = {}  # noqa: RUF012 (never changed)


_ONEDNN = {"CT2_USE_MKL": "0"}
OURS = [
    Own("clearhead int8", "worker_ours", "int8", "int8", "bundle"),
    Own("clearhead bf16", "worker_ours", "bf16", "bf16", "bundle"),
    Own("clearhead float32", "worker_ours", "float32", "float32", "bundle"),
    Own("clearhead float32, plain PyTorch", "worker_ours", "torch", "float32", "bundle"),
]
# For a file: a line is done once its beam has ended, as in CTranslate2.
EARLY = Own("clearhead int8, early stopping", "worker_ours", "int8-early", "int8", "bundle")
CTRANSLATE2 = [
    Own("CTranslate2 int8", "worker_ctranslate2", "int8", "int8", "ct2-int8", "ctranslate2"),
    Own("CTranslate2 int8, oneDNN", "worker_ctranslate2", "int8", "int8", "ct2-int8", "ctranslate2", _ONEDNN),
    Own("CTranslate2 float32", "worker_ctranslate2", "float32", "float32", "ct2-float32", "ctranslate2"),
    Own(
        "CTranslate2 float32, oneDNN", "worker_ctranslate2", "float32", "float32", "ct2-float32",
        "ctranslate2", _ONEDNN,
    ),
]  # fmt: skip
HUGGING_FACE = [
    Own("Hugging Face float32", "worker_huggingface", "float32", "float32", "hf", "transformers"),
    Own("Hugging Face, dynamic int8", "worker_huggingface", "int8", "int8", "hf", "transformers"),
    Own(
        "Hugging Face float32, static cache, compiled", "worker_huggingface", "compile", "float32", "hf",
        "transformers",
    ),
]  # fmt: skip
GPU = [
    Own("clearhead", "worker_ours", "cuda", "bf16", "bundle"),
    Own("Hugging Face", "worker_huggingface", "bf16", "bf16", "hf", "transformers"),
    Own("Hugging Face, static cache", "worker_huggingface", "static", "bf16", "hf", "transformers"),
    Own(
        "Hugging Face, static cache, compiled", "worker_huggingface", "compile", "bf16", "hf", "transformers"
    ),
]
CPU = [*OURS, *CTRANSLATE2, *HUGGING_FACE]

# Toolkits with separate environments: name, number format, environment, script and its arguments.
FOREIGN = [
    ("Sockeye int8", "int8", "sockeye", "sockeye_.py", ("translate", "int8")),
    ("Sockeye float32", "float32", "sockeye", "sockeye_.py", ("translate", "float32")),
    ("fairseq", "float32", "fairseq", "fairseq_.py", ("translate",)),
    ("OpenNMT-py", "float32", "onmt", "onmt_.py", ("translate",)),
    ("Joey NMT", "float32", "joey", "joey.py", ("translate",)),
]


def threads_environment(threads: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
        "HF_HUB_OFFLINE": "1",
    }


# What keeps every library from using more of the processor than an instruction set.
LIMITS = {
    "avx2": {
        "CLEARHEAD_INSTRUCTION_SET": "avx2",
        "CT2_FORCE_CPU_ISA": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2",  # dynamic int8
    }
}


def own(found: Sequence[Own], job: Job, folder: Path, bundle: Path) -> list[Contender]:
    """Those whose package is installed and whose model is there, ready to be started."""
    ready = []
    for one in found:
        model = bundle if one.folder == "bundle" else folder / one.folder
        if importlib.util.find_spec(one.needs) is None or not model.exists():
            continue
        told = replace(job, folder=str(model), bundle=str(bundle), kind=one.kind)
        ready.append(contender(one, told))
    return ready


def contender(one: Own, job: Job) -> Contender:
    command = (sys.executable, "-m", f"decode_peers.{one.worker}", job.line())
    path = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**threads_environment(job.threads), "PYTHONPATH": path, **one.environment}
    return Contender(one.name, one.computes, command, environment, ours=one.worker == "worker_ours")


# Our name here → arguments of `clearhead translate`
_TOLD = {
    "float32": ("--dtype", "float32", "--way", "native"),
    "bf16": ("--dtype", "bf16", "--way", "native"),
    "int8": ("--dtype", "int8", "--way", "native"),
    "int8-early": ("--dtype", "int8", "--way", "native", "--early-stopping", "true"),
    "torch": ("--dtype", "float32", "--way", "torch"),
    "cuda": ("--dtype", "bf16"),
}


def command(one: Contender) -> Contender:
    """The same work, done by our command as a user types it."""
    job = Job.parse(one.command[-1])
    limit = () if job.limit is None else ("--max-length", str(job.limit))
    words = (sys.executable, "-m", "clearhead", "translate", job.folder, "--input", job.source)
    settings = ("--beam", str(job.beam), "--device", job.device, "--threads", str(job.threads))
    return replace(one, command=(*words, *settings, *limit, *_TOLD[job.kind]))


def foreign(folder: Path, threads: int) -> list[Contender]:
    """Those that a folder has both an environment and a script for."""
    ready = []
    for name, kind, environment, script, arguments in FOREIGN:
        python, worker = folder / environment / "bin" / "python", folder / "workers" / script
        if not python.exists() or not worker.exists():
            continue
        variables = {
            **threads_environment(threads),
            "PEER_THREADS": str(threads),
            "PYTHONPATH": str(folder),
            "TOKENIZERS_PARALLELISM": "false",
        }
        ready.append(Contender(name, kind, (str(python), str(worker), *arguments), variables))
    return ready
