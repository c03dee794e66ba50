"""The published strategies generate what they promise, all over the rules and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import pytest
from attrs import evolve
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from planner import (
    AttentionSupport,
    CompilationMode,
    CUDAGraphMode,
    Deployment,
    DispatchTable,
    FamilyError,
    Plan,
    PlanEntry,
    PlanError,
    compile_plan,
    dump_deployment,
    dump_plan,
    load_deployment,
    load_plan,
)
from planner.documents.deployment import SpeculativeSection
from planner.documents.plan import ResolvedFamily, Severity
from planner.modes import PerformanceMode, Runner
from planner.testing import DispatchArguments, batches, deployments, plans
from planner.verify import verify

pytestmark = pytest.mark.slow  # many samples of whole plans

T = TypeVar("T")

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
SIZE_8 = Plan(
    graphs={
        "target": (
            PlanEntry(PIECEWISE, 8),
            PlanEntry(FULL, 8, 4, uniform_token_count=2),
            PlanEntry(FULL, 8, 4, uniform_token_count=2, num_active_loras=2),
            PlanEntry(FULL, 8, 4, uniform_token_count=2, num_ubatches=2),
        )
    }
)


def sample(strategy: SearchStrategy[T], count: int) -> list[T]:
    """The same ``count`` examples every time."""
    found: list[T] = []

    @settings(max_examples=count, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
    @given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found


@cache
def valid_deployments() -> list[Deployment]:
    return sample(deployments(valid_only=True), 400)


@cache
def some_plans() -> list[Plan]:
    return sample(plans(), 300)


@cache
def some_batches() -> list[DispatchArguments]:
    return sample(batches(SIZE_8), 300)


def is_refused(deployment: Deployment) -> bool:
    try:
        compile_plan(deployment)
    except PlanError:
        return True
    return False


@given(deployments(valid_only=True))
def test_valid_deployments_compile_for_the_v2_runner(deployment: Deployment) -> None:
    assert compile_plan(deployment).resolved["target"].runner is Runner.V2


@given(deployments())
def test_deployments_are_documents_that_users_could_write(deployment: Deployment) -> None:
    assert load_deployment(dump_deployment(deployment)) == deployment


def test_deployments_include_some_that_the_engine_refuses() -> None:
    assert any(map(is_refused, sample(deployments(), 100)))


def test_every_mode_is_resolved_for_some_valid_deployment() -> None:
    modes = {compile_plan(deployment).resolved["target"].cudagraph_mode for deployment in valid_deployments()}
    assert modes == set(CUDAGraphMode)


def drafts(deployment: Deployment) -> SpeculativeSection:
    return deployment.speculative or SpeculativeSection()


SETTINGS: dict[str, tuple[Callable[[Deployment], object], set[object]]] = {
    "compilation.cudagraph_mode": (lambda d: d.compilation.cudagraph_mode, {None, *CUDAGraphMode}),
    "compilation.mode": (lambda d: d.compilation.mode, {None, *CompilationMode}),
    "model.attention_support": (lambda d: d.model.attention_support, {None, *AttentionSupport}),
    "speculative.attention_support": (lambda d: drafts(d).attention_support, {None, *AttentionSupport}),
    "engine.performance_mode": (lambda d: d.engine.performance_mode, {None, *PerformanceMode}),
    "speculative.method": (lambda d: drafts(d).method, {None, "eagle3", "mtp", "dflash", "ngram"}),
    "speculative.num_speculative_tokens": (lambda d: drafts(d).num_speculative_tokens, {1, 16}),
    "scheduler.max_num_seqs": (lambda d: d.scheduler.max_num_seqs, {None, 1, 1024}),
    "lora.specialize_active_lora": (lambda d: d.lora and d.lora.specialize_active_lora, {None, False, True}),
    "cudagraph_specialize_lora": (
        lambda d: d.lora and d.compilation.cudagraph_specialize_lora,
        {False, True},
    ),
    "model.enforce_eager": (lambda d: d.model.enforce_eager, {None, False, True}),
    "parallel.data_parallel_size": (lambda d: d.parallel.data_parallel_size, {None, 1, 2, 4}),
    "parallel.enable_dbo": (lambda d: d.parallel.enable_dbo, {None, True}),
    "device.compute_capability": (
        lambda d: d.device.compute_capability,
        {None, "7.5", "9.0", "10.0", "12.0"},
    ),
}


@pytest.mark.parametrize("path", SETTINGS)
def test_valid_deployments_reach_every_value_of(path: str) -> None:
    read, expected = SETTINGS[path]
    assert expected <= {read(deployment) for deployment in valid_deployments()}


COMBINED: dict[str, Callable[[Deployment], bool]] = {
    "a schedule": lambda d: drafts(d).num_speculative_tokens_per_batch_size is not None,
    "adaptive verification": lambda d: bool(drafts(d).enable_adaptive_verification),
    "odd sizes": lambda d: any(size % 2 and size > 8 for size in d.compilation.cudagraph_capture_sizes or ()),
    "sizes with their maximum": lambda d: (
        None not in (d.compilation.cudagraph_capture_sizes, d.compilation.max_cudagraph_capture_size)
    ),
    "adapters and drafts": lambda d: d.lora is not None and d.speculative is not None,
}


@pytest.mark.parametrize("feature", COMBINED)
def test_valid_deployments_include(feature: str) -> None:
    assert any(map(COMBINED[feature], valid_deployments()))


@given(plans())
def test_plans_have_no_error_and_are_of_the_v2_runner(plan: Plan) -> None:
    assert [finding for finding in verify(plan) if finding.severity == Severity.ERROR] == []
    assert all(isinstance(plan.dispatch_table(family), DispatchTable) for family in plan.graphs)


@given(plans())
def test_plans_have_the_batch_descriptors_that_reading_gives_them(plan: Plan) -> None:
    read = load_plan(dump_plan(plan))
    for family in plan.graphs:
        descriptors = [entry.batch_descriptor for entry in plan.entries(family)]
        assert descriptors == [entry.batch_descriptor for entry in read.entries(family)]


def by_hand(condition: Callable[[PlanEntry], bool]) -> Callable[[Plan], bool]:
    """Whether a plan is written by hand and has such an entry."""
    return lambda plan: (
        not plan.resolved and any(condition(entry) for graph in plan.graphs.values() for entry in graph)
    )


PLANNED: dict[str, Callable[[Plan], bool]] = {
    "compiled graphs": lambda plan: bool(plan.resolved and plan.graphs["target"]),
    "pieces": by_hand(lambda entry: entry.mode is PIECEWISE),
    "uniform decode": by_hand(lambda entry: entry.uniform_token_count is not None),
    "a bounded query length": by_hand(lambda entry: entry.max_query_len is not None),
    "adapters": by_hand(lambda entry: entry.num_active_loras > 0),
    "microbatches": by_hand(lambda entry: entry.num_ubatches > 1),
    "prologues": by_hand(lambda entry: entry.prologue is not None),
    "a bad order": lambda plan: any(finding.code == "capture-order" for finding in verify(plan)),
}


@pytest.mark.parametrize("feature", PLANNED)
def test_plans_include(feature: str) -> None:
    assert any(map(PLANNED[feature], some_plans()))


@given(st.data(), plans())
def test_a_runner_could_form_every_batch(data: st.DataObject, plan: Plan) -> None:
    family = data.draw(st.sampled_from(sorted(plan.graphs)))
    batch = data.draw(batches(plan, family))
    reqs, tokens, uniform = batch["num_reqs"], batch["num_tokens"], batch["uniform_token_count"]
    assert 1 <= reqs <= tokens
    resolved = plan.resolved.get(family)
    if resolved is not None:
        assert reqs <= (resolved.max_num_seqs or reqs)
        assert reqs <= (resolved.max_num_active_seqs or reqs)
        assert tokens <= (resolved.max_num_batched_tokens or tokens)
    longest = batch["max_query_len"]
    if uniform is not None:
        assert (tokens, longest) == (reqs * uniform, uniform)
    elif longest is not None:
        # One request has the longest query and not all of them do.
        assert longest + reqs - 1 <= tokens < reqs * longest


@pytest.mark.parametrize("index", range(len(SIZE_8.entries())))
def test_some_batch_reaches_each_entry(index: int) -> None:
    table = SIZE_8.dispatch_table()
    assert isinstance(table, DispatchTable)
    descriptor = SIZE_8.entries()[index].execution_descriptor
    assert any(table.dispatch(**batch) == descriptor for batch in some_batches())


def test_some_batch_is_one_token_too_large_for_any_entry() -> None:
    assert any(batch["num_tokens"] == 9 for batch in some_batches())


def test_some_batch_decodes_with_mixed_query_lengths() -> None:
    lengths = [(batch["uniform_token_count"], batch["max_query_len"]) for batch in some_batches()]
    assert any(uniform is None and longest is not None for uniform, longest in lengths)


def test_batches_of_an_unknown_family_are_refused() -> None:
    with pytest.raises(FamilyError, match=r"graphs\.draft: .*it has: target"):
        batches(SIZE_8, "draft")


def test_batches_of_the_v1_runner_are_refused() -> None:
    resolved = {"target": ResolvedFamily(runner=Runner.V1, cudagraph_mode=FULL)}
    with pytest.raises(FamilyError, match="v1 runner"):
        batches(evolve(SIZE_8, resolved=resolved))


def test_without_hypothesis_one_line_says_what_to_install() -> None:
    program = "import sys; sys.modules['hypothesis'] = None; import planner.testing"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = run.stderr.splitlines()[-1]
    assert last.startswith("planner.errors.MachineError: planner.testing needs hypothesis")
    assert last.endswith("pip install 'graphplan[test]'")
