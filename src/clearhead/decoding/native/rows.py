"""Many texts at once in one model, on the CPU, by the compiled engine: `NativeRows`.

Behaves like `TorchRows`; the numbers differ only by rounding (float32), or by what bfloat16 or int8 weights
lose. A row's numbers do not depend on the other rows, bit for bit, whatever the dtype.

Rows are for one thread at a time; several may read scores, and wait for one another. If memory runs out, the
rows stay unchanged.

`supports` says which models it can run: it names every setting it does not support, and never guesses. A
setting that is not listed here must have its default, so anything added to models later is left to PyTorch
until an engine supports it. It looks at the modules themselves, too: a model with replaced parts (adapters,
hooks, quantised layers) is also left to PyTorch.

Shapes: R rows, V vocabulary, E model width, P positions.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import accumulate, chain, pairwise

import torch
from torch import Tensor, nn

from clearhead.base.config import Config
from clearhead.base.errors import UserError
from clearhead.decoding.backend import Extra, Symbols
from clearhead.decoding.native import binding
from clearhead.decoding.native.pack import Dtype, pack
from clearhead.decoding.native.scores import EngineHandle, NativeScores, TakenRows, check, enough_memory
from clearhead.decoding.native.weight_memory import Sharing
from clearhead.models.config import ModelConfig
from clearhead.models.decoder import Decoder
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.attention.latent import LatentAttention, LatentConfig, SharedKeys
from clearhead.nn.attention.scores import Dot, ScaledDot
from clearhead.nn.layers import (
    Dropout,
    FeedForward,
    InputEmbedding,
    Output,
    Residual,
    RMSNorm,
    TokenEmbedding,
)
from clearhead.nn.positions.absolute import Learned, Sinusoidal
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.relative import ALiBi, T5Bias
from clearhead.nn.positions.rotary import Rotary

FIRST = 128  # positions that tables cover initially

KNOWN: set[type[nn.Module]] = {
    *(EncoderDecoder, Decoder, Stack, Layer, nn.ModuleList),
    *(MultiHeadAttention, LatentAttention, ScaledDot, Dot, SharedKeys, FeedForward, nn.Linear),
    *(InputEmbedding, TokenEmbedding, Output, Residual, nn.LayerNorm, RMSNorm, Dropout, nn.Dropout),
    *(Position, Sinusoidal, Learned, Rotary, T5Bias, ALiBi),
}
# Settings that the engines read, or that do not affect decoding: the values they support; None: all.
SETTINGS: dict[str, tuple[str, ...] | None] = {
    "position.name": ("none", "sinusoidal", "learned", "rotary", "t5", "alibi"),
    "position.layout": ("interleaved", "halves"),
    "attention.score": ("scaled_dot", "dot"),
    "feedforward.activation": ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"),
    "norm.kind": ("layer", "rms"),
    "norm.place": ("post", "pre"),
    **dict.fromkeys(
        f"{part}{name}"
        for part, names in {
            "": "family vocabulary source_vocabulary width layers decoder_layers dropout initialisation "
            "image recurrent convolution",  # the last three belong to other families
            "attention.": "width heads kv_heads query_dim key_dim value_dim memory_width score_rank bias "
            "output_bias scale softcap dropout kernel",
            "feedforward.": "width gated bias dropout",
            "position.": "max_length base scaling buckets max_distance values",
            "norm.": "eps final",
            "embedding.": "scale norm token_types tie_output output_bias output_scale dropout",
            "head.": "classes pooling pooler transform dropout",  # of absent heads
        }.items()
        for name in names.split()
    ),
}
OF_LATENTS = dict.fromkeys(  # supported if there are latents
    f"attention.{name}" for name in ("latent_dim", "rotary_dim", "query_latent_dim")
)
NAMES = {"position.name": "position scheme", "attention.score": "score"}  # what messages call them
USUAL = ModelConfig()


class NativeRows:
    """Texts in the compiled engine, one row each.

    `threads`: default as many as PyTorch uses. `keep`: what scores include besides log-probabilities.
    `instruction_set`: default the best this processor has (`binding.instruction_sets()` lists them).
    `int8_embeddings`, `sharing`: see `pack`.
    """

    device = torch.device("cpu")
    own_threads = True

    def __init__(
        self,
        model: nn.Module,
        symbols: Symbols,
        dtype: Dtype = "float32",
        threads: int | None = None,
        *,
        keep: frozenset[Extra] = frozenset(),
        instruction_set: str | None = None,
        int8_embeddings: bool = False,
        sharing: Sharing = "auto",
    ) -> None:
        if (reason := supports(model)) is not None:
            raise UserError(f"The native engine cannot run this model: {reason}")
        packed = pack(model, dtype, instruction_set, int8_embeddings=int8_embeddings, sharing=sharing)
        self.symbols, self.dtype, self.keep = symbols, dtype, keep
        self.vocabulary = packed.config.vocabulary
        self._has_source = packed.config.family == "encoder-decoder"
        if self._has_source and symbols.start is None:
            raise UserError("This vocabulary has no start token, which every target needs.")
        if "attention" in keep and not self._has_source:
            raise UserError(
                f"A model of the family '{packed.config.family}' has no cross-attention to return."
            )
        self._readable = (packed.config.source_vocabulary if self._has_source else None) or self.vocabulary
        self._engine = EngineHandle(packed, threads or torch.get_num_threads())
        self._library, self._handle = self._engine.library, self._engine.handle
        self._positions = 0  # that the engine has tables for
        self._changing = threading.RLock()

    @property
    def count(self) -> int:
        """The current number of rows, from the engine: it stays right after any failure or interruption."""
        with self._engine.turn:
            return int(self._library.rows(self._handle))

    def memory(self) -> tuple[int, int]:
        """Slots of keys and values in use, including those of taken rows, and bytes of all slots."""
        with self._engine.turn:
            self._engine.drop_abandoned()
            return self._library.slots(self._handle), self._library.bytes(self._handle)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For changes of the rows: two at once would each refer to rows that the other has moved."""
        turn = self._engine.turn
        turn.look_for_fork()
        if not self._changing.acquire(blocking=False):
            raise UserError("Another thread is using these rows: give each thread its own.")
        try:
            with turn:
                self._engine.drop_abandoned()
                yield
        finally:
            self._changing.release()

    def admit(self, given: Sequence[Sequence[int]]) -> NativeScores:
        sizes = [len(one) for one in given]
        if not sizes or min(sizes) < 1:
            raise UserError(
                "A row without tokens gives the model nothing to start from: give it at least one."
            )
        lengths = torch.tensor(sizes, dtype=torch.int64)
        ids = torch.tensor(list(chain.from_iterable(given)), dtype=torch.int64)
        low, high = (int(one) for one in ids.aminmax())
        if low < 0 or high >= self._readable:
            wrong = low if low < 0 else high
            raise UserError(f"Token id {wrong} is outside the vocabulary of {self._readable} tokens.")
        start = self.symbols.start if self._has_source and self.symbols.start is not None else 0
        with self._alone():
            self._cover(max(sizes))
            scores = self._scores(len(given), max(sizes))
            told = ids.data_ptr(), lengths.data_ptr(), len(given), start, scores.buffer.pointer
            check(self._library.admit(self._handle, *told))
        return scores

    def step(self, parent: Tensor, token: Tensor) -> NativeScores:
        rows = len(parent)
        if parent.dtype != torch.int64 or token.dtype != torch.int64 or len(token) != rows:
            raise UserError(
                "A step takes one parent and one token for each new row, as whole numbers (int64)."
            )
        parent, token = parent.contiguous(), token.contiguous()
        with self._alone():
            if rows:  # no row continues: no further position is needed
                self._cover(self._library.longest(self._handle) + 1)
            seen = self._library.longest_source(self._handle) if "attention" in self.keep else 0
            scores = self._scores(rows, seen)
            told = parent.data_ptr(), token.data_ptr(), rows, scores.buffer.pointer
            check(self._library.step(self._handle, *told))
        return scores

    def stride(
        self,
        beams: Sequence[tuple[int, NativeScores]],
        divisors: Sequence[array[float]],
        rows: int,
        enough: int,
    ) -> tuple[int, list[NativeScores]]:
        """Several steps at once that compiled beams choose: how many, and each beam's scores after the last.

        A beam is its handle and its scores; its `divisors` are those of texts that end in the next step, the
        one after it, …. No step has more than `rows`. The last step is the one in which `enough` requests
        have been decided, or the divisors run out. See `source/beam.h`.
        """
        with self._alone():
            longest = self._library.longest(self._handle)
            self._cover(longest + 1)
            most = min(self._positions - longest, min(map(len, divisors)) - 1)
            told = [
                binding.Strider(
                    handle, scores.buffer.address, scores.begin, scores.rows, each.buffer_info()[0]
                )
                for (handle, scores), each in zip(beams, divisors, strict=True)
            ]
            table = (binding.Strider * len(told))(*told)
            scores = self._scores(rows, 0)
            asked = table, len(told), most, enough, scores.buffer.pointer
            steps = self._library.beam_stride(self._handle, *asked)
            check(steps)
        borders = accumulate((one.rows for one in table), initial=0)
        return steps, [scores.part(begin, end) for begin, end in pairwise(borders)]

    def take(self, begin: int, end: int) -> TakenRows:
        with self._alone():
            number = self._library.take(self._handle, begin, end)
            check(number)
            return TakenRows(self._engine, number, end - begin)

    def join(self, taken: object) -> None:
        if not isinstance(taken, TakenRows) or taken.engine is not self._engine or not taken.number:
            raise UserError("Only rows that were taken from here can be joined again, and only once.")
        with self._alone():
            check(self._library.join(self._handle, taken.number))
            taken.number = 0

    def at_last_position(self) -> bool:
        """Whether some text has a token at the last position that the model has learned."""
        limit = self._engine.packed.target_embedding.position.max_length
        return limit is not None and self._library.longest(self._handle) >= limit

    def _scores(self, rows: int, source: int) -> NativeScores:
        """Scores of this many rows, with the extras requested; `source`: tokens of the longest source."""
        with enough_memory():
            hidden = torch.empty(rows, self._engine.packed.config.width) if "hidden" in self.keep else None
            attention = torch.empty(rows, source) if "attention" in self.keep else None
        return NativeScores.empty(self._engine, rows, hidden, attention)

    def _cover(self, length: int) -> None:
        """Give the engine tables for texts of this many tokens."""
        if length <= self._positions:
            return
        packed = self._engine.packed
        limit = packed.target_embedding.position.max_length
        if limit is not None and length > limit:
            raise UserError(
                f"This model has learned positions for {limit} tokens and was given {length}: shorten the "
                f"text, or use sinusoidal or rotary positions."
            )
        size = max(FIRST, self._positions)
        while size < length:
            size *= 2
        size = size if limit is None else min(size, limit)
        with enough_memory():
            tables = packed.position_tables(size)
        self._library.tables(self._handle, ctypes.byref(tables))
        self._positions = size


# -- which models it can run ------------------------------------------------------------------------


def supports(model: nn.Module, device: str = "cpu") -> str | None:
    """Why our engines cannot run this model on this device, as the end of a sentence; None if they can.

    >>> import clearhead
    >>> supports(clearhead.build("tiny"))
    >>> supports(clearhead.build("tiny", position__name="shaw"))
    "it does not support the position scheme 'shaw'."
    """
    config = getattr(model, "config", None)
    if not isinstance(config, ModelConfig) or type(model) not in (EncoderDecoder, Decoder):
        family = config.family if isinstance(config, ModelConfig) else type(model).__name__
        return f"it does not support the model family '{family}'."
    dial = _config(config) or _modules(model) or _weights(model, device) or _shapes(model, config)
    return None if dial is None else f"it does not support {dial}."


def _config(config: Config, usual: Config = USUAL, path: str = "") -> str | None:
    """The first unsupported setting of a config and those nested in it; `usual` has the defaults."""
    for name in (one.name for one in fields(config)):
        value, default, where = getattr(config, name), getattr(usual, name), path + name
        known = (SETTINGS | OF_LATENTS).get(where, ())
        if value == default or known is None or value in known:
            continue
        if isinstance(value, LatentConfig) and where == "attention":
            default = LatentConfig()
        if isinstance(value, Config) and type(value) is type(default):
            if (inside := _config(value, default, f"{where}.")) is not None:
                return inside
            continue
        shown = getattr(value, "kind", value)  # of a part of another kind
        name = NAMES.get(where, f"setting {where}")
        return f"the {name} '{shown}'" if isinstance(shown, str | int | float) else f"the {name}"
    return None


def _modules(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        if type(module) not in KNOWN:
            return f"the module '{name}' ({type(module).__name__})"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"a hook on the module '{name}'"
    return None


def _weights(model: nn.Module, device: str) -> str | None:
    for name, weight in model.named_parameters():
        if weight.device.type != device:
            return f"weights on '{weight.device.type}'"
        if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"the weight '{name}' in {weight.dtype}"
    return None


def _shapes(model: nn.Module, config: ModelConfig) -> str | None:
    """A part may have been replaced by one of another size, which PyTorch accepts."""
    attention, width = config.attention, config.width
    key = attention.key_dim or width // attention.heads
    value, groups = attention.value_dim or key, attention.kv_heads or attention.heads
    wide, mixed = config.feedforward.width or 4 * width, attention.heads * value
    wanted: dict[str, tuple[int, ...]] = {
        "query": (attention.heads * key, width),
        "key": (groups * key, width),
        "value": (groups * value, width),
        "attention.output": (width, mixed),
        "cross_attention.output": (width, mixed),
        "gate": (wide, width),
        "inner": (wide, width),
        "feedforward.output": (width, wide),
        "output": (config.vocabulary, width),
        "source_embedding.table": (config.source_vocabulary or config.vocabulary, width),
        "target_embedding.table": (config.vocabulary, width),
        "embedding.table": (config.vocabulary, width),
    }
    if isinstance(attention, LatentConfig):
        own = attention.replace(width=width)
        heads, latent = own.heads, own.latent_size
        wanted |= {
            "query": (heads * own.key_size, own.query_latent_dim or width),
            "query_latent": (own.query_latent_dim or width, width),
            "latent": (latent + own.position_size, width),
            "key": (heads * own.content_size, latent),
            "value": (heads * own.value_size, latent),
            "attention.norm": (latent,),
            "query_norm": (own.query_latent_dim or width,),
        }
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        ends = name.split(".")
        shape = wanted.get(".".join(ends[-2:])) or wanted.get(ends[-1])
        if weight is not None and shape is not None and weight.shape != shape:
            return f"a weight of the shape {tuple(weight.shape)} in '{name}'"
    return None
