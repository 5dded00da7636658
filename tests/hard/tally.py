"""What a part of the harness tried, and what did not hold."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of one part. `wrong` are the sentences to be printed: each is a defect."""

    name: str
    tried: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # what became of them
    wrong: list[str] = field(default_factory=list)

    def one(self, what: str) -> None:
        """One more was tried, and came out so."""
        self.tried += 1
        self.counts[what] += 1
        if self.tried % 50 == 0 and sys.stderr.isatty():
            print(f"\r{self.name}: {self.tried}", end="", file=sys.stderr, flush=True)

    def bad(self, kind: str, sentence: str) -> None:
        """One more was tried, and did not hold."""
        self.one(kind)
        self.wrong.append(f"{self.name}: {kind}: {sentence}")
        print(f"! {self.wrong[-1]}", file=sys.stderr, flush=True)

    def line(self) -> str:
        """For the table at the end."""
        kinds = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()))
        return f"{self.name:<24} {self.tried:>7,} tried   {len(self.wrong):>3} wrong   ({kinds})"
