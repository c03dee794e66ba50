"""The check says on a CPU what a GPU does: what it calls a fault of the host ends a capture there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from executor.backends.base import Recording, backend_for
from executor.trees import map_tensors
from tests.executor.check.planted import host
from tests.executor.check.planting import CLEAN, HOST, Build, named

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; tools/test_gpu runs it"),
]

# These poison a graph without ending its capture: pinned memory that the warm-up gave back is handed out
# again, and a mask's copy is recorded from an address of the host that is free by the time of a replay.
POISONING = (host.pinned, host.store_by_mask_of_host)
ENDING = [build for build in HOST if build not in POISONING]


def captured(forward: Callable[[], Any]) -> tuple[Recording, Any]:
    backend = backend_for("cuda")
    pool = backend.new_pool()
    with torch.no_grad(), backend.session():
        forward()
        backend.begin_entry(pool, None)
        recorder = backend.recorder(pool)
        recorder.begin()
        try:
            output = forward()
            return recorder.end(), output
        except BaseException:
            recorder.abort()
            raise


@pytest.mark.parametrize("build", ENDING, ids=named)
def test_a_fault_of_the_host_ends_a_capture(build: Build) -> None:
    with pytest.raises(Exception, match=r"."):
        captured(build("cuda"))


@pytest.mark.parametrize("build", CLEAN, ids=named)
def test_what_the_check_finds_clean_is_captured_and_replays_what_eager_gives(build: Build) -> None:
    with torch.no_grad():
        forward, other = build("cuda"), build("cuda")
        recording, output = captured(forward)
        other()
        expected = map_tensors(torch.clone, other())
        recording.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(output, expected)
