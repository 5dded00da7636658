"""clearhead as a contender: the engine on made-up ids, or a `Writer` on lines of text.

Everything that depends on our decoding's interface is in the first three functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import clearhead
from clearhead.decoding.backend import Request
from clearhead.decoding.options import Options, limit_of
from clearhead.decoding.writer import Writer
from decode_peers.lines import Translate, serve_text
from decode_peers.wire import Answer, Cases, Job, sentences, serve, shape_of

# A contender's name here → arguments of a writer
KINDS = {
    "float32": {"dtype": "float32", "way": "native"},
    "bf16": {"dtype": "bf16", "way": "native"},
    "int8": {"dtype": "int8", "way": "native"},
    "int8-early": {"dtype": "int8", "way": "native"},
    "torch": {"dtype": "float32", "way": "torch"},
    "cuda": {"dtype": "bf16"},
}


def load_writer(job: Job) -> Writer:
    """As the command `clearhead translate` loads it: weights stay in their file for the C++ engine."""
    told = KINDS[job.kind]
    bundle = clearhead.load(Path(job.folder), mapped=told.get("way") == "native")
    room = max((beam * batch for beam, batch in map(shape_of, job.cases)), default=None)
    return Writer(bundle, device=job.device, room=room, **told)


def write_ids(writer: Writer, given: Sequence[Sequence[int]], options: Options) -> list[list[int]]:
    """All at once: there is room for every row."""
    limits = [limit_of(writer.config, len(ids), options.max_length) for ids in given]
    asked = [Request(tuple(ids), limit, options) for ids, limit in zip(given, limits, strict=True)]
    found = dict(writer.engine.run(asked))
    return [list(found[number][0].ids) for number in range(len(given))]


def write_lines(writer: Writer, lines: Sequence[str], job: Job) -> list[str]:
    options = Options(beam=job.beam, max_length=job.limit)
    if job.kind.endswith("-early"):
        options = options.replace(early_stopping=True)
    return [found[0].text for found in writer.in_order(lines, options)]


def build_ids(job: Job) -> tuple[Cases, dict[str, Any]]:
    writer = load_writer(job)
    gpu = job.device.startswith("cuda")
    given = sentences(job.rows(), job.given, job.vocabulary)
    # A translator with these weights never stops by itself; a decoder has no bias that would ensure it.
    shortest = 0 if writer.has_source else job.new
    if writer.has_source:
        given = [[*ids, writer.symbols.stop] for ids in given]

    def case(beam: int, batch: int) -> Answer:
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        options = Options(beam=beam, min_length=shortest, max_length=job.new)
        ids = write_ids(writer, given[:batch], options)
        assert all(len(one) == job.new for one in ids), [len(one) for one in ids]
        answer: Answer = {"units": batch * job.new, "ids": ids}
        if gpu:
            answer["rss"] = torch.cuda.max_memory_allocated() / 2**20
        return answer

    engine = type(writer.engine.lanes[0].backend).__name__
    info = {"version": clearhead.__version__, "torch": torch.__version__, "engine": engine}
    return {name: partial(case, *shape_of(name)) for name in job.cases}, info


def load_text(job: Job) -> Translate:
    writer = load_writer(job)
    return lambda lines, setting: write_lines(writer, lines, job)


def main() -> None:
    job = Job.read()
    torch.set_num_threads(job.threads)
    if job.task == "text":
        serve_text(job, lambda: load_text(job), [job.kind], {"version": clearhead.__version__})
    else:
        serve(lambda: build_ids(job))


if __name__ == "__main__":
    main()
