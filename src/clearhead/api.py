"""`clearhead.load`: a model from a folder, whichever toolkit wrote it.

A bundle of ours is read directly, a run with its progress so far; `interop`
translates a folder of another toolkit while reading it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from clearhead.bundle import Bundle, is_bundle
from clearhead.bundle.folder import placement
from clearhead.training.bundle_or_run import load_bundle_or_run


def load(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    verify: bool = True,
    mapped: bool = False,
) -> Bundle:
    """Read a bundle, or a model folder of Hugging Face or llama2.c, from disk.

    A run that has not finished is read with its best weights so far, and a line on stderr says so. The model
    is in evaluation mode: call `.train()` to train it further. `dtype` converts the weights, and
    `verify=False` skips a bundle's checksums. `mapped=True` leaves a bundle's weights in their file, which
    you must not overwrite in place meanwhile: decoding with the C++ engine then takes less memory.

    >>> import clearhead, tempfile, torch
    >>> model = clearhead.build("tiny", family="decoder").eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bundle = clearhead.load(clearhead.save(model, f"{folder}/first"))
    >>> bundle
    Bundle(decoder, 20,288 parameters, 2 layers, no tokenizer)
    >>> ids = torch.tensor([[5, 6, 7]])
    >>> torch.equal(bundle.model(ids).logits, model(ids).logits)
    True
    """
    folder = Path(path)
    if is_bundle(folder):
        return load_bundle_or_run(folder, device=device, dtype=dtype, verify=verify, mapped=mapped)
    # Here, so that a command that uses a bundle does not wait for other toolkits' formats.
    from clearhead.interop import import_folder, is_foreign

    if not is_foreign(folder):
        return load_bundle_or_run(folder, device=device, dtype=dtype, verify=verify, mapped=mapped)
    place, kind = placement(device, dtype)
    bundle = import_folder(folder)
    bundle.model.to(device=place, dtype=kind).eval()
    return bundle
