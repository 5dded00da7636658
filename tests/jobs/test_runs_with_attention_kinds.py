"""Runs with cheaper attentions: trained, stopped, resumed to the same weights, and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead
from clearhead.jobs import train as job
from clearhead.jobs.recipe import merged

from .making import settings, write_corpus
from .test_image import Stopped, stop_after

pytestmark = pytest.mark.usefixtures("no_curves")

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "linformer": ("classify", {"projected": 4, "max_length": 64}),
    "linformer, of all layers": ("classify", {"projected": 4, "max_length": 64, "share": "layers"}),
    "nystrom": ("classify", {"landmarks": 3, "convolution": 3}),
    "reformer": ("generate", {"chunk": 8, "buckets": [4]}),
    "sparse": ("generate", {"window": 3, "stride": 2, "unit": 2, "global_tokens": 1, "dropout": 0.1}),
    "linear": ("generate", {}),
    "performer": ("generate", {"features": 6}),
    "compressed": ("generate", {"stride": 2, "kernel_size": 3, "dropout": 0.1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_ends_alike(
    kind: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, own = KINDS[kind]
    said = settings(write_corpus(tmp_path, task), task, steps=8, compute={"dtype": dtype})
    said = merged(said, {"model": {"attention": {"kind": kind.partition(",")[0], "heads": 2, **own}}})
    said["validation"] = {**said.get("validation", {}), "every": 4}
    whole = job.train(tmp_path / "whole", said, view="quiet").bundle
    with monkeypatch.context() as patched:
        stop_after(patched, 5)
        with pytest.raises(Stopped):
            job.train(tmp_path / "half", said, view="quiet")
    again = job.resume(tmp_path / "half", view="quiet").bundle
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    if task == "generate":
        bundle = clearhead.load(tmp_path / "half")
        assert clearhead.generate(bundle, "the", max_length=4) == clearhead.generate(
            again, "the", max_length=4
        )
