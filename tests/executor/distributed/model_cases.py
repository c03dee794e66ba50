"""What ranks with models run: tensor-parallel decoders, captured in lock-step, under data parallelism."""

# ruff: noqa: ARG001 - every case is told its rank and their number
from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from attrs import define
from torch.distributed.device_mesh import init_device_mesh

from executor.distributed.capture import CaptureLockStep
from executor.distributed.collectives import Collectives
from executor.distributed.decoding import DataParallelDecoder
from executor.distributed.layout import Layout
from executor.distributed.ranks import Ranks
from executor.distributed.steps import StepAgreement
from executor.guide import CaptureGuide, CaptureOptions
from executor.inputs.batch import ScheduledBatch
from executor.manager import CudaGraphManager
from executor.models.config import DecoderConfig
from executor.models.pairs import SpeculativePair, build_pair
from executor.models.qwen3 import Decoder, build_decoder
from executor.models.tensor_parallel import parallelize
from executor.records import CaptureReport
from executor.speculate import DecodeResult
from executor.verify import verify_entries
from planner import load_plan
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode
from tests.executor.serving import dflash_plan, draft_runner, target_runner
from tests.executor.toys import Toy, sizes_plan

PATIENCE = 20.0
PROPOSED = 3
NEW_TOKENS = 12


def collectives_of(layout: Layout) -> Collectives:
    mesh = init_device_mesh("cpu", layout.sizes, mesh_dim_names=("data", "pipeline", "tensor"))
    return Collectives(mesh["tensor"])


def wide_decoder() -> Decoder:
    """A decoder with four heads of queries and of keys, for up to four ranks."""
    config = DecoderConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        vocab_size=64,
        max_position_embeddings=128,
    )
    return build_decoder(config, seed=3, std=0.3)


WIDE = """
apiVersion: graphplan/v1
kind: Plan
graphs:
  target:
  - {mode: PIECEWISE, num_tokens: 8}
  - {mode: FULL, num_tokens: 4, num_reqs: 4, uniform_token_count: 1}
  - {mode: FULL, num_tokens: 2, num_reqs: 2, uniform_token_count: 1}
"""


def tensor_parallel(rank: int, size: int) -> dict[str, Any]:
    """Every entry of a plan on ``size`` tensor-parallel ranks against the model of one rank."""
    collectives = collectives_of(Layout(tensor=size))
    plan, model = load_plan(WIDE), wide_decoder()
    one = target_runner(plan, model, graphs=False)
    cut = wide_decoder()
    parallelize(cut, collectives)
    many = target_runner(plan, cut)
    assert many.manager is not None
    worst, modes = 0.0, []
    batches = [((1, 2, 3, 4, 5), (6, 7, 8)), ((9,), (10,), (11,), (12,)), ((13,),)]
    for tokens in batches:
        batch = ScheduledBatch(
            tokens, (0,) * len(tokens), tuple((index + 1,) for index in range(len(tokens)))
        )
        found, expected = many.step(batch), one.step(batch)
        modes.append(str(found.mode))
        worst = max(worst, float((found.hidden_states - expected.hidden_states).abs().max()))
    one.kv_cache.randomize()
    many.kv_cache.randomize()
    verdicts = verify_entries(
        many.manager, many.create_forward_fn, many.trials.fill, many.trials.replay_context, many.trials.eager
    )
    heads = many.kv_cache_config.groups[0].num_kv_heads
    return {"worst": worst, "modes": modes, "heads": heads, "verified": [verdict.ok for verdict in verdicts]}


def decode(rank: int, size: int, layout: Layout, graphs: bool) -> dict[str, Any]:
    """Prompts of each data-parallel rank, drafted for, by ranks that agree on every step."""
    collectives = collectives_of(layout)
    ranks = Ranks.among(layout.groups("data"), timeout=PATIENCE, name="data")
    pair = build_pair(PROPOSED, seed=1)
    for model in (pair.target, pair.draft):
        parallelize(model, collectives)
    plan = dflash_plan(PROPOSED)
    runner = target_runner(plan, pair.target, graphs=graphs, draft=pair.draft, max_num_tokens=128)
    drafting = draft_runner(plan, pair.draft, runner, PROPOSED)
    decoder = DataParallelDecoder(runner, drafting, StepAgreement(ranks))
    result = decoder.generate(prompts_of(pair, ranks.rank), NEW_TOKENS)
    return told(result)


def prompts_of(pair: SpeculativePair, data_rank: int) -> list[list[int]]:
    """Prompts of a data-parallel rank: their number differs, so that some ranks finish early."""
    return pair.prompts(1 + 2 * data_rank, seed=data_rank)


def told(result: DecodeResult) -> dict[str, Any]:
    modes = {str(mode): count for mode, count in result.modes.items()}
    return {"tokens": result.tokens, "accepted": result.accepted, "modes": modes}


def lock_step(rank: int, size: int, fault: str) -> dict[str, Any]:
    """Captures a tensor-parallel decoder of which the last rank does something else at one entry."""
    ranks = Ranks.of_job(timeout=2.0 if fault in ("killed", "late") else PATIENCE)
    collectives = collectives_of(Layout(tensor=size))
    model = wide_decoder()
    parallelize(model, collectives)
    runner = target_runner(load_plan(WIDE), model, graphs=False)
    manager = CudaGraphManager(runner.plan, device="cpu")
    options = CaptureOptions(lock_step=CaptureLockStep(ranks, collectives))
    create = (
        runner.create_forward_fn if rank != size - 1 else Faulty(runner.create_forward_fn, fault, collectives)
    )
    report = manager.capture(create, options=options)
    return summary(report)


def summary(report: CaptureReport) -> dict[str, Any]:
    errors = {str(record.entry.num_tokens): record.error for record in report.records}
    return {"errors": errors, "captured": [record.entry.num_tokens for record in report.captured]}


@define
class Faulty:
    """A factory whose forward of 4 tokens fails in the given way."""

    create: Any
    fault: str
    collectives: Collectives

    def __call__(self, desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        forward = self.create(desc, warmup)
        if desc.num_tokens != 4:
            return forward

        def faulty(cg_mode: CUDAGraphMode) -> Any:
            if self.fault == "recording" and not warmup:
                raise ValueError("no such kernel")
            if self.fault == "extra" and not warmup:
                self.collectives.add_up(torch.zeros(1))
            if self.fault == "memory" and warmup:
                raise torch.OutOfMemoryError("2 GiB wanted")
            if self.fault == "warm-up" and warmup:
                raise ValueError("weights are missing")
            if self.fault == "killed" and not warmup:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "late" and not warmup:
                time.sleep(3.0)
            return forward(cg_mode)

        return faulty


def guided(rank: int, size: int, kind: str) -> dict[str, Any]:
    """Ranks without collectives whose guides differ: an order, a known error, or who needs a warm-up."""
    plan = sizes_plan(4, 2, 1)
    toy = Toy(max_tokens=4)
    entries = plan.entries("target")
    last = rank == size - 1
    guide = CaptureGuide()
    if kind == "order" and last:
        guide = CaptureGuide(order=(entries[1],))
    if kind == "known" and last:
        guide = CaptureGuide(known_errors={entries[1]: "does not fit"})
    if kind == "warm" and last:
        guide = CaptureGuide(warmed_by_record=True)
    manager = CudaGraphManager(plan, device="cpu")
    lock_step = CaptureLockStep(Ranks.of_job(timeout=PATIENCE))
    report = manager.capture(toy.create_forward, options=CaptureOptions(guide=guide, lock_step=lock_step))
    return summary(report) | {"calls": toy.calls}


def memory_on_one_rank(rank: int, size: int) -> dict[str, Any]:
    """The last rank has no memory for one warm-up; without collectives nobody is stuck, all skip it."""

    def create(desc: BatchExecutionDescriptor, warmup: bool) -> Any:
        if rank == size - 1 and desc.num_tokens == 2 and warmup:
            raise torch.OutOfMemoryError("2 GiB wanted")
        return toy.create_forward(desc, warmup)

    toy = Toy(max_tokens=4)
    manager = CudaGraphManager(sizes_plan(4, 2, 1), device="cpu")
    lock_step = CaptureLockStep(Ranks.of_job(timeout=PATIENCE))
    report = manager.capture(create, options=CaptureOptions(lock_step=lock_step))
    return summary(report) | {"dispatched": manager.dispatch(2, 2, 1).num_tokens}
