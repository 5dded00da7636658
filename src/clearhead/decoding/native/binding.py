"""Python bindings of the C++ engine: structs field by field, and the functions' types.

Mirrors `source/model.h`, `source/engine.h`, `source/beam.h` and the functions of `source/engine.cpp`. A
library that does not match is not used.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from clearhead.base.compiler import NoLibrary
from clearhead.base.errors import UserError
from clearhead.base.library import library

KINDS = {"float32": 0, "bf16": 1, "int8": 2}
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh")
FORBIDDEN, STOP = 1, 2  # kinds of tokens
EARLY = ("never", False, True)  # values of `early_stopping` by number
FORCED = ("scored", "free", "cut")
ENVIRONMENT = ("CXX", "PATH", "XDG_CACHE_HOME", "HOME")  # what determines which library is found
INTERFACE = 1  # of `source/interface.h`, which has the same number

Pointer = ctypes.c_void_p
# Named as in `source/interface.h`; z, a text, is a pointer there.
_TYPES: dict[str, Any] = {"v": None, "p": Pointer, "z": ctypes.c_char_p}
_TYPES |= {"i4": ctypes.c_int32, "i8": ctypes.c_int64, "f4": ctypes.c_float, "f8": ctypes.c_double}


def _fields(*lines: str) -> list[tuple[str, Any]]:
    """The fields of a struct: each line gives a type and the names of its fields."""
    split = (line.split() for line in lines)
    return [(name, _TYPES[kind]) for kind, *names in split for name in names]


class Norm(ctypes.Structure):
    """A norm's weight and bias; without a weight there is no norm."""

    _fields_ = _fields("p weight bias")


LAYER_MATRICES = (
    "query_key_value queries attention_output cross_query cross_key_value cross_output inner outer"
)
_TYPES["Norm"] = Norm


class Layer(ctypes.Structure):
    """One layer's matrices and norms."""

    _fields_ = _fields(
        f"p {LAYER_MATRICES}", "Norm attention_norm cross_norm feedforward_norm latent_norm query_norm"
    )


_TYPES["Layer*"] = ctypes.POINTER(Layer)


class Model(ctypes.Structure):
    """A whole model."""

    _fields_ = _fields(
        "i4 width vocabulary source_vocabulary encoder_layers decoder_layers heads groups key_dim value_dim",
        "i4 inner gated activation rms norm_first rotary_halves has_source latent rotary_dim",
        "i4 query_latent",
        "f4 eps scale softcap embedding_factor output_factor",
        "p source_table target_table",
        "Norm source_norm target_norm encoder_norm decoder_norm",
        "Layer* encoder decoder",
        "p output source_rows target_rows",
        "i8 file source_offset target_offset",
    )


class Tables(ctypes.Structure):
    """What depends on positions."""

    _fields_ = _fields("i8 capacity", "p source target cosine sine encoder_bias decoder_bias")


class ScoreBuffer(ctypes.Structure):
    """Where scores go."""

    _fields_ = _fields("p logits", "i8 stride", "p peaks norms hidden attention", "i8 attention_stride")


class BeamOptions(ctypes.Structure):
    """What all requests of a beam's batch have in common."""

    _fields_ = _fields("i4 width kept candidates stop stops early forced", "p kinds")


class Strider(ctypes.Structure):
    """A beam that takes part in several steps at once."""

    _fields_ = _fields("p beam buffer", "i8 begin rows", "p divisors")


class BeamAnswer(ctypes.Structure):
    """A request that a beam has decided."""

    _fields_ = _fields("i8 number texts", "i4 broken dead")


_TYPES |= {"i4*": ctypes.POINTER(ctypes.c_int32), "f4*": ctypes.POINTER(ctypes.c_float)}


class BeamText(ctypes.Structure):
    """One of its texts."""

    _fields_ = _fields("f8 score", "i8 count", "i4* tokens", "f4* logps", "i4 willing")


STRUCTS = (Norm, Layer, Model, Tables, ScoreBuffer, BeamOptions, BeamAnswer, BeamText, Strider)
# Return and argument types of each function.
_FUNCTIONS = {
    "kernels": "p z",
    "kernels_name": "z p",
    "panel": "i8 p",
    "instruction_set": "z i8",
    "bytes_for_matrix": "i8 p i8 i8 i4",
    "matrix": "p p i8 i8 i4 p",
    "matrix_bias": "v p p f4",
    "matrix_pack": "i4 p p i8 i8 i4",
    "matrix_free": "v p",
    "matrix_bytes": "i8 p",
    "misfit": "z p",
    "engine": "p p i4",
    "engine_free": "v p",
    "tables": "v p p",
    "rows": "i8 p",
    "longest": "i8 p",
    "longest_source": "i8 p",
    "slots": "i8 p",
    "bytes": "i8 p",
    "admit": "i4 p p p i8 i4 p",
    "step": "i4 p p p i8 p",
    "take": "i8 p i8 i8",
    "join": "i4 p i8",
    "drop": "v p i8",
    "top": "i4 p p i8 i8 i8 p p",
    "logp": "i4 p p i8 i8 p",
    "beam": "p p i8 p p i8",
    "beam_free": "v p",
    "beam_advance": "i8 p p p i8 f8 f8 p p",
    "beam_layout": "i8 p p",
    "beam_take": "p p i8 i8",
    "beam_stride": "i8 p p i8 i8 i8 p",
    "beam_decided": "i8 p",
    "beam_forget": "v p",
    "beam_answer": "v p i8 p",
    "beam_text": "v p i8 i8 p",
}


def believed() -> dict[str, str]:
    """The structs and functions that this module assumes, in the notation of `source/interface.h`."""
    found = {"interface": str(INTERFACE)}
    for struct in STRUCTS:
        fields = [
            f"{name}:{_code(kind)}@{getattr(struct, name).offset}" for name, kind, *_ in struct._fields_
        ]
        found[struct.__name__] = " ".join([str(ctypes.sizeof(struct)), *fields])
    for name, types in _FUNCTIONS.items():
        found[f"clearhead_{name}()"] = types.replace("z", "p")
    return found


def _code(kind: Any) -> str:
    """The name of a field's type."""
    if issubclass(kind, ctypes.Structure):
        return f"s{ctypes.sizeof(kind)}"
    return (
        "p"
        if issubclass(kind, ctypes._Pointer)
        else next(name for name, one in _TYPES.items() if one is kind)
    )


def said(loaded: ctypes.CDLL) -> dict[str, str]:
    """The structs and functions that the library reports."""
    try:
        function = loaded.clearhead_interface
    except AttributeError:
        return {}
    function.restype = ctypes.c_char_p
    lines = (function() or b"").decode().splitlines()
    return {name: rest for name, _, rest in (line.partition(" ") for line in lines)}


class Functions:
    """The library's functions by their short names, with argument and return types.

    Raises `NoLibrary` if the library's structs or functions differ from those described here.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        theirs = said(loaded)
        for name, ours in believed().items():
            if theirs.get(name) != ours:
                raise NoLibrary(
                    f"The native engine in '{loaded._name}' was compiled for another version of clearhead "
                    f"(its '{name}' differs): delete it, and it will be compiled again."
                )
        for name, types in _FUNCTIONS.items():
            function = getattr(loaded, f"clearhead_{name}")
            function.restype, *function.argtypes = (_TYPES[one] for one in types.split())
            setattr(self, name, function)

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        raise AttributeError(name)


@functools.cache
def _functions(*environment: str | None) -> Functions:
    return Functions(library())


def functions() -> Functions:
    """The compiled engine's functions; raises `NoLibrary` if there is none."""
    return _functions(*map(os.environ.get, ENVIRONMENT))


def why_not() -> str | None:
    """Why the native engine cannot run here, in one sentence; None if it can."""
    try:
        functions()
    except NoLibrary as reason:
        return str(reason)
    return None


def instruction_sets() -> list[str]:
    """The instruction sets that the engine has kernels for and this processor can run, best first."""
    library = functions()
    found: list[str] = []
    while (name := library.instruction_set(len(found))) is not None:
        found.append(name.decode().replace("_", "-"))
    return found


def kernels(instruction_set: str | None = None) -> int:
    """The kernels of the set named, else of the one CLEARHEAD_INSTRUCTION_SET names, else of the best."""
    name = instruction_set or os.environ.get("CLEARHEAD_INSTRUCTION_SET", "")
    found = functions().kernels(name.replace("-", "_").encode())
    if not found:
        raise UserError(
            f"The C++ engine has no kernels for the instruction set '{name}' on this processor: choose "
            f"one of {', '.join(instruction_sets())}."
        )
    return int(found)


def instruction_set() -> str:
    """The set whose kernels are used by default: CLEARHEAD_INSTRUCTION_SET, or the best."""
    return str(functions().kernels_name(kernels()).decode()).replace("_", "-")


def free_with(owner: object, function: ctypes._NamedFuncPointer, handle: int) -> None:
    """Free what a handle refers to together with its owner, but not when the interpreter exits.

    A thread or a generator may still hold it then, and the system frees everything anyway.
    """
    weakref.finalize(owner, function, handle).atexit = False


def plain(tensor: Tensor) -> Tensor:
    """A parameter as contiguous float32 on the CPU; unchanged if it already is."""
    return tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()


def portions(sizes: list[int], panel: int, most: int) -> Iterator[tuple[int, int]]:
    """Rows of stacked matrices, at most so many at a time, from panel border to panel border.

    Where a matrix ends with a panel, so does a portion: it is contiguous, and nothing is copied.

    >>> list(portions([64, 64, 100], 32, 64)), list(portions([10, 10, 10], 32, 64))
    ([(0, 64), (64, 128), (128, 192), (192, 228)], [(0, 30)])
    """
    whole = sum(sizes)
    borders = [one for one in accumulate(sizes) if one % panel == 0 or one == whole]
    begin = 0
    for border in borders:
        while begin < border:
            yield begin, min(begin + most, border)
            begin = min(begin + most, border)


def rows_of(weights: list[Tensor], begin: int, end: int) -> Tensor:
    """Rows begin..end−1 of stacked matrices, as contiguous float32."""
    found, first = [], 0
    for weight in weights:
        low, high = max(begin - first, 0), min(end - first, len(weight))
        if low < high:
            found.append(plain(weight[low:high]))
        first += len(weight)
    return found[0] if len(found) == 1 else torch.cat(found)
