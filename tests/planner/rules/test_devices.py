"""Devices: the defaults that they bring (rules 10.1), and those that planning has no rules for."""

from __future__ import annotations

import pytest

from planner import PlanError, compile_plan, load_deployment
from planner.documents.deployment import DeviceSection
from planner.modes import Usage
from planner.rules.devices import KNOWN_DEVICES, Device, batch_defaults, device_findings, device_of

A100 = Device("NVIDIA A100-SXM4-80GB", (8, 0), 79)
GB10 = Device("GB10", (12, 1), 119)

#     device, tokens offline, tokens of a server, requests
DEFAULTS = [
    pytest.param(Device(None, (10, 0), 160), 16384, 16384, 1024, id="160 GiB"),
    pytest.param(Device("a100-like", (8, 0), 200), 16384, 16384, 1024, id="160 GiB whatever the name"),
    pytest.param(Device(None, (9, 0), 159.9), 16384, 8192, 1024, id="just below 160 GiB"),
    pytest.param(Device("H100", (9, 0), 70), 16384, 8192, 1024, id="70 GiB"),
    pytest.param(A100, 8192, 2048, 256, id="A100 by its name"),
    pytest.param(GB10, 8192, 2048, 256, id="GB10 by its capability"),
    pytest.param(Device("RTX PRO 6000", (12, 0), 94), 16384, 8192, 1024, id="12.0 of 94 GiB"),
    pytest.param(Device(None, (9, 0), 69.9), 8192, 2048, 256, id="just below 70 GiB"),
    pytest.param(Device("L4", (8, 9), 22), 8192, 2048, 256, id="anything else"),
    pytest.param(Device(None, None, None), 8192, 2048, 256, id="memory not known"),
]


@pytest.mark.parametrize(("device", "offline", "server", "requests"), DEFAULTS)
def test_the_limits_of_a_step_are_the_engines(
    device: Device, offline: int, server: int, requests: int
) -> None:
    for usage, tokens in ((Usage.OFFLINE, offline), (Usage.API_SERVER, server)):
        found = batch_defaults(device, usage)
        assert (found.max_num_seqs, found.max_num_batched_tokens) == (requests, tokens)


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        ("MI300X", "ROCm"),
        ("AMD Instinct MI325X", "ROCm"),
        ("mi355x", "ROCm"),
        ("MI 250", "ROCm"),
        ("Radeon RX 7900 XTX", "ROCm"),
        ("gfx942", "ROCm"),
        ("XPU", "XPU"),
        ("Intel Arc B60", "XPU"),
        ("Intel Data Center GPU Max 1550", "XPU"),
        ("Gaudi 3", "Gaudi"),
        ("HL-325L", "Gaudi"),
        ("cpu", "CPU"),
        ("Intel Xeon 6980P", "CPU"),
        ("AMD EPYC 9755", "CPU"),
        ("TPU v6e", "TPU"),
        ("Ascend 910B", "NPU"),
    ],
)
def test_devices_of_other_platforms_are_refused_by_name(name: str, platform: str) -> None:
    with pytest.raises(PlanError, match=f"is a {platform} device, and the rules .* CUDA devices") as caught:
        device_of(DeviceSection(name=name, compute_capability="9.0", memory_gib=192))
    assert caught.value.fields == ("device.name",)


@pytest.mark.parametrize("name", [*KNOWN_DEVICES, "H900", "NVIDIA GeForce RTX 5090 Ti", "Tesla V100", "ARCX"])
def test_names_of_cuda_devices_are_no_other_platforms(name: str) -> None:
    assert device_of(DeviceSection(name=name)).name == name


@pytest.mark.parametrize(
    ("section", "missing"),
    [
        (DeviceSection(name="H900"), "compute_capability and memory_gib are not given"),
        (DeviceSection(name="H900", memory_gib=139), "and compute_capability is not given"),
        (DeviceSection(name="H900", compute_capability="9.0"), "and memory_gib is not given"),
    ],
)
def test_a_name_that_tells_nothing_is_a_warning_of_its_own(section: DeviceSection, missing: str) -> None:
    (found,) = device_findings(section)
    assert (found.code, found.severity) == ("unknown-device", "warning")
    assert found.message.startswith("H900 is none of the devices that are known by name, and ")
    assert missing in found.message
    assert "H200" in found.message


@pytest.mark.parametrize(
    "section",
    [
        DeviceSection(),
        DeviceSection(memory_gib=139),
        DeviceSection(name="NVIDIA H200"),
        DeviceSection(name="GeForce RTX 4090"),
        DeviceSection(name="H900", compute_capability="9.0", memory_gib=139),
    ],
)
def test_where_nothing_is_missing_there_is_no_warning(section: DeviceSection) -> None:
    assert device_findings(section) == ()


def test_the_warning_is_in_the_plan() -> None:
    device = {"name": "H900"}
    plan = compile_plan(
        load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment", "device": device})
    )
    assert "unknown-device" in {finding.code for finding in plan.findings}


@pytest.mark.parametrize("name", ["RTX4090", "nvidia-rtx-4090", "geforce rtx 4090"])
def test_spaces_dashes_and_case_of_a_name_do_not_count(name: str) -> None:
    assert device_of(DeviceSection(name=name)).memory_gib == 23


@pytest.mark.parametrize(
    ("name", "meant"), [("h100 sxm", "H100"), ("NVIDIA A100-SXM4", "A100"), ("GB20", "GB200")]
)
def test_a_name_that_is_near_a_known_one_has_a_suggestion(name: str, meant: str) -> None:
    (found,) = device_findings(DeviceSection(name=name))
    assert f"did you mean {meant}?" in found.message
