"""Rejects what cannot be trained, before the corpus is read.

Each config checks its own settings. Here they are checked together: with the task, the device and its memory.
What the user did not set is chosen from the corpus, which has not been read yet. So settings are tried with
what would be chosen for a small corpus, for a larger one, and so on; they are refused only if none would
work, and checked again once the choice is made.
"""

from __future__ import annotations

import torch

from clearhead.base.device import check_threads, memory_of, pick_device, pick_dtype
from clearhead.base.errors import UserError
from clearhead.data.config import PICTURE_SETTINGS, DataConfig
from clearhead.data.encoding import Answers, Encoder, Encoding, Tokenizers, tokenise
from clearhead.data.findings import Survey
from clearhead.data.ragged import Ragged
from clearhead.data.read import name_of
from clearhead.data.split import TRAIN, VALIDATION, rows_with_fate
from clearhead.jobs.prepare import lenient
from clearhead.jobs.recipe import Table, compose, merged, table_in
from clearhead.jobs.start import Base
from clearhead.jobs.validate import check_metric
from clearhead.models.build import build, count_parameters
from clearhead.models.config import NO_TRANSFORMERS, ModelConfig
from clearhead.nn.attention import AttentionConfig
from clearhead.nn.experts import Experts, ExpertsConfig
from clearhead.planner.layout import Layout
from clearhead.planner.report import bytes_in_words
from clearhead.tasks import Task, task_named
from clearhead.text.learn import TokenizerConfig
from clearhead.training.config import TrainConfig
from clearhead.training.sizes import SIZES, Asked
from clearhead.training.sizing import Facts, Machine, PictureFacts, as_table, choose
from clearhead.training.step import Precision

NUMBERS_FOR_A_WEIGHT = 4  # itself, its gradient, and Adam's two moments, all in float32
NO_VALIDATION = "There is no validation example: give validation files, or set data.split.validation."
SMALLEST_VOCABULARY = 300  # about that of the smallest corpus


def check_settings(said: Table, base: Base | None = None) -> TrainConfig:
    """Refuse what cannot be trained with any corpus; settings not given have a provisional value."""
    if "compare" in said:
        raise UserError("These settings compare several models: use `clearhead compare`, not `train`.")
    TrainConfig.check_names(said)
    plain: Table = {name: said[name] for name in ("task", "seed", "compute") if name in said}
    early = TrainConfig.from_dict(plain)
    check_threads(early.compute.threads)
    device = pick_device(early.compute.device)
    pick_dtype(early.compute.dtype, device)
    task = task_named(early.task)
    data = DataConfig.from_dict(table_in(merged(as_table(task.defaults), said), "data"), "data")
    for name in PICTURE_SETTINGS:
        if getattr(data, name) is not None and not task.columns.pictures:
            raise UserError(f"data.{name} only applies to the task 'image': leave it out.")
    head = task.family(family_of(said, base)).head
    kind = table_in(table_in(said, "model"), "head").get("kind", head)
    if kind != head:
        raise UserError(f"The task '{task.name}' needs model.head.kind={head}, not {kind}: leave it out.")
    if not data.held_out("validation") and data.split.validation == 0:
        raise UserError(NO_VALIDATION)
    if "vocabulary" in table_in(said, "tokenizer"):
        TokenizerConfig.from_dict(table_in(said, "tokenizer"), "tokenizer")
    failure: UserError | None = None
    for size in SIZES:
        try:
            config = _tried(said, task, data, int(min(size.tokens, 10**9)), device, base)
            check_together(config, device)
            return config
        except UserError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def family_of(said: Table, base: Base | None = None) -> str | None:
    """The model family that the user, or the base, asks for."""
    family = table_in(said, "model").get("family")
    if base is not None:
        return base.family.name
    return family if isinstance(family, str) else None


def _tried(
    said: Table, task: Task, data: DataConfig, tokens: int, device: torch.device, base: Base | None
) -> TrainConfig:
    """The run as it would be for a corpus of this many tokens."""
    model, tokenizer = table_in(said, "model"), table_in(said, "tokenizer")
    size = model.get("vocabulary") or min(
        tokenizer.get("vocabulary", SMALLEST_VOCABULARY), SMALLEST_VOCABULARY
    )
    columns, classes = task.columns, table_in(model, "head").get("classes")
    apart = tokenizer.get("shared") is False and columns.has_texts
    sizes: dict[str, int | None] = {
        "vocabulary": size,
        "source_vocabulary": model.get("source_vocabulary") or size if apart else None,
    }
    if base is not None:
        sizes = base.sizes()
    image = table_in(model, "image")
    side = image["size"] if isinstance(image.get("size"), int) and 0 < image["size"] <= 4096 else 28
    facts = Facts(
        max(tokens // 20, 50),
        0 if columns.is_stream else tokens,
        tokens if columns.writes else 0,
        sizes["vocabulary"] or size,
        sizes["source_vocabulary"],
        (classes if isinstance(classes, int) else 2) if columns.has_labels else 0,
        picture=PictureFacts.of(1, side, side, image.get("patch")) if columns.pictures else None,
    )
    demand = task.sized(facts, family_of(said, base), data.two)
    machine = Machine(device.type == "cuda", None)
    if base is not None:
        return compose(
            [*task.defaults, *base.choices(demand, machine, said)], said, sizes, base.model(data.two)
        )
    return compose([*task.defaults, *choose(demand, machine, Asked.of(said))], said, sizes)


def check_together(config: TrainConfig, device: torch.device) -> None:
    """Refuse a run whose parts do not work together, on this device, or do not fit its memory."""
    task = task_named(config.task)
    for attention in [] if config.model.family in NO_TRANSFORMERS else config.model.attentions:
        _check_kernel(attention, device)
    if config.compute.graphs and device.type != "cuda":
        raise UserError(
            f"compute.graphs=true needs a CUDA device, but this run is on '{device}': leave it out."
        )
    check_metric(config, task)
    if config.model.head.kind == "mlm" and config.batch.layout == "packed":
        raise UserError(
            "Chunks of a long text all have the same length, so there is nothing to pack: leave "
            "batch.layout out."
        )
    if task.columns.is_stream:
        _refuse_short(config.model, config.batch.context, config.batch.context, "batch.context is")
    if (stride := config.test.stride) is not None:
        if not task.judge.has_windows:
            raise UserError(f"test.stride is for language models: leave it out of the task '{task.name}'.")
        if stride > config.batch.context:
            raise UserError(
                f"Windows of {config.batch.context} tokens (batch.context) need a test.stride of at most "
                f"as many; it is {stride}."
            )
    _check_experts(config, device)
    parameters = _parameters(config.model)
    copies = NUMBERS_FOR_A_WEIGHT + bool(config.averaging.ema)
    needed, there = 4 * copies * parameters, memory_of(device)
    if there is not None and needed > there:
        place = "this machine" if device.type == "cpu" else f"'{device}'"
        raise UserError(
            f"Training this model takes at least {bytes_in_words(needed)} of memory for its {parameters:,} "
            f"parameters, and {place} has {bytes_in_words(there)}: make it smaller "
            f"(model.width={config.model.width}, model.layers={config.model.layers}, "
            f"model.feedforward.width, tokenizer.vocabulary)."
        )


def check_layout(config: TrainConfig, layout: Layout) -> None:
    """Refuse a model or an optimiser that these ranks cannot share in this way."""
    if layout.shards and (config.start.lora.rank or config.start.freeze):
        raise UserError(
            "Frozen weights and LoRA cannot be sharded over ranks: use compute.layout=ddp, or leave "
            "start.lora and start.freeze out."
        )
    if layout.fsdp * layout.tp > 1 and config.optimiser.name == "muon":
        raise UserError(
            f"Muon needs whole matrices, and the layout '{layout}' splits them: use optimiser.name=adamw, or "
            "a layout of ddp and ep."
        )
    if layout.tp * layout.ep > 1:
        from clearhead.training.distributed import expert_parallel, tensor_parallel  # slow, rarely needed

        model = build(config.model, device="meta")
        if layout.tp > 1:
            tensor_parallel.refuse_tensor_parallel(model, layout)
        if layout.ep > 1:
            expert_parallel.refuse_expert_parallel(model, layout)


def _check_experts(config: TrainConfig, device: torch.device) -> None:
    """Refuse routers that would learn nothing, losses with two weights, and products that do not exist."""
    model, weights = config.model, dict[str, float]()
    for one in (model.feedforward, *(rule.feedforward for rule in model.layer_pattern)):
        if not isinstance(one, ExpertsConfig):
            continue
        if one.chosen == 1 < one.experts and one.normalise:
            raise UserError(
                "feedforward.chosen=1 and feedforward.normalise=true cannot work together: the one expert's "
                "weight is always 1, so the router learns nothing. Set feedforward.normalise=false."
            )
        for name in ("balance_loss", "z_loss"):
            weight = getattr(one, name)
            if weight and weights.setdefault(name, weight) != weight:
                raise UserError(
                    f"feedforward.{name}={weights[name]} and {name}={weight} in model.layer_pattern cannot "
                    "work together: the layers add to one loss. Give it one weight."
                )
        if one.dispatch == "grouped":
            dtype = Precision.chosen(config.compute.dtype, device, model.width).dtype
            x = torch.empty(1, dtype=dtype, device=device)
            with torch.device("meta"):
                net = Experts(model.width, one)
            net.dispatch(x, x.expand(1, one.inner(model.width), model.width))


def _check_kernel(attention: AttentionConfig, device: torch.device) -> None:
    kernel = attention.kernel
    if kernel in ("flex", "varlen") and device.type != "cuda":
        raise UserError(
            f"model.attention.kernel={kernel} needs a CUDA device, but this run is on '{device}': use "
            "kernel 'auto', or another device."
        )
    if kernel == "varlen":
        raise UserError(
            "model.attention.kernel=varlen only supports packed tokens, but validation batches are "
            "padded: use kernel 'auto', which uses varlen wherever it can."
        )
    if kernel == "flex" and attention.dropout:
        raise UserError(
            "model.attention.kernel=flex does not support dropout: use kernel 'auto', or set "
            "model.attention.dropout=0."
        )


def _parameters(config: ModelConfig) -> int:
    """The number of parameters, counted with three layers at most: thousands would take long to build."""
    if config.layer_pattern:  # layers differ
        return count_parameters(config)

    def count(layers: int, written: int) -> int:
        return count_parameters(config.replace(layers=layers, decoder_layers=written))

    layers, written = config.layers, config.depth_of_decoder
    few = min(layers, 2), min(written, 2)  # from the second on, all layers are the same size
    found = least = count(*few)
    if layers > 2:
        found += (layers - 2) * (count(3, few[1]) - least)
    if written > 2:
        found += (written - 2) * (count(few[0], 3) - least)
    return found


def check_labels(config: TrainConfig, found: Survey) -> None:
    """Refuse a number of classes that is not the corpus's, and losses that support only one tag per word."""
    head, objective = config.model.head, config.objective
    if found.labels and head.classes != len(found.labels):
        raise UserError(
            f"model.head.classes={head.classes} cannot be used: the training text has "
            f"{len(found.labels)} labels. Leave it out."
        )
    if found.labels and head.columns != found.tag_columns:
        raise UserError(
            f"model.head.columns={list(head.columns)} cannot be used: the tags of the training text are "
            f"{list(found.tag_columns)} by column. Leave it out."
        )
    if head.columns and (objective.label_smoothing or objective.consistency):
        raise UserError(
            "Label smoothing and consistency only work with one tag per word: set "
            "objective.label_smoothing=0 and objective.consistency=0, or train on one column of tags."
        )


def check_pictures(config: TrainConfig, facts: Facts) -> None:
    """Refuse a model for pictures of another shape than the corpus's."""
    image, known = config.model.image, facts.picture
    if config.data.picture_resample and config.data.picture_size is None:
        raise UserError("data.picture_resample only has an effect with data.picture_size: set that, too.")
    if config.data.picture_stretched and config.data.picture_size is None:
        raise UserError(
            "data.picture_stretched=true needs data.picture_size: set that to a number of pixels."
        )
    if known is not None and (image.size, image.channels) != (known.side, known.channels):
        raise UserError(
            f"The model would read pictures of {image.size} × {image.size} with {image.channels} channels, "
            f"and those given are {known.side} × {known.side} with {known.channels}: leave model.image.size, "
            "model.image.channels, data.picture_size and data.picture_channels out."
        )


def check_corpus(found: Survey) -> None:
    """Refuse a corpus that leaves nothing to train on, or to validate with."""
    for part in found.train:
        if not part.fates.count(TRAIN):
            raise UserError(
                f"No row of {name_of(part.corpus)} is left to train on: all of them are empty, also in "
                "another corpus, or held out for validation and test. Leave this corpus out."
            )
    if not found.count(VALIDATION):
        raise UserError(NO_VALIDATION)


class _Longest:
    """Takes the place of a store writer, and records the lengths of the rows that a model would get."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.source = self.target = 0

    def add(self, **columns: Ragged) -> None:
        sizes = self._encoding.sizes({name: column.lengths for name, column in columns.items()})
        target, source = sizes.target, sizes.target if sizes.source is None else sizes.source
        self.target = max(self.target, int(target.max(initial=0)))
        self.source = max(self.source, int(source.max(initial=0)))


def check_lengths(config: TrainConfig, found: Survey, tokenizers: Tokenizers, encoding: Encoding) -> None:
    """Refuse a model with fewer positions than an example has tokens.

    Reads the corpus once more, but only if the model has a limit.
    """
    model, columns = config.model, encoding.columns
    limit = model.text_limit
    if limit is None or model.family == "vision" or columns.is_stream:
        return
    longest = _Longest(encoding)
    filter = config.data.filter
    answers = Answers(tuple(found.labels), found.numbers, found.tag_columns)
    if max(filter.source_tokens, filter.target_tokens) > limit:
        for part in found.train:
            rows = rows_with_fate(part.corpus, columns, part.fates, TRAIN)
            tokenise(rows, Encoder(encoding, tokenizers, filter, answers), longest, title="Measuring")
    _refuse_short(model, longest.source, longest.target, "the longest training example has")
    encode = Encoder(encoding, tokenizers, lenient(filter), answers)
    tokenise(found.rows(VALIDATION), encode, longest, title="Measuring")
    _refuse_short(model, longest.source, longest.target, "the longest validation example has")


def _refuse_short(model: ModelConfig, source: int, target: int, what: str) -> None:
    for length, limit in ((source, model.source_limit), (target, model.target_limit)):
        if limit is None or length <= limit:
            continue
        if model.position.name == "learned" and limit == model.position.max_length:
            raise UserError(
                f"The model has learned positions for {model.position.max_length} tokens, but {what} "
                f"{length}: set model.position.max_length={length}, or use sinusoidal or rotary positions."
            )
        raise UserError(
            f"Attention with max_length={limit} reads at most {limit} tokens, but {what} {length}: set "
            f"max_length={length} in its settings, or another kind."
        )
