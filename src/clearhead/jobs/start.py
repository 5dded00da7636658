"""Start from an existing model (`--from`): what a task can use of it, and what a run records about it.

The base is read and checked before the corpus. Its tokenizers and the special tokens around its texts come
along. The weights that are used are copied into the run's folder, so the run no longer needs its base.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.api import load
from clearhead.base.atomic import atomic_write_lines, sha256_of
from clearhead.base.errors import UserError, shown
from clearhead.base.seed import seeded
from clearhead.base.settings import flat
from clearhead.bundle import Bundle, is_bundle
from clearhead.bundle.folder import framings_of
from clearhead.bundle.metadata import WEIGHTS
from clearhead.bundle.transfer import FAMILIES, Transfer, in_words, transfer
from clearhead.bundle.weights import tensors_of
from clearhead.data.columns import Row
from clearhead.data.encoding import Encoding, Tokenizers
from clearhead.data.read import read_rows
from clearhead.decoding.pictures import picture_form
from clearhead.jobs.prepare import as_lines, from_lines
from clearhead.jobs.recipe import Table, merged, table_in
from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.tasks import Family, Task, task_named
from clearhead.text.framing import Framing, Framings
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.config import TrainConfig
from clearhead.training.fine_tuning import choose_from
from clearhead.training.run_folder import RunFolder
from clearhead.training.sizes import Asked
from clearhead.training.sizing import Choice, Demand, Machine
from clearhead.training.start import StartConfig, prepare
from clearhead.training.weights import START, digest, read_tensors, set_weights, write_tensors

OLD_DOMAIN = "old-domain.jsonl"  # in `training/data`: texts on which base and result are compared
MOST_OLD = 500  # the limit on those texts

# Model settings that may differ from the base's: none changes the meaning of the weights.
_FREE = (
    *("dropout", "attention.dropout", "feedforward.dropout", "embedding.dropout", "attention.kernel"),
    *(f"feedforward.{name}" for name in ("balance_loss", "z_loss", "bias_rate", "dispatch")),  # of experts
)


@dataclass(frozen=True)
class Base:
    """An existing model, and the family that a task trains from it."""

    folder: Path
    bundle: Bundle
    sha256: str
    task: Task
    family: Family

    @property
    def has_same_head(self) -> bool:
        """Does it have the same kind of head, whatever the labels are?"""
        return self.family.head == self.bundle.config.head.kind and self.family.head != "none"

    def tokenizers(self) -> Tokenizers:
        """Its own tokenizers, with the symbols that its model was trained with."""
        target = self.bundle.tokenizer
        if self.bundle.config.family == "vision":
            return Tokenizers.of(target or Tokenizer.words(()))
        assert target is not None
        source = self.bundle.source_tokenizer or target
        reads = self.family.name == "encoder"
        return Tokenizers(self._as_trained(source), self._as_trained(source if reads else target))

    def _as_trained(self, tokenizer: Tokenizer) -> Tokenizer:
        noted = self.bundle.metadata.get("special")
        roles = {} if not isinstance(noted, dict) else {k: v for k, v in noted.items() if v is not None}
        roles = {**tokenizer.specials, **roles}
        if roles == tokenizer.specials:
            return tokenizer
        return Tokenizer(tokenizer.backend, roles, literal=tokenizer.literal)

    def framing(self) -> Framing | None:
        """The special tokens around its sources; None for our own convention."""
        if self.bundle.config.family == "decoder" or not _reads_sources(self.family.name, self.family.head):
            return None
        return framings_of(self.bundle).source

    def model(self, two: bool = False) -> Table:
        """The settings of the model to train: the base's, without what this task does not use."""
        plain = self.bundle.config.to_dict()
        if self.family.name != plain["family"]:  # the encoder of an encoder-decoder
            rules = [rule for rule in plain["layer_pattern"] if rule["stack"] != "decoder"]
            plain |= {"family": self.family.name, "layer_pattern": rules, "decoder_layers": None}
            plain |= {"vocabulary": plain["source_vocabulary"] or plain["vocabulary"]}
            plain |= {"source_vocabulary": None}
        if self.family.head != plain["head"]["kind"]:
            pooling = "first" if self.family.name == "encoder" else "last"
            plain["head"] = {"kind": self.family.head, "pooling": pooling}
        if two and self.family.name == "encoder" and not plain["embedding"]["token_types"]:
            plain["embedding"]["token_types"] = 2
        return plain

    def sizes(self) -> dict[str, int | None]:
        """The sizes of its vocabularies, as settings of a model."""
        plain = self.model()
        return {name: plain[name] for name in ("vocabulary", "source_vocabulary")}

    def defaults(self) -> list[Choice]:
        """Data settings that follow from it: texts fit its positions, pictures its size and colours."""
        config, known = self.bundle.config, {one.name: one.value for one in self.task.defaults}
        if config.family == "vision":
            form, why = picture_form(self.bundle), "as the base reads pictures"
            return [
                Choice("data.picture_size", config.image.size, why),
                Choice("data.picture_channels", config.image.channels, why),
                Choice("data.picture_stretched", form.stretched, why),
                Choice("data.picture_resample", form.resample, why),
            ]
        most = config.text_limit
        if most is None or self.task.columns.is_stream:
            return []
        return [
            Choice(f"data.filter.{name}", most, "positions that the base has")
            for name in ("source_tokens", "target_tokens")
            if known.get(f"data.filter.{name}", 256) > most
        ]

    def choices(self, demand: Demand, machine: Machine, said: Table) -> list[Choice]:
        """The settings for fine-tuning it on a corpus."""
        start = StartConfig.from_dict(table_in(said, "start"), "start")
        model = ModelConfig.from_dict(self.model())
        lora, asked = start.lora.rank > 0, Asked.of(said)
        found = choose_from(demand, machine, model, asked, lora, self.has_same_head)
        sum = Choice("start.sha256", self.sha256, "of the base's weights")
        return [sum, *(self._in_context(one) for one in found)]

    def _in_context(self, choice: Choice) -> Choice:
        """Limit the context of a long text to the one that the base was trained with."""
        config, noted = self.bundle.config, self.bundle.metadata.get("context")
        if choice.name != "batch.context":
            return choice
        limits = [one for one in (noted, config.position.max_length) if isinstance(one, int)]
        limits = limits if config.position.name == "learned" else limits[:1] if noted else []
        return choice._replace(value=min([choice.value, *limits]))

    def transfer(self, model: ModelConfig, labels: Collection[str]) -> Transfer:
        """What a model takes from the base."""
        known = self.bundle.metadata.get("labels") or []
        same = self.has_same_head and list(known) == list(labels)
        return transfer(build(model, device="meta"), self.bundle.model, same)

    def report(self, model: ModelConfig, labels: Collection[str]) -> list[str]:
        """What is taken, what is new, what is dropped."""
        found, empty = self.transfer(model, labels), build(model, device="meta")
        words = "" if model.family == "vision" else "the tokenizer, "
        return [
            f"Taken from '{self.folder}': {words}{in_words(found.taken, empty)}.",
            f"New: {in_words(found.new, empty)}. Dropped: {in_words(found.dropped, self.bundle.model)}.",
        ]


def read_base(said: Table) -> tuple[Base | None, Table]:
    """The base that settings name, and the settings with its task; refuses impossible ones."""
    where = table_in(said, "start").get("base")
    if not isinstance(where, str):
        return None, said
    folder = Path(where)
    bundle = load(folder)
    said = _with_kinds(said, bundle)
    TrainConfig.check_names(said)
    name = said.get("task") or bundle.metadata.get("task") or TrainConfig().task
    task = task_named(name)
    base = Base(folder, bundle, checksum(folder, bundle), task, _family(folder, bundle, task, said))
    _refuse_unlike(base, said)
    return base, {**said, "task": name}


def _with_kinds(said: Table, bundle: Bundle) -> Table:
    """The settings with the kinds of the base's parts, which decide what other settings a part has."""
    model = table_in(said, "model")
    kinds = {"attention": bundle.config.attention.kind, "feedforward": bundle.config.feedforward.kind}
    parts = {part: {"kind": kind} for part, kind in kinds.items() if table_in(model, part)}
    return merged({"model": parts}, said) if parts else said


def checksum(folder: Path, bundle: Bundle) -> str:
    """The checksum of a base's weights: of its file, or of its tensors if they are elsewhere."""
    file = folder / WEIGHTS
    weights = {name: tensor.detach() for name, tensor in tensors_of(bundle.model).items()}
    return sha256_of(file) if file.is_file() else digest(weights)


def _family(folder: Path, bundle: Bundle, task: Task, said: Table) -> Family:
    """The model family that the task trains from this base."""
    own, asked = bundle.config.family, table_in(said, "model").get("family")
    offered = [one for one in FAMILIES.get(own, ()) if asked in (None, one)]
    for name in offered:
        for family in task.families:
            if family.name == name:
                return family
    if own not in FAMILIES:
        raise UserError(
            f"'{folder}' is a model of the family '{own}', which cannot be fine-tuned: leave --from out."
        )
    needs = " or ".join(one.name for one in task.families if asked in (None, one.name)) or str(asked)
    raise UserError(
        f"The task '{task.name}' cannot start from '{folder}', a model of the family '{own}': it trains a "
        f"model of the family {needs}."
    )


def _refuse_unlike(base: Base, said: Table) -> None:
    """Raise an error for settings of a model that the base's weights do not fit."""
    if base.bundle.tokenizer is None and base.bundle.config.family != "vision":
        raise UserError(f"'{base.folder}' has no tokenizer, so no training can start from it.")
    for name in flat(table_in(said, "tokenizer")):
        raise UserError(f"The tokenizer comes with the base '{base.folder}': leave tokenizer.{name} out.")
    known = flat(base.model())
    for name, value in flat(table_in(said, "model")).items():
        free = name in _FREE or name.startswith("head.") or name in ("family", "embedding.token_types")
        if not free and known.get(name) != value:
            raise UserError(
                f"model.{name}={shown(value)} cannot be used: the base '{base.folder}' has "
                f"{known.get(name)}, and its weights fit nothing else. Leave it out."
            )
    start = StartConfig.from_dict(said["start"], "start")
    if start.lora.apart and not (start.lora.rank and is_bundle(base.folder)):
        needs = f"a bundle as its base: run `clearhead import {base.folder} --out NEW` first"
        needs = needs if start.lora.rank else "LoRA: set start.lora.rank=8"
        raise UserError(f"start.lora.apart=true needs {needs}.")
    old = start.old_domain
    if old is not None and base.bundle.metadata.get("task") != base.task.name:
        raise UserError(
            f"--old-domain cannot be used: '{base.folder}' was not trained for the task "
            f"'{base.task.name}'. Leave it out."
        )


# -- in a run's folder ------------------------------------------------------------------------------------


def write_start(base: Base, config: TrainConfig, labels: Collection[str], folder: RunFolder) -> list[str]:
    """Write what a run takes from its base; returns the names of the files."""
    folder.data.mkdir(parents=True, exist_ok=True)
    found = base.transfer(config.model, labels)
    offered = base.bundle.model.state_dict()
    weights = {name: offered[source].float() for name, source in found.taken.items()}
    write_tensors(folder.data / START, weights)
    rows = [] if found.new else _old_rows(base, config)
    if not rows:
        return [START]
    atomic_write_lines(folder.data / OLD_DOMAIN, as_lines(rows))
    return [START, OLD_DOMAIN]


def _old_rows(base: Base, config: TrainConfig) -> list[Row]:
    """Texts of the base's own domain: those given, or the base's own validation set."""
    given, columns = config.start.old_domain, base.task.columns
    if given is not None:
        if columns.pictures:
            given = given.replace(**{one.name.removeprefix("data."): one.value for one in base.defaults()})
        rows = list(read_rows(given, columns))
    elif base.bundle.metadata.get("task") == base.task.name and is_bundle(base.folder):
        file = RunFolder(base.folder).data / "validation.jsonl"
        pairs = from_lines(file) if file.is_file() else []
        rows = [
            Row(text, answer, 0) if isinstance(text, str) else Row(text[0], answer, 0, text[1])
            for text, answer in pairs
        ]
    else:
        return []
    step = max(-(-len(rows) // MOST_OLD), 1)
    return rows[::step]


def framed(encoding: Encoding, framing: Framing | None) -> Encoding:
    """An encoding with the base's special tokens around sources."""
    return encoding if framing is None else replace(encoding, given=framing)


def noted_framing(config: TrainConfig, notes: Mapping[str, Any]) -> Framing | None:
    """The special tokens that a resumed run puts around sources, if they came from its base."""
    if config.start.base is None or not _reads_sources(config.model.family, config.model.head.kind):
        return None
    return Framings.from_dict(notes["framing"], "framing").source


def _reads_sources(family: str, head: str) -> bool:
    return family == "encoder" or (family == "encoder-decoder" and head == "none")


@torch.no_grad()
def begin(model: nn.Module, config: TrainConfig, folder: RunFolder) -> list[str]:
    """Initialise a new model from its base; returns messages about it."""
    if config.start.base is None:
        return []
    weights = read_tensors(folder.data / START)
    set_weights(model, weights)
    new = [name for name in tensors_of(model) if name not in weights]
    return prepare(model, config.start, new)


def started_bundle(config: TrainConfig, folder: RunFolder, like: Bundle) -> Bundle:
    """The base as it was, if all of it was used."""
    with seeded(config.seed), torch.no_grad():
        model = build(config.model)
        set_weights(model, read_tensors(folder.data / START))
    model.to(next(like.model.parameters()).device).eval()
    return Bundle(model, like.tokenizer, like.metadata, like.source_tokenizer)
