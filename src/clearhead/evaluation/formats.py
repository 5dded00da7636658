"""What other number formats cost a bundle: how far its scores drift, and the effect on the task's metric.

Measured on a bounded part of the validation set, chosen by size and not by time, so the same bundle always
has the same figures. `decoding.number_formats` uses them to decide which format `fast` selects.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from clearhead.bundle.folder import Bundle, tokenizers_of
from clearhead.data.batch import IGNORED
from clearhead.decoding.drift import Drift, forced
from clearhead.decoding.native import Dtype
from clearhead.decoding.number_formats import NATS
from clearhead.decoding.options import Options, positions_of
from clearhead.decoding.text_requests import translates
from clearhead.decoding.writer import Writer
from clearhead.evaluation.evaluate import EvaluationConfig, Judge, Rows, shown
from clearhead.evaluation.loss import batches_of
from clearhead.models.build import count_parameters

# A few seconds on two cores: this many multiply-adds, for each format and engine.
WORK = 1e11
FEWEST, MOST = 16, 200  # examples
LONGEST = 64  # tokens per text whose scores are compared
BATCH = 32  # texts decoded together

Item = TypeVar("Item")


class Text(NamedTuple):
    """One example as ids."""

    given: list[int]
    tokens: list[int]  # that follow
    labels: list[int]  # the same, except for those that are never predicted


def measure_formats(bundle: Bundle, rows: Rows, judge: Judge) -> dict[str, Any]:
    """The entry `formats` of a bundle's metadata; empty if the model writes no text.

    Compares with float32 the C++ engine's bf16 and int8 on a CPU, and bf16 if the model is on a GPU.
    """
    metric = judge.format_metric
    if metric is None or not rows:
        return {}
    some = _sample(bundle, rows)
    if not some:
        return {"metric": metric, "examples": 0, "unmeasured": "no example is short enough."}
    found: dict[str, Any] = {"metric": metric, "examples": len(some)}
    device = next(bundle.model.parameters()).device
    if device.type == "cuda":
        found["cuda"] = _compared(bundle, some, judge, ("bf16",))
    on_cpu = _here(bundle, torch.device("cpu"))
    why_not = Writer(on_cpu).why_not_native
    if why_not is None:
        found["cpu"] = _compared(on_cpu, some, judge, ("bf16", "int8"))
    else:
        found["unmeasured"] = f"The C++ engine cannot be used: {why_not}"
    return found


def _here(bundle: Bundle, device: torch.device) -> Bundle:
    """The bundle with its model in float32 on a device; a copy, if it is elsewhere."""
    weight = next(bundle.model.parameters())
    if (weight.device, weight.dtype) == (device, torch.float32):
        return bundle
    model = copy.deepcopy(bundle.model).to(device=device, dtype=torch.float32)
    return Bundle(model, bundle.tokenizer, bundle.metadata, bundle.source_tokenizer)


def _sample(bundle: Bundle, rows: Rows) -> list[tuple[str, str]]:
    """Examples spread evenly over the set, as many as a model of this size reads in a few seconds."""
    pairs = [(shown(source), target) for source, target in rows]
    some = _spread([row for row in pairs if row[1].strip()] or pairs, MOST)
    characters = sum(len(source) + len(target) for source, target in some) / len(some)
    some = _spread(some, _affordable(bundle, characters / 4))  # about four characters per token
    positions = positions_of(bundle.config)
    if positions is None or not translates(bundle):  # a language model reads a long text in parts
        return some
    tokenizers = tokenizers_of(bundle)
    return [
        row
        for row in some
        if all(len(one.encode(text)) + 2 <= positions for one, text in zip(tokenizers, row, strict=True))
    ]


def _affordable(bundle: Bundle, tokens: float) -> int:
    """How many examples of so many tokens are affordable."""
    return min(max(int(WORK / count_parameters(bundle.model) / max(tokens, 1.0)), FEWEST), MOST)


def _spread(items: list[Item], most: int) -> list[Item]:
    """At most so many, evenly spread."""
    count = min(most, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def _compared(bundle: Bundle, rows: Rows, judge: Judge, formats: Sequence[Dtype]) -> dict[str, Any]:
    """float32's metric; for each other format its metric, its cost, and the drift of its scores."""
    texts = _texts(bundle, rows)
    right = _metric(bundle, rows, judge, "float32")
    found: dict[str, Any] = {}
    for dtype in formats:
        drift, nats = _drift(bundle, texts, dtype)
        if judge.format_metric == NATS:
            right, value = nats
            cost = value - right
        else:
            value = _metric(bundle, rows, judge, dtype)
            cost = right - value
        found[dtype] = {
            "value": _number(value),
            "cost": _number(cost),
            "drift": _number(drift.per_token),
            "largest": _number(drift.largest),
            "same": _number(drift.share_same),
        }
    return {"float32": {"value": _number(right)}, **found}


def _texts(bundle: Bundle, rows: Rows) -> list[Text]:
    """What the model reads for each example, and what follows: the ids that its loss is computed from."""
    found = []
    for batch in batches_of(bundle, rows, batch_tokens=4096):
        for row in range(batch.rows):
            size = min(int(batch.lengths[row]), LONGEST)
            labels = batch.labels[row, :size].tolist()
            tokens = [*batch.inputs[row, 1:size].tolist(), labels[-1]]
            if batch.source is None:
                given = batch.inputs[row, :1].tolist()
            else:
                assert batch.source_lengths is not None
                given = batch.source[row, : int(batch.source_lengths[row])].tolist()
            if labels[-1] == IGNORED:  # nothing to predict
                labels, tokens = labels[:-1], tokens[:-1]
            found.append(Text(given, tokens, labels))
    return _spread(found, MOST if translates(bundle) else _affordable(bundle, LONGEST))


def _drift(bundle: Bundle, texts: list[Text], dtype: Dtype) -> tuple[Drift, tuple[float, float]]:
    """The scores of a format compared with float32's, and the nats per token of both."""
    drift, nats, tokens = Drift(), [0.0, 0.0], 0
    both = [Writer(bundle, dtype=one).rows(Options()) for one in ("float32", dtype)]
    for begin in range(0, len(texts), BATCH):
        given, written, labels = zip(*texts[begin : begin + BATCH], strict=True)
        walks = zip(*(forced(rows, given, written) for rows in both), strict=True)
        for at, ((going, exact), (_, other)) in enumerate(walks):
            predicted = [row for row, number in enumerate(going) if labels[number][at] != IGNORED]
            wanted = torch.tensor([[labels[going[row]][at]] for row in predicted], dtype=torch.long)
            scores = [one.logp().cpu()[predicted] for one in (exact, other)]
            drift.add(scores[1], scores[0])
            for side in (0, 1):
                nats[side] -= float(scores[side].gather(1, wanted).sum())
            tokens += len(predicted)
    return drift, (nats[0] / max(tokens, 1), nats[1] / max(tokens, 1))


def _metric(bundle: Bundle, rows: Rows, judge: Judge, dtype: Dtype) -> float:
    """The metric of texts written in a format; a language model is measured by its scores."""
    if judge.format_metric is None or judge.format_metric == NATS:
        return math.nan
    return judge(bundle, rows, EvaluationConfig(dtype=dtype, loss=False)).metrics[judge.format_metric]


def _number(value: float) -> float | None:
    """As stored: six digits are more than the figures justify; None for a non-finite number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
