"""The built page as files, and nothing else: requests select from a list of the existing files.

No path is ever built from a request, so none can lead outside. Links are not followed. Knows nothing about
the contents of the files.
"""

from __future__ import annotations

import mimetypes
import os
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

FOREVER = "public, max-age=31536000, immutable"  # built files carry a hash of their content in their names
KINDS = {
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".map": "application/json",
}


class Page:
    """The files of one folder (ASGI), for every address that is not a question."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer(scope["path"], scope["method"])(scope, receive, send)

    def answer(self, path: str, method: str) -> Response:
        """The file that a path names, or a sentence."""
        if path == "/api" or path.startswith("/api/"):
            raise HTTPException(404, "There is no such endpoint: /api/openapi.json lists them all.")
        if method not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET"})
        there = files_in(self.folder)
        if "/index.html" not in there:
            raise HTTPException(
                404, "The page has not been built yet: run 'make web' in the project's folder."
            )
        try:
            found = there["/index.html" if path == "/" else path]
            content = found.read_bytes()
        except (KeyError, OSError):
            raise HTTPException(404, "There is no such page: start at '/'.") from None
        kind = KINDS.get(found.suffix) or mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        lasting = FOREVER if path.startswith("/assets/") else "no-cache"
        return Response(content, media_type=kind, headers={"cache-control": lasting})


def files_in(folder: Path) -> dict[str, Path]:
    """Every plain file under a folder, by the path under which a page requests it; links are left out."""
    found: dict[str, Path] = {}
    for place, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(place, name))]
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                found["/" + path.relative_to(folder).as_posix()] = path
    return found
