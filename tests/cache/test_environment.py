"""The fingerprint of this process: an allow-list, read without a trace."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cache import environment
from cache.environment import SWITCHES, current_environment
from cache.fingerprint import EnvironmentFingerprint, mismatches
from tests.cache.processes import PROJECT


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_counts(name: str) -> None:
    plain = current_environment("cpu", {})
    switched = current_environment("cpu", {name: "1"})
    assert [one.field for one in mismatches(plain, switched)] == [f"switches.{name}"]
    assert plain.digest != switched.digest
    assert current_environment("cpu", {name: ""}) == plain


# fmt: off
VOLATILE = (
    "PORT", "MASTER_PORT", "VLLM_NIXL_SIDE_CHANNEL_PORT", "HOSTNAME", "HOME", "PWD", "TMPDIR", "LANG",
    "CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "OMP_NUM_THREADS", "GRAPHPLAN_CACHE",
    "TORCHINDUCTOR_CACHE_DIR",
)
# fmt: on


@pytest.mark.parametrize("name", VOLATILE)
def test_nothing_else_in_the_process_environment_counts(name: str) -> None:
    assert current_environment("cpu", {name: "1"}) == current_environment("cpu", {})


def test_settings_of_torch_count() -> None:
    import torch

    before = torch.get_float32_matmul_precision()
    plain = EnvironmentFingerprint.current("cpu")
    try:
        torch.set_float32_matmul_precision("medium" if before != "medium" else "high")
        found = mismatches(plain, EnvironmentFingerprint.current("cpu"))
    finally:
        torch.set_float32_matmul_precision(before)
    assert "switches.torch.float32_matmul_precision" in [one.field for one in found]


def test_a_process_has_the_same_fingerprint_twice_and_knows_all_of_it() -> None:
    fingerprint = EnvironmentFingerprint.current("cpu")
    assert mismatches(fingerprint, EnvironmentFingerprint.current("cpu")) == ()
    assert fingerprint.gpu == "none"


def test_what_cannot_be_asked_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> str:
        raise OSError

    for name in ("_driver_by_nvml", "_driver_by_kernel", "_cublas_loaded"):
        monkeypatch.setattr(environment, name, refused)
    assert (environment._driver(), environment._cublas()) == ("unknown", "unknown")


def test_without_torch_there_is_a_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    fingerprint = current_environment(environ={})
    assert (fingerprint.torch, fingerprint.gpu, fingerprint.switches) == ("none", "none", {})


def test_the_cache_loads_torch_for_the_fingerprint_alone() -> None:
    program = (
        "import sys, cache.store, cache.safe, cache.usage, cache.environment, planner.cli.cache\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=PROJECT, check=True, timeout=60)
