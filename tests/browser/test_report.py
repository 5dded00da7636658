"""The page of `clearhead explain` in a browser: one file, nothing asked, nothing wider than the window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clearhead.bundle import Bundle
from clearhead.explorer.report import explain
from clearhead.explorer.session import Session

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("name", ["translator", "writer", "labeller"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_stands_alone(
    chromium: Browser, bundles: dict[str, Bundle], tmp_path: Path, name: str, width: int
) -> None:
    path = tmp_path / "report.html"
    path.write_text(explain(Session(bundles[name], name), "the cat sees a dog"), encoding="utf-8")
    context = chromium.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert name in page.locator("h1").inner_text()
    assert page.locator("svg, img.map").count() > 3
    page.locator("summary").first.click()
    assert page.locator("details[open] table data").count() > 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    context.close()
