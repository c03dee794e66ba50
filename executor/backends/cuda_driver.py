"""Three calls of the CUDA driver that PyTorch offers no name for, all about a stream's capture."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from executor.errors import CaptureError

ACTIVE = 1
"""``CU_STREAM_CAPTURE_STATUS_ACTIVE``; 0 is none, 2 a capture that a forbidden call spoiled."""

THREAD_LOCAL = 1
"""``CU_STREAM_CAPTURE_MODE_THREAD_LOCAL``."""


@cache
def library() -> ctypes.CDLL:
    """The CUDA driver's library.

    Raises:
        CaptureError: it is not installed.
    """
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CaptureError("the CUDA driver's library cannot be loaded; is the driver installed?")


def capture_is_active(stream: torch.cuda.Stream) -> bool:
    """Whether ``stream`` is being captured and nothing has spoiled the capture yet."""
    status = ctypes.c_int(0)
    error = library().cuStreamIsCapturing(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(status))
    return error == 0 and status.value == ACTIVE


def restart_capture(stream: torch.cuda.Stream) -> None:
    """Drops the capture of ``stream``, spoiled or ended as it may be, and begins an empty one.

    Raises:
        CaptureError: the driver refuses.
    """
    handle, graph = ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p()
    driver = library()
    # A spoiled capture answers with an error, and is over all the same.
    driver.cuStreamEndCapture(handle, ctypes.byref(graph))
    if graph.value:
        driver.cuGraphDestroy(graph)
    error = driver.cuStreamBeginCapture_v2(handle, ctypes.c_int(THREAD_LOCAL))
    if error:
        raise CaptureError(f"the CUDA driver answers {error} to a new capture; the process must restart")
