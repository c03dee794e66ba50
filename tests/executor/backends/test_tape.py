"""The tape: replays equal eager runs, results lie in the arena, and what no graph can hold is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor.backends.base import MemoryBudgetError
from executor.backends.tape import TapeBackend, TapePool, TapeRecording
from executor.errors import CaptureError, ReplayError

Work = Callable[[torch.Tensor], Any]


def record(work: Work, tensor: torch.Tensor, pool: TapePool | None = None) -> tuple[TapeRecording, Any]:
    backend = TapeBackend()
    pool = pool or backend.new_pool()
    backend.begin_entry(pool, None)
    recorder = backend.recorder(pool)
    with torch.no_grad():
        recorder.begin()
        try:
            output = work(tensor)
        except BaseException:
            recorder.abort()
            raise
        return recorder.end(), output


STEPS: dict[str, Work] = {
    "add": lambda x: x + 1,
    "in place": lambda x: x.mul_(2),
    "view and write": lambda x: (x[1:3].add_(1), None)[1],
    "matmul": lambda x: x @ x.T @ x,
    "softmax": lambda x: torch.softmax(x, -1),
    "tuple": lambda x: torch.topk(x, 2).values.repeat(1, 2),
    "split": lambda x: torch.cat(x.split(2, dim=1)[::-1], dim=1),
    "where": lambda x: torch.where(x > 0, x, -x),
    "index": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "expand": lambda x: x[:, :1].expand(-1, 4) + 0,
    "masked fill": lambda x: x.masked_fill(x > 0, 1.0),
    "empty then write": lambda x: torch.empty_like(x).copy_(x),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    "norm": lambda x: torch.nn.functional.rms_norm(x, (4,)),
    "transpose": lambda x: x.t().contiguous().t(),
    "sort": lambda x: x.sort(dim=1).values,
    "norm of rows": lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True),
}


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6), st.integers(0, 2**32))
def test_a_replay_on_new_inputs_gives_what_the_forward_gives(steps: list[str], seed: int) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            result = STEPS[step](x)
            x = x if result is None else result
        return x.clone()

    generator = torch.Generator().manual_seed(seed)
    static = torch.randn(4, 4, generator=generator)
    recording, output = record(work, static)
    for _ in range(2):
        fresh = torch.randn(4, 4, generator=generator)
        static.copy_(fresh)
        recording.replay()
        torch.testing.assert_close(output, work(fresh.clone()), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda x: x.sum().item(), "reads a value back to the host"),
        (lambda x: float(x[0, 0]), "reads a value back to the host"),
        (torch.nonzero, "shape that depends on data"),
        (lambda x: x[x > 0], "shape that depends on data"),
        (lambda x: x.masked_select(x > 0), "shape that depends on data"),
        (torch.unique, "shape that depends on data"),
        (lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), "copies from the host"),
        (lambda x: torch.equal(x, x), "reads a value back to the host"),
        (lambda x: torch.repeat_interleave(x[0].long()), "depends on data"),
        (lambda x: x.__setitem__(x > 0, torch.ones(3)), "shape that depends on data"),
    ],
)
def test_what_no_graph_can_hold_is_refused(work: Work, reason: str) -> None:
    with pytest.raises(CaptureError, match=reason):
        record(work, torch.ones(4, 4))
    # The refusal leaves no mode behind.
    assert torch.ones(2).sum().item() == 2


@pytest.mark.parametrize(
    "work",
    [
        lambda x: torch.repeat_interleave(x[0].long(), output_size=4),
        lambda x: x.__setitem__(x > 0, 5.0),
        lambda x: torch.zeros(4) + x,
    ],
)
def test_what_a_graph_can_hold_is_not_refused(work: Work) -> None:
    record(work, torch.ones(4, 4))


def test_recordings_of_a_pool_overlay_each_other() -> None:
    pool = TapePool()
    first, one = record(lambda x: x + 1, torch.zeros(4, 4), pool)
    second, two = record(lambda x: x + 2, torch.zeros(4, 4), pool)
    assert one.data_ptr() == two.data_ptr()
    first.replay()
    assert one.eq(1).all()
    second.replay()
    assert one.eq(2).all()


def test_an_arena_grows_by_what_is_needed_and_stops_at_its_budget() -> None:
    pool = TapePool()
    backend = TapeBackend()
    record(lambda x: x + 1, torch.zeros(1 << 20), pool)
    assert pool.num_bytes == 4 << 20
    backend.begin_entry(pool, 1 << 20)
    recorder = backend.recorder(pool)
    recorder.begin()
    with pytest.raises(MemoryBudgetError, match="needs 8388608 bytes more, the budget leaves 1048576"):
        torch.zeros(1 << 21)
    recorder.abort()
    assert pool.num_bytes == 4 << 20


def test_a_released_recording_cannot_be_replayed() -> None:
    recording, _ = record(lambda x: x + 1, torch.zeros(2))
    recording.release()
    with pytest.raises(ReplayError, match="was released"):
        recording.replay()


def test_equal_recordings_have_equal_digests_and_others_do_not() -> None:
    digests = [record(STEPS[name], torch.ones(4, 4))[0].digests() for name in ("softmax", "softmax", "norm")]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_tells_which_result_a_call_reads() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        a, b = x + 1, x + 1
        return a * a + b

    def other(x: torch.Tensor) -> torch.Tensor:
        a, b = x + 1, x + 1
        return a * b + b

    assert record(one, torch.ones(2))[0].digests() != record(other, torch.ones(2))[0].digests()
