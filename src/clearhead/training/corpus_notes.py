"""What a tokenised corpus says about the model that learns from it, for the metadata of its bundle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clearhead.data.config import Task
from clearhead.data.length_limits import LengthLimits
from clearhead.data.store import Store
from clearhead.data.tokenise import Tokenizers, framings_for
from clearhead.training.sizing import PAIRS


def corpus_notes(
    task: Task, tokenizers: Tokenizers, stores: Iterable[Store], documents: bool
) -> dict[str, Any]:
    """What stands around texts and, where there are pairs, how long targets get."""
    notes: dict[str, Any] = {"framing": framings_for(task, tokenizers, documents).to_dict()}
    if task in PAIRS:
        found = LengthLimits.of((store.lengths("source"), store.lengths("target")) for store in stores)
        notes |= {} if found is None else {"reach": found.to_list()}
    return notes
