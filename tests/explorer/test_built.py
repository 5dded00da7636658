"""The page that ships with the package: made of these sources, complete, and without a word to the outside.

Needs no Node. Whether a fresh build gives the same bytes is asked by `make web-check`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
BUILT = ROOT / "src" / "clearhead" / "explorer" / "built"
SINGLE = (
    "digest.ts",
    "index.html",
    "package-lock.json",
    "package.json",
    "svelte.config.js",
    "tsconfig.json",
    "vite.config.ts",
)
NAMESPACES = {"http://www.w3.org"}  # names of XML vocabularies, which nobody fetches


def sources(web: Path) -> dict[str, str]:
    """Every file that can change the build, and the hash of its content: as web/digest.ts lists them."""
    paths = [web / name for name in SINGLE] + [path for path in (web / "src").rglob("*") if path.is_file()]
    return {path.relative_to(web).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths}


def listed(text: str) -> dict[str, str]:
    """What sources.txt says the build was made of."""
    return {path: digest for digest, path in (line.split("  ", 1) for line in text.splitlines())}


def texts() -> list[Path]:
    return sorted(path for path in BUILT.rglob("*") if path.is_file())


@pytest.mark.skipif(not WEB.is_dir(), reason="the sources of the page are not part of the package")
def test_the_page_was_built_from_the_sources_that_are_here() -> None:
    there, then = sources(WEB), listed((BUILT / "sources.txt").read_text("utf-8"))
    changed = sorted(path for path in there.keys() | then.keys() if there.get(path) != then.get(path))
    assert not changed, f"changed since the page was built: {', '.join(changed)}; run 'make web'"


def test_everything_that_the_page_loads_is_there() -> None:
    class Links(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value for name, value in attrs if name in ("src", "href") and value]

    links = Links()
    links.feed((BUILT / "index.html").read_text("utf-8"))
    assert any(link.endswith(".js") for link in links.found)
    assert any(link.endswith(".css") for link in links.found)
    for link in links.found:
        assert link.startswith("./"), f"{link} does not lie beside the page"
        assert (BUILT / link).is_file(), f"{link} is missing"


def test_nothing_in_the_page_names_an_outside_host() -> None:
    assert texts()
    for path in texts():
        hosts = set(re.findall(r"(?:https?|wss?)://[^/\s\"'`)]*", path.read_text("utf-8")))
        assert hosts <= NAMESPACES, f"{path.name} names {', '.join(sorted(hosts - NAMESPACES))}"


def test_the_page_loads_nothing_by_address_from_its_styles() -> None:
    for path in BUILT.rglob("*.css"):
        found = re.findall(r"url\(([^)]*)\)|@import", path.read_text("utf-8"))
        assert not found, f"{path.name} loads {found}"


def test_no_script_needs_evaluation_of_text() -> None:
    """The server's security policy forbids it, so a page that did it would not start."""
    for path in BUILT.rglob("*.js"):
        assert not re.search(r"\beval\(|new Function\(", path.read_text("utf-8")), path.name


def test_names_of_assets_carry_a_hash() -> None:
    """The server lets browsers keep them for ever."""
    assets = [path for path in texts() if path.parent.name == "assets"]
    assert assets
    for path in assets:
        assert re.fullmatch(r".+-[\w-]{8}\.\w+", path.name), path.name


@pytest.mark.skipif(not WEB.is_dir(), reason="the sources of the page are not part of the package")
def test_the_lock_file_names_no_host() -> None:
    assert "resolved" not in (WEB / "package-lock.json").read_text("utf-8")
