"""View 3, the maps: which token attended to which in every layer and head, and three ways to summarise that.

All weights are the model's own, recomputed exactly by the trace. Row t of the
decoder's maps belongs to the token it had just read; only in an alignment do
rows carry the token that was then written.

Shapes: L layers, H heads, R rows (who looks), C columns (who is looked at),
S source tokens, T target tokens.
"""

from __future__ import annotations

import base64

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError, nearest
from clearhead.data.notes import placed_notes
from clearhead.explorer.attention_weights import SHARES, about_weights, are_shares, as_shares
from clearhead.explorer.patches import plain_png
from clearhead.explorer.session import Session
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import Plain, packed, texts

MOST_WEIGHTS = 400_000  # of one kind that are sent in full; beyond that the overview gets thumbnails
THUMBNAIL = 32  # rows and columns of a thumbnail, at most
HOWS = ("mean", "rollout", "alignment")


def attention(session: Session, text: str, target: str | None = None) -> Plain:
    """The overview: all layers and heads of every kind of attention.

    A kind with more than `MOST_WEIGHTS` weights comes as thumbnails: means over blocks of each map.
    """
    trace = session.trace(text, target, asked=["*.weights"])
    found = []
    for kind in session.kinds:
        rows, columns = trace.sides(kind)
        weights = trace.attention(kind)  # (L,H,R,C)
        whole = weights.numel() <= MOST_WEIGHTS
        found.append(
            {
                "kind": kind,
                "rows": rows,
                "columns": columns,
                "layers": weights.shape[0],
                "heads": weights.shape[1],
                "weights": packed(weights if whole else thumbnails(weights)),
                "thumbnails": not whole,
                "note": about_weights(session.model, kind, len(weights)),
            }
        )
    return {"kinds": found, "picture": _picture(session, text), "notes": _notes(session, trace)}


def _picture(session: Session, text: str) -> Plain | None:
    """The picture under the maps, as a data URL of a PNG; its patches begin at column `first`."""
    if session.family != "vision":
        return None
    image = session.config.image
    content = base64.b64encode(plain_png(text, image.size)).decode("ascii")
    return {
        "source": f"data:image/png;base64,{content}",
        "side": image.size // image.patch,
        "first": int(image.class_token),
        "pooling": session.config.head.pooling,
    }


def _notes(session: Session, trace: Trace) -> list[Plain] | None:
    """The notes of a piece of music, in seconds, each with the columns of its events."""
    if not session.reads_music:
        return None
    return [
        {"pitch": note.pitch, "begin": note.begin, "end": note.end, "columns": list(places)}
        for note, places in placed_notes(texts(trace.target))
    ]


def one(session: Session, text: str, target: str | None = None, *, kind: str, layer: int, head: int) -> Plain:
    """The map of one head, in full whatever its size."""
    trace = session.trace(text, target)
    weights = trace.attention(kind, layer, head)
    rows, columns = trace.sides(kind)
    return {"rows": rows, "columns": columns, "weights": packed(weights)}


def summary(
    session: Session, text: str, target: str | None = None, *, kind: str, how: str, layer: int | None = None
) -> Plain:
    """Many maps as one; `layer` counts from 0 (in the note from 1), None leaves the choice to the method.

    - `mean`: over the heads of a layer, or of all layers;
    - `rollout`: attention followed through the layers up to `layer`, with residual connections if there are
      any;
    - `alignment`: cross-attention of the layer that follows words best, by the token that is written.
    """
    if how not in HOWS:
        raise UserError(f"There is no summary of attention called '{how}': {nearest(str(how), HOWS)}")
    trace = session.trace(text, target)
    layers = trace.layers_of(kind)
    if layer is not None and not 0 <= layer < layers:
        raise UserError(f"There is no layer {layer} in '{kind}': it has {layers}, numbered from 0.")
    rows, columns = trace.sides(kind)
    if how == "mean":
        taken = range(layers) if layer is None else [layer]
        weights = torch.cat([trace.attention(kind, one).double() for one in taken]).mean(0)
        over = "all layers and heads" if layer is None else f"the heads of layer {layer + 1}"
        note = f"The mean over {over}."
    elif how == "rollout":
        weights = rollout(trace, kind, layers - 1 if layer is None else layer)
        note = _ROLLOUT_NOTES["cross" if kind == "decoder.cross" else "self", session.config.residual]
        followed = session.kinds if kind == "decoder.cross" else [kind]
        if not all(are_shares(one) for name in followed for one in _layers(trace, name)):
            note = f"{note} {SHARES}"
    else:
        weights, layer = alignment_weights(trace, kind, layer)
        rows = trace.following
        note = (
            f"Cross-attention of layer {layer + 1}, mean over its heads. Each row is a token that was "
            "written, and shows where the decoder looked when it chose that token."
        )
    return {"rows": rows, "columns": columns, "weights": packed(weights), "note": note}


def thumbnails(weights: Tensor) -> Tensor:
    """(L, H, R, C) to at most (L, H, 32, 32): each number is the mean of a block of weights.

    >>> thumbnails(torch.ones(2, 3, 64, 5)).shape
    torch.Size([2, 3, 32, 5])
    """
    rows, columns = (min(size, THUMBNAIL) for size in weights.shape[-2:])
    return F.adaptive_avg_pool2d(weights, (rows, columns))


# --- rollout ------------------------------------------------------------------------------------

_MIXED = (
    "and the layers' matrices are multiplied. A row shows which input tokens a token's final vector would "
    "come from if layers did nothing but mix."
)
_ROLLOUT_NOTES = {  # by kind of attention, with residual connections and without
    ("self", True): (
        "Attention rollout (Abnar & Zuidema 2020): each layer counts as half residual connection and "
        f"half mean over the heads, {_MIXED}"
    ),
    ("self", False): (
        "Attention rollout (Abnar & Zuidema 2020): this model has no residual connections, so each layer "
        f"counts as the mean over its heads, {_MIXED}"
    ),
    ("cross", True): (
        "Attention rollout through both stacks: each attention counts for half and the residual "
        "connection for the other half, and what comes from the encoder is traced back to the source "
        "tokens. Rows are scaled to sum to 1, so they leave out what comes from the target itself."
    ),
    ("cross", False): (
        "Attention rollout through both stacks. This model has no residual connections, so all that leaves "
        "a cross-attention comes from the encoder, and is traced back to the source tokens."
    ),
}


def rollout(trace: Trace, kind: str, last: int) -> Tensor:
    """How the tokens of the input mix up to layer `last`, (R, C) in float64; rows sum to 1."""
    if kind == "decoder.cross":
        return _cross_rollout(trace, last)
    mixed = torch.eye(len(trace.sides(kind)[0]), dtype=torch.float64)
    for weights in _heads_averaged(trace, kind)[: last + 1]:
        mixed = _mixing(trace, weights) @ mixed
    return mixed


def _cross_rollout(trace: Trace, last: int) -> Tensor:
    """How much of each decoder position comes from each source token.

    Every position holds a share of each target token and a share of each source token, which sum to 1.
    Self-attention mixes both kinds of shares alike; cross-attention halves them and adds source shares, or
    replaces them if there are no residual connections.
    """
    if trace.config.family == "recurrent":
        raise UserError("A rollout follows self-attention, and a recurrent model has none: ask for 'mean'.")
    memory = rollout(trace, "encoder.self", trace.layers_of("encoder.self") - 1)  # (S,S)
    own, cross = (_heads_averaged(trace, f"decoder.{part}") for part in ("self", "cross"))
    source = torch.zeros(len(trace.target), len(trace.source), dtype=torch.float64)  # (T,S)
    for layer in range(last + 1):
        source = _mixing(trace, own[layer]) @ source
        seen = cross[layer] @ memory
        source = (source + seen) / 2 if trace.config.residual else seen
    return source / source.sum(-1, keepdim=True)


def _heads_averaged(trace: Trace, kind: str) -> Tensor:
    """(L, R, C) in float64 on the host; rows sum to 1."""
    return torch.stack([as_shares(one).to("cpu", torch.float64).mean(0) for one in _layers(trace, kind)])


def _layers(trace: Trace, kind: str) -> list[Tensor]:
    """The weights of each layer, (H, R, C): layers may have different numbers of heads."""
    return [trace.attention(kind, layer) for layer in range(trace.layers_of(kind))]


def _mixing(trace: Trace, weights: Tensor) -> Tensor:
    """Half the attention, half the token itself; without residual connections the attention alone."""
    own = torch.eye(len(weights), dtype=weights.dtype)
    return (weights + own) / 2 if trace.config.residual else weights


# --- alignment ----------------------------------------------------------------------------------


def alignment_weights(trace: Trace, kind: str, layer: int | None) -> tuple[Tensor, int]:
    """Source-target weights (T, S) and the layer they are from.

    By default the last layer but one, as in `clearhead.alignment`: it follows words best (Garg et al. 2019).
    """
    if kind != "decoder.cross":
        raise UserError("An alignment links a source to a target: ask for it with the kind 'decoder.cross'.")
    if trace.config.head.kind != "none":
        raise UserError("This model labels texts and writes nothing to align: ask for 'mean'.")
    chosen = max(trace.layers_of(kind) - 2, 0) if layer is None else layer
    return trace.attention(kind, chosen).double().mean(0), chosen
