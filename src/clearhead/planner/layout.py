"""How the ranks of a run share its work: one line of text, such as `fsdp8xtp8`.

    ddp    replicas: every rank has all weights, gradients are summed
    fsdp   shards: weights, gradients and moments are sharded, and gathered layer by layer
    ep     expert parallel: every rank has some of the experts, and tokens travel to theirs and back
    tp     tensor parallel: every product is split, and so is the sequence between products

The parts are the dimensions of one mesh, always in this order: ranks that differ only in `tp`, which
communicate most, are neighbours, and so on one machine. One part may omit its size and gets the remaining
ranks. `ddp2xfsdp4` is also called hybrid sharding. Ranks of `ddp`, `fsdp` and `ep` have different data; those
of `tp` share theirs. No torch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from clearhead.base.errors import UserError

_PART = re.compile(r"([a-z]+)([0-9]*)")
_LONGEST = 9  # digits of a size


@dataclass(frozen=True)
class Layout:
    """Sizes of the dimensions of the mesh, the outermost first."""

    ddp: int = 1
    fsdp: int = 1
    ep: int = 1
    tp: int = 1

    @classmethod
    def parse(cls, text: str, ranks: int) -> Layout:
        """The layout of this many ranks.

        >>> Layout.parse("fsdp8xtp8", 64)
        Layout(ddp=1, fsdp=8, ep=1, tp=8)
        >>> Layout.parse("ddpxfsdp4", 8)
        Layout(ddp=2, fsdp=4, ep=1, tp=1)
        """
        sizes: dict[str, int] = {}
        for part in text.split("x"):
            match = _PART.fullmatch(part)
            if match is None or match[1] not in NAMES or len(match[2]) > _LONGEST:
                raise UserError(
                    f"The layout '{text}' cannot be read at '{part}': join {', '.join(NAMES)}, each with its "
                    "number of ranks, by x, as in fsdp8xtp8."
                )
            if match[1] in sizes:
                raise UserError(f"The layout '{text}' has {match[1]} twice: give each part once.")
            sizes[match[1]] = int(match[2] or 0)
        if text.count("x") and list(sizes.values()).count(0) > 1:
            raise UserError(
                f"The layout '{text}' leaves more than one size open: only one part may be given without "
                "a number."
            )
        if {"ep", "tp"} <= sizes.keys():
            raise UserError(
                f"The layout '{text}' combines ep and tp, but tensor parallelism does not split experts: "
                "leave one of them out."
            )
        known = math.prod(size for size in sizes.values() if size)
        open_ones = [name for name, size in sizes.items() if not size]
        for name in open_ones:
            sizes[name] = ranks // known
        if math.prod(sizes.values()) != ranks:
            says = f"The layout '{text}' needs {'a multiple of ' if open_ones else ''}{known} ranks, and"
            if ranks == 1:
                raise UserError(
                    f"{says} this is one process: start the ranks with `torchrun --nproc-per-node {known} -m "
                    "clearhead train …`, or leave compute.layout out."
                )
            raise UserError(f"{says} there are {ranks}: change one of them.")
        return cls(**sizes)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.data * self.tp

    @property
    def data(self) -> int:
        """How many parts an update's batches are split into."""
        return self.ddp * self.fsdp * self.ep

    @property
    def shards(self) -> bool:
        """Are weights sharded?"""
        return self.fsdp * self.ep * self.tp > 1

    def __str__(self) -> str:
        parts = [f"{name}{getattr(self, name)}" for name in NAMES if getattr(self, name) > 1]
        return "x".join(parts) or "ddp1"


NAMES = tuple(Layout.__dataclass_fields__)
