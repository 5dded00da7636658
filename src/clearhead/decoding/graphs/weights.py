"""A model's weights as the recorded step reads them: products that share an input are one matrix.

Shapes: E model width, F inner width, H heads, G key/value heads, K and V sizes of a head, P positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.decoding.position_tables import added, biases, turns
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention.latent import LatentAttention, LatentConfig
from clearhead.nn.layers import InputEmbedding, Output, RMSNorm
from clearhead.nn.positions.rotary import Rotary


class Product(NamedTuple):
    """x Wᵀ + b."""

    weight: Tensor  # (outputs, inputs)
    bias: Tensor | None


class Norm(NamedTuple):
    """Layer norm, or RMS norm."""

    weight: Tensor  # (E,)
    bias: Tensor | None
    eps: float
    rms: bool


class Latent(NamedTuple):
    """What latent attention does besides its two products, in absorbed form."""

    norm: Norm  # of what is stored
    query_norm: Norm | None  # of compressed queries, if there are any,
    query: Product | None  # and the product that expands them


class Block(NamedTuple):
    """One layer of the decoder."""

    query_key_value: Product
    output: Product
    cross_query: Product | None
    cross_key_value: Product | None
    cross_output: Product | None
    inner: Product  # gate and inner, if it is gated
    outer: Product
    norms: tuple[Norm, ...]  # of self-attention, cross-attention if there is one, feed-forward
    latent: Latent | None = None


class Heads(NamedTuple):
    """The shape of attention and what happens to its scores."""

    heads: int
    groups: int
    key: int
    value: int
    scale: float
    softcap: float  # 0: none
    turn: int  # 0: none, 1: neighbouring features are rotated together, 2: the two halves
    latent: bool = False  # one key for all heads; its first `value` numbers are also the value

    @property
    def stored(self) -> tuple[int, int]:
        """Numbers stored per position for one key and for one value."""
        return self.key, 0 if self.latent else self.value


class PositionTables(NamedTuple):
    """What positions contribute, for positions below some P; None: nothing."""

    added: Tensor | None  # (P, E) to an embedding
    cosine: Tensor | None  # (P, K/2)
    sine: Tensor | None
    bias: Tensor | None  # (H, P) to a score, by distance back to the key


class Weights:
    """Everything that a step of one model reads and never changes."""

    def __init__(self, model: nn.Module) -> None:
        known = cast(Any, model)
        config = known.config
        self.config = config
        self.has_source = config.family == "encoder-decoder"
        self.embedding: InputEmbedding = known.target_embedding if self.has_source else known.embedding
        self.table = self.embedding.table.weight.detach()
        self.factor = self.embedding.table.factor
        self.device, self.dtype = self.table.device, self.table.dtype
        self.input_norm = _norm(self.embedding.norm)
        decoder: Stack = known.decoder
        self.blocks = [_block(cast(Layer, layer)) for layer in decoder.layers]
        self.final_norm = _norm(decoder.norm)
        self.norm_first = config.norm.place == "pre"
        self.gated = config.feedforward.gated
        self.activation: Callable[[Tensor], Tensor] = cast(Layer, decoder.layers[0]).feedforward.activation
        self.relu = config.feedforward.activation == "relu" and not self.gated
        self.output = _output(known.output)
        self.vocabulary = config.vocabulary
        products = [self.output, *(one for block in self.blocks for one in block if isinstance(one, Product))]
        self.widest = max(one.weight.shape[1] for one in products)  # inputs of the widest product
        self._position = cast(Layer, decoder.layers[0]).attention.position
        rotary = self._position if isinstance(self._position, Rotary) else None
        attention = config.attention.replace(width=config.width)
        latent = isinstance(attention, LatentConfig)
        sizes = attention.groups, attention.key_size, attention.value_size
        if isinstance(attention, LatentConfig):  # absorbed
            sizes = 1, attention.latent_size + attention.position_size, attention.latent_size
        turn = 0 if rotary is None else 2 if rotary.layout == "halves" else 1
        self.heads = Heads(attention.heads, *sizes, attention.factor, attention.softcap or 0.0, turn, latent)

    @torch.no_grad()
    def position_tables(self, capacity: int) -> PositionTables:
        """The tables of positions 0 to capacity − 1, in float32."""
        known = self.embedding.position.max_length  # learned positions end somewhere
        onto = added(self.embedding, capacity if known is None else min(known, capacity))
        if onto is not None:
            onto = F.pad(onto.float(), (0, 0, 0, capacity - len(onto))).contiguous()
        cosine = sine = None
        if isinstance(self._position, Rotary):
            cosine, sine = (one.float().contiguous() for one in turns(self._position, capacity, self.device))
        back = biases(self._position, capacity, self.heads.heads, self.device)
        if back is not None:  # by distance from −(P−1) to P−1, key minus query: only keys further back count
            back = back[:, :capacity].flip(1).float().contiguous()
        return PositionTables(onto, cosine, sine, back)


def _block(layer: Layer) -> Block:
    own, inner = layer.attention, layer.feedforward
    cross = layer.cross_attention
    norms = [layer.attention_residual.norm, layer.feedforward_residual.norm]
    if layer.cross_residual is not None:
        norms.insert(1, layer.cross_residual.norm)
    made = [_norm(one) for one in norms]
    if isinstance(own, LatentAttention):
        first, last, latent = _absorbed(own)
    else:
        first, last, latent = _product(own.query, own.key, own.value), _product(own.output), None
    return Block(
        query_key_value=first,
        output=last,
        cross_query=None if cross is None else _product(cross.query),
        cross_key_value=None if cross is None else _product(cross.key, cross.value),
        cross_output=None if cross is None else _product(cross.output),
        inner=_product(inner.inner) if inner.gate is None else _product(inner.gate, inner.inner),
        outer=_product(inner.output),
        norms=tuple(one for one in made if one is not None),
        latent=latent,
    )


def _absorbed(own: LatentAttention) -> tuple[Product, Product, Latent]:
    """Queries and latents as one product; the product from sums of latents to the output; and the rest."""
    query, output = (one.to(own.latent.weight.dtype) for one in own.absorbed_weights())
    last = Product(output, None if own.output.bias is None else own.output.bias.detach())
    norm, query_norm = _norm(own.norm), _norm(own.query_norm)
    assert norm is not None
    if own.query_latent is not None:
        return _product(own.query_latent, own.latent), last, Latent(norm, query_norm, Product(query, None))
    first = Product(torch.cat([query, own.latent.weight.detach()]), None)
    if own.latent.bias is not None:
        first = first._replace(bias=F.pad(own.latent.bias.detach(), (len(query), 0)))
    return first, last, Latent(norm, None, None)


def _output(output: Output) -> Product:
    """The scores of the vocabulary; a factor on the input becomes one on the weights."""
    weight = output.weight.detach()
    bias = None if output.bias is None else output.bias.detach()
    return Product(weight if output.factor == 1.0 else weight * output.factor, bias)


def _product(*parts: nn.Linear) -> Product:
    weight = torch.cat([part.weight.detach() for part in parts])
    if all(part.bias is None for part in parts):
        return Product(weight, None)
    zeros = [weight.new_zeros(part.out_features) if part.bias is None else part.bias for part in parts]
    return Product(weight, torch.cat([one.detach() for one in zeros]))


def _norm(norm: nn.Module | None) -> Norm | None:
    if norm is None:
        return None
    bias = getattr(norm, "bias", None)
    weight = cast(Tensor, norm.weight).detach()
    eps = cast(float, norm.eps)
    return Norm(weight, None if bias is None else bias.detach(), eps, isinstance(norm, RMSNorm))
