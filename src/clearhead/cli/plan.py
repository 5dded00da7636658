"""`clearhead plan`: what a model will cost before it is built or trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.base.errors import UserError
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
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Target tokens in one training step, and as many source tokens where the lengths are equal: "
            "the original Transformer's 25,000 and 25,000. A model with one sequence counts its tokens.",
        ),
    ] = 25_000,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Training steps.")] = 100_000,
    source_length: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens in a source sequence; 25 in a pair.")
    ] = None,
    target_length: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens in a target sequence; 25 in a pair, else the context."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="h200, h100, a100-80g, rtx4090, l4, p100, cpu (measured here) or cpu:FLOPS; "
            "without it, all GPUs.",
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="bf16 or float32; without it, the faster one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")] = False,
) -> None:
    """Count what a model costs before it is built.

    Parameters, FLOPs, memory and time, of the model and of its training.

    \b
    Examples:
      clearhead plan --preset base
      clearhead plan --preset big --batch-tokens 25000 --steps 100000 --device h200
      clearhead plan --preset base --set layers=12 --batch-tokens 50000
      clearhead plan --config model.toml --steps 300000 --json
    """
    changes = parse_settings(settings or [])
    table = None if config is None else read_table(config)
    if (preset is None) == (table is None):
        raise UserError("Name the model to plan for: --preset base, say, or --config FILE, one of the two.")

    from clearhead.models.build import preset as find_preset
    from clearhead.models.config import ModelConfig  # here, so that --help does not wait for torch
    from clearhead.planner import plan as make_plan
    from clearhead.planner import render

    plain = find_preset(preset).to_dict() if preset is not None else dict(table or {})
    report = make_plan(
        ModelConfig.from_dict(_changed(plain, changes)),
        batch_tokens=batch_tokens,
        steps=steps,
        source_length=source_length,
        target_length=target_length,
        device=device,
        dtype=dtype,
    )
    report = replace(report, name=_name(preset or str(config), settings))
    typer.echo(json.dumps(report.to_dict(), indent=2) if as_json else render(report))


def _name(model: str, settings: list[str] | None) -> str:
    return f"{model} with {', '.join(settings)}" if settings else model


def _changed(plain: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The table with all changes made at once, so that no order of them is refused half-way."""
    for path, value in changes.items():
        *parts, last = path.split(".")
        inner = plain
        for part in parts:
            if inner.get(part) is None:
                inner[part] = {}
            if not isinstance(inner[part], dict):
                raise UserError(f"The setting '{part}' in '{path}' has no settings inside it.")
            inner = inner[part]
        inner[last] = value
    return plain
