"""vLLM's CUDA platform without a GPU."""

from __future__ import annotations

from typing import Any

from vllm.platforms.cuda import CudaPlatformBase
from vllm.platforms.interface import DeviceCapability

from vllm_side.device import SEEN


class PretendedPlatform(CudaPlatformBase):
    """Answers what ``pretend`` was told, and has as many devices as anybody asks for."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:  # noqa: ARG003 - vLLM's signature
        return DeviceCapability(*SEEN.capability)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003 - vLLM's signature
        return SEEN.name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:  # noqa: ARG003 - vLLM's signature
        return int(SEEN.memory_gib * 2**30)

    @classmethod
    def is_fully_connected(cls, device_ids: list[int]) -> bool:  # noqa: ARG003 - vLLM's signature
        return True

    @classmethod
    def device_count(cls) -> int:
        return 1024

    def get_global_graph_pool(self) -> Any:
        return None
