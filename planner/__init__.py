"""graphplan's planner: serving deployments in, plans of CUDA-graph batch descriptors out.

Needs no GPU, no torch and no serving engine. Everything public is here; names are resolved on
first use, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.agreement import agree, column, decide
    from planner.batches import Agreement, Batch
    from planner.compile import compile_plan
    from planner.descriptors import BatchDescriptor, BatchExecutionDescriptor, PlanEntry, Prologue
    from planner.dispatch import DispatchTable
    from planner.dispatch_v1 import V1DispatchTable
    from planner.documents.deployment import Deployment
    from planner.documents.load import load_deployment, load_plan
    from planner.documents.plan import Decision, Finding, Plan
    from planner.documents.writer import dump_deployment, dump_plan
    from planner.errors import (
        ArgumentError,
        BatchError,
        DocumentError,
        FamilyError,
        GraphplanError,
        MachineError,
        PlanError,
    )
    from planner.modes import AttentionSupport, CompilationMode, CUDAGraphMode

_HOMES = {
    "planner.agreement": ("agree", "column", "decide"),
    "planner.batches": ("Agreement", "Batch"),
    "planner.compile": ("compile_plan",),
    "planner.descriptors": ("BatchDescriptor", "BatchExecutionDescriptor", "PlanEntry", "Prologue"),
    "planner.dispatch": ("DispatchTable",),
    "planner.dispatch_v1": ("V1DispatchTable",),
    "planner.documents.deployment": ("Deployment",),
    "planner.documents.plan": ("Decision", "Finding", "Plan"),
    "planner.documents.load": ("load_deployment", "load_plan"),
    "planner.documents.writer": ("dump_deployment", "dump_plan"),
    "planner.errors": (
        "ArgumentError",
        "BatchError",
        "DocumentError",
        "FamilyError",
        "GraphplanError",
        "MachineError",
        "PlanError",
    ),
    "planner.modes": ("AttentionSupport", "CUDAGraphMode", "CompilationMode"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Agreement",
    "ArgumentError",
    "AttentionSupport",
    "Batch",
    "BatchDescriptor",
    "BatchError",
    "BatchExecutionDescriptor",
    "CUDAGraphMode",
    "CompilationMode",
    "Decision",
    "Deployment",
    "DispatchTable",
    "DocumentError",
    "FamilyError",
    "Finding",
    "GraphplanError",
    "MachineError",
    "Plan",
    "PlanEntry",
    "PlanError",
    "Prologue",
    "V1DispatchTable",
    "agree",
    "column",
    "compile_plan",
    "decide",
    "dump_deployment",
    "dump_plan",
    "load_deployment",
    "load_plan",
]


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module("planner.testing")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
