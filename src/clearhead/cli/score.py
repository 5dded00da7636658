"""`clearhead score`: what a model thinks of texts that somebody else wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.config import POWERS, check
from clearhead.base.errors import UserError
from clearhead.cli.starting import hurry, settle


def score(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The folder of a trained model.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE TARGET]", help="One pair; a language model needs no source."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One source (or prompt) a line; gzip too.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What is scored, aligned line by line.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="One file instead: .tsv, .csv, .jsonl.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show every token's log-probability.")] = False,
    length_penalty: Annotated[
        float, typer.Option(metavar="A", help="Power of the length in the `score` of --json.")
    ] = 1.0,
    length_kind: Annotated[
        str, typer.Option(metavar="KIND", help="power: length^A; wu: ((5 + length) / 6)^A.")
    ] = "power",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each pair.")] = False,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …")] = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, max=4096, metavar="N", help="Processor cores to use.")
    ] = None,
) -> None:
    """Score given texts by forced decoding: natural log-probability, the same for each token, perplexity.

    One line for each pair, in order, tabs between the numbers; the stop symbol counts as a token. All pairs
    together are summed up on stderr.

    \b
    Examples:
      clearhead score runs/en-fr "I love deep learning." "J'aime l'apprentissage profond."
      clearhead score runs/en-fr --source test.en --target test.fr
      clearhead score runs/en-fr --file test.tsv --json
      clearhead score runs/book --target test.txt --tokens
    """
    given = _refuse_unclear(texts or [], source, target, file)
    check(length_penalty, POWERS, False, "--length-penalty")
    if length_kind not in ("power", "wu"):
        raise UserError(f"There is no kind of length penalty '{length_kind}': use power or wu.")
    hurry(bundle)

    from clearhead.api import load  # here, so that --help does not wait for torch
    from clearhead.base.device import pick_device, use_threads
    from clearhead.decoding.batches import translates
    from clearhead.decoding.steps import LengthPenalty, config_of
    from clearhead.jobs import scoring

    place = pick_device(device)
    use_threads(threads)
    pairs: Iterator[tuple[str, str]] | list[tuple[str, str]] = given
    if target is not None:
        pairs = scoring.aligned_pairs(source, target)
    elif file is not None:
        pairs = scoring.table_pairs(file)
    loaded = load(bundle, device=place)
    settle()
    config_of(loaded.model)  # refuses a model that writes nothing
    if translates(loaded) and (len(texts or []) == 1 or (target and not source)):
        raise UserError("This model translates: give the source as well as the target.")
    total = scoring.Total()
    penalty = LengthPenalty(length_penalty, length_kind)  # type: ignore[arg-type]
    for number, (pair, one) in enumerate(scoring.scored(loaded, pairs, penalty)):
        total.add(one)
        typer.echo(scoring.as_json(number, pair, one) if as_json else scoring.as_line(loaded, one, tokens))
    typer.echo(total.report(), err=True)


def _refuse_unclear(
    texts: list[str], source: Path | None, target: Path | None, file: Path | None
) -> list[tuple[str, str]]:
    """The pair given as arguments; a sentence unless exactly one of the three ways is used."""
    ways = [bool(texts), source is not None or target is not None, file is not None]
    if sum(ways) != 1 or (source is not None and target is None) or len(texts) > 2:
        raise UserError("Say what to score: SOURCE TARGET, or --source FILE --target FILE, or --file FILE.")
    if not texts:
        return []
    return [(texts[0], texts[1]) if len(texts) == 2 else ("", texts[0])]
