"""`clearhead.train`, `translate`, `evaluate` and `compare`: the jobs as Python functions.

What the commands of the same names do, for Python. Pass a bundle as an object or
as the path of its folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from clearhead.api import load
from clearhead.base.device import pick_device
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.data.config import columns_named
from clearhead.decoding.defaults import changed, options_of
from clearhead.decoding.options import Options
from clearhead.decoding.run import generate as _generate
from clearhead.decoding.run import translate as _translate
from clearhead.decoding.writer import Dtype
from clearhead.evaluation.evaluate import Evaluation, EvaluationConfig
from clearhead.jobs import train as job
from clearhead.jobs.compare import compare as _compare
from clearhead.jobs.finish import Finished
from clearhead.jobs.members import CompareConfig, Comparison, said_in
from clearhead.jobs.recipe import Table, merged, nested, read_recipe
from clearhead.tasks import task_of

Where = str | Path
Pair = tuple[Where, Where]  # a source file and its target file


def train(
    out: Where,
    source: Where | None = None,
    target: Where | None = None,
    *,
    file: Where | None = None,
    source_column: str | Sequence[str] = (),
    target_column: str | None = None,
    task: str | None = None,
    from_: Where | None = None,
    old_domain: Where | Pair | None = None,
    validation: Where | Pair | None = None,
    test: Where | Pair | None = None,
    recipe: Where | None = None,
    data: Where | None = None,
    minutes: float | None = None,
    resume: bool = False,
    view: str = "quiet",
    **settings: Any,
) -> Finished:
    """Train a model from text files, as `clearhead train` does, and save its bundle in the folder `out`.

    The corpus is two files aligned line by line (`source`, `target`), or one `file`, whose columns you can
    name (`source_column=("a", "b")` for two texts that are read together), or a `recipe` whose files are in
    the folder `data`. `task` is "translate" unless the recipe says otherwise. Settings that you leave out are
    chosen for you; `settings` are those of a recipe, with two underscores for the dot: `model__layers=2`.
    `from_` is a bundle or a Hugging Face folder to start from, and `old_domain` texts to measure forgetting.
    `resume=True` resumes a run; with `minutes` or more `steps`, it extends a finished one.

    >>> import clearhead, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> words = [f"{a} {b}" for a in "abcdefgh" for b in "abcdefgh"]
    >>> _ = (folder / "pairs.tsv").write_text("".join(f"{word}\\t{word}\\n" for word in words))
    >>> run = clearhead.train(folder / "run", file=folder / "pairs.tsv", steps=3, model__width=16,
    ...                       model__attention__heads=2, compute__device="cpu")
    >>> run.outcome.steps, sorted(run.validation["last"])
    (3, ['accuracy', 'bleu', 'chrf', 'exact', 'loss', 'perplexity'])
    >>> clearhead.load(folder / "run").metadata["task"]
    'translate'
    """
    said = nested({name.replace("__", "."): value for name, value in settings.items()})
    files = {"source": source, "target": target, "file": file}
    named = {name: str(path) for name, path in files.items() if path is not None}
    columns = columns_named(
        [source_column] if isinstance(source_column, str) else source_column, target_column
    )
    if resume:
        if named or columns or recipe is not None or task or validation or test or from_ or old_domain:
            raise UserError("resume=True continues a run as it is: leave out files, task and from_.")
        return job.resume(out, said, minutes=minutes, view=view)
    if not named and recipe is None:
        raise UserError("Say what to train on: source and target, or file, or recipe.")
    table: Table = {"train": [{**named, **columns}]} if named else {}
    start: Table = {} if from_ is None else {"base": str(from_)}
    more = (("validation", validation, table), ("test", test, table), ("old_domain", old_domain, start))
    for name, given, where in more:
        if isinstance(given, (str, Path)):
            where[name] = {"file": str(given), **columns}
        elif given is not None:
            where[name] = dict(zip(("source", "target"), map(str, given), strict=True))
    base = read_recipe(Path(recipe), None if data is None else Path(data)) if recipe is not None else {}
    named_start = {"start": start} if start else {}
    whole = merged(base, {"data": table}, {"task": task} if task else {}, named_start, said)
    return job.train(out, whole, minutes=minutes, view=view)


@overload  # a str is also an iterable of strings, and then means the first form
def translate(
    bundle: Bundle | Where,
    texts: str,
    *,
    device: str | None = None,
    dtype: Dtype = "float32",
    **settings: Any,
) -> str: ...


@overload
def translate(
    bundle: Bundle | Where,
    texts: Iterable[str],
    *,
    device: str | None = None,
    dtype: Dtype = "float32",
    **settings: Any,
) -> list[str]: ...


def translate(
    bundle: Bundle | Where,
    texts: str | Iterable[str],
    *,
    device: str | None = None,
    dtype: Dtype = "float32",
    **settings: Any,
) -> str | list[str]:
    """Translate or summarise a text, or several in their order, with a trained bundle.

    `settings` are those of `clearhead.Options`: `beam=5`, `sample=True`, `top_p=0.9`, … They override
    the bundle's own settings; without either, decoding is greedy. `dtype`: `int8` or `bf16` weights, or
    `fast`: see docs/decoding.md.

    >>> import clearhead
    >>> from clearhead.bundle import Bundle
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> bundle = Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size), tokenizer)
    >>> isinstance(clearhead.translate(bundle, "the cat", max_length=3), str)
    True
    >>> clearhead.translate(bundle, ["", " "], beam=2)
    ['', '']
    """
    Options.check_names(settings)
    opened = _opened(bundle, device)
    options = changed(options_of(opened), settings)
    lines = [texts] if isinstance(texts, str) else list(texts)
    found = _translate(opened, lines, options, device=device, dtype=dtype)
    return found[0].text if isinstance(texts, str) else [one.text for one in found]


def generate(
    bundle: Bundle | Where,
    prompt: str = "",
    *,
    device: str | None = None,
    dtype: Dtype = "float32",
    **settings: Any,
) -> str:
    """Continue a prompt with a language model and return both; `settings` as for `translate`.

    >>> import clearhead
    >>> from clearhead.bundle import Bundle
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> config = {"family": "decoder", "vocabulary": tokenizer.vocabulary_size, "width": 16, "layers": 1}
    >>> model = clearhead.build(clearhead.ModelConfig.from_dict({**config, "attention": {"heads": 2}}))
    >>> clearhead.generate(Bundle(model, tokenizer), "the cat", max_length=3).startswith("the cat")
    True
    """
    Options.check_names(settings)
    opened = _opened(bundle, device)
    options = changed(options_of(opened), settings)
    return _generate(opened, prompt, options, device=device, dtype=dtype)


def evaluate(
    bundle: Bundle | Where,
    rows: Sequence[tuple[str, str]],
    *,
    task: str | None = None,
    device: str | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a bundle on rows of (source, target) text: BLEU, ROUGE, accuracy, perplexity, by its task.

    `settings` are those of `EvaluationConfig`: `beam=5`, `tokenise="none"`, … For a language model,
    rows are ("", line).

    >>> import clearhead
    >>> from clearhead.bundle import Bundle
    >>> tokenizer = clearhead.Tokenizer.words("the cat sleeps")
    >>> model = clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size)
    >>> found = clearhead.evaluate(Bundle(model, tokenizer, {"task": "translate"}), [("the cat", "cat")])
    >>> sorted(found.metrics)
    ['BLEU', 'bits per byte', 'chrF', 'exact match', 'nats per character', 'nats per token', 'perplexity']
    """
    config = EvaluationConfig.from_dict(settings)
    opened = _opened(bundle, device)
    return task_of(opened, task).judge(opened, list(rows), config, device=device)


def compare(
    out: Where,
    source: Where | None = None,
    target: Where | None = None,
    *,
    file: Where | None = None,
    task: str | None = None,
    recipe: Where | None = None,
    data: Where | None = None,
    architectures: Sequence[str] = (),
    members: Mapping[str, Mapping[str, Any]] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    equal: str = "parameters",
    seeds: int = 3,
    metric: str | None = None,
    minutes: float | None = None,
    processes: int | None = None,
    view: str = "quiet",
    **settings: Any,
) -> Comparison:
    """Train several architectures on one corpus and measure them, as `clearhead compare` does.

    `architectures` are names, `members` names with their own settings, `vary` settings and their values:
    `{"model.position.name": ["rotary", "alibi"]}`. To resume a comparison that was stopped, make the same
    call again. Returns the results; the page with the charts is `compare.html` in `out`.

    >>> import clearhead, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> words = [f"{a} {b}" for a in "abcdefgh" for b in "abcdefgh"]
    >>> _ = (folder / "pairs.tsv").write_text("".join(f"{word}\\t{word}\\n" for word in words))
    >>> found = clearhead.compare(folder / "out", file=folder / "pairs.tsv", seeds=1, steps=2,
    ...                           vary={"model.norm.place": ["post", "pre"]}, model__width=16,
    ...                           model__attention__heads=2, compute__device="cpu")
    >>> list(found.results), found.page.name
    (['norm.place=post', 'norm.place=pre'], 'compare.html')
    """
    files = {"source": source, "target": target, "file": file}
    named = {name: str(path) for name, path in files.items() if path is not None}
    if not named and recipe is None:
        raise UserError("Say what to train on: source and target, or file, or recipe.")
    base, asked = said_in(
        read_recipe(Path(recipe), None if data is None else Path(data)) if recipe is not None else {}
    )
    said = nested({name.replace("__", "."): value for name, value in settings.items()})
    given = {"data": {"train": [named]}} if named else {}
    whole = merged(base, given, {"task": task} if task else {}, said)
    told: dict[str, Any] = {"architectures": list(architectures), "members": dict(members or {})}
    told |= {"vary": {name: list(values) for name, values in (vary or {}).items()}}
    chosen = {name: value for name, value in told.items() if value}
    plain = asked if recipe is not None else {"equal": equal, "seeds": seeds, "metric": metric}
    config = CompareConfig.from_dict(merged(plain, chosen), "compare")
    return _compare(out, whole, config, processes=processes, view=view, minutes=minutes)


def _opened(bundle: Bundle | Where, device: str | None) -> Bundle:
    if isinstance(bundle, Bundle):
        return bundle
    return load(bundle, device=pick_device(device or "auto"))
