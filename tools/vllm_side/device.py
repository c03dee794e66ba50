"""The accelerator that vLLM is made to see on a machine that has none.

vLLM loads the platform of an installed plugin in place of its own detection; this one is its CUDA
platform with the answers of a device written down.
"""

from __future__ import annotations

from attrs import define

from planner.rules.devices import Device


@define
class Seen:
    """What the platform answers about the device; set anew for every deployment."""

    name: str = "H200"
    capability: tuple[int, int] = (9, 0)
    memory_gib: float = 139


SEEN = Seen()


def pretend(device: Device) -> None:
    """Has the platform answer as ``device`` would; what is not known of it as a small Hopper would."""
    SEEN.name = device.name or "a device"
    SEEN.capability = device.compute_capability or (9, 0)
    SEEN.memory_gib = 24 if device.memory_gib is None else device.memory_gib


def plugin() -> str:
    """Entry point of vLLM's group of platform plugins."""
    return "vllm_side.platform.PretendedPlatform"
