"""The one change of settings that gives every decode batch a graph, for engines beside vLLM.

As for vLLM, a change counts only once the plan that follows from it has been looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve

from planner.documents.deployment import Deployment
from planner.documents.engine_sections import SglangSection, TensorrtLlmSection
from planner.documents.plan import Plan
from planner.engines.registry import compiled_by_engine
from planner.engines.sglang.config import DECODE
from planner.engines.sglang.grids import rounded_up
from planner.engines.sglang.settings import settle as sglang_settings
from planner.errors import PlanError
from planner.modes import Runner
from planner.verify.coverage import TooManyRangesError
from planner.verify.fixes import COMPILE_ANEW, Fixes
from planner.verify.holes import grouped_decode_holes
from planner.verify.problems import Problems
from planner.verify.size_lists import LISTED_SIZES
from planner.verify.survey import survey_of

_SGLANG_LISTS = ("cuda_graph_bs_decode", "cuda_graph_bs")
_SGLANG_MAXIMA = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")

WITH_PADDING = "leave sglang.disable_cuda_graph_padding out"

Candidate = tuple[str, Deployment]
"""A setting in words, and the deployment with it."""


def lookup_fixes(plan: Plan, problems: Problems) -> Fixes:
    """The fix of the decode holes among ``problems``; a plan that was edited is to be compiled anew."""
    if not problems.decode:
        return Fixes()
    if plan.deployment == Deployment() or not plan.resolved:
        return Fixes()
    before = _widest_hole(plan.deployment)
    if before is None:
        return Fixes(by_settings=True)
    if before == 0:
        return Fixes(COMPILE_ANEW, by_settings=True)
    for setting, deployment in _candidates(plan.deployment, before):
        if _widest_hole(deployment) == 0:
            return Fixes(setting, by_settings=True)
    return Fixes(by_settings=True)


def _widest_hole(deployment: Deployment) -> int | None:
    """Requests of the widest decode batch without a graph, 0 without any; ``None`` if it is refused."""
    try:
        families = compiled_by_engine(deployment).families
        plan = Plan(
            deployment=deployment,
            resolved={family.name: family.resolved for family in families},
            graphs={family.name: family.entries for family in families},
        )
        groups = [group for name in plan.graphs for group in grouped_decode_holes(survey_of(plan, name))]
    except (PlanError, TooManyRangesError):
        return None
    return max((hole.most for group in groups for hole in group.holes), default=0)


def _candidates(deployment: Deployment, most: int) -> Iterator[Candidate]:
    if deployment.engine.name == Runner.SGLANG.value:
        return _sglang_candidates(deployment, deployment.sglang or SglangSection(), most)
    return _tensorrt_candidates(deployment, deployment.tensorrt_llm or TensorrtLlmSection(), most)


def _sglang_candidates(deployment: Deployment, section: SglangSection, most: int) -> Iterator[Candidate]:
    if not section.disable_cuda_graph_padding:
        yield from _larger_sizes(deployment, section, most)
        return
    padded = evolve(section, disable_cuda_graph_padding=None)
    yield WITH_PADDING, evolve(deployment, sglang=padded)
    yield from _larger_sizes(deployment, section, most)
    for setting, larger in _larger_sizes(deployment, padded, most):
        yield f"{WITH_PADDING}, {setting}", larger


def _larger_sizes(deployment: Deployment, section: SglangSection, most: int) -> Iterator[Candidate]:
    aligned = rounded_up(most, sglang_settings(deployment).alignment)
    for size in dict.fromkeys((most, aligned)):
        path, value, larger = _with_size(section, size)
        yield f"sglang.{path}: {_shown(value)}", evolve(deployment, sglang=larger)


def _with_size(section: SglangSection, size: int) -> tuple[str, int | tuple[int, ...], SglangSection]:
    """The setting under which decode sizes are given, its value with ``size``, and the section with it."""
    given = {name: getattr(section, name) for name in (*_SGLANG_LISTS, *_SGLANG_MAXIMA)}
    names = [name for name, asked in given.items() if asked is not None]
    config = section.cuda_graph_config or {}
    of_decode = config.get(DECODE) or {}
    keys = [key for key in ("bs", "max_bs") if of_decode.get(key) is not None]
    if keys:
        value = _larger(of_decode[keys[0]], size)
        changed = {**config, DECODE: {**of_decode, keys[0]: value}}
        path = f"cuda_graph_config.{DECODE}.{keys[0]}"
        return path, value, evolve(section, cuda_graph_config=changed)
    name = names[0] if names else _SGLANG_MAXIMA[0]
    value = _larger(given[name], size)
    update: dict[str, Any] = {name: value}
    return name, value, evolve(section, **update)


def _larger(asked: Sequence[int] | int | None, size: int) -> int | tuple[int, ...]:
    return (*sorted(set(asked)), size) if isinstance(asked, list | tuple) else size


def _shown(value: int | tuple[int, ...]) -> str:
    """A size or a list as a fix writes it; of a long list only what is added, its last size."""
    if isinstance(value, int):
        return str(value)
    return str(list(value)) if len(value) <= LISTED_SIZES else f"those given and {value[-1]}"


def _tensorrt_candidates(
    deployment: Deployment, section: TensorrtLlmSection, most: int
) -> Iterator[Candidate]:
    config = section.cuda_graph_config
    if config is None:
        return
    longer = tuple(sorted({*config.batch_sizes, most})) if config.batch_sizes else None
    for padding in (config.enable_padding, True):
        for larger in (False, True):
            changed, parts = evolve(config, enable_padding=padding), []
            if padding and not config.enable_padding:
                parts.append("enable_padding: true")
            if larger and longer is not None:
                changed = evolve(changed, batch_sizes=longer, max_batch_size=None)
                parts.append(f"batch_sizes: {_shown(longer)}")
            elif larger:
                changed = evolve(changed, max_batch_size=most)
                parts.append(f"max_batch_size: {most}")
            if parts:
                words = f"tensorrt_llm.cuda_graph_config: {{{', '.join(parts)}}}"
                yield words, evolve(deployment, tensorrt_llm=evolve(section, cuda_graph_config=changed))
