"""One finished run that several tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from clearhead.jobs.finish import Finished
from clearhead.jobs.train import train

from .making import settings, write_corpus


@pytest.fixture(scope="package")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of sentence pairs."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="package")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A translator, hardly trained."""
    return train(tmp_path_factory.mktemp("runs") / "first", settings(corpus), view="quiet")
