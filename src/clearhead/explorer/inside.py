"""The view "inside": the architecture drawn from the real model, and any tensor of it.

The drawing comes from `anatomy`; here it becomes plain data for a page.

Shapes: S source tokens, T target tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.base.errors import UserError, nearest
from clearhead.explorer.attention_weights import attention_of
from clearhead.explorer.session import Session
from clearhead.explorer.steps import Axis, Step
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import Plain, extent, packed, texts

NUMBERED = ("expert", "block", "mixture", "landmark", "round", "global token")
SHOWN = 64  # words of a vocabulary, or features, that are drawn if there are too many


def inside(session: Session, text: str, target: str | None = None) -> Plain:
    """The boxes and arrows of the model, with the shapes that this text gives them."""
    trace = _trace(session, text, target)
    boxes = [
        {
            "id": box.id,
            "label": box.label,
            "kind": box.kind,
            "stack": box.stack,
            "layer": box.layer,
            "order": order,
            "steps": [_described(step) for step in box.steps],
        }
        for order, box in enumerate(trace.anatomy.boxes)
    ]
    arrows = [
        {"from": one.start, "to": one.end, "shape": one.shape, "kind": one.kind}
        for one in trace.anatomy.arrows
    ]
    return {
        "source": trace.source or None,
        "target": trace.target or None,
        "family": session.family,
        "boxes": boxes,
        "arrows": arrows,
    }


def tensor(
    session: Session, text: str, target: str | None = None, *, name: str, head: int | None = None
) -> Plain:
    """One tensor of the drawing as rows and columns; of several heads, the one requested, or the first.

    Of a whole vocabulary, the words that are most probable anywhere are shown.
    """
    trace = _trace(session, text, target)
    steps = trace.anatomy.steps
    if name not in steps:
        raise UserError(f"There is no tensor named '{name}' in this model: {nearest(str(name), steps)}")
    step = steps[name]
    axes, values = list(step.axes), trace[name]
    if axes[0][0] in ("head", "group"):
        values = values[_chosen(session, step, head)]
        axes = axes[1:]
    elif head is not None:
        raise UserError(f"'{name}' has no heads: do not name one.")
    if len(axes) == 1:
        # A number for each token is a column; one vector, or a number for each class or expert, a row.
        lying = axes[0][0] in ("feature", "class", "expert")
        values = values.unsqueeze(0 if lying else 1)
        axes = [("text", 1), *axes] if lying else [*axes, ("number", 1)]
    columns: list[str] | None
    if axes[1][0] == "vocabulary":
        values, columns = _likeliest(trace, values)
    else:
        columns = _labels(session, trace, axes[1])
    low, high = extent(values)
    return {
        "name": name,
        "tensor": packed(values),
        "rows": _labels(session, trace, axes[0]) or [],
        "columns": columns,
        "formula": step.formula,
        "low": low,
        "high": high,
    }


def _trace(session: Session, text: str, target: str | None) -> Trace:
    if session.family == "recurrent":
        raise UserError("This view can only draw Transformers, and this model is recurrent.")
    if session.family == "vision":
        raise UserError("This view can only show text, and this model reads pictures: look at its attention.")
    return session.trace(text, target)


def _described(step: Step) -> Plain:
    return {
        "name": step.name,
        "label": step.label,
        "formula": step.formula,
        "shape": step.shape,
        "axes": [axis for axis, _ in step.axes],
        "note": step.note,
    }


def _chosen(session: Session, step: Step, head: int | None) -> int:
    """The slice of a head; a query head that shares grouped keys and values gets its group's."""
    kind, count = step.axes[0]
    stack, layer, part, _ = step.name.split(".")
    heads = int(attention_of(session.model, f"{stack}.{part}", int(layer)).config.heads)
    chosen = 0 if head is None else head
    if not 0 <= chosen < heads:
        raise UserError(f"There is no head {head}: this layer has {heads}, numbered from 0.")
    return chosen // (heads // count) if kind == "group" else chosen


def _labels(session: Session, trace: Trace, axis: Axis) -> list[str] | None:
    """The words along an axis of tokens; numbers from 1 if it is counted; None for features."""
    kind, count = axis
    if kind in NUMBERED:
        return [str(one + 1) for one in range(count)]
    if kind in ("source", "target"):
        return texts(trace.source if kind == "source" else trace.target)
    if kind == "class":
        return labels(session, count)
    return {"text": [trace.text], "number": ["id"]}.get(kind)


def labels(session: Session, count: int) -> list[str]:
    """The names of a classifier's classes; numbers if the bundle does not name them."""
    known = session.bundle.metadata.get("labels")
    if isinstance(known, list) and len(known) == count:
        return [str(one) for one in known]
    return [str(one) for one in range(count)]


def _likeliest(trace: Trace, values: Tensor) -> tuple[Tensor, list[str]]:
    """(T, vocabulary) reduced to the words that have the highest number anywhere, best first."""
    order = torch.sort(values.amax(0), descending=True, stable=True).indices[:SHOWN]
    return values[:, order], [trace.word(id)["text"] for id in order.tolist()]
