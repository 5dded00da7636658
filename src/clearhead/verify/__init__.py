"""Proof on the user's own model: every promise of decoding, tested and reported in numbers.

`evaluation` says how good a model is; this says whether its answers are correct: what the definition gives,
however fast, batched or compressed. Knows nothing about training.
"""

from __future__ import annotations

from clearhead.verify.report import Check, Report
from clearhead.verify.run import CHECKS, verify
from clearhead.verify.subject import Effort

__all__ = ["CHECKS", "Check", "Effort", "Report", "verify"]
