"""Python bindings of the C++ kernels: the structs of `source/`, and when the kernels can be used.

A tensor is passed as the address of its data: callers are responsible for formats, strides and lifetimes.
ctypes releases the GIL during a call.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.compiler import TRAINING, NoLibrary
from clearhead.base.library import library
from clearhead.base.processor import multiplies_bf16

LANES = 16  # numbers per vector; rows of bits and of sums are whole vectors
DRAWS = 2**16  # possible values of a dropout draw

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_KINDS = {
    "p": _POINTER,
    "l": _LONG,
    "f": _FLOAT,
    "i": ctypes.c_int32,
    "u": ctypes.c_uint32,
    "s": ctypes.c_uint64,
}


def _fields(*lines: str) -> list[tuple[str, Any]]:
    """The fields of a struct: each line gives a type and the names of its fields."""
    split = (line.split() for line in lines)
    return [(name, _KINDS[kind]) for kind, *names in split for name in names]


class Attention(ctypes.Structure):
    """Arguments of both attention passes."""

    _fields_ = _fields(
        "p q k v",
        "l q_stride k_stride v_stride heads groups size",
        "p bounds",
        "l sequences",
        "f scale",
        "i causal",
        "p logsum",
    )


class Gradients(ctypes.Structure):
    """Gradients of attention's output and inputs."""

    _fields_ = _fields("p out q k v", "l out_stride q_stride k_stride v_stride")


class Loss(ctypes.Structure):
    """Scores, labels and their loss."""

    _fields_ = _fields("p scores labels", "l rows classes ignored", "f smoothing z_loss")


class Norm(ctypes.Structure):
    """norm(x + dropout(added))."""

    _fields_ = _fields(
        "p x added gain shift total y mean deviation kept",
        "l rows width",
        "s seed",
        "u dropped",
        "f factor epsilon",
    )


class NormGradient(ctypes.Structure):
    """Its gradient."""

    _fields_ = _fields(
        "p dy total gain mean deviation kept d_total d_added", "l rows width", "f factor", "i centred"
    )


# The arguments of each function; none returns anything.
_TAKES = {
    "attention": "p p l",
    "attention_backward": "p p l",
    "loss": "p p l",
    "norm": "p l",
    "norm_backward": "p p l",
    "dropout": "p p p p l l s u f i l",
    "bias": "p p l l i l",
    "bias_backward": "p p p p l l l",
    "activation": "p p p l l i l",
    "activation_backward": "p p p p p l l i l",
}


@functools.cache
def _functions() -> dict[str, Any]:
    loaded = library(TRAINING)
    found = {}
    for name, kinds in _TAKES.items():
        function = getattr(loaded, f"clearhead_{name}")
        function.argtypes, function.restype = [_KINDS[kind] for kind in kinds.split()], None
        found[name] = function
    return found


def call(name: str, *given: Any) -> None:
    """Call a function with numbers, structs and tensors, and with as many threads as PyTorch has."""
    plain = (one.data_ptr() if isinstance(one, Tensor) else _by_reference(one) for one in given)
    _functions()[name](*plain, torch.get_num_threads())


def _by_reference(one: Any) -> Any:
    return ctypes.byref(one) if isinstance(one, ctypes.Structure) else one


@functools.cache
def why_not() -> str | None:
    """Why the kernels cannot be used here, in one sentence; None if they can."""
    if not multiplies_bf16():
        return "This processor has no bf16 matrix multiplication."
    try:
        _functions()
    except NoLibrary as reason:
        return str(reason)
    return None


@functools.cache
def available() -> bool:
    """Whether the kernels can be used; if only a compiler is missing, warns once."""
    reason = why_not()
    if reason is not None and multiplies_bf16():
        warnings.warn(f"Training uses a slower path. {reason}", stacklevel=2)
    return reason is None


def fits(x: Tensor) -> bool:
    """Whether the kernels can take this tensor: bf16 on the CPU, not sharded over processes."""
    whole = type(x) in (Tensor, nn.Parameter) and x.is_cpu and x.numel() > 0
    return whole and x.dtype == torch.bfloat16 and available()
