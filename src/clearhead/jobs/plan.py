"""Plans a run before its first byte is written: from settings and files to one complete plan.

Reads the corpus, trains the tokenizers or takes those of a base, and chooses whatever was not set. `train.py`
carries it out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clearhead.base.device import pick_device, pick_dtype, wake
from clearhead.data.config import DataConfig
from clearhead.data.encoding import Encoding, Tokenizers
from clearhead.data.encodings import Pictures
from clearhead.data.findings import Survey
from clearhead.data.read import ends_documents
from clearhead.data.survey import survey
from clearhead.jobs import prepare
from clearhead.jobs.lengthen import is_short_of_time, machine_here
from clearhead.jobs.recipe import Table, compose, explained, laid_out, merged, padded_if_need_be, table_in
from clearhead.jobs.refusals import (
    check_corpus,
    check_labels,
    check_layout,
    check_lengths,
    check_pictures,
    check_settings,
    check_together,
    family_of,
)
from clearhead.jobs.start import Base, framed, read_base, write_start
from clearhead.models.build import count_parameters
from clearhead.planner.layout import Layout
from clearhead.tasks import task_named
from clearhead.text.framing import Framing
from clearhead.text.learn import TokenizerConfig
from clearhead.training import doctor
from clearhead.training.config import TrainConfig
from clearhead.training.run_folder import RunFolder
from clearhead.training.sizes import Asked
from clearhead.training.sizing import (
    Choice,
    Facts,
    as_table,
    choose,
    choose_vocabulary,
    dealt,
    minutes_for,
    minutes_wanted,
    passes_of,
)
from clearhead.training.step import Precision
from clearhead.training.view import View, choices_table
from clearhead.training.view.words import duration

ONE = Layout()  # rank


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before the first byte is written."""

    config: TrainConfig
    survey: Survey
    tokenizers: Tokenizers
    choices: list[Choice]
    findings: list[str]
    minutes: float  # the estimate by the table of devices
    outlook: dict[str, float | None]  # FLOPs of a step; epochs, those wanted, and minutes for these
    base: Base | None = None


def decide(
    early: TrainConfig, said: Table, minutes: float | None, layout: Layout = ONE, base: Base | None = None
) -> Plan:
    """Read the corpus, train the tokenizers, choose whatever was not set; writes nothing."""
    task = task_named(early.task)
    first = [*task.defaults, *(base.defaults() if base is not None else ())]
    data = _data(first, said)
    if task.columns.pictures:
        first += prepare.in_one_colour(data)
        data = _data(first, said)
    compute = early.compute
    device = pick_device(compute.device)
    dtype = pick_dtype(compute.dtype, device)
    wake(device)
    found = survey(data, task.columns)
    check_corpus(found)
    model = table_in(said, "model") if base is None else base.model()
    patch = table_in(model, "image").get("patch")
    if base is None:
        if not task.columns.pictures and all(one.name != "tokenizer.vocabulary" for one in first):
            words, fast = prepare.words_in(found), device.type == "cuda"
            first.append(choose_vocabulary(words, fast, task.columns.writes))
        learning = merged(as_table(first).get("tokenizer", {}), said.get("tokenizer", {}))
        learner = TokenizerConfig.from_dict(learning, "tokenizer")
        tokenizers, facts = prepare.learn_tokenizers(found, learner, patch)
    else:
        tokenizers = base.tokenizers()
        facts = prepare.known_tokenizers(found, tokenizers, TokenizerConfig(), patch)
    if data.filter.too_long == "cut":
        facts = facts.cut(data.filter.source_tokens, data.filter.target_tokens)
    machine = machine_here(compute, minutes)
    demand = task.sized(facts, family_of(said, base), data.two)
    asked = Asked.of(said)
    chosen = choose(demand, machine, asked) if base is None else base.choices(demand, machine, said)
    choices = [*first, *dealt(chosen, layout.data)]
    sizes: dict[str, int | None] = {
        "vocabulary": facts.vocabulary,
        "source_vocabulary": facts.source_vocabulary,
    }
    sizes, whole = (sizes, None) if base is None else (base.sizes(), base.model(data.two))
    config = compose(choices, said, sizes, whole)
    dtype = Precision.chosen(compute.dtype, device, config.model.width).dtype
    choices = laid_out(choices, said, config, device, dtype)
    config = padded_if_need_be(compose(choices, said, sizes, whole), device, dtype)
    check_layout(config, layout)
    check_labels(config, found)
    check_pictures(config, facts)
    check_together(config, device)
    check_lengths(config, found, tokenizers, encoding_of(config, base.framing() if base else None))
    findings = [str(one) for one in _findings(found, facts, config)]
    took = minutes_for(demand, machine, config)
    outlook = {
        "step_flops": took * machine.rate(config.model.width) / config.steps,
        "passes": passes_of(config, facts),
        "wanted_passes": demand.wanted_passes if base is None and "steps" not in said else 0.0,
        "minutes": None,
    }
    if is_short_of_time(outlook):
        outlook["minutes"] = minutes_wanted(demand, machine, asked)
    return Plan(config, found, tokenizers, explained(choices, said, config), findings, took, outlook, base)


def _data(choices: Sequence[Choice], said: Table) -> DataConfig:
    return DataConfig.from_dict(merged(as_table(choices).get("data", {}), said.get("data", {})), "data")


def decided(settings: Table, minutes: float | None = None) -> TrainConfig:
    """The whole config of a run, with everything chosen from the corpus and the device; writes nothing."""
    base, settings = read_base(settings)
    return decide(check_settings(settings, base), settings, minutes, base=base).config


def _findings(found: Survey, facts: Facts, config: TrainConfig) -> list[doctor.Finding]:
    """The doctor's findings before the first step."""
    tokens = facts.source_tokens + facts.target_tokens
    fixed = config.start.base is not None or config.tokenizer.kind == "events"  # the vocabulary
    large = doctor.vocabulary_too_large(tokens, facts.vocabulary, config.tokenizer.smallest)
    held = [doctor.overlap(one.examples, one.rows) for one in found.overlaps.values()]
    return doctor.found([*held, None if fixed else large])


def tell(plan: Plan, view: View) -> None:
    """Show what was found, what was chosen and why, and how long it will take."""
    for line in plan.survey.report():
        view.say(line)
    if type(view) is not View:  # `View` itself shows nothing
        rows = [(choice.name, _value(choice.value), choice.reason) for choice in plan.choices]
        choices_table(rows, sys.stderr)
    size = count_parameters(plan.config.model)
    form = f" Normalisation of the text: {plan.tokenizers.target.normalisation}."
    view.say(f"A model of {size:,} parameters.{'' if plan.survey.columns.pictures else form}")
    view.say(
        f"{plan.config.steps:,} steps take about {duration(60 * plan.minutes)} according to the table of "
        "devices; a busy machine takes longer."
    )
    if is_short_of_time(plan.outlook) and plan.outlook["minutes"] is not None:
        view.say(
            f"There is time for about {plan.outlook['passes']:.0f} epochs, and about "
            f"{plan.outlook['wanted_passes']:.0f} would be useful: --minutes "
            f"{plan.outlook['minutes']:.0f} would be enough."
        )
    if plan.base is not None:
        for sentence in plan.base.report(plan.config.model, plan.survey.labels):
            view.say(sentence)
    for sentence in plan.findings:
        view.say(f"Doctor: {sentence}")


def _value(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def notes_of(plan: Plan) -> dict[str, Any]:
    """The bundle's metadata."""
    filter, found, base = plan.config.data.filter, plan.survey, plan.base
    encoding = encoding_of(plan.config, base.framing() if base else None)
    documents, numbers = ends_documents(found.train[0].corpus), found.numbers
    most = plan.config.model.source_limit or filter.source_tokens  # no training text was longer
    return {
        "task": plan.config.task,
        "framing": encoding.framings(plan.tokenizers, documents).to_dict(),
        "labels": list(found.labels),
        **({} if numbers is None else {"numbers": {"mean": numbers.mean, "deviation": numbers.deviation}}),
        "documents": documents,
        **({"context": plan.config.batch.context} if found.columns.is_stream else {}),
        **({"source_limit": min(filter.source_tokens, most)} if filter.too_long == "cut" else {}),
        "corpus": corpus_facts(plan.survey),
        "recipe": plan.config.to_dict(),
        "chosen": [
            {"setting": choice.name, "value": choice.value, "reason": choice.reason}
            for choice in plan.choices
        ],
        "findings": plan.findings,
        "outlook": plan.outlook,
    }


def encoding_of(config: TrainConfig, framing: Framing | None = None) -> Encoding:
    """How the examples of a run are encoded; `framing`: the special tokens its base puts around sources."""
    task, data = task_named(config.task), config.data
    found = task.encoding(config.model.family, data.two, data.corruption, data.transpose)
    if isinstance(found, Pictures):
        image = config.model.image
        found = replace(found, side=image.size, places=image.tokens, augmentation=data.augmentation)
    return framed(found, framing)


def corpus_facts(found: Survey) -> dict[str, Any]:
    """What is recorded about a corpus, and must be the same when it is read again."""
    return {"rows": found.to_dict()["rows"], "report": found.report()}


def write_data(
    folder: RunFolder, config: TrainConfig, found: Survey, tokenizers: Tokenizers, base: Base | None
) -> list[str]:
    """Fill the run's folder with its data; returns messages about it."""
    beside = [] if base is None else write_start(base, config, found.labels, folder)
    encoding = encoding_of(config, base.framing() if base else None)
    return prepare.write_all(found, config.data, tokenizers, encoding, folder.data, beside)
