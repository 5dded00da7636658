"""The built page as files, and nothing but them: what is served is chosen from a list of what is there.

No path is ever made from a request, so none can lead outside. Links are not followed. Knows nothing about
what the files are.
"""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from clearhead.explorer.server.answers import problem

FOREVER = "public, max-age=31536000, immutable"  # built files carry a hash of their content in their names
KINDS = {
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".map": "application/json",
}


class Page:
    """The files of one folder (ASGI). `api` says which methods each address of the API takes."""

    def __init__(self, folder: Path, api: Mapping[str, str]) -> None:
        self.folder, self.api = folder, api

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.answer(Request(scope))(scope, receive, send)

    def answer(self, request: Request) -> Response:
        """The file that a path names, or a sentence."""
        path = request.scope["path"]
        if path in self.api:
            return _wrong_method(self.api[path])
        if path == "/api" or path.startswith("/api/"):
            return problem(404, "There is no such question: /api/openapi.json lists them.")
        if request.method not in ("GET", "HEAD"):
            return _wrong_method("GET")
        there = files_in(self.folder)
        if "/index.html" not in there:
            return problem(404, "The page has not been built yet: run 'make web' in the project's folder.")
        found = there.get("/index.html" if path == "/" else path)
        if found is None:
            return problem(404, "There is no such page: start from '/'.")
        try:
            content = found.read_bytes()
        except OSError:
            return problem(404, "There is no such page: start from '/'.")
        kind = KINDS.get(found.suffix) or mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        lasting = FOREVER if path.startswith("/assets/") else "no-cache"
        return Response(content, media_type=kind, headers={"cache-control": lasting})


def files_in(folder: Path) -> dict[str, Path]:
    """Every plain file under a folder, by the path that a page asks it by; links are left out."""
    found: dict[str, Path] = {}
    for place, folders, names in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(place, name))]
        for name in names:
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                found["/" + path.relative_to(folder).as_posix()] = path
    return found


def _wrong_method(allowed: str) -> Response:
    answer = problem(405, f"This address answers {allowed} only.")
    answer.headers["allow"] = allowed
    return answer
