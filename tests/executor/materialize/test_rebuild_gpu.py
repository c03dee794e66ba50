"""Graphs rebuilt on a GPU: right wherever memory lies, refused where anything does not fit."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define, evolve, field

from executor.backends.cuda_driver import library
from executor.calls import noted
from executor.guide import CaptureGuide, CaptureOptions
from executor.manager import CudaGraphManager
from executor.materialize.device import CudaDevice
from executor.materialize.driver import CudaDriver
from executor.materialize.native import NativeCode
from executor.materialize.plain import PlainCode
from executor.materialize.restore import Restorer
from executor.materialize.save import Saving, save
from executor.materialize.saved import DamagedError, SavedCapture, block_of, packed, unpacked
from executor.records import CaptureReport
from executor.restart import output_shapes
from executor.verify import verify_entries
from planner import Plan
from tests.executor.toys import Toy, add_in_place, plan_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; tools/test_gpu runs it"),
]

SIZES = (64, 16, 4, 1)
PLAN = plan_of(
    *(f"mode: FULL, num_tokens: {n}, num_reqs: {n}, uniform_token_count: 1" for n in SIZES),
    *(f"mode: PIECEWISE, num_tokens: {n}" for n in (64, 8)),
)
WHOLE = plan_of(*(f"mode: FULL, num_tokens: {n}, num_reqs: {n}, uniform_token_count: 1" for n in SIZES))


@define
class Server:
    """One server: a manager, a model, and the device that graphs are rebuilt on."""

    toy: Toy
    folder: Path
    plan: Plan = PLAN
    static: Mapping[str, torch.Tensor] | None = None
    plain: bool = False
    shapes: Any = ()
    manager: CudaGraphManager = field(init=False)
    device: CudaDevice = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.manager = CudaGraphManager(self.plan)
        code = PlainCode(library()) if self.plain else NativeCode(self.folder)
        self.device = CudaDevice(self.manager.backend, CudaDriver(code))

    @property
    def named(self) -> Mapping[str, torch.Tensor]:
        if self.static is not None:
            return self.static
        return {"inputs": self.toy.inputs, "extra": self.toy.extra, "weight": self.toy.weight}

    def capture(self, guide: CaptureGuide | None = None) -> CaptureReport:
        how = CaptureOptions(warm_up="first", materialize=True, guide=guide or CaptureGuide())
        return self.manager.capture(self.toy.create_forward, options=how)

    def save(self) -> Saving:
        report = self.capture()
        assert not report.failed
        self.shapes = output_shapes(self.manager.output_buffers)
        calls = noted(self.toy.create_forward, [made.entry for made in report.captured])
        return save(self.manager, self.named, self.device, {"what": "toy"}, calls)

    def restore(self, saved: SavedCapture, shapes: Any) -> tuple[CaptureReport, Restorer]:
        restorer = Restorer(saved=saved, static=self.named, device=self.device, operations=(add_in_place,))
        guide = CaptureGuide(restorer=restorer, outputs=shapes, warmed_by_record=True)
        report = self.capture(guide)
        assert not report.failed
        return report, restorer

    def wrong(self) -> list[Any]:
        """Entries that replay otherwise than eager, on poisoned memory."""
        self.toy.inputs.normal_()
        verdicts = verify_entries(self.manager, self.toy.create_forward, poison=True)
        assert len(verdicts) == len(self.plan.entries("target"))
        return [verdict for verdict in verdicts if not verdict.ok]


def server(folder: Path, **more: Any) -> Server:
    return Server(Toy(64, device="cuda"), folder, **more)


def restored(report: CaptureReport) -> int:
    return sum(made.restored for made in report.records)


@pytest.mark.parametrize("plain", [False, True])
def test_graphs_and_pieces_come_back_at_other_addresses(tmp_path: Path, plain: bool) -> None:
    first = server(tmp_path)
    saving = first.save()
    assert not saving.obstacles
    second = server(tmp_path, plain=plain)
    assert second.toy.weight.data_ptr() != first.toy.weight.data_ptr()
    report, restorer = second.restore(unpacked(saving.content), first.shapes)
    assert (restored(report), restorer.refused) == (len(PLAN.entries("target")), {})
    assert second.wrong() == []
    assert second.toy.calls > 0  # by comparing alone
    assert second.manager.pool.num_bytes <= first.manager.pool.num_bytes


def test_no_restore_among_random_allocations_is_ever_wrong(tmp_path: Path) -> None:
    first = server(tmp_path)
    saved = unpacked(first.save().content)
    rng = random.Random(0)
    held: list[torch.Tensor] = []
    for _ in range(25):
        held = [each for each in held if rng.random() < 0.5]
        held += [torch.empty(rng.randrange(1, 1 << 24), device="cuda") for _ in range(rng.randrange(4))]
        other = server(tmp_path)
        report, _ = other.restore(saved, first.shapes)
        assert restored(report) == len(PLAN.entries("target"))
        assert other.wrong() == []
        other.manager.release_graphs()


def test_the_model_does_not_run_while_graphs_are_rebuilt(tmp_path: Path) -> None:
    first = server(tmp_path)
    saved = unpacked(first.save().content)
    second = server(tmp_path)
    second.restore(saved, first.shapes)
    assert second.toy.calls == 0


def test_an_unregistered_tensor_is_named_by_range_and_kernel(tmp_path: Path) -> None:
    toy = Toy(64, device="cuda")
    first = Server(toy, tmp_path, static={"inputs": toy.inputs, "weight": toy.weight})
    saving = first.save()
    assert set(saving.obstacles) == set(PLAN.entries("target"))
    assert any(
        "neither a registered static tensor nor the pool's" in each for each in saving.obstacles.values()
    )
    second = server(tmp_path)
    report, restorer = second.restore(unpacked(saving.content), first.shapes)
    assert restored(report) == 0
    assert set(restorer.refused) == set(PLAN.entries("target"))
    assert second.wrong() == []


@pytest.mark.parametrize("change", ["size", "dtype"])
def test_a_changed_buffer_is_refused_and_its_entries_captured(tmp_path: Path, change: str) -> None:
    first = server(tmp_path)
    saved = unpacked(first.save().content)
    toy = Toy(128 if change == "size" else 64, device="cuda")
    if change == "dtype":
        for name in ("inputs", "extra", "weight"):
            setattr(toy, name, getattr(toy, name).half())
    second = Server(toy, tmp_path)
    report, restorer = second.restore(saved, () if change == "dtype" else first.shapes)
    assert restored(report) == 0
    assert any("it was float32" in reason for reason in restorer.refused.values())
    assert second.wrong() == []


def test_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    content = bytearray(server(tmp_path).save().content)
    content[len(content) // 2] ^= 1
    with pytest.raises(DamagedError, match="digest"):
        unpacked(bytes(content))


def test_a_changed_kernel_is_refused_and_its_entries_captured(tmp_path: Path) -> None:
    first = server(tmp_path)
    saved = unpacked(first.save().content)
    kernels = [
        evolve(each, identity=evolve(each.identity, attributes=(*each.identity.attributes[:-1], 1)))
        for each in saved.header.kernels
    ]
    second = server(tmp_path)
    report, restorer = second.restore(
        evolve(saved, header=evolve(saved.header, kernels=kernels)), first.shapes
    )
    assert restored(report) == 0
    assert all("its parameters or its code" in reason for reason in restorer.refused.values())
    assert second.wrong() == []


def test_a_graph_that_replays_otherwise_is_noticed_and_captured_anew(tmp_path: Path) -> None:
    first = Server(Toy(64, device="cuda"), tmp_path, plan=WHOLE)
    saved = unpacked(first.save().content)
    header = saved.header
    output = [region.name for region in header.regions].index("output.0")
    graph = saved.graph(0)
    moved = torch.where(graph.regions == output, header.num_static, graph.regions)
    blocks = [block_of(evolve(graph, regions=moved))]
    blocks += [block_of(saved.graph(number)) for number in range(1, len(header.graphs))]
    sizes = [evolve(each, num_bytes=len(block)) for each, block in zip(header.graphs, blocks, strict=True)]
    second = Server(Toy(64, device="cuda"), tmp_path, plan=WHOLE)
    second.restore(unpacked(packed(evolve(header, graphs=sizes), blocks)), first.shapes)
    (wrong,) = second.wrong()
    second.manager.discard([wrong.entry])
    report = second.manager.capture_more(second.manager.num_remaining)
    assert restored(report) == len(SIZES) - 1
    assert second.wrong() == []


@define
class Launching(Toy):
    """A toy that ends in a kernel which no ATen call launches."""

    launch: Callable[[torch.Tensor], torch.Tensor] | None = None

    def run(self, num_tokens: int) -> torch.Tensor:
        assert self.launch is not None
        return self.launch(Toy.run(self, num_tokens))


def launcher(block: int) -> Callable[[torch.Tensor], torch.Tensor]:
    from tests.executor.materialize.triton_kernel import doubled

    return lambda tensor: doubled(tensor, block)


def test_a_triton_kernel_comes_from_an_entry_that_is_captured(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    first = Server(Launching(64, device="cuda", launch=launcher(64)), tmp_path, plan=WHOLE)
    saving = first.save()
    assert not saving.obstacles
    second = Server(Launching(64, device="cuda", launch=launcher(64)), tmp_path, plan=WHOLE)
    report, restorer = second.restore(unpacked(saving.content), first.shapes)
    assert restored(report) >= 1, restorer.refused
    assert restored(report) < len(SIZES)
    assert second.wrong() == []


def test_a_retuned_triton_kernel_of_the_same_name_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    first = Server(Launching(64, device="cuda", launch=launcher(64)), tmp_path, plan=WHOLE)
    saved = unpacked(first.save().content)
    second = Server(Launching(64, device="cuda", launch=launcher(128)), tmp_path, plan=WHOLE)
    report, restorer = second.restore(saved, first.shapes)
    assert restored(report) == 0
    assert any("doubled" in reason for reason in restorer.refused.values())
    assert second.wrong() == []


def test_random_numbers_are_not_restorable(tmp_path: Path) -> None:
    def add_noise(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + torch.rand_like(tensor)

    first = Server(Launching(64, device="cuda", launch=add_noise), tmp_path, plan=WHOLE)
    assert set(first.save().obstacles) == set(WHOLE.entries("target"))


def test_entries_that_were_refused_share_the_pool_with_the_others(tmp_path: Path) -> None:
    first = server(tmp_path)
    saved = unpacked(first.save().content)
    entries = [evolve(saved.header.entries[0], obstacle="for a test"), *saved.header.entries[1:]]
    second = server(tmp_path)
    report, _ = second.restore(evolve(saved, header=evolve(saved.header, entries=entries)), first.shapes)
    assert restored(report) == len(PLAN.entries("target")) - 1
    assert second.wrong() == []
    assert second.manager.pool.num_bytes <= first.manager.pool.num_bytes
