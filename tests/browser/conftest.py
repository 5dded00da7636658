"""Some tiny bundles, one explorer that serves them, one browser, and a fresh page for each test.

Every page is watched: a test fails if the page logs an error, or asks for anything that is not on this
machine's explorer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import clearhead
from clearhead.bundle import Bundle, save
from clearhead.jobs.train import train
from clearhead.nn.attention.linformer import LinformerConfig
from clearhead.nn.experts import ExpertsConfig

from ..explorer.conftest import make_bundle
from ..explorer.test_picture_files import of_photos
from ..explorer.test_pictures import of_music, of_pictures
from ..jobs.making import settings, write_corpus
from .driving import browser, explorer, lacking
from .visiting import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("translator", "writer", "labeller", "tagger", "mixture", "chorales", "squares", "photos")

Ask = Callable[..., Any]
Open = Callable[..., Visit]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A translator that was really trained (for its log), the others have random weights."""
    if reason := lacking():
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("bundles")
    recipe = settings(
        write_corpus(home / "corpus"),
        model={"layers": 2, "attention": {"heads": 2}},
        saving={"tensorboard": True},
    )
    train(home / "translator", recipe, view="quiet")
    save(make_bundle("decoder"), home / "writer")
    save(make_bundle("encoder", "pre"), home / "labeller")
    save(make_bundle("encoder", "pre", head__kind="tag", head__classes=3), home / "tagger")
    linformer = LinformerConfig(heads=4, projected=3, max_length=20)
    experts = ExpertsConfig(experts=4, chosen=2, width=8)
    save(make_bundle("encoder", "pre", attention=linformer, feedforward=experts), home / "mixture")
    save(of_music(), home / "chorales")
    save(of_pictures(class_token=True), home / "squares")
    save(of_photos(), home / "photos")
    return {name: home / name for name in NAMES}


@pytest.fixture(scope="session")
def bundles(folders: dict[str, Path]) -> dict[str, Bundle]:
    """The same as the library has them, to compare with."""
    return {name: clearhead.load(folder, device="cpu") for name, folder in folders.items()}


@pytest.fixture(scope="session")
def home(folders: dict[str, Path]) -> Iterator[str]:
    """Where the explorer answers."""
    with explorer(*folders.values()) as address:
        yield address


@pytest.fixture(scope="session")
def ask(home: str) -> Iterator[Ask]:
    """The explorer asked without a page: `ask("/api/run", text="…")`, or `ask("/api/models")`."""
    with httpx.Client(base_url=home, timeout=60) as client:

        def answer(path: str, /, **body: Any) -> Any:
            response = client.post(path, json=body) if body else client.get(path)
            assert response.status_code == 200, response.text
            return response.json()

        yield answer


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if reason := lacking():
        pytest.skip(reason)
    with browser() as opened:
        yield opened


@pytest.fixture
def visit(chromium: Browser, home: str) -> Iterator[Open]:
    """Opens a page: `visit("run", text="…", step=2)`; others with `width=390`, `still=False`, `dark=True`."""
    visits: list[Visit] = []

    def opened(
        view: str = "run", *, width: int = 1280, still: bool = True, dark: bool = False, **params: object
    ) -> Visit:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            reduced_motion="reduce" if still else "no-preference",
            color_scheme="dark" if dark else "light",
            has_touch=width < 600,
        )
        context.set_default_timeout(10_000)
        visits.append(Visit(context.new_page(), home))
        return visits[-1].go(view, **params)

    yield opened
    for one in visits:
        one.close()
