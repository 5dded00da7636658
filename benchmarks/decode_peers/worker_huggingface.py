"""Hugging Face transformers as a contender, with a model that `clearhead.interop` exported.

Kinds: `float32` and `bf16`, as the library runs them by default; `int8`, weights quantised by PyTorch's own
`quantize_dynamic`; `static`, a cache of fixed size, which the library compiles by itself on a GPU; `compile`,
a cache of fixed size and `torch.compile`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
import transformers.pytorch_utils
from torch import nn
from torch.ao.quantization import quantize_dynamic

from decode_peers.lines import Translate, Vocabulary, by_length, full, put_back, serve_text
from decode_peers.wire import Answer, Cases, Job, sentences, serve, shape_of

SETTINGS = ("16", "32", "64")  # rows of a batch


def load(job: Job) -> Any:
    plain = json.loads((Path(job.folder) / "config.json").read_text(encoding="utf-8"))
    kind = getattr(transformers, plain["architectures"][0])
    half = job.kind == "bf16" or job.device.startswith("cuda")
    model = kind.from_pretrained(job.folder, dtype=torch.bfloat16 if half else torch.float32)
    model = model.to(job.device).eval()
    if job.kind == "int8":
        use_linear(model)
        model = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    if job.kind == "compile":
        model.forward = torch.compile(model.forward, dynamic=False)
    return model


def use_linear(model: nn.Module) -> None:
    """Plain linear maps in the place of GPT-2's transposed ones, which `quantize_dynamic` does not know."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, transformers.pytorch_utils.Conv1D):
                linear = nn.Linear(*child.weight.shape)
                linear.weight.data = child.weight.data.t().contiguous()
                linear.bias.data = child.bias.data
                setattr(parent, name, linear)


def more(job: Job) -> dict[str, Any]:
    return {"cache_implementation": "static"} if job.kind in ("static", "compile") else {}


def build_ids(job: Job) -> tuple[Cases, dict[str, Any]]:
    model = load(job)
    gpu = job.device.startswith("cuda")
    translates = model.config.is_encoder_decoder
    rows = sentences(job.rows(), job.given, job.vocabulary)
    if translates:
        rows = [[*row, model.generation_config.eos_token_id] for row in rows]
    given = torch.tensor(rows, device=job.device)
    begin = 1 if translates else job.given  # the result starts with the start symbol, or the prompt
    forced = {} if translates else {"min_new_tokens": job.new}

    @torch.inference_mode()
    def case(beam: int, batch: int) -> Answer:
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        ids = model.generate(
            input_ids=given[:batch],
            attention_mask=torch.ones_like(given[:batch]),
            num_beams=beam,
            do_sample=False,
            max_new_tokens=job.new,
            **forced,
            **more(job),
        )[:, begin:].tolist()
        assert all(len(one) == job.new for one in ids), [len(one) for one in ids]
        answer: Answer = {"units": batch * job.new, "ids": ids}
        if gpu:
            answer["rss"] = torch.cuda.max_memory_allocated() / 2**20
        return answer

    info = {"version": transformers.__version__, "torch": torch.__version__}
    return {name: partial(case, *shape_of(name)) for name in job.cases}, info


def load_text(job: Job) -> Translate:
    model, vocabulary = load(job), Vocabulary(job.bundle)
    pad, stop = model.generation_config.pad_token_id or 0, model.generation_config.eos_token_id

    @torch.inference_mode()
    def translate(lines: Sequence[str], setting: str) -> list[str]:
        numbers = full(lines)
        rows = [[*ids, stop] for ids in vocabulary.ids([lines[one] for one in numbers])]
        found: list[list[int]] = [[]] * len(rows)
        for group in by_length(rows, int(setting)):
            longest = len(rows[group[0]])
            table = torch.tensor([rows[one] + [pad] * (longest - len(rows[one])) for one in group])
            sizes = torch.tensor([len(rows[one]) for one in group])
            mask = (torch.arange(longest) < sizes[:, None]).long()
            ids = model.generate(
                input_ids=table.to(job.device),
                attention_mask=mask.to(job.device),
                num_beams=job.beam,
                do_sample=False,
                max_new_tokens=job.limit or 2 * longest + 20,
                **more(job),
            )
            for one, row in zip(group, ids[:, 1:].tolist(), strict=True):
                found[one] = row
        return put_back(numbers, vocabulary.texts(found), len(lines))

    return translate


def main() -> None:
    job = Job.read()
    torch.set_num_threads(job.threads)
    transformers.logging.set_verbosity_error()
    if job.task == "text":
        serve_text(job, lambda: load_text(job), SETTINGS, {"version": transformers.__version__})
    else:
        serve(lambda: build_ids(job))


if __name__ == "__main__":
    main()
