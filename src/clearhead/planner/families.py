"""What a whole model costs: the matrix products of one pass, and what it keeps for the backward pass.

The parts of the layers state their own costs (`nn/costs.py`); here they are summed over the stacks, and the
rest is added: embeddings, residual connections, heads, the vocabulary. No padding is assumed.
Knows nothing about time or the optimiser.

Shapes: R rows, S source tokens, T target tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from clearhead.base.errors import UserError
from clearhead.models.convolutional import Convolutional, DecoderLayer, EncoderLayer
from clearhead.models.decoder import Decoder
from clearhead.models.encoder import Encoder, Vision
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.heads import Head
from clearhead.models.recurrent import Recurrent
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention.scores import Additive
from clearhead.nn.costs import (
    FLOAT,
    ID,
    KEEPS_ONLY_ITS_RESULT,
    Costs,
    Product,
    Sight,
    Storage,
    linear,
    score_products,
)
from clearhead.nn.layers import InputEmbedding, Output, Residual, RMSNorm
from clearhead.nn.parts import attention_kind, feedforward_kind
from clearhead.planner.batch import Batch

LOSS = "loss"  # the part under which log-probabilities are reported
# Numbers a recurrence keeps for each token, cell and unit of width, as PyTorch's CPU kernels do.
_READING = {"rnn": (1, 2), "gru": (7, 2), "lstm": (10, 8)}  # per number of a state, per number of an input
_WRITING = {"rnn": 1, "gru": 6, "lstm": 5}


@dataclass(frozen=True)
class Kept:
    """Bytes one part keeps."""

    part: str
    bytes: int


def products(model: nn.Module, batch: Batch) -> tuple[Product, ...]:
    """Every matrix product of one forward pass."""
    if isinstance(model, Recurrent):
        return tuple(_recurrent_products(model, batch))
    if isinstance(model, Convolutional):
        return tuple(_convolutional_products(model, batch))
    return tuple(_products(model, batch))


def kept(model: nn.Module, batch: Batch, storage: Storage) -> tuple[Kept, ...]:
    """Everything one forward pass keeps for the backward pass."""
    if isinstance(model, Recurrent):
        return tuple(_recurrent_kept(model, batch, storage))
    if isinstance(model, Convolutional):
        return tuple(_convolutional_kept(model, batch, storage))
    return tuple(_kept(model, batch, storage))


def _stacks(model: nn.Module, batch: Batch) -> list[tuple[Stack, Sight, Sight | None]]:
    """The stacks of a model: who attends to whom in them, and to the source."""
    rows, source, target = batch.rows, batch.source_length, batch.target_length
    read = Sight(rows, source, source)
    hidden = getattr(getattr(model, "config", None), "causal_mask", True)
    write = Sight(rows, target, target, causal=hidden)
    if isinstance(model, EncoderDecoder):
        return [(model.encoder, read, None), (model.decoder, write, Sight(rows, target, source))]
    if isinstance(model, Decoder):
        return [(model.decoder, write, None)]
    if isinstance(model, (Encoder, Vision)):
        return [(model.encoder, read, None)]
    raise UserError(
        f"Plans only support clearhead's own model families, and '{type(model).__name__}' is not one of them."
    )


def _products(model: Any, batch: Batch) -> Iterator[Product]:
    stacks = _stacks(model, batch)
    unread = None if model.config.cross_attention else model.encoder
    if isinstance(model, Vision):
        patches = batch.rows * (model.config.image.size // model.config.image.patch) ** 2
        # The image itself needs no gradient.
        yield Product("patches", "weights", 2 * patches * model.patches.weight.numel(), gradients=1)
    for stack, own, cross in stacks:
        for layer in stack.layers:
            for name, part, costs, sight, _ in _parts(stack.name, layer, own, cross):
                for product in costs.products(name, part, sight):
                    # No decoder attends to this, so it has no gradient.
                    yield replace(product, gradients=0) if stack is unread else product
    if hasattr(model, "head"):
        yield from _head_products(model.head, batch.rows, batch.tokens)
    else:
        yield from _output_products(model.output, batch.tokens)


def _kept(model: Any, batch: Batch, storage: Storage) -> Iterator[Kept]:
    stacks = _stacks(model, batch)
    if isinstance(model, Vision):
        image = model.config.image
        dropped = batch.source_tokens * model.config.width * storage.dropped(model.dropout.p)
        pixels = batch.rows * image.channels * image.size**2
        yield Kept("patches", pixels * storage.item + dropped)
    elif isinstance(model, EncoderDecoder):
        yield _input_kept(model.source_embedding, batch.source_tokens, storage)
        yield _input_kept(model.target_embedding, batch.target_tokens, storage)
    else:
        yield _input_kept(model.embedding, batch.tokens, storage)
    for stack, own, cross in stacks:
        yield from _stack_kept(stack, model.config.width, own, cross, storage)
    if hasattr(model, "head"):
        yield from _head_kept(model.head, model.config.width, batch.rows, batch.tokens, storage)
    else:
        yield _logits_kept(batch.tokens, model.output.weight.shape[0])


def _parts(
    name: str, layer: nn.Module, own: Sight, cross: Sight | None
) -> Iterator[tuple[str, Any, Costs, Sight, Residual]]:
    """The parts of a layer, what each costs, what it attends to, and the residual connection around it."""
    assert isinstance(layer, Layer)
    attentions = [(f"{name} self-attention", layer.attention, own, layer.attention_residual)]
    if layer.cross_residual is not None and cross is not None:
        attentions.append((f"{name} cross-attention", layer.cross_attention, cross, layer.cross_residual))
    for label, part, sight, residual in attentions:
        yield label, part, attention_kind(part.config.kind).costs, sight, residual
    if layer.feedforward_residual is not None:
        costs = feedforward_kind(layer.feedforward.config.kind).costs
        yield f"{name} feed-forward", layer.feedforward, costs, own, layer.feedforward_residual


def _stack_kept(
    stack: Stack, width: int, own: Sight, cross: Sight | None, storage: Storage
) -> Iterator[Kept]:
    """All layers, and the residual stream they read from and write to."""
    tokens = own.rows * own.queries
    known: set[str] = set()  # attention settings counted already
    for layer in stack.layers:
        for name, part, costs, sight, residual in _parts(stack.name, layer, own, cross):
            inside = costs.kept(part, sight, storage)
            inside -= costs.shared(part, sight, storage) if repr(part.config) in known else 0
            known.add(repr(part.config))
            yield Kept(name, inside + _residual_kept(residual, tokens, width, storage))
    last = 0 if stack.norm is None else _norm_kept(stack.norm, tokens, width, storage)
    yield Kept(f"{stack.name} stream", tokens * width * storage.item + last)


def _norm_kept(norm: nn.Module, tokens: int, width: int, storage: Storage) -> int:
    """A norm's input and statistics; the RMS norm also keeps the scaled numbers, before its weight."""
    if isinstance(norm, nn.Identity):
        return 0
    if isinstance(norm, RMSNorm):
        return tokens * (width * (max(storage.item, FLOAT) + storage.item) + FLOAT)
    return tokens * (width * storage.item + 2 * FLOAT)


def _embedding_kept(tokens: int, each: int) -> Kept:
    """The ids, which select the rows that get a gradient, and `each` more bytes per token."""
    return Kept("embedding", tokens * (ID + each))


def _input_kept(layer: InputEmbedding, tokens: int, storage: Storage) -> Kept:
    """Ids, token types, norm and dropout before the first layer."""
    width = layer.table.weight.shape[1]
    each = width * storage.dropped(layer.dropout.p) + (ID if layer.types is not None else 0)
    norm = 0 if layer.norm is None else _norm_kept(layer.norm, tokens, width, storage)
    plain = _embedding_kept(tokens, each)
    return Kept(plain.part, plain.bytes + norm)


def _residual_kept(layer: Residual, tokens: int, width: int, storage: Storage) -> int:
    """The norm's input and output (the next product keeps the latter), and the dropout mask."""
    dropped = storage.dropped(layer.dropout.p)
    return _norm_kept(layer.norm, tokens, width, storage) + tokens * width * (storage.item + dropped)


def _output_products(layer: Output, tokens: int, part: str = "output") -> Iterator[Product]:
    """Scores over the vocabulary."""
    yield Product(part, "vocabulary", 2 * tokens * layer.weight.numel())


def _head_products(head: Head, rows: int, tokens: int) -> Iterator[Product]:
    """Pooler, classifier, and the vocabulary scores of masked language modelling."""
    if head.pooler is not None:
        yield linear("head", head.pooler, rows)
    if head.classifier is not None:
        yield linear("head", head.classifier, rows if head.config.of_text else tokens)
    if head.transform is not None:
        dense = head.transform.get_submodule("dense")
        assert isinstance(dense, nn.Linear)
        yield linear("head", dense, tokens)
    if head.words is not None:
        yield from _output_products(head.words, tokens, "head")


def _head_kept(head: Head, width: int, rows: int, tokens: int, storage: Storage) -> Iterator[Kept]:
    """Pooler, classifier or vocabulary scores."""
    inside = rows * width * storage.item * 2 if head.pooler is not None else 0
    if head.classifier is not None:
        places = rows if head.config.of_text else tokens
        own = storage.item if head.config.of_text else 0  # for all tokens it reads the stream, counted above
        inside += places * width * (own + storage.dropped(head.dropout.p))
        yield _logits_kept(places, head.classifier.out_features)
    if head.transform is not None:
        before = 0 if head.transform.activation in KEEPS_ONLY_ITS_RESULT else 1
        inside += tokens * width * storage.item * (1 + before)
        inside += _norm_kept(head.transform.get_submodule("norm"), tokens, width, storage)
    if head.words is not None:
        yield _logits_kept(tokens, head.words.weight.shape[0])
    yield Kept("head", inside)


def _logits_kept(places: int, classes: int) -> Kept:
    """The loss keeps the log-probabilities, in float32, and the labels."""
    return Kept(LOSS, places * (classes * FLOAT + ID))


def _recurrent_products(model: Recurrent, batch: Batch) -> Iterator[Product]:
    """Every matrix product of one pass."""
    yield from _reading(model.encoder, batch)
    part = "decoder recurrence"
    yield linear(part, model.first, batch.rows)
    for cell in model.cells:
        assert isinstance(cell, nn.RNNCellBase)
        size = cell.weight_ih.numel() + cell.weight_hh.numel()
        yield Product(part, "weights", 2 * batch.target_tokens * size)
    sight = Sight(batch.rows, batch.target_length, batch.source_length)
    memory = _memory_width(model)
    if model.score is not None:
        yield from score_products("decoder attention", model.score, 1, memory, sight)
        yield Product("decoder attention", "scores", 2 * sight.pairs * memory)
    yield linear("output", model.combine, batch.target_tokens)
    yield from _output_products(model.output, batch.target_tokens)


def _reading(encoder: nn.RNNBase, batch: Batch) -> Iterator[Product]:
    """The encoder: the inputs of all tokens, and the recurrence from each token's state to the next."""
    for name, weight in encoder.named_parameters():
        if name.startswith("weight_ih"):
            yield Product("encoder recurrence", "weights", 2 * batch.source_tokens * weight.numel())
        elif name.startswith("weight_hh"):
            # The state before the first token is 0 and needs no gradient.
            first = 2 * batch.rows * weight.numel()
            yield Product("encoder recurrence", "weights", first, gradients=1)
            yield Product("encoder recurrence", "weights", first * (batch.source_length - 1))


def _recurrent_kept(model: Recurrent, batch: Batch, storage: Storage) -> Iterator[Kept]:
    """Activations: cells, attention for each target token, and the vocabulary scores."""
    width, memory = model.config.width, _memory_width(model)
    cell = model.config.recurrent.cell
    source, target = batch.source_tokens, batch.target_tokens
    item, dropped = storage.item, storage.dropped(model.config.dropout)
    yield _embedding_kept(source, width * (item + dropped))
    yield _embedding_kept(target, width * (item + dropped))
    directions, layers = memory // width, model.config.layers
    of_state, of_input = _READING[cell]
    read = directions * (of_state * width * layers + of_input * (width + memory * (layers - 1))) * item
    yield Kept("encoder recurrence", source * (read + memory * dropped * (layers - 1) + memory * item))
    seen = 0 if model.score is None else memory
    inputs = width + seen + width * (len(model.cells) - 1)
    cells = (_WRITING[cell] * width * len(model.cells) + inputs) * item
    yield Kept("decoder recurrence", target * (cells + width * dropped * len(model.cells)))
    if model.score is not None:
        # Additive attention keeps the tanh of each pair, (B, T, S, A).
        pair = model.score.query.shape[-1] if isinstance(model.score, Additive) else 0
        looking = (batch.source_length * (pair + 1) + width + (0 if pair else memory)) * item
        yield Kept("decoder attention", target * looking)
    yield Kept("output", target * (2 * width + seen + 2 * width) * item)
    yield _logits_kept(target, model.output.weight.shape[0])


def _memory_width(model: Recurrent) -> int:
    return model.config.width * (2 if model.config.recurrent.bidirectional else 1)


def _convolutional_products(model: Convolutional, batch: Batch) -> Iterator[Product]:
    """Convolutions of both stacks, attention to the source, and the vocabulary scores."""
    sight = Sight(batch.rows, batch.target_length, batch.source_length)
    for layer in (*model.encoder, *model.decoder):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        name, tokens = ("encoder", batch.source_tokens)
        if isinstance(layer, DecoderLayer):
            name, tokens = ("decoder", batch.target_tokens)
            looks = layer.cross_attention
            yield linear("decoder cross-attention", looks.query, tokens)
            pairs = 2 * sight.pairs * model.config.width
            yield Product("decoder cross-attention", "scores", pairs, recomputed=True)
            yield Product("decoder cross-attention", "scores", pairs)
            yield linear("decoder cross-attention", looks.output, tokens)
        size = layer.convolution.weights.weight.numel()
        yield Product(f"{name} convolutions", "weights", 2 * tokens * size)
    yield from _output_products(model.output, batch.target_tokens)


def _convolutional_kept(model: Convolutional, batch: Batch, storage: Storage) -> Iterator[Kept]:
    """Activations: what convolutions and gates read, attention weights, and the vocabulary scores."""
    item, width = storage.item, model.config.width
    dropped = storage.dropped(model.config.dropout)
    yield _input_kept(model.source_embedding, batch.source_tokens, storage)
    yield _input_kept(model.target_embedding, batch.target_tokens, storage)
    reading = width * ((1 + 2) * item + dropped)  # the inputs of the convolution and of the gate
    yield Kept("encoder convolutions", batch.source_tokens * reading * len(model.encoder))
    yield Kept("decoder convolutions", batch.target_tokens * reading * len(model.decoder))
    # The query, before and after; the weights; the result, before W'.
    looking = (3 * width + 2 * batch.source_length) * item
    yield Kept("decoder cross-attention", batch.target_tokens * looking * len(model.decoder))
    yield Kept("decoder stream", (2 * batch.source_tokens + batch.target_tokens) * width * item)
    yield _logits_kept(batch.target_tokens, model.output.weight.shape[0])
