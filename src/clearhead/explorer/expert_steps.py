"""The steps inside a mixture of experts: which experts each token goes to, and the weight of each."""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.explorer.steps import Step
from clearhead.explorer.sublayers import Place
from clearhead.nn.experts import Experts

BIAS = "Added to the scores for the choice only. Training adjusts it so that all experts get the same load."


def expert_steps(place: Place, net: Experts) -> list[Step]:
    """Scores of all experts, the weights of the chosen ones, their load, and the sum of their outputs."""
    path, read, config = place.path, place.read, net.config
    by_expert = (place.tokens, ("expert", config.experts))
    scores, weights = f"{path}.scores", f"{path}.weights"
    note = f"Each token goes to {config.chosen} of {config.experts} experts; the others are 0."
    formula = "softmax(x W_r)" if config.score == "softmax" else "σ(x W_r)"

    def routed() -> Tensor:
        routing = net.router(place.get(read))
        return torch.zeros_like(routing.scores).scatter(-1, routing.chosen, routing.weights)

    def load() -> Tensor:
        chosen = net.router(place.get(read)).chosen
        counts: Tensor = chosen.flatten().bincount(minlength=config.experts).float()
        return counts / counts.mean()

    each = (("expert", config.experts),)
    even = "How often the tokens of this text choose each expert, divided by the mean: 1 is an even load."
    beside = " + shared(x)" if net.shared is not None else ""
    return [
        Step(read, "input", "x", place.wide, "Each token by itself: no token sees another here."),
        Step(scores, "scores", formula, by_expert, "", lambda: net.router(place.get(read)).scores),
        Step(f"{path}.balance", "bias", "b", each, BIAS, lambda: net.router.balance),
        Step(weights, "weights", "g = scores of the best of scores + b", by_expert, note, routed),
        Step(f"{path}.load", "load", "tokens of each expert / mean", each, even, load),
        Step(f"{path}.added", "output", f"Σ g · expert(x){beside}", place.wide),
    ]
