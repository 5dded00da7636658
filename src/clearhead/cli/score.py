"""`clearhead score`: a model's scores of given texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.config import POWERS, check
from clearhead.base.errors import UserError
from clearhead.cli.options import Bundle, Device, option
from clearhead.cli.starting import hurry, settle


def score(
    bundle: Bundle,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE TARGET]", help="A pair of texts; a language model needs no source."),
    ] = None,
    source: Annotated[Path | None, option("FILE", "One source (or prompt) per line, plain or gzip.")] = None,
    target: Annotated[Path | None, option("FILE", "The texts to score, aligned line by line.")] = None,
    file: Annotated[Path | None, option("FILE", "One file instead: .tsv, .csv, .jsonl.", "--file")] = None,
    tokens: Annotated[bool, option(None, "Show every token's log-probability.", "--tokens")] = False,
    length_penalty: Annotated[
        float, option("A", "Length penalty in the `score` of --json: length to the power A.")
    ] = 1.0,
    length_kind: Annotated[str, option("KIND", "power: length^A; wu: ((5 + length) / 6)^A.")] = "power",
    as_json: Annotated[bool, option(None, "One JSON object for each pair.", "--json")] = False,
    device: Device = "auto",
    threads: Annotated[int | None, option("N", "CPU threads to use.", min=1, max=4096)] = None,
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
    from clearhead.decoding.options import LengthPenalty, config_of
    from clearhead.decoding.text_requests import translates
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
        raise UserError("This model translates: give both the source and the target.")
    total = scoring.Total()
    penalty = LengthPenalty(length_penalty, length_kind)  # type: ignore[arg-type]
    for number, (pair, one) in enumerate(scoring.scored(loaded, pairs, penalty)):
        total.add(one)
        typer.echo(scoring.as_json(number, pair, one) if as_json else scoring.as_line(loaded, one, tokens))
    typer.echo(total.report(), err=True)


def _refuse_unclear(
    texts: list[str], source: Path | None, target: Path | None, file: Path | None
) -> list[tuple[str, str]]:
    """The pair given as arguments; raises an error unless exactly one of the three inputs is used."""
    ways = [bool(texts), source is not None or target is not None, file is not None]
    if sum(ways) != 1 or (source is not None and target is None) or len(texts) > 2:
        raise UserError("Say what to score: SOURCE TARGET, or --source FILE --target FILE, or --file FILE.")
    if not texts:
        return []
    return [(texts[0], texts[1]) if len(texts) == 2 else ("", texts[0])]
