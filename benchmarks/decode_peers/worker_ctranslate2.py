"""CTranslate2 as a contender, with a model that `clearhead.interop` exported. PyTorch is not loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2

from decode_peers.lines import Translate, Vocabulary, full, put_back, serve_text
from decode_peers.wire import Answer, Cases, Job, sentences, serve, shape_of

# parallel translators × threads of each, and the batch size: one batch on all cores, or one per core
SETTINGS = ("all 32 examples", "all 64 examples", "all 2048 tokens", "each 32 examples", "each 2048 tokens")


def names(folder: str, side: str) -> list[str]:
    """The tokens of a side, by id."""
    for file in (f"{side}_vocabulary.json", "shared_vocabulary.json", "vocabulary.json"):
        path = Path(folder) / file
        if path.exists():
            found: list[str] = json.loads(path.read_text(encoding="utf-8"))
            return found
    raise FileNotFoundError(f"no vocabulary in {folder}")


def load(job: Job, kind: Any, side_by_side: int = 1) -> Any:
    return kind(
        job.folder,
        device=job.device,
        compute_type=job.kind,
        inter_threads=side_by_side,
        intra_threads=max(job.threads // side_by_side, 1),
    )


def build_ids(job: Job) -> tuple[Cases, dict[str, Any]]:
    decodes_only = (Path(job.folder) / "vocabulary.json").exists()
    engine = load(job, ctranslate2.Generator if decodes_only else ctranslate2.Translator)
    words, written = names(job.folder, "source"), names(job.folder, "target")
    number = {token: id for id, token in enumerate(written)}
    given = [[words[id] for id in row] for row in sentences(job.rows(), job.given, job.vocabulary)]

    def case(beam: int, batch: int) -> Answer:
        if decodes_only:
            found = engine.generate_batch(
                given[:batch],
                beam_size=beam,
                sampling_topk=1,
                include_prompt_in_result=False,
                min_length=job.new,
                max_length=job.new,
            )
            texts = [one.sequences[0] for one in found]
        else:
            found = engine.translate_batch(given[:batch], beam_size=beam, max_decoding_length=job.new)
            texts = [one.hypotheses[0] for one in found]
        assert all(len(one) == job.new for one in texts), [len(one) for one in texts]
        return {"units": batch * job.new, "ids": [[number[token] for token in one] for one in texts]}

    info = {"version": ctranslate2.__version__, "computes": engine.compute_type}
    return {name: partial(case, *shape_of(name)) for name in job.cases}, info


def load_text(job: Job) -> Translate:
    """Both ways to use the cores are loaded only where they are compared."""
    vocabulary = Vocabulary(job.bundle)
    words, written = names(job.folder, "source"), names(job.folder, "target")
    number = {token: id for id, token in enumerate(written)}
    ready: dict[str, Any] = {}

    def translate(lines: Sequence[str], setting: str) -> list[str]:
        cores, size, unit = setting.split()
        if cores not in ready:
            ready.clear()
            ready[cores] = load(job, ctranslate2.Translator, job.threads if cores == "each" else 1)
        numbers = full(lines)
        rows = vocabulary.ids([lines[one] for one in numbers])
        found = ready[cores].translate_batch(
            [[words[id] for id in row] for row in rows],
            beam_size=job.beam,
            max_batch_size=int(size),  # it sorts by length itself
            batch_type=unit,
            max_decoding_length=job.limit or 2 * max(map(len, rows)) + 20,
        )
        ids = [[number[token] for token in one.hypotheses[0]] for one in found]
        return put_back(numbers, vocabulary.texts(ids), len(lines))

    return translate


def main() -> None:
    job = Job.read()
    if job.task == "text":
        settings = SETTINGS if job.threads > 1 else SETTINGS[:3]
        serve_text(job, lambda: load_text(job), settings, {"version": ctranslate2.__version__})
    else:
        serve(lambda: build_ids(job))


if __name__ == "__main__":
    main()
