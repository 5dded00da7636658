"""MkDocs hooks: pages and files of the repository that lie outside docs/ become part of the site.

The site keeps the repository's layout, with docs/ as its root: `recipes/README.md` stays where it is and
`docs/tour.md` is `tour.md`. Links are written for the repository; here they are turned into the site's. A
notebook becomes a page. Knows nothing about what the pages say. Run by `make site`.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    *(
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "ROADMAP.md",
        "SECURITY.md",
    ),
    *("recipes/README.md", "web/README.md"),
)
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages above, every notebook, and every other file that a page links to."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        page = File.generated(config, f"notebooks/{notebook.stem}.md", content=as_page(notebook))
        files.append(page)
        files.append(File.generated(config, f"notebooks/{notebook.name}", abs_src_path=str(notebook)))
    index = ROOT / "notebooks" / "README.md"
    files.append(File.generated(config, "notebooks/index.md", abs_src_path=str(index)))
    for page in list(files.documentation_pages()):
        for _, target, _, _ in LINK.findall(prose(page.content_string)):
            path = in_repository(page.src_uri, target)
            if (ROOT / path).is_file() and files.get_file_from_path(in_site(path)) is None:
                files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Turn links between places in the repository into links between places of the site."""
    here = posixpath.dirname(page.file.src_uri)

    def turned(found: re.Match[str]) -> str:
        opening, target, heading, closing = found.groups()
        path = in_site(in_repository(page.file.src_uri, target))
        return f"{opening}{posixpath.relpath(path, here or '.')}{heading or ''}{closing}"

    return outside_fences(markdown, lambda text: LINK.sub(turned, text))


def in_repository(uri: str, target: str) -> str:
    """Where a link on the page `uri` leads, from the repository's root."""
    outside = uri in PAGES or uri.startswith("notebooks/")
    folder = posixpath.dirname(uri if outside else f"docs/{uri}")
    return posixpath.normpath(posixpath.join(folder, target))


def in_site(path: str) -> str:
    """The place in the site of a path in the repository; the README's place is the first page."""
    moved = {"README.md": "index.md", "notebooks/README.md": "notebooks/index.md"}
    return moved.get(path, path.removeprefix("docs/"))


def prose(markdown: str) -> str:
    return FENCE.sub("", markdown)


def outside_fences(markdown: str, change: Any) -> str:
    """Apply `change` to everything but fenced blocks."""
    parts, last = [], 0
    for block in FENCE.finditer(markdown):
        parts += [change(markdown[last : block.start()]), block.group()]
        last = block.end()
    return "".join([*parts, change(markdown[last:])])


def as_page(notebook: Path) -> str:
    """A notebook without outputs as Markdown: texts as they are, code in fences."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"]).rstrip()
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    parts.insert(1, f"[Download the notebook]({notebook.name})")
    return "\n\n".join(parts) + "\n"
