"""Imports and exports models: Hugging Face both ways, llama2.c in, CTranslate2 and ONNX out.

No pickle file is ever read. Exports to CTranslate2 and ONNX use the optional packages of those formats;
nothing else here needs the other toolkits.
"""

from __future__ import annotations

from pathlib import Path

from clearhead.base.errors import UserError, nearest
from clearhead.bundle import Bundle, checking
from clearhead.interop.checkpoint import CONFIG, read_json
from clearhead.interop.ctranslate2 import export_ctranslate2
from clearhead.interop.huggingface import export_huggingface, import_huggingface
from clearhead.interop.llama2c import find_llama2c, import_llama2c
from clearhead.interop.onnx import export_onnx

__all__ = ["export_folder", "import_folder", "is_foreign"]

_EXPORTS = {"huggingface": export_huggingface, "ctranslate2": export_ctranslate2, "onnx": export_onnx}


def import_folder(folder: str | Path) -> Bundle:
    """Read another toolkit's model from a folder on this disk."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}' to import from: check the path.")
    if _is_huggingface(folder):
        return _checked(import_huggingface(folder), folder)
    found = find_llama2c(folder)
    if found is not None:
        return _checked(import_llama2c(*found), folder)
    if (folder / CONFIG).exists():
        read_json(folder / CONFIG)  # a damaged file raises its own message
        raise UserError(f"'{folder / CONFIG}' names no 'model_type', so '{folder}' holds nothing to import.")
    raise UserError(
        f"'{folder}' holds nothing to import: neither a Hugging Face model (config.json, model.safetensors) "
        f"nor a llama2.c model (a .bin and its tok*.bin)."
    )


def _checked(bundle: Bundle, folder: Path) -> Bundle:
    """Check what was read, as `save` does."""
    try:
        checking.check(bundle.config, bundle.metadata, bundle.tokenizer, bundle.source_tokenizer)
    except UserError as error:
        raise UserError(f"'{folder}' cannot be imported. {error}") from error
    return bundle


def export_folder(
    bundle: Bundle, folder: str | Path, to: str = "huggingface", *, quantize: str | None = None
) -> None:
    """Write a bundle as the folder another toolkit reads, atomically.

    `quantize` is the number format of CTranslate2's weights, such as "int8".
    """
    if to not in _EXPORTS:
        raise UserError(f"There is no export to '{to}': {nearest(to, _EXPORTS)}")
    if to == "ctranslate2":
        export_ctranslate2(bundle, Path(folder), quantize)
    elif quantize is not None:
        raise UserError(f"'--quantize' is only for ctranslate2: leave it out when you export to {to}.")
    else:
        _EXPORTS[to](bundle, Path(folder))


def is_foreign(folder: str | Path) -> bool:
    """Whether a folder looks like another toolkit's model, importable or not."""
    folder = Path(folder)
    if not folder.is_dir():
        return False
    try:
        return _is_huggingface(folder) or find_llama2c(folder) is not None
    except UserError:  # a recognised format that is refused
        return True


def _is_huggingface(folder: Path) -> bool:
    if not (folder / CONFIG).is_file():
        return False
    try:
        plain = read_json(folder / CONFIG)
    except UserError:
        return False
    return "model_type" in plain or "architectures" in plain
