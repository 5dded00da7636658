"""The view "depth": the residual stream, what each sub-layer adds to it, and the model's early predictions.

The prediction after a layer is the model's own last norm and output applied to the stream at that height
("logit lens", nostalgebraist 2020); after the last layer it is the model's own prediction.

Shapes: N sub-layers, T tokens, E model width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.explorer.inside import labels
from clearhead.explorer.session import Session
from clearhead.explorer.sublayers import sublayer_formula
from clearhead.explorer.tags import answer_name, likeliest
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import Plain, packed
from clearhead.models.config import ModelConfig
from clearhead.models.decoder import Decoder
from clearhead.models.encoder import Encoder
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.nn.tokens import Tokens

SHOWN = 5  # most probable words after each layer
_NAMES = {"self": "self-attention", "cross": "cross-attention", "feedforward": "feed-forward"}
_SUM = "The stream is the sum of everything added to it: x ← {formula}. "
_NORMED = "Each sum is normalised before it moves on: x ← {formula}, so the stream keeps its scale. "
_REPLACED = "There are no residual connections: each sub-layer's output replaces its input, x ← {formula}. "
_LENS = "A prediction applies the model's own {top} to the stream there; the last is the model's output."


def depth(session: Session, text: str, target: str | None = None) -> Plain:
    """Norms of the contributions and of the stream, and the most probable words after each layer.

    For an encoder-decoder, the decoder is shown: its stream ends in the words that are written.
    """
    if session.family == "recurrent":
        raise UserError("This model is recurrent and has no residual stream.")
    if session.family == "vision":
        raise UserError(
            "Depth can only be shown for text, and this model reads pictures: look at its attention."
        )
    trace = session.trace(text, target, asked=("*.embedding", "*.output", "*.added", "logits"))
    stack = "encoder" if session.family == "encoder" else "decoder"
    after = {path: name for path, name in trace.anatomy.after.items() if path.startswith(stack)}
    streams = [trace[name] for name in (f"{stack}.embedding", *after.values())]  # each (T,E)
    added = [trace[f"{path}.added"] for path in after]
    predictions, final = _predictions(session, trace, stack)
    return {
        "words": trace.source if stack == "encoder" else trace.target,
        "sublayers": [_described(path) for path in after],
        "norms": packed(torch.stack([one.norm(dim=-1) for one in added])),
        "stream": packed(torch.stack([one.norm(dim=-1) for one in streams])),
        "predictions": predictions,
        "final": final,
        "note": _about(session.config) + (_LENS.format(top=_top(session)) if predictions else ""),
    }


def _about(config: ModelConfig) -> str:
    """What a sub-layer does to the stream."""
    formula = sublayer_formula(config)
    about = _NORMED if formula.startswith("norm") else _SUM
    return (about if config.residual else _REPLACED).format(formula=formula)


def early(model: nn.Module, stream: Tensor) -> Tensor | None:
    """What the model would predict if its last layer produced this stream (T, E); None without a head."""
    x = stream.unsqueeze(0)
    with torch.no_grad():
        assert isinstance(model, (EncoderDecoder, Decoder, Encoder))
        norm = (model.encoder if isinstance(model, Encoder) else model.decoder).norm
        x = x if norm is None else norm(x)
        if not isinstance(model, Encoder) and model.config.head.kind == "none":
            scores: Tensor = model.output(x)
            return scores[0]
        pooled = model.head.pooled(x, Tokens.padded(x.shape[1], device=x.device))
        said: Tensor | None = model.head(x, pooled)
        return None if said is None else said[0]


def _predictions(session: Session, trace: Trace, stack: str) -> tuple[list[Plain], list[Plain]]:
    """The most probable words (or classes) after the embedding and after each layer, and the model's own."""
    if session.config.head.kind == "number":  # not a word that could be more probable than others
        return [], []
    layers = session.layers[stack]
    heights = [("embedding", f"{stack}.embedding")]
    heights += [(f"layer {number + 1}", f"{stack}.{number}.output") for number in range(layers)]
    found = []
    for after, name in heights:
        scores = early(session.model, trace[name])
        if scores is None:
            return [], []
        found.append({"after": after, "top": _likeliest(session, trace, scores)})
    own = _likeliest(session, trace, trace.logits)
    return found, [_said(session, trace, top[0]["id"]) for top in own]


def _likeliest(session: Session, trace: Trace, scores: Tensor) -> list[list[Plain]]:
    """The most probable few at each position: (T, …, V), or (C,) for the whole text, as a single position."""
    scores = scores if scores.dim() > 1 else scores.unsqueeze(0)
    best, chances = likeliest(scores, session.config.head.columns, SHOWN)
    return [
        [{"id": id, "text": _said(session, trace, id)["text"], "p": p} for id, p in zip(ids, ps, strict=True)]
        for ids, ps in zip(best.tolist(), chances.tolist(), strict=True)
    ]


def _said(session: Session, trace: Trace, id: int) -> Plain:
    """A word of the vocabulary, a class, or tags."""
    head = session.config.head
    if head.kind in ("classify", "tag"):
        text = answer_name(id, labels(session, head.classes), head.columns)
        return {"id": id, "text": text, "kind": "word"}
    return dict(trace.word(id))


def _described(path: str) -> Plain:
    _, layer, part = path.split(".")
    return {
        "name": path,
        "label": f"layer {int(layer) + 1}: {_NAMES[part]}",
        "kind": part,
        "layer": int(layer),
    }


def _top(session: Session) -> str:
    stack = session.model.get_submodule("encoder" if session.family == "encoder" else "decoder")
    normed = getattr(stack, "norm", None) is not None and session.config.norm.kind != "none"
    headed = session.family == "encoder" or session.config.head.kind != "none"
    return ("last norm and " if normed else "") + ("head" if headed else "output")
