"""A model's weights, packed once for the native engine and shared by everything that decodes with it.

`pack` notices when weights have changed (another tensor, or changed values) and packs them again. Products
that read the same input become one: queries, keys and values; gate and inner layer.

Shapes: E model width, H heads, P positions.
"""

from __future__ import annotations

import ctypes
import json
import math
import weakref
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.base.library import library, one_at_a_time
from clearhead.bundle.mapped import MAPPED, MappedFile, PassingView
from clearhead.decoding.native import binding
from clearhead.decoding.native.binding import free_with, functions, plain, portions, rows_of
from clearhead.decoding.native.weight_memory import (
    FilledMemory,
    PrivateMemory,
    Sharing,
    Unfit,
    find,
    key_of,
    no_memory,
    put,
)
from clearhead.decoding.position_tables import added, biases, turns
from clearhead.models.config import ModelConfig
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.latent import LatentAttention, LatentConfig
from clearhead.nn.layers import FeedForward, InputEmbedding
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.rotary import Rotary

Dtype = Literal["float32", "bf16", "int8"]
BYTES: dict[Dtype, int] = {"float32": 4, "bf16": 2, "int8": 1}  # of a weight
PORTION = 4 << 20  # bytes of float32 weights packed at a time: no copy of all of them is ever made


class Packed:
    """Packed weights and the struct that describes them; lives as long as anything that uses it."""

    def __init__(
        self,
        model: nn.Module,
        dtype: Dtype,
        kernels: int,
        int8_embeddings: bool,
        memory: PrivateMemory | FilledMemory,
        view: PassingView | None = None,
    ) -> None:
        self.config: ModelConfig = model.config  # type: ignore[assignment]
        self.dtype: Dtype = dtype
        self.kernels = kernels  # of the instruction set that the weights are laid out for
        self._kept: list[Any] = []  # tensors and arrays that the structs point into
        self._tables: dict[int, binding.Tables] = {}  # by how many positions they cover
        self._model = cast(Any, model)
        self._view = view  # of weights in a file
        self.bytes = 0  # of the packed matrices
        self.memory = memory  # that holds the matrices
        self._int8_embeddings = int8_embeddings
        has_source = self.config.family == "encoder-decoder"
        self.struct = self._describe(has_source)
        memory.finish()
        self.source_embedding: InputEmbedding | None = self._model.source_embedding if has_source else None
        self.target_embedding: InputEmbedding = (
            self._model.target_embedding if has_source else self._model.embedding
        )
        # Positions act alike in all layers of a stack.
        self.decoder_position: Position = self._model.decoder.layers[0].attention.position
        self.encoder_position: Position | None = (
            self._model.encoder.layers[0].attention.position if has_source else None
        )
        del self._model, self._view

    def _describe(self, has_source: bool) -> binding.Model:
        config, model = self.config, self._model
        attention = config.attention.replace(width=config.width)
        decoder: Stack = model.decoder
        encoder: Stack | None = model.encoder if has_source else None
        target: InputEmbedding = model.target_embedding if has_source else model.embedding
        source: InputEmbedding | None = model.source_embedding if has_source else None
        output = self._matrix([model.output.weight], [model.output.bias], beyond=-math.inf)
        tables = [None if one is None else one.table.weight for one in (source, target)]
        rows: list[int | None] = [None, None]
        if self._int8_embeddings:
            known = {id(model.output.weight): output}  # a table tied to it takes no more memory
            for i, table in enumerate(tables):
                if table is not None and id(table) not in known:
                    known[id(table)] = self._matrix([table], [None])
                rows[i] = None if table is None else known[id(table)]
            tables = [None, None]
        offsets = [0, 0]
        if self._view is not None:  # rows are read from the file one by one: no page of it need be mapped
            for i, table in enumerate(tables):
                if table is not None and table.dtype == torch.float32:
                    offsets[i], tables[i] = self._view.offset(table), None
            self._kept.append(self._view.file)
        return binding.Model(
            width=config.width,
            vocabulary=config.vocabulary,
            source_vocabulary=config.source_vocabulary or config.vocabulary,
            encoder_layers=len(encoder.layers) if encoder is not None else 0,
            decoder_layers=len(decoder.layers),
            heads=attention.heads,
            **_head_sizes(attention),
            inner=config.feedforward.width or 4 * config.width,
            gated=config.feedforward.gated,
            activation=binding.ACTIVATIONS.index(config.feedforward.activation),
            rms=config.norm.kind == "rms",
            norm_first=config.norm.place == "pre",
            rotary_halves=config.position.layout == "halves",
            has_source=has_source,
            rotary_dim=attention.position_size if config.position.name == "rotary" else 0,
            eps=config.norm.eps,
            scale=attention.factor,
            softcap=attention.softcap or 0.0,
            embedding_factor=target.table.factor,
            output_factor=model.output.factor,
            source_table=self._numbers(tables[0]),
            target_table=self._numbers(tables[1]),
            source_norm=self._norm(source.norm if source is not None else None),
            target_norm=self._norm(target.norm),
            encoder_norm=self._norm(encoder.norm if encoder is not None else None),
            decoder_norm=self._norm(decoder.norm),
            encoder=self._layers(encoder),
            decoder=self._layers(decoder),
            output=output,
            source_rows=rows[0],
            target_rows=rows[1],
            file=0 if self._view is None else self._view.file.descriptor,
            source_offset=offsets[0],
            target_offset=offsets[1],
        )

    @torch.no_grad()
    def position_tables(self, size: int) -> binding.Tables:
        """What positions contribute, for those below `size`; computed once, and kept as long as the weights.

        The engine knows no scheme but looks numbers up: it adds a row to an embedding, rotates pairs by a
        cosine and a sine, adds a bias for a distance to a score.
        """
        if size not in self._tables:
            rotary, heads = self.decoder_position, self.config.attention.heads
            cosine, sine = turns(rotary, size) if isinstance(rotary, Rotary) else (None, None)
            self._tables[size] = binding.Tables(
                capacity=size,
                source=self._numbers(added(self.source_embedding, size)),
                target=self._numbers(added(self.target_embedding, size)),
                cosine=self._numbers(cosine),
                sine=self._numbers(sine),
                encoder_bias=self._numbers(biases(self.encoder_position, size, heads)),
                decoder_bias=self._numbers(biases(self.decoder_position, size, heads)),
            )
        return self._tables[size]

    def _numbers(self, tensor: Tensor | None) -> int | None:
        """A pointer to a tensor's numbers, which are kept alive."""
        if tensor is None:
            return None
        # A few numbers are copied, so no page of a file need stay mapped for them.
        kept = plain(self._seen(tensor)).clone() if tensor.dim() == 1 else plain(tensor)
        self._kept.append(kept)
        return kept.data_ptr()

    def _seen(self, tensor: Tensor) -> Tensor:
        """A tensor to read once."""
        return tensor if self._view is None else self._view.of(tensor)

    def _norm(self, norm: nn.Module | None) -> binding.Norm:
        if norm is None:
            return binding.Norm(None, None)
        bias: Tensor | None = getattr(norm, "bias", None)
        return binding.Norm(self._numbers(norm.weight), self._numbers(bias))  # type: ignore[arg-type]

    def _matrix(self, weights: list[Tensor], biases: list[Tensor | None], beyond: float = 0.0) -> int:
        """Matrices (outputs, inputs) with one input as one packed matrix; `beyond`: see `model.h`."""
        engine, kind = functions(), binding.KINDS[self.dtype]
        outputs, inputs = sum(len(one) for one in weights), weights[0].shape[1]
        memory = self.memory.take(engine.bytes_for_matrix(self.kernels, outputs, inputs, kind))
        handle = engine.matrix(self.kernels, outputs, inputs, kind, memory)
        if not handle:
            raise no_memory()
        free_with(self, engine.matrix_free, handle)
        self.bytes += engine.matrix_bytes(handle)
        if not self.memory.filled:
            self._fill(handle, weights, biases, beyond)
        return int(handle)

    def _fill(self, handle: int, weights: list[Tensor], biases: list[Tensor | None], beyond: float) -> None:
        engine = functions()
        bias = None
        if any(one is not None for one in biases):
            pairs = zip(weights, biases, strict=True)
            bias = torch.cat([torch.zeros(len(w)) if b is None else plain(self._seen(b)) for w, b in pairs])
        engine.matrix_bias(handle, None if bias is None else bias.data_ptr(), beyond)
        panel = engine.panel(self.kernels)
        most = max(PORTION // (4 * weights[0].shape[1] * panel), 1) * panel
        seen = [self._seen(one) for one in weights]
        for begin, end in portions([len(one) for one in weights], panel, most):
            rows = rows_of(seen, begin, end)
            threads = torch.get_num_threads()
            if not engine.matrix_pack(handle, rows.data_ptr(), begin, end - begin, threads):
                raise no_memory()
            if self._view is not None:
                self._view.forget()

    def _linear(self, *parts: nn.Linear) -> int:
        return self._matrix([part.weight for part in parts], [part.bias for part in parts])

    def _layers(self, stack: Stack | None) -> Any:
        if stack is None:
            return None
        array = (binding.Layer * len(stack.layers))(*(self._layer(layer) for layer in stack.layers))  # type: ignore[arg-type]
        self._kept.append(array)
        return ctypes.cast(array, ctypes.POINTER(binding.Layer))

    def _layer(self, layer: Layer) -> binding.Layer:
        inner: FeedForward = layer.feedforward
        made = binding.Layer(
            **self._attention(layer.attention),
            inner=self._linear(*([inner.gate] if inner.gate is not None else []), inner.inner),
            outer=self._linear(inner.output),
            attention_norm=self._norm(layer.attention_residual.norm),
            feedforward_norm=self._norm(layer.feedforward_residual.norm),
        )
        if layer.cross_attention is not None and layer.cross_residual is not None:
            cross = layer.cross_attention
            made.cross_query = self._linear(cross.query)
            made.cross_key_value = self._linear(cross.key, cross.value)
            made.cross_output = self._linear(cross.output)
            made.cross_norm = self._norm(layer.cross_residual.norm)
        return made

    def _attention(self, own: MultiHeadAttention | LatentAttention) -> dict[str, Any]:
        if isinstance(own, MultiHeadAttention):
            both = self._linear(own.query, own.key, own.value)
            return {"query_key_value": both, "attention_output": self._linear(own.output)}
        query, output = own.absorbed_weights()
        found = {
            "attention_output": self._matrix([output], [own.output.bias]),
            "latent_norm": self._norm(own.norm),
        }
        if own.query_latent is None:
            return found | {
                "query_key_value": self._matrix([query, own.latent.weight], [None, own.latent.bias])
            }
        return found | {
            "query_key_value": self._linear(own.query_latent, own.latent),
            "queries": self._matrix([query], [None]),
            "query_norm": self._norm(own.query_norm),
        }


def _head_sizes(own: AttentionConfig) -> dict[str, int]:
    if isinstance(own, LatentConfig):
        latent = own.latent_size
        return {
            "groups": 1,
            "key_dim": latent + own.position_size,
            "value_dim": latent,
            "latent": latent,
            "query_latent": own.query_latent_dim or 0,
        }
    return {"groups": own.groups, "key_dim": own.key_size, "value_dim": own.value_size}


Key = tuple[Dtype, int, bool, Sharing]
_known: weakref.WeakKeyDictionary[nn.Module, dict[Key, tuple[Any, Packed]]] = weakref.WeakKeyDictionary()
# Addresses of a model's weights, and views of a few numbers of each.
_samples: weakref.WeakKeyDictionary[nn.Module, tuple[list[int], list[Tensor]]] = weakref.WeakKeyDictionary()


def pack(
    model: nn.Module,
    dtype: Dtype = "float32",
    instruction_set: str | None = None,
    *,
    int8_embeddings: bool = False,
    sharing: Sharing = "auto",
) -> Packed:
    """The packed weights of a model, packed at the first call and again when the weights have changed.

    Those of a bundle that was loaded with `mapped=True` are stored in a file of the user's cache folder,
    which all processes that decode with it share in memory: if that costs no speed (`auto`), wherever
    possible (`always`), or not at all (`never`). `int8_embeddings`: with int8, embeddings come from int8
    weights as well, those of the output if they are tied to it; otherwise they stay float32.
    """
    if dtype not in get_args(Dtype):
        raise UserError(f"The native engine supports {', '.join(get_args(Dtype))}, not '{dtype}'.")
    if int8_embeddings and dtype != "int8":
        raise UserError(f"int8 embeddings need int8 weights, not {dtype}.")
    file = MAPPED.get(model)
    if file is not None:
        file.check()
        # The matrices of latent attention are computed here.
        latent = isinstance(cast(Any, model).config.attention, LatentConfig)
        if latent or file.written() or not all(file.holds(weight.detach()) for weight in model.parameters()):
            file = None
    state = _fingerprint(model, untouched=file is not None)
    key = dtype, binding.kernels(instruction_set), int8_embeddings, sharing
    known = _known.get(model, {}).get(key)
    return known[1] if known is not None and known[0] == state else _renewed(model, key, state, file)


@one_at_a_time
def _renewed(model: nn.Module, key: Key, state: Any, file: MappedFile | None) -> Packed:
    """Pack them, unless another thread has done so meanwhile."""
    known = _known.setdefault(model, {})
    if key not in known or known[key][0] != state:
        known[key] = state, _packed(model, *key, file)
    return known[key][1]


def _packed(
    model: nn.Module,
    dtype: Dtype,
    kernels: int,
    int8_embeddings: bool,
    sharing: Sharing,
    file: MappedFile | None,
) -> Packed:
    """Weights packed now, or found packed; `file` is given if they equal its contents."""
    key = None
    if sharing != "never" and file is not None and file.sha256 is not None:
        config = json.dumps(cast(Any, model).config.to_dict(), sort_keys=True)
        name = functions().kernels_name(kernels).decode()
        key = key_of([library().file.name, name, dtype, str(int8_embeddings), file.sha256, config])
    view = None if file is None else PassingView(file)

    def found() -> Packed | None:
        memory = None if key is None else find(key, sharing)
        try:
            return None if memory is None else Packed(model, dtype, kernels, int8_embeddings, memory, view)
        except Unfit:
            return None

    def packed() -> Packed:
        weights = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1)
        memory = PrivateMemory(weights * BYTES[dtype])
        return Packed(model, dtype, kernels, int8_embeddings, memory, view)

    ready = found()
    if ready is not None:
        return ready
    made = packed()
    if key is None or not put(key, cast(PrivateMemory, made.memory).parts()):
        return made
    del made  # before the same file is mapped
    return found() or packed()


def _fingerprint(model: nn.Module, untouched: bool) -> tuple[list[tuple[int, int]], float]:
    """Changes when weights do: other storage, a detected in-place change, or another sample of the numbers.

    `untouched`: they equal their file's contents, so no sample is needed.
    """
    weights = list(model.parameters())
    found = [(one.data_ptr(), -1 if one.is_inference() else one._version) for one in weights]
    if untouched:
        return found, 0.0
    where = [address for address, _ in found]
    samples = _samples.get(model)
    if samples is None or samples[0] != where:
        samples = where, [_sample(one) for one in weights]
        if all(one.is_contiguous() for one in weights):  # else they are copies
            _samples[model] = samples
    numbers = torch.cat(samples[1]).double().nan_to_num_()
    return found, float(numbers @ torch.arange(1, len(numbers) + 1, dtype=torch.float64))


def _sample(weight: Tensor) -> Tensor:
    """A few hundred numbers of a weight, as a view."""
    numbers = weight.detach().flatten()
    return numbers[:: max(1, len(numbers) // 256)]
