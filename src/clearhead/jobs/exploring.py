"""The bundles that the explorer looks into: finished ones, and runs that are still being trained."""

from __future__ import annotations

from pathlib import Path

import torch

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, is_bundle
from clearhead.jobs import prepare
from clearhead.models.build import build
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.run_folder import SOURCE_TOKENIZER, TARGET_TOKENIZER, RunFolder
from clearhead.training.weights import WeightFiles, set_weights


def is_under_way(folder: Path) -> bool:
    """Is there a run that has not come to its bundle yet?"""
    return not is_bundle(folder) and RunFolder(folder).record.is_file()


def open_bundle(folder: Path, device: torch.device) -> Bundle:
    """A bundle, a folder of another toolkit, or a run as it is now."""
    if not is_under_way(folder):
        return load(folder, device=device)
    bundle, _ = under_way(folder)
    bundle.model.to(device)
    return bundle


def under_way(folder: Path) -> tuple[Bundle, int]:
    """A run as a bundle with its newest weights, and the step they are of; before the first validation, 0.

    Nothing in the folder is touched: training goes on.
    """
    place = RunFolder(folder)
    config, record = place.read_record()
    if not prepare.is_ready(place.data):
        raise UserError(f"The run in '{folder}' is still reading its corpus: try again in a moment.")
    own = place.data / SOURCE_TOKENIZER
    source = Tokenizer.load(own) if own.is_file() else None
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model = build(config.model)
    files = WeightFiles(place.training)
    steps = sorted(int(path.stem.removeprefix("step-")) for path in files.folder.glob("step-*.safetensors"))
    for step in reversed(steps):
        try:
            weights = files.read(step)
        except OSError:
            continue  # training has just removed it
        with torch.no_grad():
            set_weights(model, weights)
        break
    else:
        step = 0
    target = Tokenizer.load(place.data / TARGET_TOKENIZER)
    return Bundle(model.eval(), target, dict(record["notes"]), source), step
