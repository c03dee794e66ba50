"""ATen calls as data: noted once each, made again on scratch tensors, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from executor.calls import AtenCall, CallLog, calls_from_json, one_a_kernel, preload

CPU = torch.device("cpu")


def noted(work: object) -> tuple[AtenCall, ...]:
    log = CallLog()
    with torch.no_grad(), log:
        work()  # type: ignore[operator]
    return log.calls


def every_kind() -> None:
    x = torch.ones(4, 6)
    y = torch.nn.functional.layer_norm(x @ x.t(), (4,))
    z = y.to(torch.bfloat16).float().softmax(-1, dtype=torch.float32)
    index = torch.arange(4).flip(0)
    z[index].clone(memory_format=torch.contiguous_format)
    torch.where(z > 0, z, 0.0).index_add_(0, index, z)
    torch.cat([z, z.transpose(0, 1)]).amax(1, keepdim=True)
    torch.full((3,), 2, dtype=torch.int32)


def test_calls_are_noted_once_whatever_their_number_and_made_again() -> None:
    calls = noted(lambda: [every_kind() for _ in range(3)])
    assert len(calls) == len({json.dumps(call.as_json()) for call in calls})
    assert {"mm", "native_layer_norm", "_softmax", "index", "index_add_", "cat"} <= {
        call.name for call in calls
    }
    back = calls_from_json(json.loads(json.dumps([call.as_json() for call in calls])))
    assert back == calls
    assert preload(back, CPU).left_out == 0


def test_views_are_not_noted() -> None:
    assert not noted(lambda: torch.ones(2, 3).t()[0].view(1, 2).expand(4, 2))[1:]


def test_random_numbers_are_the_same_with_and_without_preloading() -> None:
    calls = noted(lambda: torch.nn.functional.dropout(torch.ones(8), 0.5, training=True))
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert preload(calls, CPU).made
    assert torch.equal(torch.rand(4), expected)


def test_of_calls_with_the_same_kernels_the_first_is_kept() -> None:
    calls = noted(lambda: [torch.ones(size, 4) @ torch.ones(4, 4) for size in (1, 2, 3)])
    assert [call.name for call in calls].count("mm") == 3
    assert [call.name for call in one_a_kernel(calls, CPU)].count("mm") == 1


@pytest.mark.parametrize(
    "call",
    [
        ["from_file", "default", ["planted", True, 8], {}],
        ["mm", "default", [{"tensor": ["float32", [1 << 40, 1 << 40], [1, 1], False]}], {}],
        ["mm", "default", [{"tensor": ["float32", [4], [-1], False]}], {}],
        ["mm", "default", [{"tensor": ["nonsense", [4], [1], False]}], {}],
        ["mm", "no_such_overload", [], {}],
        ["__class__", "default", [], {}],
        ["no such call", "default", [], {}],
        ["_local_scalar_dense", "default", [{"tensor": ["float32", [1], [1], False]}], {}],
    ],
)
def test_calls_from_strangers_do_nothing(
    call: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted").write_bytes(bytes(64))
    (made,) = calls_from_json([call])
    assert preload((made,), CPU).left_out == 1


@pytest.mark.parametrize(
    "data", [None, 3, "x", {}, [1], [[]], [["mm", 1, [], {}]], [["mm", "default", {}, {}]]]
)
def test_what_is_no_list_of_calls_gives_none(data: object) -> None:
    assert calls_from_json(data) == ()
