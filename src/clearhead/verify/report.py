"""What a verification found: one `Check` for each thing that was tested, and all of them together.

Plain data; knows nothing about models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """One thing that was tested, and its result.

    `worst` is the largest difference found and `bound` the largest allowed; if the name says so (`sampling`),
    the smallest probability found and the one it had to reach.
    """

    name: str
    passed: bool  # also True if skipped
    worst: float
    bound: float
    sentence: str
    details: Mapping[str, Any] = field(default_factory=dict)  # further numbers, plain data
    skipped: bool = False  # it does not apply here; the sentence says why

    @property
    def result(self) -> str:
        """The result in one word."""
        if self.skipped:
            return "skipped"
        return "pass" if self.passed else "FAIL"

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON, which has no infinity."""
        return {
            "name": self.name,
            "result": self.result.lower(),
            "worst": self.worst if math.isfinite(self.worst) else None,
            "bound": self.bound,
            "sentence": self.sentence,
            "details": dict(self.details),
        }


@dataclass(frozen=True)
class Report:
    """Everything that was tested on one model.

    >>> report = Report([Check("a = b", True, 0.0, 1e-9, "They are."), skip("c = d", "There is no d here.")])
    >>> report.passed, [check.result for check in report.checks]
    (True, ['pass', 'skipped'])
    """

    checks: list[Check]
    remarks: tuple[str, ...] = ()  # worth knowing, but no fault

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "passed": self.passed,
            "checks": [check.to_dict() for check in self.checks],
            "remarks": list(self.remarks),
        }


def skip(name: str, why: str) -> Check:
    """A check that does not apply."""
    return Check(name, True, 0.0, 0.0, why, skipped=True)


def within(name: str, worst: float, bound: float, subject: str, **details: Any) -> Check:
    """A check of a largest difference; `subject` says in a few words what was compared with what.

    >>> within("a = b", 2e-3, 1e-3, "3 numbers one by one against one by one").sentence
    '3 numbers one by one against one by one: off by up to 0.002.'
    """
    passed = worst <= bound  # a difference that is not a number fails
    ending = "equal." if worst == 0 else f"off by up to {worst:.2g}."
    return Check(name, passed, worst, bound, f"{subject}: {ending}", details)
