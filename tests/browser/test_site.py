"""The documentation site as a browser opens it from a file: the search finds, and nothing is fetched."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from ..test_site import SITE

pytestmark = pytest.mark.browser


def test_the_search_works_without_a_server(chromium: Browser) -> None:
    if not (SITE / "index.html").exists():
        pytest.skip("there is no site in build/site: run `make site`")
    page = chromium.new_page(viewport={"width": 1300, "height": 900})
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto((SITE / "index.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("rotary", delay=20)
    page.wait_for_selector(".md-search-result__item", timeout=120_000)
    assert "match" in page.inner_text(".md-search-result__meta")
    assert [url for url in fetched if url.startswith("http")] == []
    page.close()
