"""Each family's parts put together: which products it makes, and what it keeps.

The one table that knows all families; the costs of the parts are in `flops.py`,
`activations.py` and `recurrent.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from clearhead.base.errors import UserError
from clearhead.models.decoder import Decoder
from clearhead.models.encoder import Encoder
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.recurrent import Recurrent
from clearhead.models.vision import Vision
from clearhead.planner.activations import Kept, Storage, head_kept, input_kept, logits_kept, stack_kept
from clearhead.planner.batch import Batch
from clearhead.planner.flops import Product, Sight, head_products, output_products, stack_products
from clearhead.planner.recurrent import recurrent_kept, recurrent_products


def _encoder_decoder_products(model: EncoderDecoder, batch: Batch) -> Iterator[Product]:
    read, write, cross = _sights(batch)
    yield from stack_products("encoder", model.encoder, read)
    yield from stack_products("decoder", model.decoder, write, cross)
    yield from _top_products(model, batch)


def _encoder_decoder_kept(model: EncoderDecoder, batch: Batch, storage: Storage) -> Iterator[Kept]:
    read, write, cross = _sights(batch)
    yield input_kept(model.source_embedding, batch.source_tokens, storage)
    yield input_kept(model.target_embedding, batch.target_tokens, storage)
    yield from stack_kept("encoder", model.encoder, read, storage)
    yield from stack_kept("decoder", model.decoder, write, storage, cross)
    yield from _top_kept(model, batch, storage)


def _encoder_products(model: Encoder, batch: Batch) -> Iterator[Product]:
    yield from stack_products("encoder", model.encoder, _sights(batch)[0])
    yield from head_products(model.head, batch.rows, batch.source_tokens)


def _encoder_kept(model: Encoder, batch: Batch, storage: Storage) -> Iterator[Kept]:
    yield input_kept(model.embedding, batch.source_tokens, storage)
    yield from stack_kept("encoder", model.encoder, _sights(batch)[0], storage)
    yield from head_kept(model.head, model.config.width, batch.rows, batch.source_tokens, storage)


def _decoder_products(model: Decoder, batch: Batch) -> Iterator[Product]:
    yield from stack_products("decoder", model.decoder, _sights(batch)[1])
    yield from _top_products(model, batch)


def _decoder_kept(model: Decoder, batch: Batch, storage: Storage) -> Iterator[Kept]:
    yield input_kept(model.embedding, batch.target_tokens, storage)
    yield from stack_kept("decoder", model.decoder, _sights(batch)[1], storage)
    yield from _top_kept(model, batch, storage)


def _top_products(model: Decoder | EncoderDecoder, batch: Batch) -> Iterator[Product]:
    """What stands on a decoder: the vocabulary, or a head in its place."""
    if model.config.head.kind == "none":
        yield from output_products(model.output, batch.target_tokens)
    else:
        yield from head_products(model.head, batch.rows, batch.target_tokens)


def _top_kept(model: Decoder | EncoderDecoder, batch: Batch, storage: Storage) -> Iterator[Kept]:
    if model.config.head.kind == "none":
        yield from logits_kept(batch.target_tokens, model.output.weight.shape[0])
    else:
        yield from head_kept(model.head, model.config.width, batch.rows, batch.target_tokens, storage)


def _vision_products(model: Vision, batch: Batch) -> Iterator[Product]:
    patches = batch.rows * (model.config.image.size // model.config.image.patch) ** 2
    # The image itself needs no gradient.
    yield Product("patches", "weights", 2 * patches * model.patches.weight.numel(), gradients=1)
    yield from stack_products("encoder", model.encoder, _sights(batch)[0])
    yield from head_products(model.head, batch.rows, batch.source_tokens)


def _vision_kept(model: Vision, batch: Batch, storage: Storage) -> Iterator[Kept]:
    image = model.config.image
    dropped = batch.source_tokens * model.config.width * storage.dropped(model.dropout.p)
    pixels = batch.rows * image.channels * image.size**2
    yield Kept("patches", pixels * storage.item + dropped)
    yield from stack_kept("encoder", model.encoder, _sights(batch)[0], storage)
    yield from head_kept(model.head, model.config.width, batch.rows, batch.source_tokens, storage)


def _sights(batch: Batch) -> tuple[Sight, Sight, Sight]:
    """Who looks at whom: source at source, target at target (causal), target at source."""
    rows, source, target = batch.rows, batch.source_length, batch.target_length
    return Sight(rows, source, source), Sight(rows, target, target, causal=True), Sight(rows, target, source)


@dataclass(frozen=True)
class Family:
    """How one family's costs are found."""

    products: Callable[[Any, Batch], Iterator[Product]]
    kept: Callable[[Any, Batch, Storage], Iterator[Kept]]


FAMILIES: dict[type[nn.Module], Family] = {
    EncoderDecoder: Family(_encoder_decoder_products, _encoder_decoder_kept),
    Encoder: Family(_encoder_products, _encoder_kept),
    Decoder: Family(_decoder_products, _decoder_kept),
    Vision: Family(_vision_products, _vision_kept),
    Recurrent: Family(recurrent_products, recurrent_kept),
}


def products(model: nn.Module, batch: Batch) -> tuple[Product, ...]:
    """Every matrix product of one forward pass."""
    return tuple(_family(model).products(model, batch))


def kept(model: nn.Module, batch: Batch, storage: Storage) -> tuple[Kept, ...]:
    """Everything one forward pass keeps for the backward pass."""
    return tuple(_family(model).kept(model, batch, storage))


def _family(model: nn.Module) -> Family:
    for kind, family in FAMILIES.items():
        if isinstance(model, kind):
            return family
    raise UserError(f"A plan is made for clearhead's models, and '{type(model).__name__}' is none of them.")
