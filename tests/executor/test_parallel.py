from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import ContextError
from executor.parallel import SEQUENCE_PARALLEL_BACKENDS, ParallelInfo
from planner import ArgumentError, Deployment, PlanError, compile_plan, load_deployment

DEPLOYMENTS = Path(__file__).parents[2] / "plans" / "deployments"

SHARING = {
    "tensor_parallel_size": 2,
    "data_parallel_size": 2,
    "enable_expert_parallel": True,
    "is_moe_model": True,
}
"""Experts whose tokens are shared out over the default backend."""


def deployment(**parallel: Any) -> Deployment:
    return load_deployment(
        {"apiVersion": "graphplan/v1", "kind": "Deployment", "parallel": parallel},
    )


def test_one_rank_is_the_default() -> None:
    info = ParallelInfo()
    assert (info.data_parallel_size, info.data_parallel_rank, info.tensor_parallel_size) == (1, 0, 1)
    assert info.is_moe_model is None
    assert not info.use_sequence_parallel_moe
    assert (dict(info.no_compile_layers), info.all_moe_layers) == ({}, None)


def test_a_deployment_without_a_parallel_section_is_one_rank() -> None:
    assert ParallelInfo.of(deployment()) == ParallelInfo()


def test_sizes_and_rank_are_those_of_the_deployment() -> None:
    info = ParallelInfo.of(
        deployment(tensor_parallel_size=4, data_parallel_size=3, is_moe_model=True), rank=2
    )
    assert (info.data_parallel_size, info.data_parallel_rank, info.tensor_parallel_size) == (3, 2, 4)


def test_ranks_of_a_dense_model_serve_by_themselves() -> None:
    info = ParallelInfo.of(deployment(data_parallel_size=4, is_moe_model=False), rank=3)
    assert (info.data_parallel_size, info.data_parallel_rank, info.is_moe_model) == (1, 0, False)


def test_ranks_of_an_unknown_model_agree_on_steps() -> None:
    info = ParallelInfo.of(deployment(data_parallel_size=4), rank=3)
    assert (info.data_parallel_size, info.data_parallel_rank, info.is_moe_model) == (4, 3, None)


@pytest.mark.parametrize("path", sorted(DEPLOYMENTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_deployments_have_as_many_ranks_as_their_plans(path: Path) -> None:
    shipped = load_deployment(path)
    info = ParallelInfo.of(shipped)
    assert info.data_parallel_size == compile_plan(shipped).resolved["target"].data_parallel_size
    assert info.tensor_parallel_size == (shipped.parallel.tensor_parallel_size or 1)


@pytest.mark.parametrize(
    ("name", "is_moe"), [("qwen3-30b-a3b-dbo", True), ("mixtral-8x7b-offline", True), ("gemma-3-27b", False)]
)
def test_the_models_config_says_whether_it_has_experts(name: str, is_moe: bool) -> None:
    assert ParallelInfo.of(load_deployment(DEPLOYMENTS / f"{name}.yaml")).is_moe_model is is_moe


def test_expert_tokens_are_shared_out_over_the_default_backend() -> None:
    assert ParallelInfo.of(deployment(**SHARING)).use_sequence_parallel_moe


@pytest.mark.parametrize(
    "change",
    [
        {"tensor_parallel_size": 1},
        {"data_parallel_size": 1},
        {"enable_expert_parallel": False},
        {"is_moe_model": False},
        {"all2all_backend": "naive"},
        {"all2all_backend": "pplx"},
        {"all2all_backend": "moonep"},
        {"all2all_backend": "flashinfer_nvlink_two_sided"},
    ],
    ids=str,
)
def test_expert_tokens_stay_whole_where_one_condition_fails(change: dict[str, Any]) -> None:
    assert not ParallelInfo.of(deployment(**(SHARING | change))).use_sequence_parallel_moe


@given(
    backend=st.sampled_from(sorted(SEQUENCE_PARALLEL_BACKENDS)), tp=st.integers(1, 3), dp=st.integers(1, 3)
)
def test_every_listed_backend_shares_out_over_several_ranks_of_both_kinds(
    backend: str, tp: int, dp: int
) -> None:
    chosen = {"all2all_backend": backend, "tensor_parallel_size": tp, "data_parallel_size": dp}
    info = ParallelInfo.of(deployment(**(SHARING | chosen)))
    assert info.use_sequence_parallel_moe == (tp > 1 and dp > 1)


@pytest.mark.parametrize("rank", [-1, 2, True, 1.0, None], ids=repr)
def test_a_rank_that_the_deployment_does_not_have_is_refused(rank: Any) -> None:
    with pytest.raises(ContextError, match="give 0 to 1"):
        ParallelInfo.of(deployment(data_parallel_size=2), rank=rank)


def test_a_rank_beyond_those_of_a_dense_model_is_refused_too() -> None:
    with pytest.raises(ContextError, match="give 0 to 1"):
        ParallelInfo.of(deployment(data_parallel_size=2, is_moe_model=False), rank=2)


@pytest.mark.parametrize("name", ["data_parallel_size", "tensor_parallel_size"])
@pytest.mark.parametrize("size", [0, -1, True, "2", None], ids=repr)
def test_sizes_are_integers_of_one_or_more(name: str, size: Any) -> None:
    with pytest.raises(ContextError, match=name):
        ParallelInfo(**{name: size})


def test_a_plan_in_place_of_its_deployment_is_refused_with_what_to_do() -> None:
    plan: Any = compile_plan(deployment())
    with pytest.raises(ArgumentError, match=r"plan\.deployment"):
        ParallelInfo.of(plan)


def test_a_deployment_that_the_engine_would_refuse_is_refused() -> None:
    refused = load_deployment(
        {"apiVersion": "graphplan/v1", "kind": "Deployment", "engine": {"name": "other"}},
    )
    with pytest.raises(PlanError, match="other"):
        ParallelInfo.of(refused)
