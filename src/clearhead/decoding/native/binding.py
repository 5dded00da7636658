"""The C side of the engine as Python sees it: structs field by field, and the functions' types.

Mirrors `source/model.h`, `source/engine.h`, `source/beam.h`, `source/stride.h` and the functions of
`source/engine.cpp`. A library that says otherwise is not used.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.native.build import library
from clearhead.decoding.native.compiler import NoLibrary

KINDS = {"float32": 0, "bf16": 1, "int8": 2}
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh")

Pointer = ctypes.c_void_p


class Norm(ctypes.Structure):
    """A norm's weight and bias; without a weight there is no norm."""

    _fields_ = [("weight", Pointer), ("bias", Pointer)]


LAYER_MATRICES = (
    "query_key_value",
    "attention_output",
    "cross_query",
    "cross_key_value",
    "cross_output",
    "inner",
    "outer",
)


class Layer(ctypes.Structure):
    """One layer's matrices and norms."""

    _fields_ = [
        *((name, Pointer) for name in LAYER_MATRICES),
        ("attention_norm", Norm),
        ("cross_norm", Norm),
        ("feedforward_norm", Norm),
    ]


MODEL_NUMBERS = (
    *("width", "vocabulary", "source_vocabulary", "encoder_layers", "decoder_layers"),
    *("heads", "groups", "key_dim", "value_dim", "inner", "gated", "activation"),
    *("rms", "norm_first", "rotary_halves", "has_source"),
)


class Model(ctypes.Structure):
    """A whole model."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in MODEL_NUMBERS),
        *(
            (name, ctypes.c_float)
            for name in ("eps", "scale", "softcap", "embedding_factor", "output_factor")
        ),
        ("source_table", Pointer),
        ("target_table", Pointer),
        *((name, Norm) for name in ("source_norm", "target_norm", "encoder_norm", "decoder_norm")),
        ("encoder", ctypes.POINTER(Layer)),
        ("decoder", ctypes.POINTER(Layer)),
        ("output", Pointer),
        ("source_rows", Pointer),
        ("target_rows", Pointer),
        *((name, ctypes.c_int64) for name in ("file", "source_offset", "target_offset")),
    ]


class Tables(ctypes.Structure):
    """What depends on positions."""

    _fields_ = [
        ("capacity", ctypes.c_int64),
        *((name, Pointer) for name in ("source", "target", "cosine", "sine", "encoder_bias", "decoder_bias")),
    ]


class ScoreBuffer(ctypes.Structure):
    """Where scores go."""

    _fields_ = [
        ("logits", Pointer),
        ("stride", ctypes.c_int64),
        ("peaks", Pointer),
        ("norms", Pointer),
        ("hidden", Pointer),
        ("attention", Pointer),
        ("attention_stride", ctypes.c_int64),
    ]


FORBIDDEN, STOP = 1, 2  # kinds of tokens
EARLY = ("never", False, True)  # values of `early_stopping` by number
FORCED = ("scored", "free", "cut")


class BeamDials(ctypes.Structure):
    """What all requests of a beam's cohort have in common."""

    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("places", "kept", "candidates", "stop", "stops", "early", "forced")
        ),
        ("kinds", Pointer),
    ]


class Strider(ctypes.Structure):
    """A beam that takes part in several steps at once."""

    _fields_ = [
        ("beam", Pointer),
        ("buffer", Pointer),
        ("begin", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("divisors", Pointer),
    ]


class BeamAnswer(ctypes.Structure):
    """A request that a beam has decided."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("number", "texts")),
        *((name, ctypes.c_int32) for name in ("broken", "dead")),
    ]


class BeamText(ctypes.Structure):
    """One of its texts."""

    _fields_ = [
        ("score", ctypes.c_double),
        ("count", ctypes.c_int64),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("logps", ctypes.POINTER(ctypes.c_float)),
        ("willing", ctypes.c_int32),
    ]


_LONG, _INT = ctypes.c_int64, ctypes.c_int32
_FLOATS = (ctypes.c_float, ctypes.c_double)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "kernels": (Pointer, [ctypes.c_char_p]),
    "kernels_name": (ctypes.c_char_p, [Pointer]),
    "panel": (_LONG, [Pointer]),
    "instruction_set": (ctypes.c_char_p, [_LONG]),
    "bytes_for_matrix": (_LONG, [Pointer, _LONG, _LONG, _INT]),
    "matrix": (Pointer, [Pointer, _LONG, _LONG, _INT, Pointer]),
    "matrix_bias": (None, [Pointer, Pointer, ctypes.c_float]),
    "matrix_pack": (_INT, [Pointer, Pointer, _LONG, _LONG, _INT]),
    "matrix_free": (None, [Pointer]),
    "matrix_bytes": (_LONG, [Pointer]),
    "misfit": (ctypes.c_char_p, [ctypes.POINTER(Model)]),
    "engine": (Pointer, [ctypes.POINTER(Model), _INT]),
    "engine_free": (None, [Pointer]),
    "tables": (None, [Pointer, ctypes.POINTER(Tables)]),
    "rows": (_LONG, [Pointer]),
    "longest": (_LONG, [Pointer]),
    "longest_source": (_LONG, [Pointer]),
    "slots": (_LONG, [Pointer]),
    "bytes": (_LONG, [Pointer]),
    "admit": (_INT, [Pointer, Pointer, Pointer, _LONG, _INT, ctypes.POINTER(ScoreBuffer)]),
    "step": (_INT, [Pointer, Pointer, Pointer, _LONG, ctypes.POINTER(ScoreBuffer)]),
    "take": (_LONG, [Pointer, _LONG, _LONG]),
    "join": (_INT, [Pointer, _LONG]),
    "drop": (None, [Pointer, _LONG]),
    "top": (_INT, [Pointer, ctypes.POINTER(ScoreBuffer), _LONG, _LONG, _LONG, Pointer, Pointer]),
    "logp": (_INT, [Pointer, ctypes.POINTER(ScoreBuffer), _LONG, _LONG, Pointer]),
    "beam": (Pointer, [ctypes.POINTER(BeamDials), _LONG, Pointer, Pointer, _LONG]),
    "beam_free": (None, [Pointer]),
    "beam_advance": (
        _LONG,
        [
            Pointer,
            Pointer,
            ctypes.POINTER(ScoreBuffer),
            _LONG,
            ctypes.c_double,
            ctypes.c_double,
            Pointer,
            Pointer,
        ],
    ),
    "beam_layout": (_LONG, [Pointer, Pointer]),
    "beam_take": (Pointer, [Pointer, _LONG, _LONG]),
    "beam_stride": (_LONG, [Pointer, Pointer, _LONG, _LONG, _LONG, ctypes.POINTER(ScoreBuffer)]),
    "beam_decided": (_LONG, [Pointer]),
    "beam_forget": (None, [Pointer]),
    "beam_answer": (None, [Pointer, _LONG, ctypes.POINTER(BeamAnswer)]),
    "beam_text": (None, [Pointer, _LONG, _LONG, ctypes.POINTER(BeamText)]),
}


STRUCTS = (Norm, Layer, Model, Tables, ScoreBuffer, BeamDials, BeamAnswer, BeamText, Strider)
INTERFACE = 1  # of `source/interface.h`, where the same is said from the other side


def believed() -> dict[str, str]:
    """What this side takes the structs and functions for, in the words of `source/interface.h`."""
    found = {"interface": str(INTERFACE)}
    for struct in STRUCTS:
        fields = [
            f"{name}:{_code(kind)}@{getattr(struct, name).offset}" for name, kind, *_ in struct._fields_
        ]
        found[struct.__name__] = " ".join([str(ctypes.sizeof(struct)), *fields])
    for name, (result, arguments) in _FUNCTIONS.items():
        found[f"clearhead_{name}()"] = " ".join(map(_code, [result, *arguments]))
    return found


def _code(kind: Any) -> str:
    if kind is None:
        return "v"
    if kind in (Pointer, ctypes.c_char_p) or issubclass(kind, ctypes._Pointer):
        return "p"
    letter = "s" if issubclass(kind, ctypes.Structure) else "f" if kind in _FLOATS else "i"
    return f"{letter}{ctypes.sizeof(kind)}"


def said(loaded: ctypes.CDLL) -> dict[str, str]:
    """What the library says that they are."""
    try:
        function = loaded.clearhead_interface
    except AttributeError:
        return {}
    function.restype = ctypes.c_char_p
    lines = (function() or b"").decode().splitlines()
    return {name: rest for name, _, rest in (line.partition(" ") for line in lines)}


class Functions:
    """The library's functions by their short names, with the types of what they take and give.

    `NoLibrary` where the library's structs or functions are others than those described here.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        theirs = said(loaded)
        for name, ours in believed().items():
            if theirs.get(name) != ours:
                raise NoLibrary(
                    f"The native engine in '{loaded._name}' was made for another version of clearhead: "
                    f"its '{name}' differs."
                )
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, f"clearhead_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        raise AttributeError(name)


@functools.cache
def _functions(loaded: ctypes.CDLL) -> Functions:
    return Functions(loaded)


def functions() -> Functions:
    """The compiled engine's functions; `NoLibrary` where there is none."""
    return _functions(library())


def why_not() -> str | None:
    """One sentence on why the native engine cannot run here; None if it can."""
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
            f"The C++ engine has no kernels for the instruction set '{name}' that run on this processor: "
            f"choose one of {', '.join(instruction_sets())}."
        )
    return int(found)


def instruction_set() -> str:
    """The set whose kernels are used where none is named: by CLEARHEAD_INSTRUCTION_SET, or the best."""
    return str(functions().kernels_name(kernels()).decode()).replace("_", "-")


def plain(tensor: Tensor) -> Tensor:
    """A parameter as contiguous float32 on the CPU; itself where it already is."""
    return tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()
