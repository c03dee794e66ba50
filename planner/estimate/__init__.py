"""Estimates: memory and start-up time of a plan's graphs, before any is captured.

``estimate(plan)`` is the one function that decides them. ``planner.documents.estimates`` says what an
``Estimate`` holds, and a compiled plan has its own as ``plan.estimates``.
"""

from __future__ import annotations

from planner.documents.estimates import DeviceFit, Estimate, Quantity
from planner.estimate.estimate import estimate
from planner.estimate.measured import Measurement

__all__ = ["DeviceFit", "Estimate", "Measurement", "Quantity", "estimate"]
