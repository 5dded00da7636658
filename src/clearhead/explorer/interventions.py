"""A model run with something changed: other weights in one row of a map, a head without output, a gradient.

Changed models are shallow copies that share every parameter with the model and
differ in one module, so the model itself is never touched: nothing has to be
undone, whatever happens, and other threads notice nothing. Does not know what
the outcomes are compared with.

Shapes: B changed rows, R rows of a batch, H heads, T queries, S keys, C columns, n positions, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.explorer.attention_weights import are_shares, attention_of, is_exact
from clearhead.explorer.trace import Trace
from clearhead.explorer.words import Word
from clearhead.models.recurrent import Recurrent
from clearhead.models.stack import ModelOutput
from clearhead.nn.attention.approximate import spread
from clearhead.nn.attention.multihead import projected
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.sparse import SparseAttention, WithGlobals
from clearhead.nn.look import Look

Edit = Callable[[Tensor], Tensor]  # attention weights (R, H, T, S) to other ones

SHUFFLES = 20
SEED = 0
MOST_NUMBERS = 2**24  # that changed rows computed together may hold


@dataclass(frozen=True)
class Place:
    """One row of one head's map."""

    kind: str
    layer: int
    head: int
    row: int

    @property
    def in_decoder(self) -> bool:
        """Whether it is a row of the decoder, which predicts a token itself."""
        return self.kind.startswith("decoder")


@dataclass(frozen=True)
class Goal:
    """The log-probability to watch: the sum over some positions of the output."""

    word: Word
    what: str
    places: Tensor | None  # (n,) rows of the logits, a word's tags one by one; None: they have no rows
    ids: Tensor  # (n,)

    def at(self, logits: Tensor) -> Tensor:
        """The watched logits, (R, n, V), from (R, T, V), (R, V), or for several tags (R, T, n, V)."""
        return logits.unsqueeze(1) if self.places is None else logits.flatten(1, -2)[:, self.places]

    def logp(self, watched: Tensor) -> Tensor:
        """(R, n, V) to (R,), in float64: a probable token's log-probability is a small difference."""
        scores = watched.double().log_softmax(-1)
        ids = self.ids.expand(len(scores), -1).unsqueeze(-1)
        return scores.gather(-1, ids).squeeze(-1).sum(-1)


def goal_logp(goal: Goal, output: ModelOutput) -> Tensor:
    """The watched log-probability of each row of a model's output, (R,)."""
    assert output.logits is not None
    return goal.logp(goal.at(output.logits))


# --- changed models -----------------------------------------------------------------------------


def with_part(module: nn.Module, path: Sequence[str], part: nn.Module) -> nn.Module:
    """A model that shares everything with `module` but the part at `path`."""
    clone = copy.copy(module)
    clone._modules = dict(module._modules)  # copy.copy would share the table of parts itself
    name, *rest = path
    inner = module._modules[name]
    assert inner is not None
    clone._modules[name] = with_part(inner, rest, part) if rest else part
    return clone


def with_weights(model: nn.Module, place: Place, edit: Edit) -> nn.Module:
    """A model in which one attention layer's weights go through `edit` before they mix the values."""
    if isinstance(model, Recurrent):
        clone = copy.copy(model)
        # Its attention is a method, which an attribute of the copy overrides.
        clone.__dict__["_attend"] = lambda *given: edit(model._attend(*given))
        return clone

    def kernel(problem: Problem) -> Tensor:
        return problem.mix(edit(problem.weights()), problem.v, problem.queries, problem.keys)

    stack, part = place.kind.split(".")
    path = (stack, "layers", str(place.layer), "attention" if part == "self" else "cross_attention")
    own = attention_of(model, place.kind, place.layer)
    if not is_exact(own):
        return with_part(model, path, _Reweighted(own, edit))
    attention = copy.copy(model.get_submodule(".".join(path)))
    attention.kernel = kernel  # type: ignore[assignment]
    return with_part(model, path, attention)


class _Reweighted(nn.Module):
    """An attention of any kind over whole texts, whose weights go through `edit`.

    Its output is linear in its weights, so the change of the weights gives the change of the output.
    """

    def __init__(self, attention: Any, edit: Edit) -> None:
        super().__init__()
        self.attention, self.edit = attention, edit

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, look: Look | None = None, **given: Any
    ) -> Any:
        own = Look(["weights", "v", "mixed"])
        self.attention(x, memory, look=own, **given)
        weights, heads = own["weights"], self.attention.config.heads
        difference = self.edit(weights) - weights
        change = difference @ spread(own["v"], heads)
        if isinstance(self.attention, SparseAttention):
            problem = self.attention.problem(x, memory, mask=given["mask"], queries=given["queries"])
            if isinstance(problem, WithGlobals):  # whose rows mix other values
                values, places = spread(problem.of_globals.v, heads), problem.places
                change = change.index_copy(2, places, difference[:, :, places] @ values)
        return projected(self.attention, x, own["mixed"] + change, look, None, given.get("apart", False))


class _Given(nn.Module):
    """Replaces an embedding: returns the given vectors, whatever the ids."""

    def __init__(self, vectors: Tensor, embedding: nn.Module) -> None:
        super().__init__()
        self.vectors = vectors
        self.weight = getattr(embedding, "weight", None)  # the recurrent model needs the table's size

    def forward(self, *_: object) -> Tensor:
        return self.vectors


def gradient_times_input(trace: Trace, place: Place, goal: Goal) -> Tensor:
    """|Σ over features of gradient · vector| for each column token, (C,), at the first layer's input."""
    model = trace.bundle.model
    on_target = place.kind == "decoder.self"
    name = "target_embedding" if on_target else "source_embedding"
    name = name if hasattr(model, name) else "embedding"
    embedding = model.get_submodule(name)
    if isinstance(model, Recurrent):
        with torch.no_grad():
            vectors: Tensor = embedding(trace.target_ids if on_target else trace.source_ids)
    else:
        vectors = trace["decoder.embedding" if on_target else "encoder.embedding"].unsqueeze(0)
    with torch.enable_grad():
        leaf = vectors.detach().clone().requires_grad_()
        output: ModelOutput = with_part(model, [name], _Given(leaf, embedding))(*trace.inputs)
        # without cross-attention nothing depends on the source
        (gradient,) = torch.autograd.grad(goal_logp(goal, output).sum(), [leaf], materialize_grads=True)
    return (gradient * leaf.detach()).sum(-1).abs()[0]


def without_head(trace: Trace, place: Place, goal: Goal) -> float:
    """The watched log-probability when the head outputs nothing in any row."""

    def edit(weights: Tensor) -> Tensor:
        kept = torch.ones(weights.shape[1], 1, 1, device=weights.device)
        kept[place.head] = 0.0
        return weights * kept

    with torch.no_grad():
        output: ModelOutput = with_weights(trace.bundle.model, place, edit)(*trace.inputs)
    return float(goal_logp(goal, output))


# --- changed rows -------------------------------------------------------------------------------


def without_each(row: Tensor, columns: Tensor) -> Tensor:
    """The row (C,) without each of the columns in turn, (n, C), the rest rescaled to sum to 1.

    If a column had all of the weight, nothing is left. A row that does not sum to 1 itself, as in some
    cheaper attentions, is not rescaled.

    >>> without_each(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0, 2]))
    tensor([[0.0000, 0.5000, 0.5000],
            [0.6667, 0.3333, 0.0000]])
    """
    rows = row.double().repeat(len(columns), 1)
    rows[torch.arange(len(columns), device=row.device), columns] = 0.0
    if not are_shares(row):
        return rows.to(row.dtype)
    sums = rows.sum(-1, keepdim=True)
    return torch.where(sums > 0, rows / sums.clamp(min=torch.finfo(torch.float64).tiny), rows).to(row.dtype)


def shuffled(row: Tensor, visible: Tensor) -> Tensor:
    """The row with its weights permuted among the visible columns, (SHUFFLES, C); the same each time."""
    generator = torch.Generator().manual_seed(SEED)
    rows = row.repeat(SHUFFLES, 1)
    for changed in rows:
        order = torch.randperm(len(visible), generator=generator).to(visible.device)
        changed[visible] = row[visible[order]]
    return rows


def edited_logits(trace: Trace, place: Place, edits: Tensor, goal: Goal) -> Iterator[Tensor]:
    """The watched logits, (b, n, V), with the weights replaced by each of the edits (B, C), some at a time.

    In a decoder nothing before the row changes, and nothing after it is needed: the past is read once, and
    the row alone is computed for every edit, as one step of decoding. If an attention remembers less than
    all keys, or decodes differently from how it reads, whole texts are computed.
    """
    steps = place.in_decoder and _steps_are_exact(trace)
    size = _numbers_a_row(trace, steps, place.row)
    state = _past(trace, place.row) if steps else None
    for part in edits.split(max(1, MOST_NUMBERS // size)):
        if state is None:
            yield goal.at(_whole_pass(trace, place, part))
        else:
            yield _one_step(trace, place, part, copy.deepcopy(state))


def _steps_are_exact(trace: Trace) -> bool:
    """Whether decoder steps equal reading: it only looks back, with attentions that remember all keys."""
    layers = range(trace.layers_of("decoder.self")) if trace.config.family != "recurrent" else ()
    kinds = ("decoder.self", "decoder.cross")
    model = trace.bundle.model
    exact = all(is_exact(attention_of(model, kind, layer)) for kind in kinds for layer in layers)
    return exact and trace.config.causal_mask


def _numbers_a_row(trace: Trace, steps: bool, row: int) -> int:
    """About how many numbers one edit holds at the same time."""
    config = trace.config
    if steps:
        keys = len(trace.source) if config.family == "recurrent" else row + 64
        return 2 * keys * config.width * config.depth_of_decoder + config.vocabulary
    tokens = len(trace.source) + len(trace.target)
    keys = max(len(trace.source), len(trace.target))
    wide = config.width * 8 + config.vocabulary + config.attention.heads * keys
    return tokens * wide


@torch.no_grad()
def _past(trace: Trace, row: int) -> Any:
    """The decoder's state before it reads the row's token."""
    model: Any = trace.bundle.model
    state = model.begin(trace.source_ids) if trace.source else model.begin()
    if row:
        given = [None] if trace.source else []
        model(*given, trace.target_ids[:, :row], state=state)
    return state


@torch.no_grad()
def _one_step(trace: Trace, place: Place, edits: Tensor, state: Any) -> Tensor:
    """The logits of the row alone, (B, 1, V): what a decoder's goal watches."""
    count, first = len(edits), torch.zeros(len(edits), dtype=torch.long, device=edits.device)
    if isinstance(trace.bundle.model, Recurrent):
        state.reorder(first)
    else:
        state.reorder(first, first[:1])  # all rows read one source

    def edit(weights: Tensor) -> Tensor:
        # (B, H, 1, S), or (1, H, B, S) if rows that share a source attend to it together
        changed = weights.clone()
        shape = changed[:, place.head].shape
        changed[:, place.head] = edits[:, : shape[-1]].reshape(shape)
        return changed

    model = with_weights(trace.bundle.model, place, edit)
    token = trace.target_ids[:, place.row].expand(count, 1)
    output: ModelOutput = model(*([None] if trace.source else []), token, state=state)
    assert output.logits is not None
    return output.logits


@torch.no_grad()
def _whole_pass(trace: Trace, place: Place, edits: Tensor) -> Tensor:
    def edit(weights: Tensor) -> Tensor:
        changed = weights.clone()
        changed[:, place.head, place.row] = edits
        return changed

    model = with_weights(trace.bundle.model, place, edit)
    output: ModelOutput = model(*(ids.expand(len(edits), -1) for ids in trace.inputs))
    assert output.logits is not None
    return output.logits
