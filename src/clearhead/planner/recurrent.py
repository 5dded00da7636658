"""What the recurrent encoder-decoder costs: its products, and what it keeps for the backward pass.

The decoder looks at the source once for each target token; the source's keys are
projected once for all of them.

Shapes: B rows, S source tokens, T target tokens, E width, M memory width.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from clearhead.models.recurrent import Recurrent
from clearhead.nn.attention.scores import Additive
from clearhead.planner.activations import Kept, Storage, embedding_kept, logits_kept
from clearhead.planner.batch import Batch
from clearhead.planner.flops import Product, Sight, linear, output_products, score_products

# Numbers kept for each token, cell and unit of width, as PyTorch's CPU kernels do.
_READING = {"gru": 7, "lstm": 17}
_WRITING = {"gru": 6, "lstm": 5}


def recurrent_products(model: Recurrent, batch: Batch) -> Iterator[Product]:
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
    yield from score_products("decoder attention", model.score, 1, memory, sight)
    yield Product("decoder attention", "scores", 2 * sight.pairs * memory)
    yield linear("output", model.combine, batch.target_tokens)
    yield from output_products(model.output, batch.target_tokens)


def _reading(encoder: nn.RNNBase, batch: Batch) -> Iterator[Product]:
    """The encoder: inputs of all tokens, and each token's state into the next one's."""
    for name, weight in encoder.named_parameters():
        if name.startswith("weight_ih"):
            yield Product("encoder recurrence", "weights", 2 * batch.source_tokens * weight.numel())
        elif name.startswith("weight_hh"):
            # The state before the first token is 0 and needs no gradient.
            first = 2 * batch.rows * weight.numel()
            yield Product("encoder recurrence", "weights", first, gradients=1)
            yield Product("encoder recurrence", "weights", first * (batch.source_length - 1))


def recurrent_kept(model: Recurrent, batch: Batch, storage: Storage) -> Iterator[Kept]:
    """Activations: cells, attention for each target token, and the scores over words."""
    width, memory = model.config.width, _memory_width(model)
    cell = model.config.recurrent.cell
    source, target = batch.source_tokens, batch.target_tokens
    item, dropped = storage.item, storage.dropped(model.config.dropout)
    yield embedding_kept(source, width * (item + dropped))
    yield embedding_kept(target, width * (item + dropped))
    directions = memory // width
    between = memory * (item + dropped) * (model.config.layers - 1)
    states = _READING[cell] * width * directions * model.config.layers * item
    yield Kept("encoder recurrence", source * (states + between + memory * item))
    inputs = width + memory + width * (len(model.cells) - 1)
    cells = (_WRITING[cell] * width * len(model.cells) + inputs) * item
    yield Kept("decoder recurrence", target * (cells + width * dropped * len(model.cells)))
    # Additive attention keeps the tanh of each pair, (B, T, S, A).
    pair = model.score.query.shape[-1] if isinstance(model.score, Additive) else 0
    looking = (batch.source_length * (pair + 1) + width + (0 if pair else memory)) * item
    yield Kept("decoder attention", target * looking)
    yield Kept("output", target * (2 * width + memory + 2 * width) * item)
    yield from logits_kept(target, model.output.weight.shape[0])


def _memory_width(model: Recurrent) -> int:
    return model.config.width * (2 if model.config.recurrent.bidirectional else 1)
