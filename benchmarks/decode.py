"""How fast models write: ours compared with CTranslate2, Hugging Face and every other toolkit installed.

    python benchmarks/decode.py [--rounds 5] [--threads N] [--peers FOLDER] [--only REGEX] [--cases REGEX]
    python benchmarks/decode.py --gpt2                      # a decoder with 124 million weights
    python benchmarks/decode.py --first                     # the first sentence from the start of a process
    python benchmarks/decode.py --file SOURCE --bundle BUNDLE [--reference TARGET]
    python benchmarks/decode.py --device cuda               # bf16 on a GPU
    python benchmarks/decode.py --instruction-set avx2      # as on a processor that has no more

Translators have the size of the Transformer base, with random weights; ours, CTranslate2's and Hugging Face's
are the same ones, exported, so that the table can say whose tokens equal ours. Sources have 25 tokens and the
end symbol, and exactly 32 tokens are written (a decoder gets 64 and writes 64; on a GPU 32, 64): the end
symbol is ruled out and the length limited. Ours then takes one more step, for the probability of the end
symbol, which the peers leave out, so with a beam another text may win. Each contender is a separate process;
all are started and warmed up, then visited in a new random order each round. A visit is several runs; the
first is not measured if runs are short. The tables give medians, best runs, and peak memory, reset before
each run. Compare only within one run, on an otherwise idle machine.

`--file` has each contender translate the lines of a file with beam 5, tokenisation included; the peers first
try several ways of batching on a part of it and use their fastest. `--first` and the column "from start"
measure the time from the start of a fresh process to its end; ours is then the command `clearhead translate`.

CTranslate2 and Hugging Face come from the environment that runs this. `--peers FOLDER` adds toolkits that
need separate environments: `FOLDER/sockeye`, `fairseq`, `onmt` and `joey` are virtual environments, and
`FOLDER/workers/sockeye_.py`, `fairseq_.py`, `onmt_.py` and `joey.py` scripts, run with FOLDER on their path,
that build a model of the same shape and speak the protocol of `decode_peers/wire.py`. `--models FOLDER` keeps
the exported models for the next time; `--quick` only shows that everything runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import sacrebleu
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))  # wherever this is loaded from

import clearhead
from clearhead.base.device import name_of_cpu
from decode_peers import contenders as who
from decode_peers import report, weights
from decode_peers.weights import DECODER, TRANSLATOR, Size, export, prepare
from decode_peers.wire import Contender, Job, Measured, Pace, measure, sentences, start

CASES = {
    "cpu": ("greedy-b1", "greedy-b32", "beam4-b1", "beam4-b32"),
    "cuda": ("greedy-b1", "greedy-b64", "greedy-b512", "beam4-b1", "beam4-b64", "beam4-b512"),
    "gpt2": ("greedy-b1", "greedy-b8"),
}
TELLING = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")  # instructions that matter here


def say(text: str) -> None:
    """What happens goes to standard error: standard output is for the tables alone."""
    print(text, file=sys.stderr, flush=True)


def machine(device: str, threads: int) -> str:
    """What the figures belong to."""
    if device == "cuda":
        where = torch.cuda.get_device_name()
    else:
        where = f"{name_of_cpu().split(',')[0]}, {os.cpu_count()} cores, {threads} threads{instructions()}"
    busy = f"load {os.getloadavg()[0]:.1f} when it began" if hasattr(os, "getloadavg") else ""
    return f"{where}; Python {platform.python_version()}, torch {torch.__version__}; {busy}"


def instructions() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    flags = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    return ", " + " ".join(flag for flag in TELLING if flag in flags)


def chosen(found: Sequence[Contender], only: str | None) -> list[Contender]:
    return [one for one in found if only is None or re.search(only, one.name)]


def compare(
    found: Sequence[Contender], cases: Sequence[str], pace: Pace, timeout: float, folder: Path
) -> Measured:
    """All contenders in all cases."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    processes, measured = start(found, logs, timeout, say)
    try:
        measure(processes, cases, pace, measured, say)
    finally:
        for process in processes:
            process.close()
    return measured


def fresh(commands: Mapping[str, Contender], rounds: int, failures: dict[str, str]) -> dict[str, list[float]]:
    """Seconds from the start of a process to its end, in a new order each round after an unmeasured one.

    Installed packages come compiled to bytecode; sources that run from a folder are compiled in the first
    round, and Python must be allowed to keep the result.
    """
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name in random.sample(list(commands), len(commands)):
            one = commands[name]
            began = time.perf_counter()
            done = subprocess.run(
                one.command, env={**surroundings, **one.environment}, capture_output=True, check=False
            )
            seconds = time.perf_counter() - began
            if done.returncode:
                words = done.stderr.decode(errors="replace").strip().splitlines()
                failures[f"{name}, from start"] = words[-1] if words else f"it ended with {done.returncode}"
            elif turn:
                times[name].append(seconds)
                say(f"{name:36} {seconds:6.2f} s")
    return {name: seconds for name, seconds in times.items() if seconds}


# -- the modes --------------------------------------------------------------------------------------


def lengths(options: argparse.Namespace) -> Job:
    """Ids of forced lengths."""
    given, new = (64, 64) if options.gpt2 else (32, 64) if options.device == "cuda" else (25, 32)
    cases = CASES["gpt2" if options.gpt2 else options.device]
    wanted = tuple(case for case in cases if options.cases is None or re.search(options.cases, case))
    return Job(
        task="ids",
        folder="",
        bundle="",
        device=options.device,
        threads=options.threads,
        cases=wanted,
        given=given,
        new=new,
        vocabulary=size_of(options).vocabulary,
    )


def size_of(options: argparse.Namespace) -> Size:
    size = DECODER if options.gpt2 else TRANSLATOR
    own = {name: getattr(options, name) for name in ("width", "layers", "vocabulary")}
    return replace(size, **{name: value for name, value in own.items() if value is not None})


def writing(options: argparse.Namespace, folder: Path) -> list[str]:
    """Tokens a second of texts of one length."""
    job, size = lengths(options), size_of(options)
    failed = prepare(size, folder)
    gpu = options.device == "cuda"
    found = who.own(who.GPU if gpu else who.CPU, job, folder, folder / "bundle")
    if options.peers and not gpu and size == TRANSLATOR:
        found += who.foreign(options.peers, options.threads)
    found = chosen(found, options.only)
    measured = compare(found, job.cases, pace_of(options), options.timeout, folder)
    measured.failures |= failed
    reference = "clearhead" if gpu else "clearhead float32"
    given = "prompt" if options.gpt2 else "source"
    return [
        f"{size.family}, width {size.width}, {size.layers} layers, vocabulary {size.vocabulary:,}; "
        f"{given} of {job.given} tokens, {job.new} written; {options.rounds} rounds",
        report.rates(measured, found, reference, "GPU memory" if gpu else "RSS"),
        report.ratios(measured, found),
        report.failures(measured),
        report.versions(measured),
    ]


def first(options: argparse.Namespace, folder: Path) -> list[str]:
    """The first sentence: a fresh process that loads a model, translates one line greedily, and ends."""
    size = size_of(options)
    failed = prepare(size, folder)
    [ids] = sentences(1, 25, size.vocabulary)
    line = folder / "line.txt"
    line.write_text(" ".join(f"w{id}" for id in ids) + "\n", encoding="utf-8")
    job = Job("text", "", "", threads=options.threads, source=str(line), limit=32, once=True)
    variables = who.threads_environment(options.threads)
    found = [Contender("import torch", "", (sys.executable, "-c", "import torch"), variables)]
    kinds = [*who.OURS, *who.CTRANSLATE2[::2], who.HUGGING_FACE[0]]
    found += who.own(kinds, job, folder, folder / "bundle")
    found = [who.command(one) if one.ours else one for one in found]
    commands = {one.name: one for one in chosen(found, options.only)}
    measured = Measured(failures=failed)
    times = fresh(commands, options.rounds, measured.failures)
    title = f"first sentence from the start of a process, {options.rounds} rounds"
    return [title, report.starts(times, "import torch", "× import torch"), report.failures(measured)]


def file(options: argparse.Namespace, folder: Path) -> list[str]:
    """A file of real lines, tokenisation included."""
    bundle = clearhead.load(options.bundle)
    failed = export(bundle, folder)
    source = options.file.resolve()
    job = Job(
        "text", "", "", device=options.device, threads=options.threads, source=str(source), beam=options.beam
    )
    # a cache of fixed size would be recompiled for each shape, so that contender is left out
    kinds = who.GPU[:2] if options.device == "cuda" else [who.EARLY, *who.CPU[:-1]]
    found = chosen(who.own(kinds, job, folder, options.bundle.resolve()), options.only)
    measured = compare(found, ("file",), pace_of(options), options.timeout, folder)
    again = {}
    for one in found:
        setting = measured.info.get(one.name, {}).get("setting")
        if setting is not None:
            once = replace(Job.parse(one.command[-1]), once=True, setting=setting)
            once_more = replace(one, command=(*one.command[:-1], once.line()))
            again[one.name] = who.command(once_more) if one.ours else once_more
    measured.failures |= failed
    whole = fresh(again, min(options.rounds, 3), measured.failures)
    bleu = {}
    if options.reference:
        targets = options.reference.read_text(encoding="utf-8").splitlines()
        for name, cell in measured.cells["file"].items():
            bleu[name] = sacrebleu.corpus_bleu(cell.runs[-1]["texts"], [targets]).score
    title = f"{source.name} ({len(job.lines()):,} lines), beam {options.beam}, {options.rounds} rounds"
    reference = "clearhead" if options.device == "cuda" else "clearhead float32"
    told = report.files(measured, found, whole, bleu, reference)
    return [title, told, report.failures(measured), report.versions(measured)]


def pace_of(options: argparse.Namespace) -> Pace:
    return Pace(options.rounds, pause=0.0 if options.quick else 0.3, quick=options.quick)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gpt2", action="store_true", help="a decoder instead of a translator")
    parser.add_argument("--first", action="store_true", help="the first sentence from the start of a process")
    parser.add_argument("--file", type=Path, help="translate the lines of this file")
    parser.add_argument("--bundle", type=Path, help="with this bundle")
    parser.add_argument("--reference", type=Path, help="the same lines translated, for BLEU")
    parser.add_argument("--beam", type=int, default=5, help="places of the beam with --file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of one run: does everything work?")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--instruction-set", choices=who.LIMITS, help="as if the processor had no more, for all contenders"
    )
    parser.add_argument("--only", metavar="REGEX", help="contenders")
    parser.add_argument("--cases", metavar="REGEX", help="cases, such as 'b1$' or beam")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="more toolkits (see above)")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="where models are kept for next time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one run may take")
    for name in ("width", "layers", "vocabulary"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args(arguments)
    if (options.file is None) != (options.bundle is None):
        parser.error("--file and --bundle belong together")
    if options.quick:
        options.rounds = 1
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    random.seed(0)
    mode = file if options.file else first if options.first else writing
    limits = who.LIMITS.get(options.instruction_set, {})
    os.environ.update(limits)  # the contenders' processes inherit it
    limited = f"; limited to {options.instruction_set}" if limits else ""
    print(f"{machine(options.device, options.threads)}{limited}\n", flush=True)
    with tempfile.TemporaryDirectory() as passing:
        folder = options.models / name_of(options) if options.models else Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        print("\n\n".join(filter(None, mode(options, folder.resolve()))))


def name_of(options: argparse.Namespace) -> str:
    """What a model is kept under; another one, or one made otherwise, has another name."""
    size = size_of(options)
    if options.file:
        made, name = options.bundle / "metadata.json", options.bundle.resolve().name
    else:
        made, name = Path(weights.__file__), f"{size.family}-{size.width}-{size.layers}-{size.vocabulary}"
    return f"{name}-{zlib.crc32(made.read_bytes()):08x}"


if __name__ == "__main__":
    main()
