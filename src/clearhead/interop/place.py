"""What all exports to another runtime share: an empty folder to write to, special ids, JSON, missing extras.

Knows nothing about any one format.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.text.tokenizer import ROLES

WRITERS = ("encoder-decoder", "decoder")  # the families that write text, which is what these exports are for


Special = dict[str, int | None]  # role -> id; None if a vocabulary has no such token


def special_ids(bundle: Bundle) -> Special:
    """The metadata's ids (an imported model has them there), or else the tokenizer's."""
    noted = bundle.metadata.get("special") or {}
    own = {} if bundle.tokenizer is None else bundle.tokenizer.specials
    known = {**own, **{role: id for role, id in noted.items() if id is not None}}
    return {role: known.get(role) for role in ROLES}


def stop_ids(bundle: Bundle) -> list[int]:
    """Every token that ends a text: the stop symbol, and others named in a model's own settings."""
    settings = bundle.metadata.get("generation")
    noted = settings.get("eos_token_id") if isinstance(settings, dict) else None
    others = [id for id in noted if isinstance(id, int)] if isinstance(noted, list) else []
    stop = special_ids(bundle)["stop"]
    return list(dict.fromkeys([*([] if stop is None else [stop]), *others]))


def ready_to_export(bundle: Bundle, folder: Path, what: str, package: str) -> nn.Module:
    """The model of a bundle that another runtime will read; raises a UserError if it cannot be exported."""
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"Exporting to {what} needs the package '{package}', which is not installed: run "
            f"`pip install {package}`, or `pip install 'clearhead[export]'` for all exports."
        )
    config = bundle.config
    if config.family not in WRITERS or config.head.kind != "none":
        labels = " that labels text" if config.head.kind != "none" else ""
        raise UserError(
            f"A model of the family '{config.family}'{labels} cannot be exported to {what}: only models that "
            f"write text can ({', '.join(WRITERS)})."
        )
    if config.unusual_parts is not None:
        raise UserError(f"A model with {config.unusual_parts} cannot be exported to {what}.")
    if folder.is_dir() and any(folder.iterdir()):  # any files in it would be lost
        raise UserError(f"The folder '{folder}' is not empty, and an export needs a new one: choose another.")
    return whole_model(bundle)


def whole_model(bundle: Bundle) -> nn.Module:
    """The model itself, without torch.compile's wrapper; raises a UserError for one without weights."""
    model: nn.Module = getattr(bundle.model, "_orig_mod", bundle.model)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UserError("This model cannot be exported: it was built on 'meta' and has no weights.")
    return model


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """A table as indented JSON."""
    path.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
