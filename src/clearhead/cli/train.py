"""`clearhead train`: from text files to a bundle, in one command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.base.errors import UserError
from clearhead.base.settings import parse_settings
from clearhead.cli.options import AsJson
from clearhead.cli.table import show_json, show_table
from clearhead.data.config import columns_named

Files = list[Path] | None


def train(
    source: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="One source text per line; repeat for more corpora."),
    ] = None,
    target: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="The targets, aligned with --source line by line."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="One file instead: .tsv, .csv, .jsonl, plain text (generate), pictures (a folder, .npz).",
        ),
    ] = None,
    hub: Annotated[
        str | None, typer.Option(metavar="NAME[:CONFIG]", help="A data set of the Hugging Face hub instead.")
    ] = None,
    source_column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Column of the source or text, by name or number; give it twice for pairs of texts.",
        ),
    ] = None,
    target_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column of the target or label, by name or number; several columns of tags: upos,ner.",
        ),
    ] = None,
    weight: Annotated[
        list[float] | None,
        typer.Option(metavar="W", help="Share of each corpus in an epoch, in the order of the corpora."),
    ] = None,
    validation: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Your own validation set: one file, or source and target."),
    ] = None,
    test: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Your own test set: one file, or source and target."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for the run and its bundle.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="translate, summarise, generate, classify, regress, tag, image or music; text for several "
            "of them in one model; mask or denoise for pre-training.",
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="Start from this bundle or Hugging Face model."),
    ] = None,
    old_domain: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="With --from: texts of the old domain, to measure what is forgotten."
        ),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings in a TOML or JSON file.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder that holds the files a recipe names.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one setting; may be repeated.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="Time limit for training, to which the run is sized. With --resume: additional time.",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Resume the run in this folder.")
    ] = None,
    view: Annotated[str, typer.Option(metavar="KIND", help="auto, live, plain or quiet.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a translator, summariser, language model, classifier, regressor or tagger from text files.

    Reads and checks the corpus, holds out validation and test sets, learns the tokenizer, sizes the
    model to corpus and device, trains, scores the test set, and leaves one bundle. It prints every
    choice it made with the reason; override any of them with --set.

    \b
    Examples:
      clearhead train --source train.en --target train.fr --out runs/en-fr
      clearhead train --file pairs.tsv.gz --out runs/mine --minutes 20
      clearhead train --file reviews.csv --task classify --out runs/reviews
      clearhead train --file nli.tsv --task classify --source-column a --source-column b --out runs/nli
      clearhead train --file stars.csv --task regress --target-column stars --out runs/stars
      clearhead train --file book.txt --task generate --out runs/book
      clearhead train --file corpus.txt --task mask --out runs/bert
      clearhead train --file pictures --task image --out runs/pictures
      clearhead train --recipe recipes/multi30k-en-de.toml --data DATA --out runs/m30k
      clearhead train --source a.en --target a.de --set model.layers=4 --set model.dropout=0.2 --out runs/a
      clearhead train --from runs/en-fr --source new.en --target new.fr --out runs/new
      clearhead train --from MiniLM --file reviews.csv --task classify --out runs/reviews
      clearhead train --resume runs/en-fr
      clearhead train --resume runs/en-fr --minutes 60
    """
    changes = parse_settings(settings or [])
    columns = columns_named(source_column or [], target_column)
    corpora = _corpora(source, target, file, hub, columns, weight)
    given: dict[str, Any] = {"train": corpora} if corpora else {}
    for name, files in (("validation", validation), ("test", test)):
        if files:
            given[name] = _held_out(files, name, columns)
    start = _start(from_, old_domain, columns)
    if resume is not None:
        if out is not None or given or start or recipe is not None or task is not None:
            raise UserError(
                "--resume continues a run as it is: leave out the files, --out, --task, --from and --recipe."
            )
    elif out is None:
        raise UserError("Say where to put the run: --out runs/NAME.")
    elif not corpora and recipe is None:
        raise UserError(
            "Say what to train on: --source FILE --target FILE, or --file FILE, or --hub NAME, "
            "or --recipe FILE."
        )

    from clearhead.bundle import is_bundle  # here, so that --help does not wait for torch
    from clearhead.jobs import train as job
    from clearhead.jobs.recipe import merged, nested, read_recipe
    from clearhead.training.interrupt import Interrupted

    where = resume if resume is not None else out
    try:
        if resume is not None:
            finished = job.resume(resume, nested(changes), minutes=minutes, view=view)
        else:
            base = read_recipe(recipe, data) if recipe is not None else {}
            named = {"task": task} if task else {}
            said = merged(base, {"data": given}, named, {"start": start} if start else {}, nested(changes))
            assert out is not None
            finished = job.train(out, said, minutes=minutes, view=view)
    except Interrupted as stop:
        print(
            f"clearhead: {stop}; everything is saved. Resume with `clearhead train --resume {where}`.",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    except KeyboardInterrupt:  # before the first step or after the last one
        if where is not None and job.begun(where):
            print(f"clearhead: stopped. {_to_go_on(where, is_bundle(where))}", file=sys.stderr)
        raise
    if finished.rank:
        return
    show_json(_plain(finished)) if as_json else _tell(finished)
    for sentence in finished.failed:
        print(f"clearhead: {sentence}", file=sys.stderr)
    if finished.failed:
        raise typer.Exit(1)


def _to_go_on(where: Path, complete: bool) -> str:
    command = f"`clearhead train --resume {where}`"
    if complete:
        return f"The bundle '{where}' is complete except for its test scores, which {command} adds."
    return f"Resume with {command}."


def _corpora(
    source: Files,
    target: Files,
    file: Files,
    hub: str | None,
    columns: dict[str, str],
    weights: list[float] | None,
) -> list[dict[str, Any]]:
    """The training corpora as a recipe names them."""
    sources, targets = source or [], target or []
    if len(sources) != len(targets):
        raise UserError(
            f"Every --source needs its --target: there are {len(sources)} sources and {len(targets)} targets."
        )
    found: list[dict[str, Any]] = [
        {"source": str(one), "target": str(other)} for one, other in zip(sources, targets, strict=True)
    ]
    found += [{"file": str(one)} for one in file or []]
    found += [{"hub": hub}] if hub else []
    if weights and len(weights) != len(found):
        raise UserError(
            f"Give one --weight for each corpus: there are {len(weights)} weights and {len(found)} corpora."
        )
    for number, corpus in enumerate(found):
        corpus.update(columns)
        if weights:
            corpus["weight"] = weights[number]
    return found


def _held_out(files: list[Path], name: str, columns: dict[str, str]) -> dict[str, Any]:
    if len(files) == 1:
        return {"file": str(files[0]), **columns}
    if len(files) == 2:
        return {"source": str(files[0]), "target": str(files[1])}
    raise UserError(f"--{name} takes one file, or two: first the sources, then the targets.")


def _start(base: Path | None, old_domain: Files, columns: dict[str, str]) -> dict[str, Any]:
    """The model to start from, as a recipe names it."""
    found: dict[str, Any] = {} if base is None else {"base": str(base)}
    if old_domain:
        found["old_domain"] = _held_out(old_domain, "old-domain", columns)
    return found


def _plain(finished: Any) -> dict[str, Any]:
    """The figures of a finished run, for programs."""
    test = finished.test
    return {
        "bundle": str(finished.folder),
        "steps": finished.outcome.steps,
        "ended": finished.outcome.why,
        "chosen": finished.chosen,
        "validation": finished.validation,
        "test": None if test is None else test.metrics,
        "signatures": {} if test is None else test.signatures,
        "remarks": finished.said,
        "failed": finished.failed,
    }


def _tell(finished: Any) -> None:
    """Report the results, and what to do with them."""
    from clearhead.training.view.words import metric_name  # here, so that --help does not wait for torch

    for sentence in finished.said:
        typer.echo(sentence)
    names = {"last": "last weights", "best": "best at a validation", "average": "average of the last ones"}
    rows = [
        [f"{names[name]}{' (in the bundle)' if name == finished.chosen else ''}", *_figures(values)]
        for name, values in finished.validation.items()
    ]
    titles = ["on the validation set", *map(metric_name, next(iter(finished.validation.values())))]
    show_table(titles, rows, numbers=range(1, len(titles)))
    if finished.test is not None:
        typer.echo()
        how = f", {finished.test.config.search}" if finished.test.judge.writes else ""
        show_table(
            [f"on the test set{how}", "value"],
            [[name, f"{value:.4g}"] for name, value in finished.test.metrics.items()],
            numbers=[1],
        )
        for name, signature in finished.test.signatures.items():
            typer.echo(f"{name}: {signature}")
    typer.echo(f"\nThe bundle is {finished.folder}. Try:\n  {_next(finished)}")


def _figures(values: dict[str, float]) -> list[str]:
    from clearhead.training.view.words import metric_value  # here, as above

    return [metric_value(name, value) for name, value in values.items()]


def _next(finished: Any) -> str:
    from clearhead.evaluation.mixture import answers_of
    from clearhead.tasks import task_of

    task = task_of(finished.bundle)
    if task.columns.mixed:
        prefix = next(iter(answers_of(finished.bundle)))
        return f'clearhead {task.command} {finished.folder} "{prefix}…"'
    pair = finished.bundle.metadata["framing"]["source"].get("pair")
    return f"clearhead {task.command} {finished.folder} {task.given}{f' {task.given}' if pair else ''}"
