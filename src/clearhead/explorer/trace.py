"""A text inside a model: every tensor that a model computed while it read a text, by name, on demand.

A trace stores ids, and runs the model again for anything that it has not recorded yet. Attention weights and
scores are computed only for the layers and heads requested; everything else comes from the fast kernels, and
the model's output is the same whether or not it is observed. In a notebook it draws itself.

Shapes: T target tokens, S source tokens, H heads, L layers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from html import escape

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError, nearest
from clearhead.bundle.folder import Bundle
from clearhead.decoding.pictures import picture_tensor
from clearhead.explorer.anatomy import anatomy_of
from clearhead.explorer.attention_weights import attention_of, by_token
from clearhead.explorer.reading import read
from clearhead.explorer.svg import heat_map
from clearhead.explorer.words import Vocabulary, Word, texts
from clearhead.nn.look import Look

ROOM = 2**28  # bytes of tensors that one trace keeps; the oldest go first
COSTLY = ("weights", "scores")  # computed only for the layers and heads requested
STREAM = ("*.embedding", "*.output", "*.added")  # what runs through all layers, recorded in one pass
MOST = 40  # tokens per side that are drawn; more do not suit a notebook


class Trace:
    """One text inside one model. Tensors are those of the text alone: there is no batch dimension.

    `source` are the tokens the encoder read, `target` those the decoder read (with the start symbol, or the
    text itself in a decoder); either is empty if the model has no such side. Row t of the decoder's
    tensors belongs to `target[t]`, and says what comes after it: `following[t]`.
    """

    def __init__(
        self,
        bundle: Bundle,
        text: str,
        target: str | None,
        vocabularies: tuple[Vocabulary, Vocabulary],  # of the source, and of the target
    ) -> None:
        self.bundle, self.text = bundle, text
        self.config = bundle.config
        self.reading = read(bundle, text, target)
        reader, self._writer = vocabularies
        self.source: list[Word] = reader.words(self.reading.source)
        self.target: list[Word] = self._writer.words(self.reading.target)
        device = next(bundle.model.parameters()).device
        self.source_ids = torch.tensor([self.reading.source], dtype=torch.long, device=device)  # (1,S)
        self.target_ids = torch.tensor([self.reading.target], dtype=torch.long, device=device)  # (1,T)
        self._lock = threading.RLock()
        self._seen: OrderedDict[tuple[str, int | None], Tensor] = OrderedDict()
        self._taps: frozenset[str] = frozenset()
        self.anatomy = anatomy_of(bundle.model, (self.source_ids, self.target_ids), self.__getitem__)
        self._steps = self.anatomy.made  # what the model computes between its taps

    # -- tensors by name ------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Every available tensor, in alphabetical order."""
        return sorted(self._offered() | set(self._steps))

    def __getitem__(self, name: str) -> Tensor:
        with self._lock:
            if (name, None) not in self._seen:
                self._find(name)
            self._seen.move_to_end((name, None))
            return self._seen[(name, None)]

    def ask(self, wanted: Iterable[str]) -> None:
        """Record the tensors of these names or patterns in a single pass, unless they already are."""
        with self._lock:
            offered = self._offered()
            names = {name for name in offered for pattern in wanted if fnmatchcase(name, pattern)}
            missing = {name: None for name in sorted(names) if (name, None) not in self._seen}
            if missing:
                self._keep(self.look(missing))

    def look(self, wanted: str | Iterable[str] | Mapping[str, Sequence[int] | None]) -> Look:
        """One pass of the model over this text, with a `Look` at what is wanted; nothing is stored."""
        look = Look(wanted)
        with torch.no_grad():
            self.bundle.model(*self.inputs, look=look)
        return look

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arguments of the model's call."""
        if self.config.family == "vision":
            return (picture_tensor(self.bundle, self.text).unsqueeze(0).to(self.source_ids.device),)
        return tuple(ids for ids in (self.source_ids, self.target_ids) if ids.numel())

    # -- attention and output -------------------------------------------------------------------------

    def attention(self, kind: str, layer: int | None = None, head: int | None = None) -> Tensor:
        """The weights of a kind of attention, `encoder.self`, `decoder.self` or `decoder.cross`.

        (T, S) of one head; (H, T, S) of one layer; (L, H, T, S) of all; (L, T, S) of one head in all layers.
        The layers mix values by them. Rows sum to 1, except in some cheaper attentions: `about_weights` says
        what theirs are. With all layers, heads that some of them lack are 0.
        """
        layers = self.layers_of(kind)
        if layer is not None and not 0 <= layer < layers:
            raise UserError(f"There is no layer {layer} in '{kind}': it has {layers}, numbered from 0.")
        chosen = range(layers) if layer is None else [layer]
        parts = [attention_of(self.bundle.model, kind, one) for one in chosen]
        heads = [1 if part is None else part.config.heads for part in parts]
        if head is not None and not 0 <= head < min(heads):
            raise UserError(f"There is no head {head} in '{kind}': it has {min(heads)}, numbered from 0.")
        stack, part = kind.split(".")
        names = [f"{stack}.{one}.{part}.weights" for one in chosen]
        with self._lock:
            found = self._weights(names, head)
        columns = len(self.sides(kind)[1])
        found = [by_token(part, one, columns) for part, one in zip(parts, found, strict=True)]
        if head is None and min(heads) < max(heads):
            found = [F.pad(one, (0, 0, 0, 0, 0, max(heads) - len(one))) for one in found]
        return found[0] if layer is not None else torch.stack(found)

    def layers_of(self, kind: str) -> int:
        """How many layers have this kind of attention; raises an error if none has."""
        counts = self._layers()
        if kind not in counts:
            raise UserError(f"This model has no attention '{kind}': {nearest(str(kind), counts)}")
        return counts[kind]

    def _layers(self) -> dict[str, int]:
        """How many layers have each kind of attention."""
        counts: dict[str, int] = {}
        for name in self._offered():
            stack, *rest = name.split(".")
            if rest and rest[-1] == "weights":
                kind = f"{stack}.{rest[1]}"
                counts[kind] = max(counts.get(kind, 0), int(rest[0]) + 1)
        return counts

    def sides(self, kind: str) -> tuple[list[Word], list[Word]]:
        """The attending tokens, and the attended ones."""
        rows = self.source if kind == "encoder.self" else self.target
        return rows, self.target if kind == "decoder.self" else self.source

    @property
    def logits(self) -> Tensor:
        """Scores for the token after each position (T, vocabulary); of an encoder, its head's output."""
        return self["logits"]

    @property
    def following(self) -> list[Word]:
        """The token after each position of the target; after a decoder's last, the most probable one.

        A model with a head predicts no token.
        """
        ids = list(self.reading.following)
        if len(ids) < len(self.target) and self.config.head.kind == "none":
            ids.append(int(self.logits[-1].argmax()))
        return self._writer.words(ids)

    def word(self, id: int) -> Word:
        """A token of the output vocabulary."""
        return self._writer.word(id)

    # -- display --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        sides = [("source", self.source), ("target", self.target)]
        counted = [f"{len(side)} {name} tokens" for name, side in sides if side]
        return f"Trace({self.config.family}, {', '.join(counted)})"

    def _repr_html_(self) -> str:
        """Small heat maps of the attention, for notebooks; a self-contained page, without any script."""
        drawn = ""
        for kind, layers in sorted(self._layers().items(), reverse=True):
            layer = max(layers - 2, 0) if kind == "decoder.cross" else layers - 1
            rows, columns = (texts(side[:MOST]) for side in self.sides(kind))
            mean = self.attention(kind, layer).mean(0)[:MOST, :MOST]
            drawn += heat_map(mean, rows, columns, f"{kind}, layer {layer + 1}, mean of the heads")
        style = "font:12px system-ui,sans-serif;fill:currentColor"
        return f'<div style="{style}"><p>{escape(repr(self))}</p>{drawn}</div>'

    # -- passes ---------------------------------------------------------------------------------------

    def _offered(self) -> frozenset[str]:
        with self._lock:
            if not self._taps:
                look = self.look(STREAM)
                self._taps = frozenset(look.names)
                self._keep(look)
            return self._taps

    def _find(self, name: str) -> None:
        if name in self._steps:
            self._remember({(name, None): self._steps[name].value()})
            return
        if name not in self._offered():
            raise UserError(f"There is no tensor named '{name}' here: {nearest(str(name), self.names)}")
        if (name, None) not in self._seen:
            self._keep(self.look(_group(name, self._taps)))

    def _weights(self, names: list[str], head: int | None) -> list[Tensor]:
        """Weights by name, of one head or of all; only what was not recorded yet is computed."""
        missing = [name for name in names if not {(name, head), (name, None)} & set(self._seen)]
        found = {}
        if missing:
            look = self.look(dict.fromkeys(missing, None if head is None else [head]))
            found = {name: look[name][0] if head is None else look[name][0, 0] for name in missing}
        for name in set(names) - set(found):
            known = self._seen.get((name, head))
            found[name] = self._seen[(name, None)][head] if known is None else known
        self._remember({(name, head): found[name] for name in missing})
        return [found[name] for name in names]

    def _keep(self, look: Look) -> None:
        self._remember({(name, None): tensor[0] for name, tensor in look.seen.items()})

    def _remember(self, fresh: dict[tuple[str, int | None], Tensor]) -> None:
        """Store what is new; if that is too much, the least recently used goes."""
        self._seen.update(fresh)
        sizes = {key: one.numel() * one.element_size() for key, one in self._seen.items()}
        excess = sum(sizes.values()) - ROOM
        for key in list(self._seen):
            if excess > 0 and key not in fresh:
                del self._seen[key]
                excess -= sizes[key]


def _group(name: str, taps: frozenset[str]) -> list[str]:
    """What is recorded together with a name: what is cheap and shown next to it."""
    part, _, last = name.rpartition(".")
    if last in COSTLY or not part:
        return [name]
    if any(fnmatchcase(name, pattern) for pattern in STREAM):
        return list(STREAM)
    return [other for other in taps if other.rpartition(".")[0] == part and not other.endswith(COSTLY)]
