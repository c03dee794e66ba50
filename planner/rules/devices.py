"""Known accelerators, and the scheduler defaults that the engine takes from device and usage.

Source of the defaults: vLLM 0.33, batch defaults of its engine arguments (rules 10.1). Memory is
what the vendor's driver reports in GiB, rounded down; only the thresholds 70 and 160 matter here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache

from attrs import frozen

from planner.documents.deployment import DeviceSection
from planner.documents.plan import Finding, Severity
from planner.errors import PlanError
from planner.modes import Usage


@frozen
class Device:
    """An accelerator as far as planning needs it; ``None`` where it is not known."""

    name: str | None
    compute_capability: tuple[int, int] | None
    memory_gib: float | None


KNOWN_DEVICES = {
    "T4": Device("T4", (7, 5), 14),
    "A10": Device("A10", (8, 6), 22),
    "A10G": Device("A10G", (8, 6), 22),
    "A100": Device("A100", (8, 0), 79),
    "A100-40GB": Device("A100-40GB", (8, 0), 39),
    "A100-80GB": Device("A100-80GB", (8, 0), 79),
    "L4": Device("L4", (8, 9), 22),
    "L40S": Device("L40S", (8, 9), 44),
    "RTX 4090": Device("RTX 4090", (8, 9), 23),
    "H100": Device("H100", (9, 0), 79),
    "H200": Device("H200", (9, 0), 139),
    "GH200": Device("GH200", (9, 0), 94),
    "B200": Device("B200", (10, 0), 178),
    "GB200": Device("GB200", (10, 0), 184),
    "B300": Device("B300", (10, 3), 267),
    "GB300": Device("GB300", (10, 3), 267),
    "RTX 5090": Device("RTX 5090", (12, 0), 31),
    "RTX PRO 6000": Device("RTX PRO 6000", (12, 0), 94),
    "GB10": Device("GB10", (12, 1), 119),
}

OTHER_PLATFORMS = {
    "ROCm": re.compile(r"ROCM|HIP|INSTINCT|RADEON|\bMI\s?\d{2,3}[A-Z]*\b|\bRX\s?\d{4}|\bGFX\d"),
    "XPU": re.compile(r"\bXPU\b|\bARC\b|PONTE VECCHIO|\bPVC\b|BATTLEMAGE|GPU MAX"),
    "Gaudi": re.compile(r"GAUDI|\bHPU\b|\bHL-?\d{3}"),
    "CPU": re.compile(r"\bCPU\b|XEON|EPYC|GRAVITON|\bX86|\bAARCH64\b|\bARM64\b"),
    "TPU": re.compile(r"\bTPU\b"),
    "NPU": re.compile(r"\bNPU\b|ASCEND"),
}
"""What the names of devices that are none of CUDA look like, by platform."""


def device_of(section: DeviceSection) -> Device:
    """The accelerator of a deployment: what is written, completed by what its name tells.

    Raises:
        PlanError: the device is none of CUDA, or the compute capability is not of the form ``9.0``.
    """
    _refuse_other_platform(section)
    known = _known(section.name) or Device(section.name, None, None)
    capability = known.compute_capability
    if section.compute_capability is not None:
        match = re.fullmatch(r"(\d{1,2})\.(\d)", section.compute_capability)
        if match is None:
            raise PlanError(
                f"{section.compute_capability!r} is no compute capability; write it as 9.0",
                fields=("device.compute_capability",),
            )
        capability = int(match[1]), int(match[2])
    memory = known.memory_gib if section.memory_gib is None else section.memory_gib
    return Device(section.name, capability, memory)


def device_findings(section: DeviceSection) -> tuple[Finding, ...]:
    """The finding that a device's name tells nothing, where a fact is then missing."""
    facts = (("compute_capability", section.compute_capability), ("memory_gib", section.memory_gib))
    missing = [name for name, value in facts if value is None]
    if section.name is None or _known(section.name) is not None or not missing:
        return ()
    unknown = Finding(
        severity=Severity.WARNING,
        code="unknown-device",
        message=f"{section.name} is none of the devices that are known by name, and {' and '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} not given; "
        f"{_hint(section.name)}known are {', '.join(KNOWN_DEVICES)}",
        fix=" and ".join(f"device.{name}" for name in missing),
    )
    return (unknown,)


def _bare(name: str) -> str:
    """A device's name without vendor, blanks and dashes, in capitals."""
    return re.sub(r"[\s_-]+", "", name.upper()).removeprefix("NVIDIA").removeprefix("GEFORCE")


@cache
def _names() -> Mapping[str, str]:
    """The names of the known devices by what is left of them."""
    return {_bare(known): known for known in KNOWN_DEVICES}


def _known(name: str | None) -> Device | None:
    known = _names().get(_bare(name or ""))
    return None if known is None else KNOWN_DEVICES[known]


def _hint(name: str) -> str:
    """The known device that is likely meant, such as H100 by "H100 SXM"."""
    bare, names = _bare(name), _names()
    starts = sorted((known for known in names if bare.startswith(known)), key=len)
    near = starts[-1:] or get_close_matches(bare, names, n=1, cutoff=0.8)
    return f"did you mean {names[near[0]]}? " if near else ""


def _refuse_other_platform(section: DeviceSection) -> None:
    name = (section.name or "").upper()
    for platform, pattern in OTHER_PLATFORMS.items():
        if pattern.search(name):
            raise PlanError(
                f"{section.name} is a {platform} device, and the rules that planning knows are those of CUDA "
                "devices; name one of those",
                fields=("device.name",),
            )


@frozen
class BatchDefaults:
    """The engine's own limits of one step, and the circumstance that chose them."""

    max_num_seqs: int
    max_num_batched_tokens: int
    because: str


def batch_defaults(device: Device, usage: Usage) -> BatchDefaults:
    """Defaults before throughput mode and model length change them."""
    offline = usage is Usage.OFFLINE
    memory = device.memory_gib
    if memory is None:
        because = f"{usage}, device memory not given: the engine's choice below 70 GiB"
        return BatchDefaults(256, 8192 if offline else 2048, because)
    where = f"{usage} on a device of {memory:g} GiB"
    if memory >= 160:
        return BatchDefaults(1024, 16384, where)
    excluded = "A100" in _bare(device.name or "") or device.compute_capability == (12, 1)
    if memory >= 70 and not excluded:
        return BatchDefaults(1024, 16384 if offline else 8192, where)
    return BatchDefaults(256, 8192 if offline else 2048, where + (f" ({device.name})" if excluded else ""))
