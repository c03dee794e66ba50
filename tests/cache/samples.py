"""Records to store in tests, small and each its own."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from cache.captures import CaptureRecordV1, EntryCapture
from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from planner import CUDAGraphMode, Deployment, Plan, PlanEntry, compile_plan, load_deployment

ENVIRONMENT = EnvironmentFingerprint(
    torch="2.11.0+cu130",
    cuda="13.0",
    cublas="13.0.2",
    cudnn="91300",
    driver="580.95.05",
    gpu="NVIDIA H200",
    compute_capability="9.0",
    num_sms="132",
    triton="3.6.0",
    python="CPython 3.12",
    platform="Linux x86_64",
    switches={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
)
MODEL = ModelFingerprint(
    config="a" * 64,
    dtype="bfloat16",
    kv_cache_dtype="auto",
    quantization="none",
    pipeline_partition="even",
    code="c" * 64,
    parallel={"tensor_parallel_size": "2"},
    speculative={"method": "dflash", "num_speculative_tokens": "15"},
)
FULL = PlanEntry(CUDAGraphMode.FULL, 8, 8, 1)
PIECEWISE = PlanEntry(CUDAGraphMode.PIECEWISE, 16)


def deployment(max_num_seqs: int = 8, **section: Any) -> Deployment:
    """A small deployment; its plans take no time."""
    return load_deployment(
        {
            "apiVersion": "graphplan/v1",
            "kind": "Deployment",
            "name": "small",
            "model": {"attention_support": "ALWAYS"},
            "scheduler": {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 64},
            **section,
        }
    )


@cache
def plan(max_num_seqs: int = 8) -> Plan:
    """The plan of ``deployment(max_num_seqs)``."""
    return compile_plan(deployment(max_num_seqs))


def digest(number: int) -> str:
    """The digest of a plan that there could be."""
    return "sha256:" + hashlib.sha256(str(number).encode()).hexdigest()


def capture(number: int = 0, **changed: Any) -> CaptureRecordV1:
    """The capture of the plan ``digest(number)``."""
    fields: dict[str, Any] = {
        "plan": digest(number),
        "family": "target",
        "environment": ENVIRONMENT,
        "model": MODEL,
        "entries": (
            EntryCapture(entry=FULL, seconds=0.5, num_bytes=1 << 20, num_nodes=300 + number, num_graphs=1),
            EntryCapture(entry=PIECEWISE, error="out of memory", fix="max_cudagraph_capture_size: 8"),
        ),
        "seconds": 1.25,
        "pool_bytes": 1 << 24,
        "versions": {"graphplan": "0.1.0"},
        "model_name": "qwen3",
        "created": 1000.0,
        **changed,
    }
    return CaptureRecordV1(**fields)
