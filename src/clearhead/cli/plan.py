"""`clearhead plan`: what a model will cost before it is built or trained."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.base.settings import parse_settings, read_table
from clearhead.cli.options import AsJson, option
from clearhead.cli.table import show_json


def plan(
    preset: Annotated[str | None, option("NAME", "Start from a named model.")] = None,
    config: Annotated[Path | None, option("FILE", "Start from a TOML or JSON file of settings.")] = None,
    settings: Annotated[
        list[str] | None, option("A.B=C", "Change one setting; may be repeated.", "--set")
    ] = None,
    batch_tokens: Annotated[
        int,
        option(
            "N",
            "Tokens per training step: target tokens for a translator (25,000 in the original Transformer), "
            "all tokens for a model with one sequence.",
            min=1,
        ),
    ] = 25_000,
    steps: Annotated[int, option("N", "Training steps.", min=1)] = 100_000,
    source_length: Annotated[
        int | None, option("N", "Tokens in a source sequence.  [default: 25]", min=1)
    ] = None,
    target_length: Annotated[
        int | None,
        option(
            "N",
            "Tokens in a target sequence.  [default: 25, or the context of a model with one sequence]",
            min=1,
        ),
    ] = None,
    device: Annotated[
        str | None,
        option(
            "NAME",
            "h200, h100, a100-80g, rtx4090, l4, p100, cpu (measured here) or cpu:FLOPS.  [default: all GPUs]",
        ),
    ] = None,
    dtype: Annotated[str | None, option("NAME", "bf16 or float32.  [default: the faster one]")] = None,
    ranks: Annotated[int | None, option("N", "Number of ranks that train together; shows layouts.")] = None,
    layout: Annotated[str | None, option("NAME", "How ranks share the work, such as fsdp8xtp8.")] = None,
    crossing: Annotated[
        bool,
        option(
            None, "Show instead, measured here, the length at which O(n²·d) outweighs O(n·d²).", "--crossing"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute what a model costs before it is built.

    Parameters, FLOPs, memory and time, for the model and for its training.

    \b
    Examples:
      clearhead plan --preset base
      clearhead plan --preset big --batch-tokens 25000 --steps 100000 --device h200
      clearhead plan --preset base --set layers=12 --batch-tokens 50000
      clearhead plan --config model.toml --steps 300000 --json
      clearhead plan --preset base --crossing --device cpu
      clearhead plan --preset llama3-8b --batch-tokens 1000000 --ranks 64 --layout fsdp8xtp8
    """
    changes = parse_settings(settings or [])
    table = None if config is None else read_table(config)
    if (preset is None) == (table is None):
        raise UserError("Name the model to plan: either --preset NAME or --config FILE.")

    from clearhead.jobs.recipe import merged, nested  # here, so that --help does not wait for torch
    from clearhead.models.build import preset as find_preset
    from clearhead.models.config import ModelConfig
    from clearhead.planner import plan as make_plan
    from clearhead.planner import render

    plain = find_preset(preset).to_dict() if preset is not None else table or {}
    model = ModelConfig.from_dict(merged(plain, nested(changes)))
    if crossing:
        from clearhead.base.device import pick_device
        from clearhead.planner.crossing import crossing as find_crossing
        from clearhead.planner.crossing import render_crossing

        found = find_crossing(model, pick_device(device or "auto"))
        show_json(asdict(found)) if as_json else typer.echo(render_crossing(found))
        return
    report = make_plan(
        model,
        batch_tokens=batch_tokens,
        steps=steps,
        source_length=source_length,
        target_length=target_length,
        device=device,
        dtype=dtype,
        ranks=ranks,
        layout=layout,
    )
    named = f"{preset or config} with {', '.join(settings)}" if settings else str(preset or config)
    report = replace(report, name=named)
    show_json(report.to_dict()) if as_json else typer.echo(render(report))
