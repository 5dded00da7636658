"""The load of experts for the log: one number for each layer, and a picture of all of them over time.

A layer of experts reports `PLACE.load.0`, `PLACE.load.1`, …: how many tokens chose each, for each label. Here
they are divided by their mean, so 1 is an even load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INNER = ".load."
NAME = "load max/mean"
MOST_LAYERS = 12
WIDTH, HEIGHT = 9.0, 1.5  # inches


def loads(extras: Mapping[str, Any]) -> dict[str, NDArray[numpy.float64]]:
    """The load of each expert, divided by the mean, by the name of its layer."""
    found: dict[str, list[float]] = {}
    for name, value in extras.items():
        place, inner, number = str(name).rpartition(INNER)
        if inner and number.isdecimal() and isinstance(value, (int, float)) and math.isfinite(value):
            found.setdefault(place, []).append(float(value))
    return {place: _relative(numpy.array(values)) for place, values in found.items() if sum(values) > 0}


def _relative(values: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    relative: NDArray[numpy.float64] = values / values.mean()
    return relative


def summed_up(extras: Mapping[str, Any]) -> dict[str, Any]:
    """The extras with one number instead of all loads: the largest load of all layers; 1 is even."""
    layers = loads(extras)
    rest = {name: value for name, value in extras.items() if not _is_load(str(name), layers)}
    return {**rest, NAME: max(float(one.max()) for one in layers.values())} if layers else rest


def _is_load(name: str, layers: Mapping[str, object]) -> bool:
    place, inner, number = name.rpartition(INNER)
    return bool(inner) and number.isdecimal() and place in layers


def draw_load(records: Sequence[Mapping[str, Any]]) -> Figure | None:
    """A strip for each layer: steps from left to right, experts from the bottom up, load as colour."""
    told = [one for one in records if one.get("kind") == "train" and isinstance(one.get("extras"), Mapping)]
    steps = [one["step"] for one in told]
    by_step = [loads(one["extras"]) for one in told]
    places = list(dict.fromkeys(place for one in by_step for place in one))[:MOST_LAYERS]
    if not places:
        return None
    from matplotlib.figure import Figure

    figure = Figure((WIDTH, 0.6 + HEIGHT * len(places)), layout="constrained")
    figure.suptitle(
        "Load of each expert, relative to the mean", x=0.017, ha="left", fontsize=13, fontweight="bold"
    )
    every = figure.subplots(len(places), squeeze=False, sharex=True)[:, 0]
    for axes, place in zip(every, places, strict=True):
        known = [(step, one[place]) for step, one in zip(steps, by_step, strict=True) if place in one]
        count = max(len(values) for _, values in known)
        known = [(step, values) for step, values in known if len(values) == count]
        grid = numpy.stack([values for _, values in known], 1)  # (experts, steps)
        edges = [0, *(step for step, _ in known)]
        drawn = axes.pcolormesh(edges, numpy.arange(count + 1) - 0.5, grid, cmap="RdBu_r", vmin=0, vmax=2)
        axes.set_ylabel(place.removesuffix(".feedforward"), parse_math=False)
        axes.locator_params(integer=True)
    axes.set_xlabel("step")
    figure.colorbar(drawn, ax=list(every), label="load / mean", extend="max")
    return figure
