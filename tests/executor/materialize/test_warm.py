"""A start that rebuilds: the file in the cache, the proof of what came out of it, and the next file."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from attrs import evolve, frozen

from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from cache.safe import SafeCache
from executor.calls import noted
from executor.errors import CaptureError
from executor.guide import CaptureGuide
from executor.materialize import warm as module
from executor.materialize.native import NativeCode
from executor.materialize.plain import PlainCode
from executor.materialize.warm import Materials, Rebuilding, entries_to_verify, graph_device
from executor.records import CaptureReport
from executor.restart import Circumstances, Restart, output_shapes
from executor.verify import verify_entries
from planner.descriptors import PlanEntry
from tests.executor.materialize.fake_cuda import FakeCuda
from tests.executor.materialize.worlds import Make, World, doubled
from tests.executor.toys import add_in_place, sizes_plan

ENTRIES = sizes_plan(*range(30, 0, -1)).entries("target")


def circumstances(model: str = "1") -> Circumstances:
    known = dict.fromkeys(("torch", "cuda", "cublas", "cudnn", "driver", "gpu", "compute_capability"), "1")
    known |= dict.fromkeys(("num_sms", "triton", "python", "platform"), "1")
    own = dict.fromkeys(("config", "dtype", "kv_cache_dtype", "quantization", "pipeline_partition"), "1")
    return Circumstances(
        plan="sha256:" + "a" * 64,
        family="target",
        environment=EnvironmentFingerprint(**known),
        model=ModelFingerprint(code=model, **own),
    )


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[SafeCache]:
    opened = SafeCache(tmp_path / "cache")
    yield opened
    opened.close()


@frozen
class Start:
    """One start of a server over the cache."""

    world: World
    restart: Restart
    rebuilding: Rebuilding
    report: CaptureReport

    @classmethod
    def of(cls, world: World, cache: SafeCache, restart: Restart | None = None) -> Start:
        restart = restart or Restart.look_up(cache, circumstances())
        materials = Materials(
            manager=world.manager,
            device=world.machine.device,
            static=world.static,
            operations=[add_in_place],
        )
        rebuilding = Rebuilding.begin(materials, restart)
        outputs = () if restart.record is None else restart.record.outputs
        guide = CaptureGuide(
            warmed_by_record=restart.is_warm,
            warm_ups=frozenset() if outputs else world.entries,
            outputs=outputs,
            restorer=rebuilding.restorer,
        )
        report = world.capture(guide=guide if restart.is_warm else CaptureGuide())
        verify = partial(verify_entries, world.manager, world.create_forward)
        return cls(world, restart, rebuilding, rebuilding.proved(report, verify, "all"))

    def keep(self) -> bool:
        world = self.world
        calls = noted(world.create_forward, world.manager.captured_entries)
        content = self.rebuilding.save(self.restart.about, calls)
        outputs = output_shapes(world.manager.output_buffers)
        return self.restart.remember(self.report, outputs=outputs, calls=calls, graphs=content)


def test_a_first_start_saves_and_the_next_rebuilds(world: Make, cache: SafeCache) -> None:
    first = Start.of(world(), cache)
    assert first.rebuilding.so_far.reason == "never captured"
    assert first.rebuilding.is_save_due
    assert first.keep()
    assert first.rebuilding.so_far.saved is not None
    first.world.end()
    second = Start.of(world(), cache)
    so_far = second.rebuilding.so_far
    assert (so_far.num_restored, so_far.reason, so_far.dropped) == (4, "", ())
    assert so_far.times is not None
    assert not second.rebuilding.is_save_due
    assert all(record.restored for record in second.report.records)
    second.world.check()


def test_graphs_that_compute_something_else_are_all_given_up(world: Make, cache: SafeCache) -> None:
    """As where the model's code changed and nothing else tells."""
    assert Start.of(world(), cache).keep()
    second = Start.of(world(more=lambda _, size, hidden: hidden * 2 if size == 2 else hidden), cache)
    so_far = second.rebuilding.so_far
    assert so_far.dropped == (second.world.entries[3],)
    assert (so_far.num_restored, so_far.times) == (0, None)
    assert not any(record.restored for record in second.report.records)
    assert second.report.num_remaining == 0
    assert not second.report.failed
    assert second.rebuilding.is_save_due
    second.world.check()


def test_entries_that_were_captured_for_their_kernels_stay_when_the_others_are_given_up(
    world: Make, cache: SafeCache
) -> None:
    assert Start.of(world(more=doubled), cache).keep()

    def otherwise(own: World, size: int, hidden: torch.Tensor) -> torch.Tensor:
        return doubled(own, size, hidden) * 2 if size == 2 else doubled(own, size, hidden)

    second = Start.of(world(more=otherwise), cache)
    assert second.rebuilding.so_far.dropped == (second.world.entries[3],)
    assert len(second.report.records) == 4
    second.world.check()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "damaged: its digest does not fit"),
        (lambda _: b"", "not a file of graphs"),
        (lambda _: b"\x80\x04pickle", "not a file of graphs"),
        (lambda _: None, "no graphs were saved"),
    ],
)
def test_a_file_that_is_not_what_was_saved_is_a_reason_and_no_error(
    world: Make, cache: SafeCache, monkeypatch: pytest.MonkeyPatch, damage: object, reason: str
) -> None:
    assert Start.of(world(), cache).keep()
    artifact = Restart.artifact
    monkeypatch.setattr(Restart, "artifact", lambda self, name: damage(artifact(self, name)))  # type: ignore[operator]
    second = Start.of(world(), cache)
    assert reason in second.rebuilding.so_far.reason
    assert not second.report.failed
    second.world.check()


def test_the_file_of_another_capture_is_refused(world: Make, cache: SafeCache) -> None:
    """As where somebody swapped two files of a cache."""
    assert Start.of(world(), cache).keep()
    restart = Restart.look_up(cache, circumstances())
    swapped = evolve(restart, about=circumstances(model="2"))
    second = Start.of(world(), cache, swapped)
    assert second.rebuilding.so_far.reason == "the file of graphs is that of another capture"
    second.world.check()


def test_what_cannot_be_saved_is_said(world: Make, cache: SafeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Start.of(world(), cache)

    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory\nfor a twin")

    monkeypatch.setattr(first.world.manager, "record_twin", no_memory)
    assert first.rebuilding.save(circumstances(), ()) is None
    assert first.rebuilding.so_far.not_saved == "no memory"


def test_all_none_or_a_sample_is_verified() -> None:
    assert entries_to_verify(ENTRIES, "all") == ENTRIES
    assert entries_to_verify(ENTRIES, "none") == ()
    assert entries_to_verify((), "sample") == ()
    small_first = (*ENTRIES[5:], ENTRIES[0], *ENTRIES[1:5])
    for _ in range(20):
        chosen = entries_to_verify(small_first, "sample")
        assert {small_first[0], small_first[-1], ENTRIES[0]} <= set(chosen)
        assert 3 <= len(chosen) <= 6
        assert list(chosen) == [entry for entry in small_first if entry in chosen]


def test_a_sample_of_few_is_first_last_and_largest() -> None:
    one: tuple[PlanEntry, ...] = ENTRIES[:1]
    assert entries_to_verify(one, "sample") == one
    assert entries_to_verify(ENTRIES[:3], "sample") == (ENTRIES[0], ENTRIES[2])


def test_graphs_are_saved_on_a_gpu_only(world: Make, fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "library", lambda: fake.library)
    monkeypatch.setattr("executor.materialize.driver.library", lambda: fake.library)
    with pytest.raises(CaptureError, match="device fake: graphs are saved and rebuilt on a GPU only"):
        graph_device(world().machine.backend, None)


def test_without_a_compiler_graphs_are_built_in_python(
    fake: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "library", lambda: fake.library)
    monkeypatch.setattr("executor.materialize.native.library", lambda: fake.library)
    assert isinstance(module._code(tmp_path / "native"), NativeCode)
    assert isinstance(module._code(None), PlainCode)
    monkeypatch.setattr("executor.materialize.native.shutil.which", lambda _: None)
    assert isinstance(module._code(tmp_path / "other"), PlainCode)
