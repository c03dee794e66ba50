"""A small model on a machine of tests, captured by a manager: what is saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field

from executor.calls import AtenCall, noted
from executor.guide import CaptureGuide, CaptureOptions
from executor.manager import CudaGraphManager
from executor.materialize.driver import GraphCode
from executor.materialize.regions import static_tensors
from executor.materialize.restore import Restorer
from executor.materialize.save import Saving, save
from executor.materialize.saved import SavedCapture, unpacked
from executor.records import CaptureReport
from executor.restart import output_shapes
from planner import Plan
from planner.descriptors import BatchExecutionDescriptor, PlanEntry
from planner.modes import CUDAGraphMode
from tests.executor.materialize.fake_cuda import FakeCuda
from tests.executor.materialize.machine import CPU, Machine
from tests.executor.toys import add_in_place, plan_of

WIDTH = 4
ABOUT = {"plan": "tests"}


def mixed_plan() -> Plan:
    """Two entries in pieces and two whole ones."""
    return plan_of(
        "mode: PIECEWISE, num_tokens: 8",
        "mode: PIECEWISE, num_tokens: 4",
        "mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1",
        "mode: FULL, num_tokens: 2, num_reqs: 2, uniform_token_count: 1",
    )


@define
class Net:
    """Static tensors of a model; ``seed`` decides the weights, as a checkpoint would."""

    rows: int = 8
    seed: int = 1
    dtype: torch.dtype = torch.float32
    weight: torch.Tensor = field(init=False)
    inputs: torch.Tensor = field(init=False)
    extra: torch.Tensor = field(init=False)

    def __attrs_post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def made(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(self.dtype)

        self.weight, self.inputs, self.extra = (
            made(WIDTH, WIDTH),
            made(self.rows, WIDTH),
            made(self.rows, WIDTH),
        )


@define
class World:
    """A process: a machine, a model and a manager.

    ``more`` is further work of the forward on its hidden states, for one number of tokens.
    """

    fake: FakeCuda
    code: GraphCode
    plan: Plan = field(factory=mixed_plan)
    net: Net = field(factory=Net)
    more: Callable[[World, int, torch.Tensor], torch.Tensor] | None = None
    forwards: list[tuple[int, bool]] = field(factory=list)
    machine: Machine = field(init=False)
    manager: CudaGraphManager = field(init=False)
    ballast: list[torch.Tensor] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.machine = Machine(self.fake, self.code)
        self.manager = CudaGraphManager(self.plan, device="cpu")
        self.manager.backend = self.machine.backend
        self.manager.pool = self.machine.backend.new_pool()

    @property
    def entries(self) -> tuple[PlanEntry, ...]:
        return self.manager.entries

    def create_forward(self, desc: BatchExecutionDescriptor, warmup: bool) -> Callable[[CUDAGraphMode], Any]:
        self.forwards.append((desc.num_tokens, warmup))
        return lambda _: self.run(desc.num_tokens)

    def run(self, num_tokens: int) -> Any:
        """The forward."""
        net = self.net
        hidden = net.inputs[:num_tokens] @ net.weight
        add_in_place(hidden, net.extra[:num_tokens])
        if self.more is not None:
            hidden = self.more(self, num_tokens, hidden)
        logits = torch.relu(hidden) @ net.weight + 1.5
        return {"logits": logits, "rest": (hidden.sum(-1), [hidden])}

    def static(self) -> dict[str, torch.Tensor]:
        return static_tensors(CPU, net=self.net)

    def capture(self, **options: Any) -> CaptureReport:
        return self.manager.capture(self.create_forward, options=CaptureOptions(materialize=True, **options))

    def save(
        self, static: Mapping[str, torch.Tensor] | None = None, calls: Sequence[AtenCall] | None = None
    ) -> Saving:
        if calls is None:
            calls = noted(self.create_forward, self.manager.captured_entries)
        static = self.static() if static is None else static
        return save(self.manager, static, self.machine.device, ABOUT, calls)

    def restorer(self, saved: SavedCapture, **others: Any) -> Restorer:
        given: dict[str, Any] = {"static": self.static(), "operations": [add_in_place], **others}
        return Restorer(saved=saved, device=self.machine.device, **given)

    def restore(
        self, content: bytes | SavedCapture, outputs: Sequence[torch.Tensor], **others: Any
    ) -> CaptureReport:
        """A capture by what another world saved; ``outputs`` are that world's buffers."""
        saved = unpacked(content) if isinstance(content, bytes) else content
        restorer = self.restorer(saved, **others)
        guide = CaptureGuide(warmed_by_record=True, outputs=output_shapes(outputs), restorer=restorer)
        return self.capture(guide=guide)

    def replay(self, entry: PlanEntry) -> Any:
        """The outputs of a replay, after everything that is left from before was spoiled."""
        for tensor in self.manager.output_buffers:
            tensor.fill_(float("nan"))
        for chunk in self.manager.pool._chunks:  # type: ignore[attr-defined]
            chunk.fill_(255)
        found = self.manager.graphs_of(entry).replay()
        assert not Machine.errors, Machine.errors
        return found

    def check(self, entries: Sequence[PlanEntry] | None = None) -> None:
        """Every entry computes what an eager forward does, on new inputs."""
        self.net.inputs.normal_()
        self.net.extra.normal_()
        for entry in self.entries if entries is None else entries:
            torch.testing.assert_close(self.replay(entry), self.run(entry.num_tokens), rtol=1e-4, atol=1e-5)

    def end(self) -> None:
        """Ends the process: nothing of its memory is of use to anybody else."""
        self.manager.release_graphs()
        for tensor in (self.net.weight, self.net.inputs, self.net.extra):
            tensor.fill_(float("nan"))
        self.machine.workspace.fill_(255)


Make = Callable[..., World]
"""Makes a world with the given fields."""


def saved_by(world: World) -> tuple[bytes, tuple[torch.Tensor, ...]]:
    """What a world captures and saves, and its output buffers."""
    assert not world.capture().failed
    saving = world.save()
    assert not saving.obstacles
    return saving.content, tuple(each.clone() for each in world.manager.output_buffers)


def refused(report: CaptureReport) -> dict[PlanEntry, str | None]:
    return {record.entry: record.refused for record in report.records if not record.restored}


def specially(special: torch.Tensor) -> Callable[[World, int, torch.Tensor], torch.Tensor]:
    """A model that uses a further tensor for two tokens."""
    return lambda _, num_tokens, hidden: hidden * special if num_tokens == 2 else hidden


def doubled(own: World, num_tokens: int, hidden: torch.Tensor) -> torch.Tensor:
    """A model with a kernel that no ATen call launches, for whole entries of two and four tokens."""
    if num_tokens > 4:
        return hidden
    twice = torch.empty_like(hidden)
    own.machine.launch("triton_double", hidden, twice)
    return twice


def called_deeper(frames: int, call: Callable[[], Any]) -> Any:
    """What ``call`` returns, called with so many frames of Python's stack less."""
    return called_deeper(frames - 1, call) if frames else call()
