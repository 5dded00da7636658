"""A model's structure: every box of its drawing, the tensors inside each, and the arrows between them.

Built from the actual model, whatever its settings: an encoder-decoder, a decoder or an encoder; norm before
or after; any position scheme. A part that the model lacks has neither box nor arrow, and a model that is not
a Transformer has no boxes at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor, nn

from clearhead.explorer.cheaper_attention_steps import any_attention_steps
from clearhead.explorer.embedding_and_output import embedding_boxes, final_norm, head_boxes, word_boxes
from clearhead.explorer.expert_steps import expert_steps
from clearhead.explorer.steps import Arrow, Axis, Box, Get, Step
from clearhead.explorer.sublayers import CAUSAL, Looking, Place, closing_steps, feedforward_steps, norm_steps
from clearhead.models.config import ModelConfig
from clearhead.models.decoder import Decoder
from clearhead.models.encoder import Encoder
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention.masks import Causal
from clearhead.nn.experts import Experts
from clearhead.nn.layers import InputEmbedding, Residual

LABELS = {"self": "Self-attention", "cross": "Cross-attention", "feedforward": "Feed-forward"}


@dataclass
class Anatomy:
    """Boxes from bottom to top, the encoder's first, and the arrows between them."""

    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    after: dict[str, str] = field(default_factory=dict)  # sub-layer, such as decoder.1.cross → x after it

    @property
    def steps(self) -> dict[str, Step]:
        """Every tensor of the drawing by name, as described where it is computed."""
        found: dict[str, Step] = {}
        for box in self.boxes:
            for step in box.steps:
                # The next box calls a tensor that is passed on its input; the first description counts.
                found.setdefault(step.name, step)
                if found[step.name].make is None and step.make is not None:
                    found[step.name] = step
        return found

    @property
    def made(self) -> dict[str, Step]:
        """The tensors between those that the model exposes itself."""
        return {name: step for name, step in self.steps.items() if step.make is not None}

    def put(self, boxes: Iterable[Box], last: str = "") -> str:
        """Stack boxes, on top of the box `last` if there is one; returns the id of the top one."""
        for box in boxes:
            if last:
                self.arrows.append(Arrow(last, box.id, box.steps[0].shape))
            self.boxes.append(box)
            last = box.id
        return last


def anatomy_of(model: nn.Module, ids: tuple[Tensor, Tensor], get: Get) -> Anatomy:
    """The parts of a model that reads these source and target ids, (1, S) and (1, T); `get` reads tensors."""
    found = Anatomy()
    source, target = ("source", ids[0].shape[1]), ("target", ids[1].shape[1])
    if isinstance(model, EncoderDecoder):
        config = model.config
        low = _Tower(found, "encoder", source, config, get)
        memory = low.build(model.source_embedding, ids[0], model.encoder)
        high = _Tower(found, "decoder", target, config, get, memory=(memory, source))
        last = high.build(model.target_embedding, ids[1], model.decoder)
        found.put(_top(model, high.hidden, get), last)
    elif isinstance(model, Decoder):
        high = _Tower(found, "decoder", target, model.config, get)
        last = high.build(model.embedding, ids[1], model.decoder)
        found.put(_top(model, high.hidden, get), last)
    elif isinstance(model, Encoder):
        low = _Tower(found, "encoder", source, model.config, get)
        last = low.build(model.embedding, ids[0], model.encoder)
        found.put(head_boxes(model.head, low.hidden, model.config, get), last)
    return found


def _top(model: EncoderDecoder | Decoder, hidden: Step, get: Get) -> list[Box]:
    """What is on top of a decoder: the scores over its vocabulary, or a head."""
    if model.config.head.kind == "none":
        return word_boxes(model.output, hidden, get)
    return head_boxes(model.head, hidden, model.config, get)


class _Tower:
    """One stack with its embedding, drawn from the bottom."""

    def __init__(
        self,
        found: Anatomy,
        stack: str,
        tokens: Axis,
        config: ModelConfig,
        get: Get,
        memory: tuple[str, Axis] | None = None,  # the box of the encoder's output, and its tokens
    ) -> None:
        self.found, self.stack, self.tokens, self.get = found, stack, tokens, get
        self.config, self.memory = config, memory
        self.wide = (tokens, ("feature", config.width))
        self.box = ""  # the one that the stream comes out of
        self.stream = f"{stack}.embedding"  # the name of the tensor on it

    @property
    def hidden(self) -> Step:
        """What the stack returns."""
        return Step(
            f"{self.stack}.output", "input", "x", self.wide, "The stack's output: one vector for each token."
        )

    def build(self, embedding: InputEmbedding, ids: Tensor, stack: Stack) -> str:
        """All boxes of the tower; returns the id of the last one."""
        self.box = self.found.put(
            embedding_boxes(self.stack, embedding, ids, self.tokens, self.config, self.get)
        )
        for number, layer in enumerate(stack.layers):
            assert isinstance(layer, Layer)
            self._layer(number, layer)
        if stack.norm is not None and self.config.norm.kind != "none":
            norm = final_norm(self.stack, self.stream, self.wide, self.config)
            self.box = self.found.put([norm], self.box)
        return self.box

    def _layer(self, number: int, layer: Layer) -> None:
        hides = self.stack == "decoder" and self.config.causal_mask
        mask, rule = (Causal(), CAUSAL) if hides else (None, None)
        looking = Looking(layer.attention, self.tokens, None, mask, rule)
        self._sublayer(number, "self", layer.attention_residual, looking, layer)
        if layer.cross_attention is not None and layer.cross_residual is not None and self.memory is not None:
            looking = Looking(layer.cross_attention, self.memory[1], "encoder.output")
            self._sublayer(number, "cross", layer.cross_residual, looking, layer)
        if layer.feedforward is not None:
            self._sublayer(number, "feedforward", layer.feedforward_residual, None, layer)

    def _sublayer(
        self, number: int, part: str, residual: Residual, looking: Looking | None, layer: Layer
    ) -> None:
        """The boxes of one sub-layer: the norm, first or last, the sub-layer itself, the sum."""
        path, adds = f"{self.stack}.{number}.{part}", self.config.residual
        place = Place(path, self.stream, self.tokens, self.config, self.get)
        if looking is None:
            net, kind, label = layer.feedforward, "feedforward", LABELS[part]
            inside = expert_steps(place, net) if isinstance(net, Experts) else feedforward_steps(place, net)
        else:
            inside, kind = any_attention_steps(place, looking), "attention"
            label = "Masked self-attention" if looking.mask else LABELS[part]
        boxes = [Box(path, label, kind, self.stack, number, inside)]
        if place.first:
            boxes.insert(
                0, Box(f"{path}.norm", "Norm", "norm", self.stack, number, norm_steps(place, residual))
            )
        closing = [name for name, there in (("Add", adds), ("Norm", place.last)) if there]
        if closing:
            kind, label, inside = closing[0].lower(), " & ".join(closing), closing_steps(place, residual)
            boxes.append(Box(f"{path}.{kind}", label, kind, self.stack, number, inside))
        begin, self.box = self.box, self.found.put(boxes, self.box)
        width = self.config.width
        if adds:
            self.found.arrows.append(Arrow(begin, self.box, [self.tokens[1], width], "residual"))
        if looking is not None and looking.memory is not None and self.memory is not None:
            self.found.arrows.append(Arrow(self.memory[0], path, [looking.keys[1], width], "memory"))
        self.stream = self.found.after[path] = place.after
