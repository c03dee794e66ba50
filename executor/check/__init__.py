"""A check of forwards for CUDA-graph capture that needs no GPU."""

from executor.check.report import CaptureFault, CheckReport
from executor.check.run import check_factory, check_forward

__all__ = ["CaptureFault", "CheckReport", "check_factory", "check_forward"]
