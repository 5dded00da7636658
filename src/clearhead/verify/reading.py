"""Checks of the model itself: with and without a state, alone and in batches, with every attention kernel.

Shapes: B rows, S given tokens, T target tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.batches import padded
from clearhead.decoding.options import positions_of
from clearhead.models.stack import ModelOutput
from clearhead.nn.attention.kernels import KERNELS
from clearhead.nn.attention.multihead import Attention
from clearhead.verify.passes import Ids, largest_difference, walk
from clearhead.verify.report import Check, skip, within
from clearhead.verify.subject import SEES_MORE, Subject

CACHED = "cached = uncached"
BATCH = "alone = in any batch"
KERNEL = "fast kernels = reference"
# kernels that only support half precision are compared with the reference in that precision
KERNEL_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.25}

Pair = tuple[Ids, Ids]  # what is given, and what is written


def cached(subject: Subject) -> Check:
    """Each step's log-probabilities, with a state, equal those of one stateless pass over the whole text."""
    if not subject.decodes_as_it_reads:
        return skip(CACHED, SEES_MORE)
    seen = walk(subject.rows(), subject.given, subject.limits(), subject.ordinary, subject.seed)
    worst = largest_difference([one.logp for one in seen], subject.passes.all_of(seen))
    what = (
        f"{len(seen)} steps of {len(subject.given)} texts that joined, split and left during decoding, "
        "against full forward passes without a state"
    )
    return within(CACHED, worst, subject.bound, what, steps=len(seen))


@torch.no_grad()
def batch(subject: Subject) -> Check:
    """A text's log-probabilities are the same alone, in a padded batch, in a packed one, in any order."""
    model = subject.exact.model
    pairs = [(given, subject.target(number)) for number, given in enumerate(subject.given)]
    alone = [_outputs(model, subject, [pair])[0] for pair in pairs]
    orders = [list(range(len(pairs))), list(reversed(range(len(pairs))))]
    orders.append(random.Random(subject.seed).sample(orders[0], len(pairs)))
    worst: dict[str, float] = {"padded": 0.0, "packed": 0.0}
    for extra, order in enumerate(orders):
        mixed = [pairs[number] for number in order]
        wanted = [alone[number] for number in order]
        for kind, columns in (("padded", extra), ("packed", None)):
            found = _outputs(model, subject, mixed, columns)
            worst[kind] = max(worst[kind], largest_difference(found, wanted))
    what = f"{len(pairs)} texts one by one, against padded and packed batches in {len(orders)} orders"
    return within(BATCH, max(worst.values()), subject.bound, what, **worst)


@torch.no_grad()
def kernels(subject: Subject) -> Check:
    """The model's output with every attention kernel that supports it here, against the reference kernel."""
    if not _with_kernels(subject.exact.model):
        return skip(KERNEL, "This model has no attention layer with a choice of kernels.")
    pairs = [(given, subject.target(number)) for number, given in enumerate(subject.given)]
    found: dict[str, float] = {}
    bounds: dict[str, float] = {}
    reasons: dict[str, str] = {}
    for name in KERNELS:
        if name == "reference":
            continue
        for dtype, bound in KERNEL_BOUNDS.items():
            try:
                found[name] = _kernel_difference(subject, pairs, name, dtype)
            except UserError as error:
                reasons.setdefault(name, str(error))
            else:
                bounds[name] = bound
                break
    if not found:
        return skip(KERNEL, "No kernel other than the reference can compute this model's attention here.")
    # report the kernel that comes closest to its bound, or exceeds it the most
    worst = max(found, key=lambda name: found[name] / bounds[name])
    what = f"{_listed(found)} against the kernel 'reference', {len(pairs)} texts"
    details = {"differences": found, "not here": {k: v for k, v in reasons.items() if k not in found}}
    return within(KERNEL, found[worst], bounds[worst], what, **details)


def _with_kernels(model: nn.Module) -> list[Attention]:
    return [one for one in model.modules() if isinstance(one, Attention) and one.has_kernels]


def _kernel_difference(subject: Subject, pairs: Sequence[Pair], kernel: str, dtype: torch.dtype) -> float:
    own = subject.exact.model
    model = own if next(own.parameters()).dtype == dtype else copy.deepcopy(own).to(dtype)
    before = [(one, one.kernel) for one in _with_kernels(model)]
    results = []
    try:
        for name in (kernel, "reference"):
            for one, _ in before:
                one.kernel = name
            results.append([*_outputs(model, subject, pairs), *_outputs(model, subject, pairs, None)])
    finally:
        for one, old in before:
            one.kernel = old
    return largest_difference(*results)


def _outputs(
    model: nn.Module, subject: Subject, pairs: Sequence[Pair], extra: int | None = 0
) -> list[Tensor]:
    """The log-probabilities (T, V) of each pair, from one batch, padded by `extra` columns more than needed.

    None for `extra`: from a packed batch.
    """

    def batch(rows: Sequence[Ids]) -> tuple[Tensor, Tensor | list[int]]:
        if extra is not None:
            return _padded(rows, extra, subject)
        flat = [id for row in rows for id in row]
        return torch.tensor(flat, device=subject.device), [len(row) for row in rows]

    if subject.reads_apart:
        rows = [_begun(subject, written) for _, written in pairs]
        (source, source_lengths), (target, lengths) = batch([given for given, _ in pairs]), batch(rows)
        output = model(source, target, source_lengths=source_lengths, target_lengths=lengths)
    else:
        rows = [(*given, *written) for given, written in pairs]
        ids, lengths = batch(rows)
        output = model(ids, lengths=lengths)
    scores = _scores(output)
    if extra is None:
        return list(scores.split([len(row) for row in rows]))
    return [scores[at, : len(row)] for at, row in enumerate(rows)]


def _scores(output: ModelOutput) -> Tensor:
    """Log-probabilities of a model that writes; the hidden states of an encoder."""
    logits, hidden = output.logits, output.hidden
    if logits is None or output.pooled is not None:
        assert hidden is not None
        return hidden
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def _begun(subject: Subject, written: Ids) -> Ids:
    start = subject.symbols.start
    return (0 if start is None else start, *written)


def _padded(rows: Sequence[Ids], extra: int, subject: Subject) -> tuple[Tensor, Tensor]:
    """Padding holds ids of the vocabulary, not zeros: no result may depend on them."""
    table, lengths = padded(rows, rows[0][0], subject.device)
    positions = positions_of(subject.config)
    if positions is not None:
        extra = min(extra, positions - table.shape[1])
    more = torch.full((len(rows), extra), rows[-1][-1], device=subject.device)
    return torch.cat([table, more], dim=1), lengths


def _listed(names: dict[str, float]) -> str:
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
