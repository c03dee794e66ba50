"""Saved by one process and rebuilt by another: what comes back, what is refused and captured instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.errors import ReplayError
from executor.guide import CaptureGuide
from executor.materialize.driver import GraphCode
from executor.materialize.recording import RestoredRecording
from executor.materialize.saved import unpacked
from executor.restart import output_shapes
from tests.executor.materialize.worlds import Make, Net, World, doubled, refused, saved_by, specially
from tests.executor.toys import sizes_plan


@pytest.fixture
def half(code: GraphCode) -> GraphCode:
    """Both, one after the other."""
    return code


def test_everything_is_captured_as_on_a_gpu(world: Make) -> None:
    """The tests' own machine: recorded work runs at replay only, and on what memory then holds."""
    one = world()
    assert not one.capture().failed
    one.check()


def test_all_entries_come_back_whole_and_in_pieces_without_the_model(world: Make) -> None:
    one = world()
    content, outputs = saved_by(one)
    one.end()
    two = world()
    report = two.restore(content, outputs)
    assert [(record.restored, record.error, record.refused) for record in report.records] == [
        (True, None, None)
    ] * 4
    assert [record.num_graphs for record in report.records] == [2, 2, 1, 1]
    assert two.forwards == []
    two.check()


def test_regions_may_lie_anywhere(world: Make) -> None:
    content, outputs = saved_by(world())
    for number in range(5):
        two = world()
        two.ballast = [torch.empty(1 + 977 * number * each) for each in range(number)]
        two.net = Net()
        assert not refused(two.restore(content, outputs))
        two.check()


def test_the_trees_of_outputs_come_back(world: Make) -> None:
    one = world()
    content, outputs = saved_by(one)
    two = world()
    two.restore(content, outputs)
    for entry in two.entries:
        found = two.replay(entry)
        assert list(found) == ["logits", "rest"]
        assert type(found["rest"]) is tuple
        assert type(found["rest"][1]) is list
        assert [found["logits"].shape, found["rest"][0].shape] == [(entry.num_tokens, 4), (entry.num_tokens,)]
        assert found["logits"].data_ptr() == two.manager.output_buffers[0].data_ptr()


def test_dispatch_and_release_cannot_tell(world: Make) -> None:
    content, outputs = saved_by(world())
    two = world()
    two.restore(content, outputs)
    desc: Any = two.manager.dispatch(num_reqs=2, num_tokens=2, uniform_token_count=1)  # type: ignore[call-arg]
    torch.testing.assert_close(two.manager.run_fullgraph(desc), two.run(2))
    assert two.manager.usage_counts == [0, 0, 0, 1, 0]
    graphs = two.manager.graphs_of(two.entries[0])
    recording = graphs.recordings[0]
    assert isinstance(recording, RestoredRecording)
    recording.replay()
    two.manager.release_graphs()
    with pytest.raises(ReplayError, match="released"):
        graphs.replay()
    with pytest.raises(ReplayError, match="released"):
        recording.launcher()()
    recording.release()
    assert recording.digests() is None


def test_entries_that_are_discarded_are_captured_anew(world: Make) -> None:
    content, outputs = saved_by(world())
    two = world()
    two.restore(content, outputs)
    wrong = two.entries[1], two.entries[2]
    two.manager.discard(wrong)
    assert two.manager.captured_entries == (two.entries[0], two.entries[3])
    assert two.manager.num_remaining == 2
    report = two.manager.capture_more(2)
    assert [record.restored for record in report.records] == [True, True, False, False]
    assert {record.entry for record in report.records if not record.restored} == set(wrong)
    assert two.manager.captured_entries == two.entries
    two.check()


class InStep:
    """A rank among others that never disagree."""

    def begin(self, entry: Any, warm_up: bool, known_error: str | None) -> tuple[bool, str | None]:  # noqa: ARG002
        return warm_up, known_error

    def outcome(self, entry: Any, error: str | None, *, warming_up: bool = False) -> str | None:  # noqa: ARG002
        return error

    def give_up(self, entry: Any, error: Exception) -> None:
        raise AssertionError(entry) from error


def test_ranks_in_lock_step_capture_everything(world: Make) -> None:
    content, outputs = saved_by(world())
    two = world()
    restorer = two.restorer(unpacked(content))
    guide = CaptureGuide(outputs=output_shapes(outputs), restorer=restorer)
    report = two.capture(guide=guide, lock_step=InStep())
    assert not any(record.restored for record in report.records)
    assert all("lock-step" in (record.refused or "") for record in report.records)
    two.check()


def test_an_entry_that_was_not_saved_is_captured(world: Make) -> None:
    content, outputs = saved_by(world(plan=sizes_plan(8, 2)))
    two = world(plan=sizes_plan(8, 4, 2))
    report = two.restore(content, outputs)
    assert refused(report) == {two.entries[1]: "it was not captured when the graphs were saved"}
    assert {size for size, _ in two.forwards} == {4}
    two.check()


# Static tensors


# What entries need, and what is refused where it is not there


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (
            {"rows": 16},
            "net.inputs is float32 [16, 4] [4, 1] in 256 bytes, it was float32 [8, 4] [4, 1] in 128 bytes",
        ),
        (
            {"dtype": torch.float64},
            "net.weight is float64 [4, 4] [4, 1] in 128 bytes, it was float32 [4, 4] [4, 1] in 64 bytes",
        ),
    ],
)
def test_static_tensors_of_another_size_or_type_are_refused_and_captured_for(
    world: Make, other: dict[str, Any], what: str
) -> None:
    content, outputs = saved_by(world())
    two = world(net=Net(**other))
    report = two.restore(content, tuple(each.to(two.net.dtype) for each in outputs))
    reasons = refused(report)
    assert set(reasons) == set(two.entries)
    if two.net.rows == 16:
        assert set(reasons.values()) == {what}
    else:
        assert all("float64" in (reason or "") for reason in reasons.values())
    assert not report.failed
    two.check()


def test_only_entries_that_use_a_missing_tensor_are_refused(world: Make) -> None:
    one, special = world(), torch.full((4,), 2.0)
    one.more = specially(special)
    assert not one.capture().failed
    saving = one.save({**one.static(), "special": special})
    assert not saving.obstacles
    other = torch.full((4,), 3.0)
    for given, expected in (({}, {one.entries[3]: "special is not there"}), ({"special": other}, {})):
        two = world(more=specially(other))
        report = two.restore(saving.content, one.manager.output_buffers, static={**two.static(), **given})
        assert refused(report) == expected
        two.check()


def test_without_room_for_the_outputs_everything_is_captured(world: Make) -> None:
    content, _ = saved_by(world())
    two = world()
    report = two.restore(content, ())
    assert set(refused(report).values()) == {"output.0 is not there"}
    assert not report.failed
    two.check()


def test_an_output_buffer_of_another_length_is_refused(world: Make) -> None:
    content, outputs = saved_by(world())
    two = world()
    report = two.restore(content, (torch.zeros(16, 4), *outputs[1:]))
    assert all("output.0 is float32 [16, 4]" in (reason or "") for reason in refused(report).values())
    assert len(refused(report)) == 4
    two.check()


def test_a_kernel_without_a_call_comes_from_an_entry_that_is_captured(world: Make) -> None:
    content, outputs = saved_by(world(more=doubled))
    two = world(more=doubled)
    report = two.restore(content, outputs)
    first, *others = report.records
    assert first.entry == two.entries[1]
    assert (first.restored, first.refused) == (False, None)
    assert {record.entry: record.restored for record in others} == {
        two.entries[0]: True,
        two.entries[2]: True,
        two.entries[3]: True,
    }
    assert {size for size, _ in two.forwards} == {4}
    two.check()


def test_a_kernel_that_was_tuned_otherwise_is_refused_though_its_name_is_the_same(world: Make) -> None:
    content, outputs = saved_by(world(more=doubled))
    two = world(more=doubled)
    two.machine.grids["triton_double"] = 64
    report = two.restore(content, outputs)
    reason = "kernel triton_double: its entry is launched with other numbers here"
    assert refused(report) == {two.entries[1]: None, two.entries[2]: reason, two.entries[3]: reason}
    two.check()


def test_a_kernel_of_other_code_is_refused_with_the_entries_that_use_it(world: Make) -> None:
    content, outputs = saved_by(world(more=doubled))
    two = world(more=doubled)
    two.machine.registers["triton_double"] = 33
    report = two.restore(content, outputs)
    reason = "kernel triton_double: its parameters or its code are not those that were saved"
    assert refused(report) == {two.entries[1]: None, two.entries[2]: reason, two.entries[3]: reason}
    two.check()


def test_an_entry_that_cannot_be_captured_gives_no_kernels(world: Make) -> None:
    content, outputs = saved_by(world(more=doubled))
    two = world(more=doubled)
    two.machine.lost.add("triton_double")
    report = two.restore(content, outputs)
    reason = "kernel triton_double: the entry that it comes from could not be captured"
    assert refused(report) == {two.entries[1]: None, two.entries[2]: reason, two.entries[3]: reason}
    assert {record.entry: record.error for record in report.failed} == dict.fromkeys(
        two.entries[1:], "triton_double is lost"
    )
    two.check(two.entries[:1])


def test_an_entry_that_is_recorded_otherwise_gives_no_kernels(world: Make) -> None:
    content, outputs = saved_by(world(more=doubled))

    def otherwise(own: World, num_tokens: int, hidden: torch.Tensor) -> torch.Tensor:
        return doubled(own, num_tokens, hidden) + 1

    two = world(more=otherwise)
    reasons = refused(two.restore(content, outputs))
    reason = "kernel triton_double: its entry is recorded with other nodes here"
    assert reasons == {two.entries[1]: None, two.entries[2]: reason, two.entries[3]: reason}


def test_a_kernel_of_a_call_that_changed_is_refused_with_all_that_use_it(world: Make) -> None:
    one = world()
    content, outputs = saved_by(one)
    two = world()
    two.machine.registers["aten.relu.default"] = 48
    report = two.restore(content, outputs)
    reason = "kernel aten.relu.default: its parameters or its code are not those that were saved"
    assert refused(report) == dict.fromkeys(two.entries, reason)
    two.check()


def test_calls_that_cannot_be_made_leave_everything_to_be_captured(world: Make) -> None:
    content, outputs = saved_by(world())
    two = world()
    two.machine.lost.add("aten.relu.default")
    report = two.restore(content, outputs)
    assert {record.error for record in report.records} == {"aten.relu.default is lost"}
    assert len(refused(report)) == 4


def test_shared_memory_is_allowed_that_the_recipe_alone_does_not_need(world: Make) -> None:
    """Products of more rows need more of it; the call that is made is that of the fewest rows."""
    plan = sizes_plan(2, 8)
    one = world(plan=plan)
    one.capture(
        guide=CaptureGuide(outputs=output_shapes([torch.zeros(8, 4), torch.zeros(8), torch.zeros(8, 4)]))
    )
    saving = one.save()
    assert not saving.obstacles
    two = world(plan=plan)
    assert not refused(two.restore(saving.content, one.manager.output_buffers))
    two.check()


def test_an_operation_that_is_not_registered_is_named(world: Make) -> None:
    content, outputs = saved_by(world())
    two = world()
    report = two.restore(content, outputs, operations=[])
    reason = "the operation tests.executor.toys.add_in_place is not registered"
    assert refused(report) == dict.fromkeys(two.entries[:2], reason)
    two.check()


def test_no_memory_for_the_pool_leaves_everything_to_be_captured(
    world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, outputs = saved_by(world())
    two = world()

    def claim(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no memory\nat all")

    monkeypatch.setattr(two.machine.device, "claim", claim)
    report = two.restore(content, outputs)
    assert refused(report) == dict.fromkeys(two.entries, "no memory")
    assert not report.failed
    two.check()


def test_what_the_driver_does_not_build_is_captured(world: Make) -> None:
    content, outputs = saved_by(world())
    two = world()
    two.fake.fail("cuGraphInstantiateWithFlags", before=2, error=2)
    report = two.restore(content, outputs)
    ((entry, reason),) = refused(report).items()
    assert entry in two.entries
    assert "2" in (reason or "")
    two.check()


def test_a_model_without_memory_of_the_pool_is_saved_and_restored(world: Make) -> None:
    """All that it does, it does in place: there is no region of the pool at all."""

    class InPlace(World):
        def run(self, num_tokens: int) -> Any:
            self.net.extra[:num_tokens].copy_(self.net.inputs[:num_tokens])

    plan = sizes_plan(4, 2)
    one, two = world(kind=InPlace, plan=plan), world(kind=InPlace, plan=plan)
    assert not one.capture().failed
    saving = one.save()
    assert not saving.obstacles
    report = two.restore(saving.content, ())
    assert not refused(report)
    two.net.extra.zero_()
    two.replay(two.entries[0])
    assert torch.equal(two.net.extra[:4], two.net.inputs[:4])
    assert not two.net.extra[4:].any()
