"""A bundle as ONNX graphs for onnxruntime and others: `encoder.onnx`, `decoder.onnx`, settings, tokenizers.

An encoder-decoder becomes two graphs, a decoder one. `docs/interop.md` describes
inputs and outputs, and the `config.json` next to the graphs names them. The graphs
are traced from our own models (`onnx_graphs.py`), so they support every setting of
a model.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.atomic import atomic_folder
from clearhead.bundle import Bundle
from clearhead.bundle.folder import framings_of
from clearhead.interop.checkpoint import CONFIG
from clearhead.interop.onnx_graphs import DecoderGraph, EncoderGraph, plain
from clearhead.interop.place import ready_to_export, special_ids, stop_ids, write_json
from clearhead.interop.tokenizer_files import write_tokenizers
from clearhead.models.config import ModelConfig

OPSET = 18
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"

Axes = dict[int, str]  # index of a dynamic axis -> its name

TOKENS: Axes = {0: "batch", 1: "new"}
SOURCE: Axes = {0: "batch", 1: "source"}
EVERY: Axes = {0: "batch", 1: "past + new"}
CROSS: Axes = {0: "batch", 2: "source"}
PAST: Axes = {0: "batch", 2: "past"}
GROWN: Axes = {0: "batch", 2: "past + new"}


@dataclass(frozen=True)
class Graph:
    """One graph: the function, an example of its inputs, and the names of all inputs and outputs."""

    function: nn.Module
    example: tuple[Any, ...]
    inputs: dict[str, Axes]
    outputs: dict[str, Axes]


def export_onnx(bundle: Bundle, folder: Path) -> None:
    """Write a bundle as a folder of ONNX graphs, in float32."""
    config = bundle.config
    model = plain(copy.deepcopy(ready_to_export(bundle, folder, "ONNX", "onnx")))
    graphs = {DECODER: decoder_graph(model, config)}
    if config.family == "encoder-decoder":
        graphs = {ENCODER: encoder_graph(model, config)} | graphs
    with atomic_folder(os.path.abspath(folder), new=True) as fresh:
        for name, graph in graphs.items():
            _record(graph, fresh / name)
        write_json(fresh / CONFIG, _settings(bundle, graphs))
        write_tokenizers(bundle, fresh)


def encoder_graph(model: nn.Module, config: ModelConfig) -> Graph:
    """From the source to the keys and values of all cross-attention."""
    return Graph(
        EncoderGraph(model),
        (_ids(2, 3), _ids(2, 3)),
        {"source": SOURCE, "source_mask": SOURCE},
        dict.fromkeys(_keys_values("cross", config.depth_of_decoder), CROSS),
    )


def decoder_graph(model: nn.Module, config: ModelConfig) -> Graph:
    """From new tokens and the past to scores and the new state."""
    alone = config.family == "decoder"
    layers = config.layers if alone else config.depth_of_decoder
    past = _example_keys_values(config, layers, 5)
    inputs = {"tokens": TOKENS, "mask": EVERY} if alone else {"tokens": TOKENS, "source_mask": SOURCE}
    inputs |= dict.fromkeys(_keys_values("past", layers), PAST)
    outputs = {"logits": TOKENS} | dict.fromkeys(_keys_values("new", layers), GROWN)
    if alone:
        return Graph(DecoderGraph(model), (_ids(2, 4), _ids(2, 9), past), inputs, outputs)
    cross = _example_keys_values(config, layers, 3)
    inputs |= dict.fromkeys(_keys_values("cross", layers), CROSS)
    return Graph(DecoderGraph(model), (_ids(2, 4), _ids(2, 3), past, cross), inputs, outputs)


def _record(graph: Graph, path: Path) -> None:
    """Run the function once on its example and record it.

    It is traced, which takes a second where `torch.export` takes minutes for a real model. Tracing cannot
    record a branch that depends on values, and these models have none; its warnings concern the checks of ids
    and shapes, which run once, during tracing.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.function.eval(),
            graph.example,
            str(path),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_axes=graph.inputs | graph.outputs,
            opset_version=OPSET,
            # Runtimes fold constants on loading; folded here, a tied embedding would be stored twice.
            do_constant_folding=False,
            dynamo=False,
        )


def _settings(bundle: Bundle, graphs: dict[str, Graph]) -> dict[str, Any]:
    config = bundle.config
    learned = config.position.name == "learned"
    return {
        "format": "clearhead-onnx",
        "opset": OPSET,
        "family": config.family,
        "special": special_ids(bundle),
        "stops": stop_ids(bundle),
        "framing": None if bundle.tokenizer is None else framings_of(bundle).to_dict(),
        "max_positions": config.position.max_length if learned else None,  # None: any number
        "graphs": {
            name: {"inputs": list(graph.inputs), "outputs": list(graph.outputs)}
            for name, graph in graphs.items()
        },
        "model": config.to_dict(),
    }


def _keys_values(prefix: str, layers: int) -> list[str]:
    return [f"{prefix}_{kind}_{layer}" for layer in range(layers) for kind in ("key", "value")]


def _example_keys_values(config: ModelConfig, layers: int, length: int) -> Sequence[Tensor]:
    attention = config.attention.replace(width=config.width)
    sizes = (attention.key_size, attention.value_size) * layers
    return [torch.zeros(2, attention.groups, length, size) for size in sizes]


def _ids(rows: int, count: int) -> Tensor:
    """Ids that every vocabulary has, and a mask that hides nothing."""
    return torch.ones(rows, count, dtype=torch.long)
