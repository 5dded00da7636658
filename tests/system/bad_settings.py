"""Command lines that must be refused before anything is read: each with a part of the sentence that is due.

The corpus that they name does not exist, so that whatever waits for it fails the row. `try_row` runs one in
this process and reports what came of it; the quick suite and the hard harness share the table.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clearhead.cli.main import main

TRAIN = ("train", "--file", "no-such-file.tsv", "--out", "out", "--view", "quiet")
PLAN = ("plan", "--preset", "base")
BILLIONS = "a whole number from 1 to 2147483647"
ZERO_UP = "a whole number from 0 to 2147483647"
SHARE = "at least 0 and below 1"
ABOVE = "above 0 and at most 1e+09"

# settings that are wrong alone: value(s), what the sentence says they must be
ALONE: list[tuple[str, tuple[str, ...], str]] = [
    ("steps", ("-5", "0", "1e30", "10000000000", "NaN"), ""),
    ("seed", ("-1", "4294967296"), "a whole number from 0 to 4294967295"),
    ("data.split.validation", ("-1", "1.0", "1.5", "NaN", "-0.1", "1e300"), f"{ZERO_UP} or {SHARE}"),
    ("data.split.test", ("-1", "Infinity", "2.5"), f"{ZERO_UP} or {SHARE}"),
    ("data.split.seed", ("-1", "1e99"), ""),
    ("data.filter.source_tokens", ("0", "-1", "3000000000"), BILLIONS),
    ("data.filter.target_tokens", ("0",), BILLIONS),
    ("data.filter.ratio", ("0", "0.5", "NaN", "Infinity"), "at least 1 and at most 1e+09"),
    ("tokenizer.vocabulary", ("0", "-300", "3000000000"), BILLIONS),
    ("tokenizer.sample", ("0", "-1"), BILLIONS),
    ("model.vocabulary", ("0",), BILLIONS),
    ("model.width", ("0", "-64", "100000000000000000000"), BILLIONS),
    ("model.layers", ("0", "2001", "1000000000"), "a whole number from 1 to 2000"),
    ("model.decoder_layers", ("0", "99999"), "a whole number from 1 to 2000"),
    ("model.dropout", ("1.0", "-0.1", "NaN", "2", "Infinity"), SHARE),
    ("model.attention.heads", ("0", "-8"), BILLIONS),
    ("model.attention.kv_heads", ("0",), BILLIONS),
    ("model.attention.key_dim", ("0",), BILLIONS),
    ("model.attention.score_rank", ("0",), BILLIONS),
    ("model.attention.scale", ("0", "-1", "NaN", "Infinity"), ABOVE),
    ("model.attention.softcap", ("0", "-1", "NaN", "Infinity"), ABOVE),
    ("model.attention.dropout", ("1", "NaN"), SHARE),
    ("model.feedforward.width", ("0", "-1"), BILLIONS),
    ("model.feedforward.dropout", ("1",), SHARE),
    ("model.position.max_length", ("0",), BILLIONS),
    ("model.position.base", ("0", "1", "-1", "NaN", "1e300"), "above 1 and at most 1e+12"),
    ("model.position.buckets", ("0",), BILLIONS),
    ("model.position.max_distance", ("0",), BILLIONS),
    ("model.norm.eps", ("-1", "0", "NaN", "2"), "above 0 and at most 1"),
    ("model.embedding.token_types", ("-1",), ZERO_UP),
    ("model.embedding.output_scale", ("0", "NaN", "Infinity"), ABOVE),
    ("model.embedding.dropout", ("1",), SHARE),
    ("model.head.classes", ("0",), BILLIONS),
    ("model.head.dropout", ("1.0",), SHARE),
    ("batch.tokens", ("0", "-1"), BILLIONS),
    ("batch.accumulate", ("0", "2000000000"), "a whole number from 1 to 4096"),
    ("batch.buckets", ("0",), BILLIONS),
    ("batch.workers", ("-1", "65"), "a whole number from 0 to 64"),
    ("batch.context", ("0",), BILLIONS),
    ("batch.max_rows", ("0",), BILLIONS),
    ("objective.label_smoothing", ("1", "-0.1", "NaN"), SHARE),
    ("objective.consistency", ("-1", "NaN", "Infinity", "1e300"), "at least 0 and at most 1e+09"),
    ("optimiser.betas", ("[0.9,1]", "[-1,0.9]", "[0.9,NaN]"), SHARE),
    ("optimiser.eps", ("0", "-1", "NaN"), "above 0 and at most 1"),
    ("optimiser.weight_decay", ("-1", "Infinity"), "at least 0"),
    ("optimiser.clip", ("-1", "NaN"), "at least 0"),
    ("schedule.warmup", ("-1",), ZERO_UP),
    ("schedule.steps", ("0",), BILLIONS),
    ("schedule.rate", ("0", "-1", "NaN", "Infinity"), ABOVE),
    ("schedule.floor", ("-0.1", "1.1"), "at least 0 and at most 1"),
    ("averaging.ema", ("1", "-1", "NaN"), SHARE),
    ("averaging.snapshots", ("-1", "2000000000"), "a whole number from 0 to 10000"),
    ("validation.every", ("0",), BILLIONS),
    ("validation.decode", ("-1",), ZERO_UP),
    ("validation.samples", ("-1",), ZERO_UP),
    ("validation.patience", ("0",), BILLIONS),
    ("test.beam", ("0", "1000000"), "a whole number from 1 to 10000"),
    ("test.length_penalty", ("1000",), "at least -10 and at most 10"),
    ("test.max_length", ("0",), BILLIONS),
    ("test.stride", ("0",), BILLIONS),
    ("compute.threads", ("0", "-1", "100000"), "a whole number from 1 to 4096"),
    ("saving.seconds", ("-1", "NaN"), "at least 0"),
    ("saving.every", ("0", "-1"), BILLIONS),
    ("saving.keep", ("0",), BILLIONS),
    ("saving.log_every", ("0",), BILLIONS),
]

# values of another type or name: what the sentence says
NAMES = [
    ("steps=many", "'steps' must be of type int, not 'many'"),
    ("steps=1.5", "'steps' must be of type int, not 1.5"),
    ("steps=true", "'steps' must be of type int, not True"),
    ("steps=none", "'steps' must be of type int, not None"),
    (f"steps={'9' * 5000}", "The setting 'steps' cannot be used: it has a whole number"),
    (f"steps={'[' * 20000}", "The setting 'steps' cannot be used: it is nested"),
    ("model=3", "model must be a table of settings, not 3."),
    ("model.norm=3", "model.norm must be a table of settings, not 3."),
    ("model.norm.eps.x=3", "model.norm"),
    ("stepz=3", "Unknown recipe setting 'stepz': did you mean 'steps'?"),
    ("model.witdh=3", "did you mean 'width'?"),
    ("model.attention.kernel=flexx", "'model.attention.kernel' cannot be 'flexx': did you mean 'flex'?"),
    ("model.attention.score=dott", "'model.attention.score' cannot be 'dott'"),
    ("model.family=transformer", "'model.family' cannot be 'transformer'"),
    ("model.position.name=rope", "'model.position.name' cannot be 'rope'"),
    ("model.feedforward.activation=swish", "'model.feedforward.activation' cannot be 'swish'"),
    ("model.norm.kind=batch", "'model.norm.kind' cannot be 'batch'"),
    ("model.initialisation=kaiming", "'model.initialisation' cannot be 'kaiming'"),
    ("optimiser.name=sgd", "'optimiser.name' cannot be 'sgd'"),
    ("optimiser.betas=[0.9]", "'optimiser.betas' must have 2 entries, not 1"),
    ("schedule.name=triangle", "'schedule.name' cannot be 'triangle'"),
    ("tokenizer.kind=bytes", "'tokenizer.kind' cannot be 'bytes'"),
    ("batch.layout=dense", "'batch.layout' cannot be 'dense'"),
    ("data.filter.too_long=keep", "'data.filter.too_long' cannot be 'keep'"),
    ("task=sing", "There is no task 'sing'"),
    ("compute.dtype=int8", "'compute.dtype' cannot be 'int8'"),
    ("compute.device=meta", "Unknown device 'meta'"),
    ("compute.device=gpu", "Unknown device 'gpu'"),
    ("compute.device=cpu:3", "Unknown device 'cpu:3': only CUDA devices have numbers"),
    ("compute.device=cuda:x", "Unknown device 'cuda:x'"),
    ("compute.compile=maybe", "'compute.compile' must be of type bool"),
    ("saving.tensorboard=1", "'saving.tensorboard' must be of type bool"),
    ("a", "Write a setting as name=value"),
    ("=3", "Write a setting as name=value"),
    ("model..width=3", "Write a setting as name=value"),
]

# the families of models that make sense for each task; all others are refused before the corpus is read
FAMILIES = {
    "translate": ("encoder-decoder", "recurrent", "convolutional", "decoder"),
    "summarise": ("encoder-decoder", "recurrent", "convolutional", "decoder"),
    "generate": ("decoder",),
    "classify": ("encoder", "decoder", "encoder-decoder"),
    "regress": ("encoder", "decoder", "encoder-decoder"),
    "tag": ("encoder",),
    "text": ("encoder-decoder", "decoder"),
    "mask": ("encoder",),
    "denoise": ("encoder-decoder",),
    "music": ("decoder",),
    "image": ("vision",),
}

# settings that are right alone and wrong together, or with the task or the device
TOGETHER: list[tuple[str, tuple[str, ...], str]] = [
    *(
        (
            task,
            (f"model.family={family}",),
            f"The task '{task}' cannot train a model of the family '{family}'",
        )
        for task, sensible in FAMILIES.items()
        for family in ("encoder-decoder", "encoder", "decoder", "vision", "recurrent", "convolutional")
        if family not in sensible
    ),
    (
        "translate",
        ("model.family=encoder",),
        "set model.family=encoder-decoder or recurrent or convolutional",
    ),
    ("generate", ("model.family=encoder-decoder",), "set model.family=decoder, or leave it out"),
    ("tag", ("model.family=decoder",), "set model.family=encoder, or leave it out"),
    ("classify", ("model.head.kind=tag",), "The task 'classify' needs model.head.kind=classify, not tag"),
    ("classify", ("model.head.kind=none",), "needs model.head.kind=classify"),
    ("tag", ("model.head.kind=mlm",), "needs model.head.kind=tag"),
    ("translate", ("model.head.kind=classify",), "needs model.head.kind=none"),
    ("translate", ("model.family=decoder", "model.head.kind=number"), "needs model.head.kind=none"),
    ("classify", ("model.head.kind=number",), "needs model.head.kind=classify, not number"),
    ("regress", ("model.head.kind=classify",), "needs model.head.kind=number, not classify"),
    ("classify", ("model.family=decoder", "model.head.pooling=first"), "set head.pooling=last"),
    ("regress", ("validation.metric=f1",), "no validation metric 'f1' for the task 'regress'"),
    ("translate", ("model.attention.kernel=flex", "compute.device=cpu"), "kernel=flex needs a CUDA device"),
    (
        "translate",
        ('model.layer_pattern=[{"first": 1, "attention": {"kernel": "flex"}}]', "compute.device=cpu"),
        "kernel=flex needs a CUDA device",
    ),
    (
        "translate",
        ('model.layer_pattern=[{"first": 90, "feedforward": {"width": 8}}]',),
        "matches no layer of this model",
    ),
    (
        "translate",
        ("model.attention.kind=linformer",),
        "kind 'linformer' and a decoder cannot work together",
    ),
    (
        "translate",
        ("model.attention.kind=reformer",),
        "kind 'reformer' cannot be used as cross-attention: set cross_attention",
    ),
    (
        "generate",
        ("model.attention.kind=nystrom",),
        "kind 'nystrom' and a decoder cannot work together",
    ),
    ("generate", ("model.attention.kind=reformer", "model.attention.buckets=[3]"), "must be even numbers"),
    ("translate", ("model.attention.kind=multihed",), "no kind of attention 'multihed'"),
    (
        "generate",
        ("model.attention.kernel=varlen", "compute.device=cpu"),
        "kernel=varlen needs a CUDA device",
    ),
    ("translate", ("compute.graphs=true", "compute.device=cpu"), "compute.graphs=true needs a CUDA device"),
    (
        "translate",
        ("model.attention.kernel=sdpa", "model.attention.softcap=5"),
        "The kernel 'sdpa' and the soft cap cannot work together",
    ),
    (
        "translate",
        ("model.attention.score=additive", "model.attention.kernel=sdpa", "model.position.name=sinusoidal"),
        "The kernel 'sdpa' and the score 'additive' cannot work together",
    ),
    (
        "translate",
        ("model.attention.score=additive",),
        "'Rotary' and the score 'additive' cannot work together",
    ),
    (
        "translate",
        ("model.width=15", "model.attention.heads=4"),
        "A width of 15 does not divide into 4 heads",
    ),
    ("translate", ("model.attention.heads=7",), "does not divide into 7 heads"),
    ("translate", ("model.attention.heads=8", "model.attention.kv_heads=3"), "8 heads cannot share 3"),
    ("translate", ("model.attention.width=32", "model.width=64"), "attention.width=32 contradicts"),
    (
        "translate",
        ("model.attention.memory_width=32", "model.width=64"),
        "attention.memory_width=32 contradicts",
    ),
    ("translate", ("model.attention.key_dim=3",), "the head size must be even, not 3"),
    ("translate", ("model.position.name=t5", "model.position.buckets=1"), "use at least 4 buckets"),
    (
        "generate",
        ("model.position.name=learned", "model.position.max_length=16"),
        "The model has learned positions for 16 tokens, but batch.context is 256",
    ),
    (
        "generate",
        ("model.position.name=learned", "model.position.max_length=100", "batch.context=101"),
        "batch.context is 101",
    ),
    ("translate", ("model.width=1000000000",), "of memory"),
    ("translate", ("model.width=65536", "model.layers=2000"), "of memory"),
    ("generate", ("model.feedforward.width=2000000000",), "of memory"),
    ("classify", ("model.embedding.token_types=2000000000",), "of memory"),
    ("translate", ("model.position.name=learned", "model.position.max_length=2000000000"), "of memory"),
    ("translate", ("model.position.name=shaw", "model.position.max_distance=2000000000"), "of memory"),
    (
        "translate",
        ("schedule.name=cosine", "schedule.warmup=100", "steps=50"),
        "is too short for a warm-up of 100",
    ),
    ("generate", ("steps=5", "schedule.warmup=9"), "is too short for a warm-up of 9"),
    ("translate", ("tokenizer.vocabulary=100",), "the smallest possible is 260"),
    ("translate", ("tokenizer.kind=wordpiece", "tokenizer.vocabulary=300"), "the smallest possible is 516"),
    ("classify", ("test.stride=8",), "test.stride is for language models"),
    ("generate", ("test.stride=65", "batch.context=64"), "need a test.stride of at most as many; it is 65"),
    ("translate", ("validation.metric=rouge1",), "no validation metric 'rouge1' for the task 'translate'"),
    ("generate", ("validation.metric=bleu",), "no validation metric 'bleu' for the task 'generate'"),
    ("translate", ("validation.metric=bleu", "validation.decode=0"), "validation.decode must be above 0"),
    ("translate", ("data.split.validation=0",), "There is no validation example"),
    ("translate", ("data.split.validation=0.6", "data.split.test=0.5"), "leave nothing to train on"),
    ("translate", ("model.source_vocabulary=300",), "the tokenizer is shared"),
    ("translate", ("compute.threads=4000",), "4000 threads cannot be used: this machine has"),
]

# whole command lines
TWO = ("--source-column", "a", "--source-column", "b")
LINES: list[tuple[tuple[str, ...], str]] = [
    *((((*TRAIN, "--task", task, *TWO)), "reads one text at a time") for task in ("translate", "tag")),
    (
        (*TRAIN, "--task", "classify", *TWO, "--source-column", "c"),
        "--source-column takes one column, or two",
    ),
    (("evaluate", "no-bundle", "--file", "x.tsv", *TWO, *TWO), "--source-column takes one column, or two"),
    ((*TRAIN, "--minutes", "nan"), "The time for training must be above 0 minutes"),
    ((*TRAIN, "--minutes", "inf"), "The time for training must be above 0 minutes"),
    ((*TRAIN, "--minutes", "1e300"), "The time for training must be above 0 minutes"),
    ((*TRAIN, "--minutes", "-3"), "The time for training must be above 0 minutes"),
    ((*TRAIN, "--weight", "nan"), "'data.train[0].weight' must be above 0"),
    ((*TRAIN, "--weight", "-1"), "'data.train[0].weight' must be above 0"),
    ((*TRAIN, "--weight", "1e300"), "'data.train[0].weight' must be above 0"),
    ((*TRAIN, "--view", "loud"), "view"),
    ((*TRAIN[:3], "--out", "o" * 300, "--view", "quiet"), "File name too long"),
    ((*TRAIN[:3], "--out", "a\0b", "--view", "quiet"), "null"),
    ((*TRAIN, "--recipe", "no.toml"), "The settings file 'no.toml' cannot be read"),
    ((*PLAN, "--set", "width=-1"), "'width' must be a whole number from 1"),
    ((*PLAN, "--set", "dropout=1"), "'dropout' must be at least 0 and below 1"),
    ((*PLAN, "--set", "norm.eps=0"), "'norm.eps' must be above 0"),
    ((*PLAN, "--batch-tokens", "0"), "--batch-tokens"),
    ((*PLAN, "--steps", "0"), "--steps"),
    ((*PLAN, "--device", "cpu:nan"), "FLOP/s"),
    ((*PLAN, "--device", "h300"), "There is no device 'h300' to plan for"),
    ((*PLAN, "--dtype", "int3"), "int3"),
    (("translate", "no-bundle", "x", "--device", "meta"), "Unknown device 'meta'"),
    (("translate", "no-bundle", "x", "--threads", "4000"), "4000 threads cannot be used"),
    (("translate", "no-bundle", "x", "--threads", "0"), "--threads"),
    (("score", "no-bundle", "a", "b", "--device", "meta"), "Unknown device 'meta'"),
    (("score", "no-bundle", "a", "b", "--threads", "4000"), "4000 threads cannot be used"),
    (
        ("score", "no-bundle", "a", "b", "--length-penalty", "nan"),
        "--length-penalty must be at least -10 and at most 10",
    ),
    (
        ("score", "no-bundle", "a", "b", "--length-penalty", "1000"),
        "--length-penalty must be at least -10 and at most 10",
    ),
    (("evaluate", "no-bundle", "--file", "x.tsv", "--length-penalty", "nan"), "'length_penalty' must be"),
    (("evaluate", "no-bundle", "--file", "x.tsv", "--length-penalty", "1000"), "'length_penalty' must be"),
    (("evaluate", "no-bundle", "--file", "x.tsv", "--beam", "1000000"), "'beam' must be"),
    (("label", "no-bundle", "x", "--device", "meta"), "Unknown device 'meta'"),
    (("verify", "no-bundle", "--device", "meta"), "Unknown device 'meta'"),
    (("explain", "no-bundle", "x", "--out", "page.html", "--device", "meta"), "Unknown device 'meta'"),
]


LONG = "o" * 300
# options of a command that writes text, each with values that must be refused
OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # option: values, what it needs beside it
    "--length-penalty": (("1000", "nan", "inf", "-1e300"), ("--beam", "2")),
    "--coverage": (("nan", "-1", "inf"), ("--beam", "2")),
    "--diversity": (("nan", "-1"), ("--beam", "2", "--groups", "2")),
    "--temperature": (("nan", "inf", "-1"), ("--sample",)),
    "--top-k": (("0", "-1", "10000000000000"), ("--sample",)),
    "--top-p": (("nan", "0", "2"), ("--sample",)),
    "--min-p": (("nan", "2"), ("--sample",)),
    "--typical": (("nan", "0"), ("--sample",)),
    "--seed": (("-1", str(2**64), str(10**30)), ()),
    "--contrastive": (("nan", "2"), ("--top-k", "4")),
    "--repetition": (("nan", "0", "inf"), ()),
    "--frequency": (("nan", "inf"), ()),
    "--presence": (("nan", "-inf"), ()),
    "--no-repeat": (("0", "-1", str(10**12)), ()),
    "--min-length": (("-1", str(10**12)), ()),
    "--max-length": (("0", "-1", str(10**12), str(10**30)), ()),
    "--beam": (("0", "-1", "1000000000000"), ()),
    "--nbest": (("0", "99999"), ()),
    "--groups": (("0", "3", "-1"), ()),
    "--regex": (("(", "["), ()),
    "--bias": (("x", "a=nan", "a=inf", "=1"), ()),
    "--ban": (("",), ()),
    "--include": (("",), ()),
    "--dtype": (("int3",), ()),
    "--device": (("meta", "xla", "cpu:1", "cuda:99", LONG), ()),
    "--threads": (("0", "4000", "-1"), ()),
    "--draft": (("no-draft", LONG), ()),
    "--output": ((".", LONG, "/proc/x"), ()),
}


def lines_with_a_bundle(bundle: str) -> Iterator[tuple[str, ...]]:
    """Command lines with a translator's folder that must be refused in some sentence."""
    for name, (values, beside) in OPTIONS.items():
        for value in values:
            yield ("translate", bundle, "a b", name, value, *beside)
    yield ("translate", bundle, "--input", ".")
    yield ("translate", bundle, "--input", LONG)
    for place in (LONG, "."):
        yield ("evaluate", bundle, "--file", place)
        yield ("explain", bundle, "a b", "--out", place)
        yield ("verify", bundle, "--quick", "--texts", place)
        yield ("train", "--resume", place)
        yield ("train", "--file", place, "--out", "x")
        yield ("train", "--recipe", place, "--out", "x")
    for command in ("inspect", "label", "generate", "score", "verify", "explore", "translate", "evaluate"):
        yield (command, LONG)
        yield (command, "a\0b")
    yield ("explore", bundle, "--port", "99999")
    yield ("explore", bundle, "--host", "256.256.256.256", "--port", "0")
    yield ("export", bundle, LONG)
    yield ("import", LONG, "x")
    yield ("import", ".", LONG)
    yield ("train", "--file", "x", "--out", "a/" * 3000)
    yield ("train", "--file", "x", "--out", "/dev/null/x")
    yield ("plan", "--preset", LONG)
    yield ("plan", "--config", LONG)
    yield ("examples", LONG)
    yield ("demo", LONG)
    yield (LONG,)
    yield ("",)


def rows() -> Iterator[tuple[tuple[str, ...], str]]:
    """Every command line of the table, with what its sentence must contain."""
    for name, values, wanted in ALONE:
        for value in values:
            finite = "NaN" not in value and "Infinity" not in value  # those are no JSON to begin with
            due = f"'{name}' must be {wanted}" if finite else f"The setting '{name}' cannot be used"
            yield (*TRAIN, "--set", f"{name}={value}"), due
    for setting, wanted in NAMES:
        yield (*TRAIN, "--set", setting), wanted
    for task, settings, wanted in TOGETHER:
        yield (*TRAIN, "--task", task, *(word for one in settings for word in ("--set", one))), wanted
    yield from LINES


@dataclass(frozen=True)
class Tried:
    """What came of a command line."""

    code: int | str  # the exit code, or the exception that nobody caught
    sentence: str  # the last line of stderr
    written: list[str]  # what is in the folder that was not there before

    def fault(self, wanted: str) -> str | None:
        """What is wrong with it; None if it was refused as it should be."""
        if self.code != 2:
            return f"ended with {self.code}"
        if not self.sentence.startswith("clearhead: ") or not self.sentence.endswith((".", "?")):
            return "is not a sentence"
        if wanted not in self.sentence:
            return f"does not say {wanted!r}"
        if len(self.sentence) > 500:
            return "is too long to be read"
        return f"left {self.written}" if self.written else None


def try_row(arguments: tuple[str, ...], folder: Path) -> Tried:
    """Run a command line in this process, inside a folder."""
    before, here = set(folder.rglob("*")), Path.cwd()
    told = io.StringIO()
    os.chdir(folder)
    try:
        answer = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # has a buffer, which lines are written to
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(answer):
            code: int | str = main(list(arguments))
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    finally:
        os.chdir(here)
    written = sorted(str(path) for path in set(folder.rglob("*")) - before)
    return Tried(code, (told.getvalue().strip().splitlines() or [""])[-1], written)
