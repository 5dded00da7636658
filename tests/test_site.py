"""The documentation site: every page has its place, every public name its description, every link its end.

What needs no MkDocs is tested with everything else. `make site` builds the site and then runs the tests
marked `site` on what it built.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import clearhead

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}


def nav() -> list[str]:
    """The pages that mkdocs.yml puts in order."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return re.findall(r"[\w./-]+\.md\b", text[text.index("\nnav:") :])


def test_every_page_has_one_place() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - set(nav()) == set(), "pages that mkdocs.yml does not name"
    assert len(nav()) == len(set(nav()))
    for page in nav():
        assert (ROOT / "docs" / page).exists() or source_elsewhere(page).exists(), page


def source_elsewhere(page: str) -> Path:
    """Where a page lies that is not in docs/: at the repository's root, or it is a notebook."""
    if page == "notebooks/index.md":
        return ROOT / "notebooks" / "README.md"
    path = ROOT / page
    return path.with_suffix(".ipynb") if path.parent.name == "notebooks" else path


def test_every_public_name_is_described() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    described = set(re.findall(r"^::: clearhead\.(\w+)$", pages, re.MULTILINE))
    assert set(clearhead.__all__) - described == {"__version__"}


def test_every_mask_is_described() -> None:
    text = (ROOT / "docs" / "reference" / "parts.md").read_text(encoding="utf-8")
    found = re.search(r"members: \[(.*?)\]", text)
    assert found is not None
    assert found[1].split(", ") == clearhead.masks.__all__


def test_every_picture_is_shown() -> None:
    shown = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f"images/{picture.name}" in shown, picture.name


class Document(HTMLParser):
    """The links, loaded files and anchors of one page of HTML."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        loaded = [given[name] for kind, name in LOADED if kind == tag and name in given]
        self.loaded += [] if given.get("rel") in ("canonical", "prev", "next") else loaded


@pytest.fixture(scope="module")
def documents() -> dict[Path, Document]:
    assert (SITE / "index.html").exists(), "run `make site`, which builds the site first"
    # the page for what is not found is made for a server: its addresses begin with a slash
    return {path: Document(path) for path in SITE.rglob("*.html") if path.name != "404.html"}


@pytest.mark.site
def test_links_and_images_of_the_site_lead_somewhere(documents: dict[Path, Document]) -> None:
    assert len(documents) > 35
    for path, document in documents.items():
        for address in (*document.links, *document.loaded):
            parts = urlsplit(address)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert place.is_file(), f"{path.relative_to(SITE)} links to {address}"
            if parts.fragment and place in documents:
                assert unquote(parts.fragment) in documents[place].anchors, f"{path.name}: {address}"


@pytest.mark.site
def test_the_site_loads_nothing_from_elsewhere(documents: dict[Path, Document]) -> None:
    """So it works from a file, without a network."""
    for path, document in documents.items():
        assert [one for one in document.loaded if urlsplit(one).scheme not in ("", "data")] == [], path.name
    for sheet in SITE.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )[\"']?https?:[^)]*", sheet.read_text(encoding="utf-8")) == []


@pytest.mark.site
def test_code_and_tables_are_rendered(documents: dict[Path, Document]) -> None:
    """No fence, table or directive is left as text, which is how a page looks that Markdown has misread."""
    for path in documents:
        text = path.read_text(encoding="utf-8")
        words = re.sub(r"<(code|script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        words = re.sub(r"<[^>]*>", "", words)
        assert "```" not in words, path.name
        assert not re.search(r"^\s*\|.*\|\s*$", words, re.MULTILINE), path.name
        assert "::: clearhead" not in words, path.name
        assert "&gt;&gt;&gt; " not in words, path.name


@pytest.mark.site
def test_fields_and_names_are_in_the_reference(documents: dict[Path, Document]) -> None:
    anchors = set().union(*(document.anchors for document in documents.values()))
    assert {f"clearhead.{name}" for name in clearhead.__all__ if name != "__version__"} <= anchors
    assert "clearhead.AttentionConfig.kv_heads" in anchors  # described by the comment on its line


@pytest.mark.site
def test_the_search_has_every_page() -> None:
    index = (SITE / "search" / "search_index.js").read_text(encoding="utf-8")
    for page in nav():
        place = re.sub(r"(README|index)\.md$", "index.html", page).replace(".md", ".html")
        assert f'"{place}' in index or place == "index.html", page
