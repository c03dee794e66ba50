#!/usr/bin/env python3
"""Runs the reference decoder and its drafter on data-parallel x tensor-parallel ranks, and checks every step.

    torchrun --nproc-per-node 4 tools/run_distributed.py --data 2 --tensor 2
    torchrun --nproc-per-node 1 tools/run_distributed.py --device cuda

Every rank also runs its steps with the whole model, without graphs and without other ranks. Hidden states,
proposals and tokens have to be the same, and so has every agreement and what one process decides that
knows all batches. On CUDA the ranks' collectives are NCCL's, else gloo's. Rank 0 prints the report; the
exit code is 1 where something differs, and 3 where a rank ended or the ranks do not fit each other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from attrs import asdict, define, evolve, frozen
from torch.distributed.device_mesh import init_device_mesh

from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from executor.dflash import DFlashCudaGraphManager
from executor.distributed.capture import CaptureLockStep
from executor.distributed.collectives import Collectives
from executor.distributed.decoding import DataParallelDecoder, described
from executor.distributed.layout import DIMENSIONS, Layout
from executor.distributed.ranks import Ranks
from executor.distributed.start import Statement, agree_at_start
from executor.distributed.steps import StepAgreement
from executor.draft_runner import DraftRunner
from executor.errors import RanksError
from executor.guide import CaptureOptions
from executor.inputs.batch import ScheduledBatch
from executor.inputs.kv_cache import KVCacheConfig, PagedKVCache
from executor.manager import CudaGraphManager
from executor.models.pairs import SpeculativePair, build_pair
from executor.models.tensor_parallel import parallelize
from executor.parallel import ParallelInfo
from executor.runner import TargetRunner
from executor.speculate import SpeculativeDecoder
from executor.steps import DraftBatch, StepOutput
from executor.verify import TOLERANCE, relative_error
from planner import agree, load_plan
from planner.documents.plan import DRAFT, TARGET, Plan
from planner.errors import GraphplanError

BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN = 8, 256, 96
COLLECTIVE_NAMES = ("nccl", "onerankreduce", "c10d.")
"""What the name of a recorded collective has in it: NCCL's kernels, or the calls of the CPU's tape."""


def main() -> int:
    """The exit code."""
    options = parsed()
    try:
        return run(options)
    except GraphplanError as error:
        rank = os.environ.get("RANK", "0")
        print(f"rank {rank}: {error}", file=sys.stderr)
        return error.exit_code


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, default=Path("plans/dflash-prologue.yaml"))
    for name in ("data", "tensor"):
        parser.add_argument(f"--{name}", type=int, default=1, help=f"{name}-parallel ranks")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--prompts", type=int, default=4, help="prompts of each data-parallel rank")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that ranks wait for each other")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    """Starts the job's process group, runs, and ends it."""
    if "RANK" not in os.environ:
        raise RanksError("not started by torchrun; see --help for how it is")
    plan = load_plan(options.plan)
    layout = Layout(data=options.data, tensor=options.tensor)
    layout.require(int(os.environ["WORLD_SIZE"]))
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_num_threads(1)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=options.timeout))
    job = Ranks.of_job(timeout=options.timeout)
    mesh = init_device_mesh(options.device, layout.sizes, mesh_dim_names=DIMENSIONS)
    report = Worker.of(plan, layout, options, job, Collectives(mesh["tensor"])).report()
    reports = [json.loads(each) for each in job.exchange(json.dumps(asdict(report)).encode(), "report")]
    if job.rank == 0:
        show(plan, options, reports)
    dist.destroy_process_group()
    return 0 if all(each["ok"] for each in reports) else 1


@frozen(kw_only=True)
class Report:
    """What one rank saw. ``recorded`` are entries with collectives in their graphs, None if unknown."""

    ok: bool
    steps: int
    modes: dict[str, int]
    tokens: int
    acceptance: float
    differences: list[str]
    entries: int
    captured: int
    recorded: int | None


@frozen(kw_only=True)
class Serving:
    """A target and its drafter on one paged cache."""

    target: TargetRunner
    draft: DraftRunner

    @classmethod
    def of(
        cls,
        plan: Plan,
        pair: SpeculativePair,
        parallel: ParallelInfo | None,
        device: torch.device,
        *,
        graphs: bool,
    ) -> Serving:
        """The pair's runners, with managers where they are to have ``graphs``."""
        groups = (pair.target.kv_cache_group, pair.draft.kv_cache_group)
        config = KVCacheConfig(NUM_BLOCKS, BLOCK_SIZE, groups)
        cache = PagedKVCache(config, device)
        manager = CudaGraphManager(plan, TARGET, device=device, parallel=parallel) if graphs else None
        target = TargetRunner(
            plan,
            pair.target,
            config,
            device,
            manager,
            parallel=parallel,
            kv_cache=cache,
            max_model_len=MAX_MODEL_LEN,
        )
        drafting = None
        if manager is not None:
            drafting = DFlashCudaGraphManager(
                plan, DRAFT, device=device, pool=manager.pool, parallel=parallel
            )
        draft = DraftRunner(
            plan,
            pair.draft,
            cache,
            drafting,
            num_speculative_tokens=pair.num_speculative_tokens,
            max_model_len=MAX_MODEL_LEN,
            max_context_tokens=target.buffers.max_num_tokens,
            max_num_reqs=target.buffers.max_num_reqs,
            parallel=parallel,
        )
        return cls(target=target, draft=draft)


@define(kw_only=True)
class Worker:
    """One rank: its part of the models with graphs, and the whole ones without."""

    plan: Plan
    job: Ranks
    data: Ranks
    collectives: Collectives
    parts: Serving
    twin: Serving
    prompts: list[list[int]]
    new_tokens: int

    @classmethod
    def of(
        cls, plan: Plan, layout: Layout, options: argparse.Namespace, job: Ranks, collectives: Collectives
    ) -> Worker:
        """Agrees with the others that all were started alike, then builds the models."""
        device = (
            torch.device(options.device, torch.cuda.current_device())
            if options.device == "cuda"
            else torch.device("cpu")
        )
        model = ModelFingerprint.of(
            plan.deployment, code="pair", config=f"pair of seed {options.seed}", dtype="float32"
        )
        agree_at_start(job, Statement.of(plan, EnvironmentFingerprint.current(device), model))
        data = Ranks.among(layout.groups("data"), timeout=options.timeout, name="data")
        parallel = ParallelInfo(
            data_parallel_size=layout.data, data_parallel_rank=data.rank, tensor_parallel_size=layout.tensor
        )
        proposed = max(entry.uniform_token_count or 1 for entry in plan.entries(DRAFT)) - 1
        pair, whole = (build_pair(proposed, seed=options.seed, device=device) for _ in range(2))
        for model_part in (pair.target, pair.draft):
            parallelize(model_part, collectives)
        return cls(
            plan=plan,
            job=job,
            data=data,
            collectives=collectives,
            parts=Serving.of(plan, pair, parallel, device, graphs=True),
            twin=Serving.of(plan, whole, None, device, graphs=False),
            # The ranks have different numbers of prompts, so that some finish early.
            prompts=pair.prompts(options.prompts + data.rank, seed=data.rank),
            new_tokens=options.new_tokens,
        )

    def report(self) -> Report:
        """Captures, decodes and compares."""
        options = CaptureOptions(lock_step=CaptureLockStep(self.job, self.collectives))
        managers = (self.parts.target.manager, self.parts.draft.manager)
        assert managers[0] is not None and managers[1] is not None  # noqa: S101, PT018 - made with graphs
        managers[0].capture(self.parts.target.create_forward_fn, options=options)
        self.parts.draft.capture(options=options)
        decoder = CheckedDecoder(self.parts, self.twin, StepAgreement(self.data))
        result = decoder.generate(self.prompts, self.new_tokens)
        expected = SpeculativeDecoder(self.twin.target, self.twin.draft).generate(
            self.prompts, self.new_tokens
        )
        if result.tokens != expected.tokens:
            decoder.differences.append("tokens are not those of one process")
        captured = [(each, entry) for each in managers for entry in each.captured_entries]
        names = [manager.kernel_names(entry) for manager, entry in captured]
        known = [
            any(part in name.lower() for name in each for part in COLLECTIVE_NAMES) for each in names if each
        ]
        return Report(
            ok=not decoder.differences,
            steps=decoder.steps_run,
            modes={str(mode): count for mode, count in Counter(result.modes).items()},
            tokens=sum(map(len, result.tokens)),
            acceptance=result.mean_acceptance,
            differences=decoder.differences[:5],
            entries=sum(len(manager.entries) for manager in managers),
            captured=len(captured),
            recorded=sum(known) if len(known) == len(captured) else None,
        )


class CheckedDecoder(DataParallelDecoder):
    """A decoder whose every step is also run by ``twin``, and decided on by one process."""

    def __init__(self, parts: Serving, twin: Serving, steps: StepAgreement) -> None:
        super().__init__(parts.target, parts.draft, steps)
        self.twin = twin
        self.differences: list[str] = []
        self.steps_run = 0
        self.expected: StepOutput | None = None

    def run_target(self, batch: ScheduledBatch) -> tuple[StepOutput, int | None]:
        """A step by all ranks, and by one."""
        self.steps_run += 1
        query_len = self.twin.draft.query_len
        own = described(batch, query_len)
        agreement = self.agree(batch)
        told = self.steps.ranks.exchange(json.dumps(asdict(own)).encode(), "check of a step")
        if agree(self.table, [json.loads(each) for each in told])[self.steps.ranks.rank] != agreement:
            self.differs("the agreement is not what one process decides")
        found = self.target.step(batch, agreement)
        self.expected = self.twin.target.step(batch)
        for name in ("hidden_states", "aux_hidden_states"):
            self.compare(name, getattr(self.expected, name), getattr(found, name))
        return found, agreement.num_reqs

    def run_draft(self, batch: DraftBatch, aux_hidden_states: Any) -> torch.Tensor:
        """Proposals by all ranks, and by one."""
        found = super().run_draft(batch, aux_hidden_states).clone()
        assert self.expected is not None  # noqa: S101 - the target's step came first
        alone = evolve(batch, num_reqs_across_dp=None)
        if batch.step.num_reqs:
            expected = self.twin.draft.step(alone, self.expected.aux_hidden_states)
            if not torch.equal(expected, found):
                self.differs("the proposals are not those of one process")
        return found

    def compare(self, name: str, expected: Any, found: Any) -> None:
        """Notes a difference beyond what another order of sums makes."""
        pairs = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
        for one, two in pairs:
            error = relative_error(one, two)
            if error > TOLERANCE[one.dtype]:
                self.differs(f"{name} differ by {error:.1e}")

    def differs(self, what: str) -> None:
        """Notes a difference of this step."""
        self.differences.append(f"step {self.steps_run}: {what}")


def show(plan: Plan, options: argparse.Namespace, reports: list[dict[str, Any]]) -> None:
    """One line a rank, then the whole as JSON."""
    layout = Layout(data=options.data, tensor=options.tensor)
    for rank, each in enumerate(reports):
        place = ", ".join(f"{name} {layout.place(rank, name)}" for name in ("data", "tensor"))
        state = "ok" if each["ok"] else "; ".join(each["differences"])
        held = "unknown" if each["recorded"] is None else str(each["recorded"])
        print(
            f"rank {rank} ({place}): {each['captured']} of {each['entries']} entries captured, {held} hold a "
            f"collective; {each['steps']} steps {each['modes']}, {each['tokens']} tokens, "
            f"acceptance {each['acceptance']:.2f}: {state}"
        )
    print(
        json.dumps(
            {"plan": plan.name, "device": options.device, "torch": torch.__version__, "ranks": reports}
        )
    )


if __name__ == "__main__":
    sys.exit(main())
