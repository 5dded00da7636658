"""A batch in another layout: packed end to end, in a fixed shape or not, or cut in two.

Shapes: B rows of a batch, T tokens of a row, N tokens of packed rows.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED, Batch, Lengths, counted
from clearhead.data.packing import Packing, offsets


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Two smaller batches with the same rows, for when all at once do not fit in memory."""
    if batch.rows < 2:
        raise UserError(
            "Not even one example fits into memory: remove the longest ones (data.filter), or use a "
            "smaller model."
        )
    half, whole = (batch.rows + 1) // 2, without_filler(batch)
    return _part(whole, 0, half), _part(whole, half, batch.rows)


def pack_batch(batch: Batch) -> Batch:
    """The real tokens only, end to end; lengths become plain numbers."""
    if batch.is_packed:
        return without_filler(batch)
    plain = {id(sizes): _plain(sizes)[: batch.rows] for sizes in batch.sizes.values()}
    sizes = {name: plain[id(lengths)] for name, lengths in batch.sizes.items()}
    fields = {name: tensor[: batch.rows] for name, tensor in batch.fields.items()}
    inside: dict[tuple[int, int], Tensor] = {}  # computed once for fields that are aligned
    for name, lengths in batch.sizes.items():
        kind = id(lengths), fields[name].shape[1]
        if kind not in inside:
            real = torch.as_tensor(lengths, device=fields[name].device)[: batch.rows]
            inside[kind] = torch.arange(kind[1], device=real.device) < real.unsqueeze(1)
        fields[name] = fields[name][inside[kind]]
    return replace(batch, fields=fields, sizes=sizes)


REAL = "real"  # the field that counts the tokens of source and target that are not filler


def pack_into(batch: Batch, packing: Packing) -> Batch:
    """The real tokens end to end in a fixed shape; the rest of it is filler without labels."""
    flat = pack_batch(batch)
    source, target = (_plain(flat.sizes.get(name, ())) for name in ("source", "inputs"))
    found = packing.lengths(list(source), list(target))
    if found is None:
        packing = packing.roomiest
        found = packing.lengths(list(source), list(target))
    assert found is not None  # the plan never has this many sequences
    bounds = [torch.tensor(offsets(lengths), dtype=torch.int32) for lengths in found]
    sizes = {name: bounds[0 if name == "source" else 1] for name in flat.sizes}
    fields = {}
    for name, tensor in flat.fields.items():
        count = packing.rows
        if name in sizes:
            count = packing.source if name == "source" else packing.target
        empty: float = 0
        if name == "labels":
            empty = float("nan") if tensor.is_floating_point() else IGNORED
        longer = (0, 0) * (tensor.dim() - 1) + (0, count - len(tensor))
        fields[name] = torch.nn.functional.pad(tensor, longer, value=empty)
    fields[REAL] = torch.tensor([sum(source), sum(target)])
    return replace(flat, fields=fields, sizes=sizes, packing=packing)


def without_filler(batch: Batch) -> Batch:
    """Remove the filler of a fixed shape: packed, with plain lengths."""
    if batch.packing is None:
        return batch
    plain = {
        id(one): tuple(torch.as_tensor(one).diff().tolist())[: batch.rows] for one in batch.sizes.values()
    }
    sizes = {name: plain[id(one)] for name, one in batch.sizes.items()}
    fields = {
        name: tensor[: sum(sizes[name]) if name in sizes else batch.rows]
        for name, tensor in batch.fields.items()
        if name != REAL
    }
    return replace(batch, fields=fields, sizes=sizes, packing=None)


def _part(batch: Batch, begin: int, end: int) -> Batch:
    """Rows `begin` to `end`, in their layout."""
    sizes = {id(lengths): lengths[begin:end] for lengths in batch.sizes.values()}
    fields = {}
    for name, tensor in batch.fields.items():
        lengths = batch.sizes.get(name)
        if isinstance(lengths, tuple):  # packed
            first = sum(lengths[:begin])
            fields[name] = tensor[first : first + sum(lengths[begin:end])]
        else:
            fields[name] = tensor[begin:end]
    return Batch(
        fields,
        {name: sizes[id(lengths)] for name, lengths in batch.sizes.items()},
        end - begin,
        int(counted(fields["labels"]).sum()),
        None if batch.indices is None else batch.indices[begin:end],
    )


def _plain(lengths: Lengths) -> tuple[int, ...]:
    return tuple(lengths.tolist()) if isinstance(lengths, Tensor) else lengths
