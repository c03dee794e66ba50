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


def fixed(asked: Deployment, fix: str, plan: Plan | None = None) -> Plan:
    """The plan once a user has done what ``fix`` says; ``plan`` is that of ``asked``, where it is there."""
    in_force = (plan or compile_plan(asked)).resolved[TARGET].cudagraph_capture_sizes
    scheduler, compilation = asked.scheduler, asked.compilation
    for setting in re.split(r", (?=[a-z_]+: |leave )", fix):
        name, _, value = setting.partition(": ")
        if name == "max_num_batched_tokens":
            scheduler = evolve(scheduler, max_num_batched_tokens=int(value))
        elif name == "max_cudagraph_capture_size":
            compilation = evolve(compilation, max_cudagraph_capture_size=int(value))
        elif name == "leave max_cudagraph_capture_size out":
            compilation = evolve(compilation, max_cudagraph_capture_size=None)
        elif name == "cudagraph_specialize_lora":
            compilation = evolve(compilation, cudagraph_specialize_lora=value == "true")
        elif name == "cudagraph_mode":
            compilation = evolve(compilation, cudagraph_mode=CUDAGraphMode[value])
        else:
            assert name == "cudagraph_capture_sizes", fix
            compilation = evolve(compilation, cudagraph_capture_sizes=_sizes(value, in_force))
    return compile_plan(evolve(asked, scheduler=scheduler, compilation=compilation))


def _sizes(words: str, in_force: Sequence[int]) -> tuple[int, ...]:
    if words.startswith("["):
        return tuple(int(size) for size in words.strip("[]").split(","))
    begin, _, rest = words.partition(" and ")
    assert begin == "those in force", words
    sizes = set(in_force)
    for part in re.split(r", | and ", rest):
        run = re.fullmatch(r"every multiple of (\d+) up to (\d+)", part)
        sizes.update(range(int(run[1]), int(run[2]) + 1, int(run[1])) if run else (int(part),))
    return tuple(sorted(sizes))
