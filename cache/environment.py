"""What the fingerprint of this process's environment is. The one module of the cache that uses torch."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cache.fingerprint import NONE, UNKNOWN, EnvironmentFingerprint

# fmt: off
SWITCHES = (
    "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "DISABLE_ADDMM_CUDA_LT", "NCCL_ALGO",
    "NCCL_CUMEM_ENABLE", "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_NVLS_ENABLE", "NCCL_P2P_DISABLE", "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT", "TORCH_BLAS_PREFER_HIPBLASLT", "TORCH_COMPILE_DISABLE",
)
# fmt: on
"""Environment variables that change which kernels run, or where graphs find their memory."""

_PROPERTIES = 3
"""``libraryPropertyType``: major, minor and patch level."""


def current_environment(
    device: Any = None, environ: Mapping[str, str] = os.environ
) -> EnvironmentFingerprint:
    """The fingerprint of this process on ``device``, by default its current one.

    Without PyTorch or without a GPU, what belongs to them is ``none``; what cannot be found out is
    ``unknown``.
    """
    machine = {
        "python": f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}",
        "platform": f"{platform.system()} {platform.machine()}",
        "triton": _installed("triton"),
    }
    switches = {name: environ[name] for name in SWITCHES if environ.get(name)}
    try:
        import torch
    except ImportError:
        absent = dict.fromkeys(("torch", "cuda", "cublas", "cudnn", *_GPU_FIELDS), NONE)
        return EnvironmentFingerprint(**machine, **absent, switches=switches)
    switches.update(_torch_switches(torch))
    return EnvironmentFingerprint(**machine, **_software(torch), **_gpu(torch, device), switches=switches)


_GPU_FIELDS = ("driver", "gpu", "compute_capability", "num_sms")


def _software(torch: Any) -> dict[str, str]:
    hip = torch.version.hip
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or (f"hip {hip}" if hip else NONE),
        "cudnn": str(torch.backends.cudnn.version() or NONE),
    }


def _gpu(torch: Any, device: Any) -> dict[str, str]:
    is_cpu = device is not None and torch.device(device).type == "cpu"
    if is_cpu or not torch.cuda.is_available():
        return dict.fromkeys((*_GPU_FIELDS, "cublas"), NONE)
    found = torch.cuda.get_device_properties(device)
    return {
        "driver": _driver(),
        "gpu": str(found.name),
        "compute_capability": f"{found.major}.{found.minor}",
        "num_sms": str(found.multi_processor_count),
        "cublas": _cublas(),
    }


def _torch_switches(torch: Any) -> Iterator[tuple[str, str]]:
    yield "torch.float32_matmul_precision", torch.get_float32_matmul_precision()
    yield "torch.deterministic_algorithms", str(torch.are_deterministic_algorithms_enabled())
    yield "torch.cudnn.benchmark", str(torch.backends.cudnn.benchmark)
    yield "torch.cudnn.allow_tf32", str(torch.backends.cudnn.allow_tf32)
    matmul = torch.backends.cuda.matmul
    yield "torch.matmul.bf16_reduction", str(matmul.allow_bf16_reduced_precision_reduction)
    yield "torch.matmul.fp16_reduction", str(matmul.allow_fp16_reduced_precision_reduction)


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NONE


def _driver() -> str:
    """The driver's version, from its management library or from what the kernel says."""
    return _asked(_driver_by_nvml) or _asked(_driver_by_kernel) or UNKNOWN


def _driver_by_nvml() -> str:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    text = ctypes.create_string_buffer(96)
    if nvml.nvmlInit_v2() != 0:
        return ""
    try:
        return text.value.decode() if nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0 else ""
    finally:
        nvml.nvmlShutdown()


def _driver_by_kernel() -> str:
    told = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"\b[0-9]{3,4}(?:\.[0-9]+)+\b", told)
    return found[0] if found else ""


def _cublas() -> str:
    """The version of the cuBLAS that this process has loaded, which may be newer than PyTorch's own build."""
    return _asked(_cublas_loaded) or UNKNOWN


def _cublas_loaded() -> str:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"/\S*/libcublas\.so\S*$", maps, re.MULTILINE)
    if found is None:
        return ""
    library = ctypes.CDLL(found[0])
    parts = []
    for which in range(_PROPERTIES):
        number = ctypes.c_int(-1)
        if library.cublasGetProperty(which, ctypes.byref(number)) != 0:
            return ""
        parts.append(str(number.value))
    return ".".join(parts)


def _asked(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except (OSError, AttributeError, ValueError):
        return ""
