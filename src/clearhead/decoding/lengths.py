"""What a text's log-probability is divided by before texts are compared.

Plain numbers; knows nothing about beams or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LengthPenalty:
    """What a text's log-probability is divided by, so that long texts are not at a loss.

    `power`: length^alpha, so that alpha=1 is the plain average (fairseq's lenpen). `wu`: ((5 + length)
    / 6)^alpha, of Wu et al. 2016, equation 14. The length counts the stop symbol. alpha=0: nothing.

    >>> LengthPenalty(1.0).at(4), LengthPenalty(0.0).at(4), LengthPenalty(1.0, "wu").at(7)
    (4.0, 1.0, 2.0)
    """

    alpha: float = 1.0
    kind: Literal["power", "wu"] = "power"

    def at(self, length: int) -> float:
        """The divisor for a text of `length` tokens."""
        base = float(length) if self.kind == "power" else (5.0 + length) / 6.0
        return float(base**self.alpha)
