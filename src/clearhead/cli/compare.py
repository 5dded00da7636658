"""`clearhead compare`: several architectures, or any settings, on one corpus, in one table and one page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.base.errors import UserError
from clearhead.base.settings import parse_settings
from clearhead.cli.options import AsJson, option
from clearhead.cli.table import show_json, show_table
from clearhead.data.config import columns_named


def compare(
    source: Annotated[Path | None, option("FILE", "One source text per line.")] = None,
    target: Annotated[Path | None, option("FILE", "The targets, aligned with --source line by line.")] = None,
    file: Annotated[
        Path | None, option("FILE", "One file instead: .tsv, .csv, .jsonl, plain text.", "--file")
    ] = None,
    source_column: Annotated[
        list[str] | None, option("NAME", "Column of the source or text, by name or number.")
    ] = None,
    target_column: Annotated[str | None, option("NAME", "Column of the target, by name or number.")] = None,
    out: Annotated[
        Path | None,
        option("FOLDER", "Folder for the runs and the page; given alone, resume the comparison in it."),
    ] = None,
    task: Annotated[
        str | None,
        option("TASK", "translate, summarise, generate, classify, regress, tag, image or music.", "--task"),
    ] = None,
    recipe: Annotated[
        Path | None, option("FILE", "Settings in a TOML or JSON file, with a table `compare`.")
    ] = None,
    data: Annotated[Path | None, option("FOLDER", "Folder that holds the files a recipe names.")] = None,
    settings: Annotated[
        list[str] | None, option("A.B=C", "Change one setting of all members; may be repeated.", "--set")
    ] = None,
    architectures: Annotated[
        str | None, option("A,B,…", "By name, such as rnn,lstm+attention,convs2s,transformer-pre.")
    ] = None,
    vary: Annotated[
        list[str] | None, option("A.B=C,D", "One member for each value; repeat for all combinations.")
    ] = None,
    equal: Annotated[str | None, option("WHAT", "Match models by width: parameters, flops or none.")] = None,
    seeds: Annotated[int | None, option("N", "Seeds to train each member with.  [default: 3]", min=1)] = None,
    metric: Annotated[str | None, option("NAME", "Metric to compare.  [default: the task's first]")] = None,
    minutes: Annotated[
        float | None, option("N", "Time limit for one run, to which all runs are sized.")
    ] = None,
    processes: Annotated[
        int | None,
        option("N", "Runs at the same time, spread over the GPUs.  [default: the number of GPUs]", min=1),
    ] = None,
    view: Annotated[str, option("KIND", "auto, live, plain or quiet.")] = "auto",
    as_json: AsJson = False,
    only: Annotated[str | None, option("RUN", "Train and measure only this run.", hidden=True)] = None,
) -> None:
    """Train several architectures on one corpus at equal size, with several seeds, and compare them.

    Prints quality with its confidence over seeds, parameters, FLOPs, speed and memory, and draws them on one
    page with quality by length and gradients by distance. Run it again to resume.

    \b
    Examples:
      clearhead compare --file pairs.tsv --out runs/architectures
      clearhead compare --file pairs.tsv --architectures gru,gru+attention,transformer --out runs/attention
      clearhead compare --file pairs.tsv --vary model.position.name=rotary,alibi,t5 --out runs/positions
      clearhead compare --recipe recipes/build-up.toml --data DATA --out runs/build-up
      clearhead compare --out runs/build-up
    """
    if out is None:
        raise UserError("Say where to put the comparison: --out runs/NAME.")
    corpus = {"source": source, "target": target, "file": file}
    named = {name: str(path) for name, path in corpus.items() if path is not None}
    told = (recipe, data, task, settings, architectures, vary, equal, seeds, metric, minutes)
    fresh = bool(named) or recipe is not None
    if not fresh and any(one is not None for one in told):
        raise UserError(
            "Say what to train on: --source FILE --target FILE, or --file FILE, or --recipe FILE; or give "
            "--out alone to resume a comparison."
        )

    from clearhead.jobs import compare as job  # here, so that --help does not wait for torch
    from clearhead.jobs.compare_page import page
    from clearhead.jobs.members import CompareConfig, said_in
    from clearhead.jobs.recipe import merged, nested, read_recipe
    from clearhead.training.interrupt import Interrupted

    try:
        if only is not None:
            job.measure_one(out, only, "plain")
            return
        said: Any = None
        config: Any = None
        if fresh:
            base, asked = said_in(read_recipe(recipe, data) if recipe is not None else {})
            columns = columns_named(source_column or [], target_column)
            given = {"data": {"train": [{**named, **columns}]}} if named else {}
            said = merged(base, given, {"task": task} if task else {}, nested(parse_settings(settings or [])))
            chosen: dict[str, Any] = {"equal": equal, "metric": metric, "seeds": seeds}
            chosen["architectures"] = None if architectures is None else _listed(architectures)
            chosen["vary"] = None if vary is None else job.axes_of(vary)
            asked = merged(asked, {name: value for name, value in chosen.items() if value is not None})
            config = CompareConfig.from_dict(asked, "compare")
        found = job.compare(out, said, config, processes=processes, view=view, minutes=minutes)
    except Interrupted as stop:
        print(
            f"clearhead: {stop}; everything is saved. Resume with `clearhead compare --out {out}`.",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    if as_json:
        show_json({"metric": found.config.metric, "results": found.results}, indent=None)
        return
    for section in page(found, draw=False).sections:
        if section.tables:
            typer.echo(f"{section.title}")
        for table in section.tables:
            show_table(table.header, table.rows, numbers=range(1, len(table.header)))
        for note in section.notes if section.tables else ():
            typer.echo(note)
        typer.echo()
    typer.echo(f"The charts are in {found.page}.")
    if found.failed:
        print(f"clearhead: `clearhead compare --out {out}` retries the runs that failed.", file=sys.stderr)
        raise typer.Exit(1)


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]
