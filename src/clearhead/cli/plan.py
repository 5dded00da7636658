"""`clearhead plan`: what a model will cost before it is built or trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.settings import parse_settings, read_table


def plan(
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="Start from a named model.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Start from a TOML or JSON file of settings.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one setting; may be repeated.")
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, metavar="N", help="Target tokens in one training step.")
    ] = 25_000,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Training steps.")] = 100_000,
    source_length: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens in a source sequence.")] = 32,
    target_length: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens in a target sequence.")] = 32,
    device: Annotated[str, typer.Option(metavar="NAME", help="Device to plan for.")] = "auto",
    dtype: Annotated[str, typer.Option(metavar="NAME", help="Number format to plan for.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of a table.")] = False,
) -> None:
    """Count what a model costs before it is built.

    Parameters, FLOPs and memory, of the model and of its training.

    \b
    Examples:
      clearhead plan --preset base
      clearhead plan --preset base --set encoder.layers=12 --batch-tokens 50000
      clearhead plan --config model.toml --steps 300000 --json
    """
    changes = parse_settings(settings or [])
    table = None if config is None else read_table(config)

    from clearhead.planner import plan as make_plan  # here, so that --help does not wait for torch
    from clearhead.planner import render

    report = make_plan(
        preset=preset,
        config=table,
        settings=changes,
        batch_tokens=batch_tokens,
        steps=steps,
        source_length=source_length,
        target_length=target_length,
        device=device,
        dtype=dtype,
    )
    typer.echo(json.dumps(report.to_dict(), indent=2) if as_json else render(report))
