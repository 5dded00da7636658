"""`clearhead inspect`: what a bundle contains, and whether it is intact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.base.settings import flat
from clearhead.cli.options import AsJson
from clearhead.cli.table import plain_table, show_formats, show_json, show_table

if TYPE_CHECKING:
    from clearhead.bundle import Description


def inspect_(
    bundle: Annotated[Path, typer.Argument(help="The bundle to inspect.")],
    as_json: AsJson = False,
) -> None:
    """Print a bundle's config, parameters and checksums.

    A damaged bundle is shown as far as it can be read, and the exit code is 2.

    \b
    Examples:
      clearhead inspect en-de
      clearhead inspect en-de --json
    """
    # here, so that --help does not wait for torch
    from clearhead.training.bundle_or_run import describe_bundle_or_run

    found = describe_bundle_or_run(bundle)
    decoding = _decoding(found)
    if as_json:
        show_json({**found.to_dict(), "decoding": decoding})
    else:
        _show(found)
        if decoding:
            typer.echo("\ndecoding, by the bundle's own settings")
            _tree(decoding)
    if found.problem is not None:
        raise UserError(f"The bundle '{bundle}' is damaged: {found.problem}.")


def _decoding(found: Description) -> dict[str, object]:
    """How the bundle is decoded by default, if it has such settings."""
    # here, so that --help does not wait for torch
    from clearhead.decoding.defaults import not_carried, own_options
    from clearhead.decoding.options import Options

    try:
        own = own_options(found.metadata, found.family)
        left = not_carried(found.metadata, found.family)
    except UserError as error:
        return {"unusable": str(error)}
    usual = Options().to_dict()
    told = {} if own is None else {k: v for k, v in own.to_dict().items() if v != usual[k]}
    return {**told, **({"without effect here": left} if left else {})}


def _show(found: Description) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    facts = [
        ["bundle", found.folder],
        ["family", found.family],
        ["parameters", f"{found.parameters:,}"],
        ["layers", found.layers],
        ["vocabulary", found.vocabulary],
        *([["made", f"{found.created} with {versions}"]] if found.created else []),
        *([name, _text(value)] for name, value in found.metadata.items() if not _large(value)),
    ]
    typer.echo(plain_table(facts[0], facts[1:]))
    for name, value in found.metadata.items():
        if name == "recipe":  # its meaningful settings are among those that were chosen
            typer.echo("\nrecipe\n  --json shows all settings of the run that made it")
        elif name == "formats" and isinstance(value, dict):
            typer.echo(
                f"\nformats: cost of other number formats, on {value.get('examples')} validation examples"
            )
            show_formats(value)
        elif _large(value):
            typer.echo(f"\n{name}")
            _tree(value)
    typer.echo("\nconfig")
    for name, value in flat(found.config).items():  # by the path that `--set` takes
        typer.echo(f"  {name} = {_text(value)}")
    typer.echo()
    parts = [[part.name, f"{part.tensors:,}", f"{part.parameters:,}"] for part in found.parts]
    show_table(["part", "tensors", "parameters"], parts, numbers=[1, 2])
    typer.echo()
    files = [[file.name, f"{file.bytes:,}", file.state, file.sha256] for file in found.files]
    show_table(["file", "bytes", "state", "sha256"], files, numbers=[1])


def _large(value: object) -> bool:
    """Too much for one line."""
    return isinstance(value, dict | list) and len(_text(value)) > 60


def _tree(value: object, path: str = "") -> None:
    """One line for each nested value; tables of a list on one line each, unset values left out."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _tree(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and _large(value):
        for number, inner in enumerate(value):
            if isinstance(inner, dict) and all(not isinstance(one, dict | list) for one in inner.values()):
                typer.echo("  " + " · ".join(_text(one) for one in inner.values() if one is not None))
            else:
                _tree(inner, f"{path}.{number}" if path else str(number))
    elif value is not None:
        typer.echo(f"  {path} = {_text(value)}" if path else f"  {_text(value)}")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
