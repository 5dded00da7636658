"""What the page must know of each model before anything is asked: its shape, its config, a few sentences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from clearhead.explorer.curves import training
from clearhead.explorer.session import Session
from clearhead.phrasebook import examples

Plain = dict[str, Any]
MOST_EXAMPLES = 8
SENTENCES = (
    "The old man is reading a red book.",
    "Who sees the green house?",
)  # where nothing better is known


def listed(session: Session, folder: Path | None = None) -> Plain:
    """One model, for the page's choice of models and for its headings; its bundle lies in `folder`."""
    config = session.config
    layers = session.layers
    return {
        "name": session.name,
        "family": session.family,
        "task": session.bundle.metadata.get("task"),
        "labels": session.bundle.metadata.get("labels") or [],
        "parameters": sum(one.numel() for one in session.model.parameters()),
        "layers": {"encoder": layers.get("encoder", 0), "decoder": layers.get("decoder", 0)},
        "heads": 1 if session.family == "recurrent" else config.attention.heads,
        "width": config.width,
        "vocabulary": config.vocabulary,
        "position": "none" if session.family == "recurrent" else config.position.name,
        "norm": "none" if session.family == "recurrent" else f"{config.norm.place}-{config.norm.kind}",
        "has_source": session.has_source,
        "kinds": session.kinds,
        "limit": session.limit,
        "examples": examples_of(session, folder),
        "config": config.to_dict(),
    }


@lru_cache(maxsize=64)
def examples_of(session: Session, folder: Path | None = None) -> list[str]:
    """Sentences to begin with: noted in the bundle, met in its training, or made up."""
    metadata = session.bundle.metadata
    noted = metadata.get("examples")
    found = [one for one in noted if isinstance(one, str)] if isinstance(noted, list) else []
    if _is_phrasebook(metadata.get("recipe")):
        found += [source for source, _ in examples("en-fr")]
    found += [
        str(sample["source"]) for sample in training(session, folder)["samples"] if sample.get("source")
    ]
    fitting = [one for one in dict.fromkeys(found) if one.strip() and _fits(session, one)]
    return fitting[:MOST_EXAMPLES] or list(SENTENCES)


def _fits(session: Session, text: str) -> bool:
    return len(text) < 400 and len(session.reader.encode(text)) < min(session.limit, 60)


def _is_phrasebook(recipe: Any) -> bool:
    """Whether a model was trained on the demonstration's sentences, which are English on the left."""
    data = recipe.get("data") if isinstance(recipe, Mapping) else None
    files = data.get("train") if isinstance(data, Mapping) else None
    paths = [one.get("file") for one in files if isinstance(one, Mapping)] if isinstance(files, list) else []
    return any(isinstance(path, str) and Path(path).parent.name.endswith("-phrasebook") for path in paths)
