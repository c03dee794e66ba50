"""Deployments in a few words, and what a finding's fix makes of one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import evolve

from planner import Deployment, Plan, compile_plan
from planner.documents.deployment import (
    CompilationSection,
    DeviceSection,
    EngineSection,
    LoraSection,
    ModelSection,
    SchedulerSection,
    SpeculativeSection,
)
from planner.documents.plan import TARGET, Finding
from planner.modes import AttentionSupport, CUDAGraphMode, Runner


def deployment(
    max_num_seqs: int,
    *,
    drafts: int = 0,
    method: str = "ngram",
    schedule: Sequence[tuple[int, int, int]] | None = None,
    budget: int = 8192,
    asked_max: int | None = None,
    sizes: Sequence[int] | None = None,
    mode: CUDAGraphMode | None = None,
    max_loras: int | None = None,
    runner: Runner | None = None,
    compute_capability: str = "9.0",
) -> Deployment:
    """A deployment whose attention replays everything, and whose draft, if any, has no graphs."""
    return Deployment(
        engine=EngineSection(runner=runner),
        model=ModelSection(attention_support=AttentionSupport.ALWAYS),
        scheduler=SchedulerSection(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget),
        speculative=SpeculativeSection(
            method=method,
            num_speculative_tokens=drafts,
            num_speculative_tokens_per_batch_size=tuple(schedule) if schedule else None,
            attention_support=AttentionSupport.ALWAYS,
        )
        if drafts
        else None,
        lora=LoraSection(max_loras=max_loras, specialize_active_lora=True) if max_loras else None,
        compilation=CompilationSection(
            cudagraph_mode=mode,
            max_cudagraph_capture_size=asked_max,
            cudagraph_capture_sizes=tuple(sizes) if sizes else None,
        ),
        device=DeviceSection(compute_capability=compute_capability),
    )


def found(plan: Plan, code: str) -> list[Finding]:
    """The findings of a plan with ``code``."""
    return [finding for finding in plan.findings if finding.code == code]


def the(plan: Plan, code: str) -> Finding:
    """The one finding of a plan with ``code``."""
    (finding,) = found(plan, code)
    return finding


def fixed(asked: Deployment, fix: str) -> Plan:
    """The plan once a user has done what ``fix`` says."""
    in_force = compile_plan(asked).resolved[TARGET].cudagraph_capture_sizes
    scheduler, compilation = asked.scheduler, asked.compilation
    if match := re.fullmatch(r"max_num_batched_tokens: (\d+)", fix):
        scheduler = evolve(scheduler, max_num_batched_tokens=int(match[1]))
    elif match := re.fullmatch(r"max_cudagraph_capture_size: (\d+)", fix):
        compilation = evolve(compilation, max_cudagraph_capture_size=int(match[1]))
    elif fix == "leave max_cudagraph_capture_size out":
        compilation = evolve(compilation, max_cudagraph_capture_size=None)
    else:
        compilation = evolve(
            compilation,
            cudagraph_capture_sizes=_sizes(fix, in_force),
            max_cudagraph_capture_size=_maximum(fix, compilation.max_cudagraph_capture_size),
        )
    return compile_plan(evolve(asked, scheduler=scheduler, compilation=compilation))


def _sizes(fix: str, in_force: Sequence[int]) -> tuple[int, ...]:
    if match := re.match(r"cudagraph_capture_sizes: \[([\d, ]+)\]", fix):
        return tuple(int(size) for size in match[1].split(","))
    match = re.match(r"cudagraph_capture_sizes: those in force and every multiple of (\d+) up to (\d+)", fix)
    if match:
        step, top = int(match[1]), int(match[2])
        return (*in_force, *range(step, top + 1, step))
    match = re.match(r"cudagraph_capture_sizes: those in force and ([\d, and]+)", fix)
    assert match, fix
    return (*in_force, *(int(size) for size in re.findall(r"\d+", match[1])))


def _maximum(fix: str, asked: int | None) -> int | None:
    match = re.search(r", max_cudagraph_capture_size: (\d+)", fix)
    return int(match[1]) if match else asked
