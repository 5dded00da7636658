"""Which numbers the C++ engine is fastest with here: measured once for a model's shape and a machine.

float32 is given up only for a clear gain. What was found is kept in the user's cache folder, where it may be
deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import time

import torch
from torch import nn

from clearhead.base.atomic import atomic_write_text
from clearhead.base.device import name_of_cpu
from clearhead.decoding.native import Dtype, NativeRows
from clearhead.decoding.native.build import cache_folder
from clearhead.decoding.steps import Symbols, config_of

FILE = "fastest.json"
CANDIDATES: tuple[Dtype, ...] = ("float32", "bf16", "int8")
GAIN = 1.1  # float32 is given up for so many times its speed
REQUESTS, LENGTH, STEPS, ROUNDS = 4, 16, 8, 3


def fastest(model: nn.Module, symbols: Symbols) -> Dtype:
    """float32, bf16 or int8: what this model writes fastest in on this CPU."""
    key = _key(model)
    known = _read()
    if known.get(key) not in CANDIDATES:
        seconds = {dtype: _seconds(model, symbols, dtype) for dtype in CANDIDATES}
        best = min(seconds, key=seconds.__getitem__)
        known[key] = best if seconds["float32"] > GAIN * seconds[best] else "float32"
        _write(known)
    found: Dtype = next(dtype for dtype in CANDIDATES if dtype == known[key])
    return found


def _key(model: nn.Module) -> str:
    config = config_of(model)
    shape = {
        name: value for name, value in config.to_dict().items() if name not in ("dropout", "initialisation")
    }
    whole = json.dumps([shape, name_of_cpu(), torch.get_num_threads()], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


@torch.no_grad()
def _seconds(model: nn.Module, symbols: Symbols, dtype: Dtype) -> float:
    """The best of a few rounds: a few sources read, a few tokens written."""
    rows = NativeRows(model, symbols, dtype=dtype)
    given = [[symbols.stop] * LENGTH for _ in range(REQUESTS)]
    token, parent = torch.full((REQUESTS,), symbols.stop), torch.arange(REQUESTS)
    nobody = parent[:0]
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        rows.admit(given).top(1)
        for _ in range(STEPS):
            rows.step(parent, token).top(1)
        best = min(best, time.perf_counter() - began)
        rows.step(nobody, nobody)
    return best


def _read() -> dict[str, str]:
    try:
        found = json.loads((cache_folder() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(known: dict[str, str]) -> None:
    """Kept if it can be: next time it would only be measured again."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write_text(cache_folder() / FILE, json.dumps(known, indent=1, sort_keys=True) + "\n")
    except (OSError, RuntimeError):
        pass
