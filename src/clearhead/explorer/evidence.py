"""View 3, "is it an explanation?": one row of one head's map compared with what really moves the prediction.

Each control is computed on demand by running the model with something changed (`interventions.py`):

    gradient   |Σ gradient · input| of the log-probability at each column token's embedding
    ablated    the change when one weight of the row is set to 0 and the others are rescaled
    head       the log-probability when the head outputs nothing, in any row
    permuted   the same when the row's weights are shuffled among the columns it may see

What is predicted: in a decoder's row, the most probable next token. A row of an
encoder predicts no token by itself; there it is the whole target, or the label.

Shapes: B changed rows, H heads, T queries, S keys, C columns, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.explorer.attention_weights import attention_of, chooses_keys, tokens_of_blocks
from clearhead.explorer.interventions import (
    SHUFFLES,
    Goal,
    Place,
    edited_logits,
    gradient_times_input,
    shuffled,
    without_each,
    without_head,
)
from clearhead.explorer.session import Session
from clearhead.explorer.tags import answer_name, likeliest
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import Plain, Word, texts
from clearhead.models.heads import NEVER
from clearhead.nn.attention.compressed import CompressedAttention

TOKENS = 40_000  # most that changed passes of an encoder compute; in long texts only large weights are tried
FEWEST = 8  # columns that are tried in any case
ENOUGH = 4  # columns below which a ranking means nothing: even a perfect one may be chance
HARDLY, CLEARLY = 0.01, 0.1  # total variation below and above which a shuffle moves a prediction


def evidence(
    session: Session, text: str, target: str | None = None, *, kind: str, layer: int, head: int, row: int
) -> Plain:
    """The evidence for and against reading one row of a map as an explanation.

    `ablated` is signed (negative: the prediction became less likely) and null for columns that were not
    tried. `tau` compares the weights' ranking with that of `gradient` and of |`ablated`|, over the columns
    the row may see; null if nothing can be ranked.
    """
    if session.family == "vision":
        raise UserError(
            "These controls only work for text, and this model reads pictures: look at its heads."
        )
    trace = session.trace(text, target)
    trace.attention(kind, layer, head)  # refuses what does not exist
    rows, _ = trace.sides(kind)
    if not 0 <= row < len(rows):
        raise UserError(f"There is no row {row} in '{kind}': this text has {len(rows)}, numbered from 0.")
    place = Place(kind, layer, head, row)
    goal = goal_of(trace, place)
    base, columns, visible, tokens = looked_at(trace, place)
    tried = visible[_tried(trace, place, base[visible])]
    logp, moved, noise = _outcomes(trace, place, goal, base, visible, tried)
    change = (logp[1 : 1 + len(tried)] - logp[0]).tolist()
    ablated: list[float | None] = [0.0] * len(base)
    for column in visible.tolist():
        ablated[column] = None
    for column, value in zip(tried.tolist(), change, strict=True):
        ablated[column] = value
    gradient = gradient_times_input(trace, place, goal)
    if tokens is not None:  # the contribution of a block to all its tokens
        gradient = torch.stack([gradient[list(each)].sum() for each in tokens])
    sizes = base.abs()  # some cheaper attentions have weights below 0
    tau = {
        "gradient": kendall(sizes[visible].tolist(), gradient[visible].tolist()),
        "ablated": kendall(sizes[tried].tolist(), [0.0 if abs(x) <= noise else abs(x) for x in change]),
    }
    before = float(goal.logp(goal.at(trace.logits[None])))
    permuted = {
        "before": before,
        "mean_after": float(logp[1 + len(tried) :].mean()),
        "total_variation": float(moved[1 + len(tried) :].mean()),
    }
    return {
        "columns": columns,
        "predicted": goal.word,
        "what": goal.what,
        "weights": base.tolist(),
        "gradient": gradient.tolist(),
        "ablated": ablated,
        "visible": len(visible),
        "tried": len(tried),
        "head_ablation": {"before": before, "after": without_head(trace, place, goal)},
        "permuted": permuted,
        "tau": tau,
        "sentence": sentence(tau, len(visible), len(tried), permuted["total_variation"], goal.word["text"]),
    }


# --- what the row attends to ---------------------------------------------------------------------

Row = tuple[Tensor, list[Word], Tensor, list[range] | None]


def looked_at(trace: Trace, place: Place) -> Row:
    """A row's weights (C,), its columns, which of them it may see, and the tokens of its blocks.

    The columns are tokens; of memory-compressed attention they are the blocks that it really weighs.
    """
    _, words = trace.sides(place.kind)
    part = attention_of(trace.bundle.model, place.kind, place.layer)
    ahead = place.kind == "decoder.self" and trace.config.causal_mask
    if isinstance(part, CompressedAttention):
        stack, name = place.kind.split(".")
        weights = trace[f"{stack}.{place.layer}.{name}.weights"][place.head, place.row]
        blocks = tokens_of_blocks(part, len(words))
        columns = [
            Word(id=-1, text=" ".join(texts(words[one] for one in each)), kind="word") for each in blocks
        ]
        ended = min((place.row + 1) // part.config.stride, len(blocks))
        return weights, columns, torch.arange(ended if ahead else len(blocks), device=weights.device), blocks
    weights = trace.attention(place.kind, place.layer, place.head)[place.row]
    visible = torch.arange(place.row + 1 if ahead else len(words), device=weights.device)
    if chooses_keys(part):  # all chosen keys have a weight above 0
        visible = visible[weights[visible] != 0]
    return weights, words, visible, None


# --- what is predicted --------------------------------------------------------------------------


def goal_of(trace: Trace, place: Place) -> Goal:
    """The goal that a row's evidence is about."""
    if "logits" not in trace.names:
        raise UserError("This model has no head, so it predicts nothing to explain.")
    logits, head = trace.logits, trace.config.head
    if head.kind == "number" or (head.of_text and trace.config.family != "encoder"):
        raise UserError(
            "Only models that write text, and encoders that classify or tag, have predictions to explain."
        )
    if place.in_decoder:
        chosen = logits[place.row].argmax()
        word = trace.word(int(chosen))
        what = "the log-probability of the token that this row predicts"
        return Goal(word, what, torch.tensor([place.row], device=logits.device), chosen[None])
    if trace.config.family == "encoder-decoder":
        ids = torch.tensor(trace.reading.following, device=logits.device)
        assert trace.bundle.tokenizer is not None
        text = trace.bundle.tokenizer.decode(trace.reading.following)
        word = Word(id=-1, text=text, kind="word")
        what = "the log-probability of the whole target, which depends on every row of the encoder"
        return Goal(word, what, torch.arange(len(ids), device=logits.device), ids)
    labels, whole = trace.bundle.metadata.get("labels") or [], head.kind == "classify"
    row = logits[None] if whole else logits[place.row : place.row + 1]
    id = int(likeliest(row, head.columns, 1)[0])
    names = [*map(str, labels), *(f"class {one}" for one in range(len(labels), head.classes))]
    if head.kind == "mlm":
        word = trace.word(id)
    else:
        word = Word(id=id, text=answer_name(id, names, head.columns), kind="word")
    what = f"the log-probability of the most likely {'label' if whole else 'answer at this row'}"
    chosen = row.flatten(0, -2).argmax(-1)  # of each column of tags
    places = torch.arange(len(chosen), device=logits.device) + place.row * len(chosen)
    return Goal(word, what, None if whole else places, chosen)


def _outcomes(
    trace: Trace, place: Place, goal: Goal, base: Tensor, visible: Tensor, tried: Tensor
) -> tuple[Tensor, Tensor, float]:
    """The outcomes of the row unchanged, without each column tried, and shuffled.

    The log-probability and the total variation from the unchanged row, (B,) each, and the change of
    log-probability that may be no more than float32's rounding: logits are right to a few units in their
    last digit, and an error of one moves log p by no more than (1 − p) times as much.
    """
    edits = torch.cat([base[None], without_each(base, tried), shuffled(base, visible)])  # (B,C)
    logps, moves, first, noise = [], [], None, 0.0
    for watched in edited_logits(trace, place, edits, goal):  # (b,n,V)
        chances = watched.double().softmax(-1)
        if first is None:
            first = chances[:1]
            unsure = (1 - first[0].gather(-1, goal.ids.unsqueeze(-1))).sum()
            most = watched[0][watched[0] > NEVER].abs().max()  # ignoring the padding of short tag columns
            noise = float(8 * torch.finfo(torch.float32).eps * most * unsure)
        logps.append(goal.logp(watched))
        moves.append((chances - first).abs().sum(-1).mean(-1) / 2)  # over the places
    return torch.cat(logps), torch.cat(moves), noise


def _tried(trace: Trace, place: Place, weights: Tensor) -> Tensor:
    """Which columns are ablated: all visible ones, or in a long encoder text those with most weight."""
    if place.in_decoder:
        most = len(weights)
    else:
        most = max(TOKENS // (len(trace.source) + len(trace.target)) - SHUFFLES, FEWEST)
    return weights.abs().topk(min(most, len(weights))).indices.sort().values


# --- in words -----------------------------------------------------------------------------------


def kendall(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's τ-b of two rankings, in which ties count for neither; None if one is all ties.

    >>> kendall([1, 2, 3], [10, 20, 30]), kendall([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    >>> kendall([1, 2, 3], [5, 5, 5]) is None
    True
    """
    a, b = (torch.tensor(list(values), dtype=torch.float64) for values in (one, other))
    above, beside = ((x.unsqueeze(1) - x).sign() for x in (a, b))  # (n,n)
    ranked = above.abs().sum() * beside.abs().sum()  # pairs that are not ties, counted twice in each
    return float((above * beside).sum() / ranked.sqrt()) if ranked > 0 else None


def by_chance(count: int) -> float:
    """Unrelated rankings of so many columns stay below this |τ| nineteen times in twenty.

    >>> round(by_chance(10), 2)
    0.49
    """
    return 1.96 * math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1)))


def sentence(tau: dict[str, float | None], visible: int, tried: int, moved: float, predicted: str) -> str:
    """What the numbers say, no more."""
    if visible < ENOUGH:
        number = "one column" if visible == 1 else f"{visible} columns"
        few = f"This row can only look at {number}, too few for a ranking to mean anything."
        return few if visible == 1 else f"{few} {_about_shuffling(moved)}"
    limits = {"gradient": by_chance(visible), "ablated": by_chance(tried)}
    names = {"gradient": "gradient × input", "ablated": "what removing each weight changes"}
    shown = {name: f"{names[name]} ({_tau(value)})" for name, value in tau.items()}
    matched = [name for name, value in tau.items() if value is not None and value > limits[name]]
    against = [name for name, value in tau.items() if value is not None and value < -limits[name]]
    if len(matched) == len(tau):
        found = f"High attention here is matched by {shown['gradient']} and by {shown['ablated']}."
    elif matched == ["gradient"]:
        found = f"High attention here is matched by {shown['gradient']}, but not by {shown['ablated']}."
    elif matched:
        found = (
            f"High attention here is matched by {shown['ablated']}, which is partly by construction, "
            f"because removing a larger weight leaves a larger gap, but not by {shown['gradient']}."
        )
    else:
        found = (
            f"High attention here is not matched by {shown['gradient']} or by {shown['ablated']}: the map "
            f"shows where the head looked, not why the model predicts “{_short(predicted)}”."
        )
    if against:
        others = " and by ".join(names[name] for name in against)
        found += f" By {others} the ranking is even reversed."
    found += f" (Unrelated rankings of {tried} columns give up to ±{limits['ablated']:.2f} by chance.)"
    return f"{found} {_about_shuffling(moved)}"


def _tau(value: float | None) -> str:
    return "all equal" if value is None else f"τ = {round(value, 2) + 0.0:.2f}".replace("-", "−")


def _about_shuffling(moved: float) -> str:
    share = f"{100 * moved:.1f} %" if moved >= 0.001 else "less than 0.1 %"
    if moved < HARDLY:
        then = "hardly depends on them, so the map explains little of it, whatever its order"
    else:
        then = "depends clearly on them" if moved > CLEARLY else "depends on them a little"
    return f"Shuffling this row's weights moves {share} of the probability: the prediction {then}."


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
