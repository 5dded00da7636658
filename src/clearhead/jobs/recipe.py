"""From the user's settings and sizing's choices to one complete config.

Users set little: a recipe file, a few `--set a.b=c`. The rest is chosen.
Every value is printed with its origin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from clearhead.base.errors import UserError
from clearhead.base.settings import flat, read_table
from clearhead.tasks import task_named
from clearhead.training.config import TrainConfig
from clearhead.training.sizing import FILLED, Choice, as_table, looks

Table = dict[str, Any]

YOURS = "your setting"
# the settings of a recipe that name corpora, whose files are relative to a data folder
_FILES = ("source", "target", "file")


def merged(*tables: Mapping[str, Any]) -> Table:
    """Merge nested tables; the last one wins.

    >>> merged({"model": {"width": 64, "layers": 2}}, {"model": {"layers": 4}})
    {'model': {'width': 64, 'layers': 4}}
    """
    whole: Table = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(value, Mapping) and isinstance(whole.get(key), dict):
                whole[key] = merged(whole[key], value)
            else:
                whole[key] = merged(value) if isinstance(value, Mapping) else value
    return whole


def nested(settings: Mapping[str, Any]) -> Table:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`, refusing paths that contradict each other."""
    table: Table = {}
    for path, value in settings.items():
        *parts, last = path.split(".")
        inner = table
        for part in parts:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise UserError(
                    f"The setting '{path}' contradicts another one: '{part}' already has a value."
                )
        if isinstance(inner.get(last), dict):
            raise UserError(
                f"The setting '{path}' contradicts another one: it already has settings inside it."
            )
        inner[last] = value
    return table


def read_recipe(path: Path, data: Path | None = None) -> Table:
    """A recipe file's table; the files it names are looked for in `data`, or next to the recipe.

    A file that exists as written, relative to the working folder, is used as it is.
    """
    table = read_table(path)
    plain = table.get("data")
    if isinstance(plain, dict):
        corpora = [plain.get("validation"), plain.get("test")]
        train = plain["train"] if isinstance(plain.get("train"), list) else []
        corpora += train
        own = [one for one in train if isinstance(one, dict)]
        corpora += [one.get(name) for one in own for name in ("validation", "test")]
        for corpus in corpora:
            if isinstance(corpus, dict):
                for key in _FILES:
                    if isinstance(corpus.get(key), str):
                        corpus[key] = _found(corpus[key], data or path.parent)
    start = table.get("start")
    if isinstance(start, dict) and isinstance(start.get("base"), str):
        start["base"] = _found(start["base"], data or path.parent)
    return table


def _found(name: str, folder: Path) -> str:
    if Path(name).is_absolute() or Path(name).exists():
        return name
    return str(folder / name)


def compose(
    choices: Sequence[Choice],
    said: Table,
    vocabulary: Mapping[str, int | None],
    model: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """The whole config: the user's settings override what was chosen, which overrides the defaults.

    `vocabulary` holds the sizes of the trained tokenizers, which no setting can override. `model` are the
    settings of a base, which replace the defaults.
    """
    base = {} if model is None else {"model": model}
    if table_in(table_in(said, "model"), "feedforward").get("kind", "dense") != "dense":
        choices = [one for one in choices if one.name != "model.feedforward.width"]  # a dense one's
    for name, size in vocabulary.items():
        wanted = table_in(said, "model").get(name)
        if wanted is not None and size is None:
            raise UserError(
                f"model.{name}={wanted} cannot be used: the tokenizer is shared. Set tokenizer.shared=false."
            )
        if wanted is not None and wanted != size:
            raise UserError(
                f"model.{name}={wanted} cannot be used: the tokenizer has {size} tokens. "
                "Set tokenizer.vocabulary."
            )
    table = merged(base, as_table(choices), said, {"model": dict(vocabulary)})
    schedule = table.setdefault("schedule", {})
    if isinstance(schedule, dict) and "steps" not in table_in(said, "schedule"):
        schedule["steps"] = table.get("steps", TrainConfig().steps)
        warmup = schedule.get("warmup", 0)
        if isinstance(warmup, int) and "warmup" not in table_in(said, "schedule"):
            steps = schedule["steps"]
            schedule["warmup"] = min(warmup, max(steps // 4, 1)) if isinstance(steps, int) else warmup
    if "steps" in said and "every" not in table_in(said, "validation") and isinstance(table["steps"], int):
        table.setdefault("validation", {})["every"] = looks(table["steps"])
    return TrainConfig.from_dict(table)


def packs(config: TrainConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a run's batches may be packed in one shape: if a GPU's packed kernels support its model.

    Other devices handle packed tokens too, but more slowly than padded rows of similar length. A long text is
    cut into rows that are full anyway.
    """
    model, attention = config.model, config.model.attention
    plain = attention.kind == "multihead" and attention.kernel == "auto" and not model.layer_pattern
    whole = attention.dropout == 0 and attention.softcap is None and attention.score in ("dot", "scaled_dot")
    there = model.position.name in ("none", "sinusoidal", "learned", "rotary")
    there = there and not task_named(config.task).columns.is_stream
    half = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    known = model.family in ("encoder-decoder", "encoder", "decoder")
    return half and plain and whole and there and known and config.batch.shapes == "fixed"


def laid_out(
    choices: Sequence[Choice], said: Table, config: TrainConfig, device: torch.device, dtype: torch.dtype
) -> list[Choice]:
    """The choices with packed batches, if these pay off and the user has not set batch size or layout.

    A batch then holds as many real tokens as a padded one of the size chosen before.
    """
    batch = said.get("batch")
    told = isinstance(batch, dict) and ("layout" in batch or "tokens" in batch)
    if told or not packs(config, device, dtype):
        return list(choices)
    tokens = max(256, int(FILLED * config.batch.tokens) // 256 * 256)
    kept = [choice._replace(value=tokens) if choice.name == "batch.tokens" else choice for choice in choices]
    return [*kept, Choice("batch.layout", "packed", "no computation is spent on padding")]


def padded_if_need_be(config: TrainConfig, device: torch.device, dtype: torch.dtype) -> TrainConfig:
    """A recipe that packs into one shape does so only if the kernels support it; otherwise it pads."""
    shaped = config.batch.layout == "packed" and config.batch.shapes == "fixed"
    if not shaped or packs(config, device, dtype):
        return config
    return config.replace(batch__layout="padded")


def explained(choices: Sequence[Choice], said: Table, config: TrainConfig) -> list[Choice]:
    """What is printed: every choice with its final value, and every setting of the user."""
    own = flat(said)
    final = flat(config.to_dict())
    found = []
    for choice in choices:
        value = final.get(choice.name, choice.value)
        if choice.name in own:
            reason = YOURS
        elif value == choice.value:
            reason = choice.reason
        else:
            reason = "follows from your settings"
        found.append(Choice(choice.name, value, reason))
    named = {choice.name for choice in choices}
    for name, value in own.items():
        if name in named or name not in final or name.startswith("data."):
            continue
        if isinstance(value, list) and value and isinstance(value[0], Mapping):  # rules of a pattern
            rules = {f"{name}.{number}": rule for number, rule in enumerate(value)}
            found += [Choice(path, inner, YOURS) for path, inner in flat(rules).items()]
        else:
            found.append(Choice(name, final[name], YOURS))
    return found


def table_in(said: Mapping[str, Any], name: str) -> Table:
    """A table inside another; empty if it is missing or not a table."""
    inner = said.get(name)
    return inner if isinstance(inner, dict) else {}
