"""The cost of a mixture of experts: the router, the chosen experts and the shared ones, for each token.

Shapes: N tokens, E experts, K chosen for a token, D model width, F inner width of an expert.
"""

from __future__ import annotations

from collections.abc import Iterator

from clearhead.nn.costs import (
    FLOAT,
    ID,
    KEEPS_ONLY_ITS_RESULT,
    Costs,
    Product,
    Sight,
    Storage,
    feedforward_kept,
    feedforward_products,
    linear,
)
from clearhead.nn.experts import Experts
from clearhead.nn.layers import ACTIVATIONS


def experts_products(part: str, layer: Experts, sight: Sight) -> Iterator[Product]:
    """The router for each token, K experts for each token, and the shared ones."""
    tokens = sight.rows * sight.queries
    yield linear(part, layer.router.project, tokens)
    for weights in layer.stacked_weights():
        yield Product(part, "weights", 2 * tokens * layer.config.chosen * weights[0].numel())
    if layer.shared is not None:
        yield from feedforward_products(part, layer.shared, sight)


def experts_kept(layer: Experts, sight: Sight, storage: Storage) -> int:
    """Rows of choices before, inside and after the experts, what routing needs, and the shared experts."""
    config, tokens = layer.config, sight.rows * sight.queries
    choices, width, inner = tokens * config.chosen, layer.output.shape[1], layer.output.shape[2]
    gated, share = config.gated, config.dropout
    own = 2 if layer.activation is ACTIVATIONS["quick_gelu"] else 1
    if layer.activation in KEEPS_ONLY_ITS_RESULT and (gated or share == 0):
        own = 0
    copies = own + (2 if gated else 0) + 1
    rows = storage.item * (inner * copies + 2 * width) + storage.dropped(share) * inner
    rows += 1 + storage.item + 3 * ID  # whether it is real, its weight and token, the order there and back
    if config.dispatch == "loop":
        rows += storage.item * width  # what is added to the sum; sorted choices are gathered instead
    routing = tokens * (config.experts * FLOAT * (2 if config.z_loss else 1) + config.chosen * ID)
    if config.normalise:
        routing += tokens * (config.chosen + 1) * FLOAT
    if storage.item < FLOAT:
        routing += tokens * width * FLOAT  # the router's own copy
    found = choices * rows + routing
    if layer.shared is not None:
        found += feedforward_kept(layer.shared, sight, storage)
    return found


def idle_experts(layer: Experts) -> int:
    """Parameters of the experts that a token does not choose."""
    others = layer.config.experts - layer.config.chosen
    return others * sum(weights[0].numel() for weights in layer.stacked_weights())


EXPERTS = Costs(experts_products, experts_kept, idle=idle_experts)
