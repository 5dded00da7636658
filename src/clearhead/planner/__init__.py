"""The planner: what a model costs before it is built or trained. Start with `estimate.py`."""

from __future__ import annotations

from clearhead.planner.devices import DEVICES, Device
from clearhead.planner.estimate import plan
from clearhead.planner.report import Plan, Timing, render

__all__ = ["DEVICES", "Device", "Plan", "Timing", "plan", "render"]
