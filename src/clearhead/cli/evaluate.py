"""`clearhead evaluate`: how good a bundle is, in figures and in examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.base.errors import UserError
from clearhead.cli.options import AsJson, Bundle, Device, option
from clearhead.cli.table import show_formats, show_json, show_table
from clearhead.data.config import columns_named


def evaluate(
    bundle: Bundle,
    source: Annotated[Path | None, option("FILE", "One source text per line.")] = None,
    target: Annotated[
        Path | None, option("FILE", "The references, aligned with --source line by line.")
    ] = None,
    file: Annotated[
        Path | None, option("FILE", "One file instead: .tsv, .csv, .jsonl, plain text.", "--file")
    ] = None,
    source_column: Annotated[
        list[str] | None,
        option("NAME", "Column of the source or text, by name or number; give it twice for pairs of texts."),
    ] = None,
    target_column: Annotated[str | None, option("NAME", "Column of the target, by name or number.")] = None,
    source_prefix: Annotated[
        str | None,
        option("TEXT", "Prefix for every source, to choose one task of a bundle that has several."),
    ] = None,
    against: Annotated[
        Path | None, option("BUNDLE", "A second bundle to compare with, by paired bootstrap.")
    ] = None,
    task: Annotated[
        str | None, option("TASK", "Task of a bundle that does not name its own.", "--task")
    ] = None,
    beam: Annotated[int, option("N", "Beam size; 1 is greedy.", min=1)] = 1,
    length_penalty: Annotated[float, option("A", "Divide scores by the length to the power A.")] = 1.0,
    tokenised: Annotated[
        bool,
        option(None, "The text is already tokenised: compute BLEU on its words as they are.", "--tokenised"),
    ] = False,
    lowercase: Annotated[bool, option(None, "Ignore case in BLEU and chrF.", "--lowercase")] = False,
    stride: Annotated[
        int | None,
        option(
            "N",
            "Perplexity of a language model: move the context window on by N tokens, so that each token is "
            "predicted from at least context − N others; by default windows do not overlap.",
            min=1,
        ),
    ] = None,
    out: Annotated[Path | None, option("FOLDER", "Write report.md and report.html there.")] = None,
    as_json: AsJson = False,
    formats: Annotated[
        bool,
        option(
            None,
            "Measure instead what bf16 and int8 cost in quality, and store it in the bundle for --fast.",
            "--formats",
        ),
    ] = False,
    device: Device = "auto",
) -> None:
    """Measure a bundle on a test set: BLEU, chrF, ROUGE, perplexity, accuracy, F1, correlations, by task.

    \b
    Examples:
      clearhead evaluate runs/en-fr --source test.en --target test.fr --beam 5
      clearhead evaluate runs/en-fr --against runs/other --file test.tsv --out report
      clearhead evaluate runs/reviews --file test.csv --json
      clearhead evaluate runs/alike --file test.tsv --source-column a --source-column b
      clearhead evaluate runs/novels --file test.txt --stride 64
      clearhead evaluate runs/many --source-prefix "sst2: " --file test.tsv
      clearhead evaluate runs/en-fr --file validation.tsv --formats
    """
    corpus = {
        "source": source,
        "target": target,
        "file": file,
        "prefix": source_prefix,
        **columns_named(source_column or [], target_column),
    }
    if source is None and target is None and file is None:
        raise UserError("Say what to evaluate on: --source FILE --target FILE, or --file FILE.")
    if formats and (against is not None or out is not None or beam > 1):
        raise UserError(
            "--formats compares the number formats of one bundle: leave out --against, --out and --beam."
        )

    from clearhead.data.config import CorpusConfig  # here, so that --help does not wait for torch
    from clearhead.evaluation.evaluate import EvaluationConfig
    from clearhead.evaluation.report import write_report
    from clearhead.jobs.evaluate import measure, measure_and_store_formats, task_named

    rows = CorpusConfig.from_dict({name: str(value) for name, value in corpus.items() if value is not None})
    asked = task_named(task) if task is not None else None
    if formats:
        costs = measure_and_store_formats(bundle, rows, asked, device=device)
        show_json(costs) if as_json else show_formats(costs)
        return
    found = measure(
        [bundle] if against is None else [bundle, against],
        rows,
        asked,
        EvaluationConfig(
            beam=beam,
            length_penalty=length_penalty,
            tokenise="none" if tokenised else "13a",
            lowercase=lowercase,
            stride=stride,
        ),
        device=device,
    )
    written = write_report(found.page, out) if out is not None else ()
    show_json(_plain(found)) if as_json else _show(found)
    for path in written:
        typer.echo(f"Wrote {path}.", err=True)


def _plain(found: Any) -> dict[str, Any]:
    second = found.second
    return {
        "metrics": found.first.metrics,
        "signatures": found.first.signatures,
        "against": None if second is None else second.metrics,
        "comparison": [
            {
                "metric": one.metric,
                "difference": one.difference.mean,
                "low": one.difference.low,
                "high": one.difference.high,
                "p": one.p_value,
            }
            for one in found.comparison
        ],
    }


def _show(found: Any) -> None:
    several = [found.first] if found.second is None else [found.first, found.second]
    titles = ["metric", "value"] if len(several) == 1 else ["metric", "first", "second"]
    rows = [
        [name, *(f"{one.metrics.get(name, float('nan')):.4g}" for one in several)]
        for name in found.first.metrics
    ]
    show_table(titles, rows, numbers=range(1, len(titles)))
    for name, signature in found.first.signatures.items():
        typer.echo(f"{name}: {signature}")
    for one in found.comparison:
        sure = "significant" if one.significant else "not significant"
        typer.echo(
            f"{one.metric}: difference {one.difference.mean:+.2f}, p = {one.p_value:.4f}, {sure} at 5 %."
        )
