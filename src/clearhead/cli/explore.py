"""`clearhead explore`: see a model think, in the browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.base.errors import UserError
from clearhead.cli.demo import trained
from clearhead.cli.options import Device, option

if TYPE_CHECKING:
    from clearhead.explorer.session import Session

NEEDED = ("fastapi", "uvicorn")  # the extra `explore`
ALONE = ("127.0.0.1", "localhost", "::1")  # only this machine can reach these


def explore(
    bundles: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[BUNDLE]...", help="Bundles to explore.  [default: the demo's]"),
    ] = None,
    port: Annotated[
        int,
        option(
            "NUMBER", "Port to listen on, or the next free one if it is in use; 0 for any.", min=0, max=65535
        ),
    ] = 8765,
    host: Annotated[str, option("NAME", "Address to listen on.")] = "127.0.0.1",
    open_: Annotated[bool, option(None, "Open the page in the browser.", "--open")] = False,
    device: Device = "auto",
) -> None:
    """Start a local page that shows what a model does with a text.

    Nothing leaves this machine. A run that is still being trained can be explored, too. Stop it with Ctrl-C.

    \b
    Examples:
      clearhead explore
      clearhead explore runs/mine --open
      clearhead explore en-de en-fr --port 9000
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        packages = f"package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}"
        raise UserError(f'The explorer needs the {packages}: pip install "clearhead[explore]".')
    from clearhead.explorer.server.app import BUILT, make_app  # here, so that --help does not wait for torch
    from clearhead.explorer.server.serve import address_of, bind, serve

    folders = named(bundles or [_demonstration()])
    sessions = {name: _session(name, folder, device) for name, folder in folders.items()}
    listener = bind(host, port)
    address, found = address_of(listener, host), listener.getsockname()[1]
    if port not in (0, found):
        typer.echo(f"Port {port} is in use; using {found} instead.")
    if host not in ALONE:
        typer.echo(f"Anyone who can reach '{host}' can use these models.", err=True)
    if not (BUILT / "index.html").is_file():
        typer.echo("The page has not been built, so only /api/ is served: run 'make web'.", err=True)

    def ready() -> None:
        typer.echo(f"{', '.join(sessions)}: {address}\nPress Ctrl-C to stop.")
        if open_:
            typer.launch(address)

    serve(make_app(sessions, BUILT, host=host), listener, ready)


def named(folders: list[Path]) -> dict[str, Path]:
    """Folders by the name that the page shows: their own, plus a number if two are the same.

    >>> list(named([Path("a/en-fr"), Path("b/en-fr"), Path("c")]))
    ['en-fr', 'en-fr-2', 'c']
    """
    found: dict[str, Path] = {}
    for folder in folders:
        own = folder.resolve().name or "model"
        name, number = own, 2
        while name in found:
            name, number = f"{own}-{number}", number + 1
        found[name] = folder
    return found


def _session(name: str, folder: Path, device: str) -> Session:
    from clearhead.api import load
    from clearhead.base.device import exact_place, pick_device
    from clearhead.explorer.session import Session
    from clearhead.training.bundle_or_run import is_unfinished
    from clearhead.training.unfinished import load_run

    # much of what is shown is a small difference, computed in float64 on the model's device
    place = exact_place(pick_device(device))
    if is_unfinished(folder):  # its curves can be watched before there is anything else to see
        return Session(load_run(folder, place, None, untrained=True), name, folder)
    return Session(load(folder, device=place), name, folder)


def _demonstration() -> Path:
    """The demonstration's bundle; trained first if there is none."""
    from clearhead.bundle import is_bundle
    from clearhead.jobs.demo import home_of

    folder = home_of("en-fr")
    if not is_bundle(folder):
        typer.echo(f"There is no bundle yet: training the demo translator first, into {folder}.")
        trained(folder, "en-fr")
    return folder
