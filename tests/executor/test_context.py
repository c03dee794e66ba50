from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeAlias

import pytest
import torch
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from executor.context import (
    ForwardContext,
    get_forward_context,
    is_forward_context_available,
    override_forward_context,
    set_forward_context,
)
from executor.errors import ContextError
from executor.parallel import ParallelInfo
from planner import ArgumentError, BatchDescriptor, CUDAGraphMode, load_deployment
from planner.rules.ubatch_slices import UbatchSlice

ONE = ParallelInfo()
TWO = ParallelInfo(data_parallel_size=2, data_parallel_rank=1)
SHARING = ParallelInfo(use_sequence_parallel_moe=True)
HALVES = (UbatchSlice(0, 2, 0, 4), UbatchSlice(2, 4, 4, 8))


def slots(*values: int) -> dict[str, torch.Tensor]:
    return {"layer": torch.tensor(values)}


def across(*tokens: int) -> torch.Tensor:
    return torch.tensor(tokens, dtype=torch.int32)


def marked(value: Any) -> ForwardContext:
    return ForwardContext({}, None, {}, additional_kwargs={"value": value})


# Fields


def test_a_context_has_the_reference_engines_fields() -> None:
    assert [field.name for field in fields(ForwardContext)] == [
        "no_compile_layers",
        "attn_metadata",
        "slot_mapping",
        "dp_metadata",
        "cudagraph_runtime_mode",
        "batch_descriptor",
        "ubatch_slices",
        "is_padding",
        "skip_compiled",
        "all_moe_layers",
        "moe_layer_index",
        "additional_kwargs",
    ]


def test_every_argument_is_found_in_the_context() -> None:
    parallel = ParallelInfo(
        data_parallel_size=2,
        data_parallel_rank=1,
        no_compile_layers={"layer": object()},
        all_moe_layers=("first",),
    )
    metadata, mapping = [{"layer": 1}, {"layer": 2}], [slots(1), slots(2)]
    descriptor, padding = BatchDescriptor(8, 4, uniform=True), torch.zeros(8, dtype=torch.bool)
    tokens = across(5, 8)
    with set_forward_context(
        metadata,
        parallel,
        8,
        tokens,
        CUDAGraphMode.PIECEWISE,
        descriptor,
        HALVES,
        mapping,
        skip_compiled=True,
        is_padding=padding,
    ) as context:
        assert get_forward_context() is context
    assert context.no_compile_layers is parallel.no_compile_layers
    assert context.attn_metadata is metadata
    assert context.slot_mapping is mapping
    assert context.dp_metadata is not None
    assert context.dp_metadata.num_tokens_across_dp_cpu is tokens
    assert context.cudagraph_runtime_mode is CUDAGraphMode.PIECEWISE
    assert context.batch_descriptor is descriptor
    assert context.ubatch_slices is HALVES
    assert context.skip_compiled
    assert context.is_padding is padding
    assert (context.all_moe_layers, context.moe_layer_index) == (("first",), 0)
    assert context.additional_kwargs == {}


def test_what_is_not_given_is_off() -> None:
    with set_forward_context(None, ONE) as context:
        pass
    assert context.attn_metadata is None
    assert context.slot_mapping == {}
    assert context.dp_metadata is None
    assert context.cudagraph_runtime_mode is CUDAGraphMode.NONE
    assert context.batch_descriptor is None
    assert context.ubatch_slices is None
    assert context.is_padding is None
    assert not context.skip_compiled
    assert context.all_moe_layers is None


@pytest.mark.parametrize("nothing", [None, {}, []], ids=repr)
def test_no_slot_mapping_is_an_empty_one(nothing: Any) -> None:
    with set_forward_context({"layer": 1}, ONE, slot_mapping=nothing) as context:
        assert context.slot_mapping == {}


def test_a_users_own_values_belong_to_one_context() -> None:
    with set_forward_context(None, ONE) as first:
        first.additional_kwargs["value"] = 1
    with set_forward_context(None, ONE) as second:
        assert second.additional_kwargs == {}


@pytest.mark.parametrize("mode", sorted(CUDAGraphMode.valid_runtime_modes(), key=str), ids=str)
def test_a_step_without_descriptor_is_described_by_its_tokens_in_every_mode(mode: CUDAGraphMode) -> None:
    with set_forward_context(None, ONE, 12, cudagraph_runtime_mode=mode) as context:
        assert context.batch_descriptor == BatchDescriptor(12)


def test_without_tokens_a_descriptor_is_kept_as_it_is() -> None:
    with set_forward_context(None, ONE, batch_descriptor=BatchDescriptor(16, 2)) as context:
        assert context.batch_descriptor == BatchDescriptor(16, 2)


@pytest.mark.parametrize(
    "mode", [CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL_DECODE_ONLY, "FULL", None]
)
def test_a_mode_that_no_step_runs_in_is_refused(mode: Any) -> None:
    with pytest.raises(ContextError, match="NONE, PIECEWISE or FULL"):
        ForwardContext({}, None, {}, cudagraph_runtime_mode=mode)
    with (
        pytest.raises(ContextError, match="NONE, PIECEWISE or FULL"),
        set_forward_context(None, ONE, cudagraph_runtime_mode=mode),
    ):
        pass
    assert not is_forward_context_available()


@pytest.mark.parametrize("num_tokens", [-1, 2**31, True, 1.0, "8"], ids=repr)
@pytest.mark.parametrize("parallel", [ONE, SHARING], ids=["one", "sharing"])
def test_a_number_of_tokens_that_no_step_has_is_refused(num_tokens: Any, parallel: ParallelInfo) -> None:
    with pytest.raises(ContextError, match="num_tokens is"), set_forward_context(None, parallel, num_tokens):
        pass


def test_a_deployment_in_place_of_parallel_info_is_refused_with_what_to_do() -> None:
    deployment: Any = load_deployment({"apiVersion": "graphplan/v1", "kind": "Deployment"})
    with pytest.raises(ArgumentError, match=r"ParallelInfo\.of"), set_forward_context(None, deployment):
        pass


# Microbatches


def test_one_map_for_the_whole_step_goes_with_microbatches() -> None:
    context = ForwardContext({}, {"layer": 1}, slots(1), ubatch_slices=HALVES)
    assert context.attn_metadata == {"layer": 1}


@pytest.mark.parametrize("number", [0, 1, 3])
def test_lists_hold_one_map_a_microbatch(number: int) -> None:
    with pytest.raises(ContextError, match=f"ubatch_slices has 2, attn_metadata has {number}"):
        ForwardContext({}, [{}] * number, {}, ubatch_slices=HALVES)
    with pytest.raises(ContextError, match=f"ubatch_slices has 2, slot_mapping has {number}"):
        ForwardContext({}, None, [{}] * number, ubatch_slices=HALVES)


def test_lists_of_different_lengths_are_refused_without_slices_too() -> None:
    with pytest.raises(ContextError, match="attn_metadata has 2, slot_mapping has 1"):
        ForwardContext({}, [{}, {}], [{}])


@pytest.mark.parametrize("wrong", [7, "layer", [{}, None], [{}, 7]], ids=repr)
def test_values_that_are_no_maps_are_refused(wrong: Any) -> None:
    with pytest.raises(ContextError, match="attn_metadata holds a value of type"):
        ForwardContext({}, wrong, {})
    with pytest.raises(ContextError, match="slot_mapping holds a value of type"):
        ForwardContext({}, None, wrong)


# Expert layers


def test_expert_layers_are_named_in_order_and_anew_in_every_context() -> None:
    parallel = ParallelInfo(all_moe_layers=("first", "second"))
    for _ in range(2):
        with set_forward_context(None, parallel) as context:
            assert [context.next_moe_layer(), context.next_moe_layer()] == ["first", "second"]
            assert context.moe_layer_index == 2
            with pytest.raises(ContextError, match="names 2"):
                context.next_moe_layer()
            assert context.moe_layer_index == 2


def test_expert_layers_that_are_not_named_are_an_error() -> None:
    with (
        set_forward_context(None, ONE) as context,
        pytest.raises(ContextError, match="names no expert layers"),
    ):
        context.next_moe_layer()


# Tokens of other ranks


@pytest.mark.parametrize("is_moe", [None, True, False])
@pytest.mark.parametrize(("ranks", "shares_out"), [(1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize(("metadata", "num_tokens"), [(None, None), (None, 6), ({}, 6), ({"layer": 1}, 6)])
def test_tokens_of_all_ranks_are_known_where_experts_exchange_them(
    is_moe: bool | None, ranks: int, shares_out: bool, metadata: dict[str, int] | None, num_tokens: int | None
) -> None:
    parallel = ParallelInfo(
        data_parallel_size=ranks, is_moe_model=is_moe, use_sequence_parallel_moe=shares_out
    )
    given_tokens = across(6, 9) if ranks == 2 else None
    with set_forward_context(metadata, parallel, num_tokens, given_tokens) as context:
        if num_tokens is None or is_moe is False or (ranks == 1 and not shares_out):
            assert context.dp_metadata is None
        else:
            assert context.dp_metadata is not None
            known = context.dp_metadata.num_tokens_across_dp_cpu
            assert known.tolist() == [6, 9][:ranks]
            assert (known.dtype, known.device.type) == (torch.int32, "cpu")


def test_an_idle_rank_needs_no_number_of_tokens() -> None:
    with set_forward_context({}, TWO, num_tokens_across_dp=across(4, 0)) as context:
        assert context.dp_metadata is not None


def test_a_rank_with_tokens_says_how_many() -> None:
    with (
        pytest.raises(ContextError, match=r"num_tokens_across_dp\[1\] is 3, .* 0 tokens"),
        set_forward_context({}, TWO, num_tokens_across_dp=across(4, 3)),
    ):
        pass


@pytest.mark.parametrize("num_tokens", [None, 4])
def test_several_ranks_without_the_vector_are_told_to_give_it(num_tokens: int | None) -> None:
    with (
        pytest.raises(ContextError, match="give num_tokens_across_dp"),
        set_forward_context({}, TWO, num_tokens),
    ):
        pass
    assert not is_forward_context_available()


def test_one_rank_of_sequence_parallel_experts_gives_its_tokens() -> None:
    with pytest.raises(ContextError, match="give num_tokens"), set_forward_context({}, SHARING):
        pass


# Nesting


def test_without_a_block_there_is_no_context() -> None:
    assert not is_forward_context_available()
    with pytest.raises(ContextError, match="set_forward_context"):
        get_forward_context()


def test_override_sets_the_very_context_and_none_hides_the_outer_one() -> None:
    own = marked(1)
    with set_forward_context(None, ONE) as outer:
        with override_forward_context(own):
            assert get_forward_context() is own
            with override_forward_context(None):
                assert not is_forward_context_available()
            assert get_forward_context() is own
        assert get_forward_context() is outer


@pytest.mark.parametrize("wrong", [{}, 7, CUDAGraphMode.NONE], ids=repr)
def test_override_takes_a_context_or_none(wrong: Any) -> None:
    with pytest.raises(ContextError, match="no ForwardContext"), override_forward_context(wrong):
        pass
    assert not is_forward_context_available()


Blocks: TypeAlias = tuple[str, bool, list[Any]]
"""How a block is entered, whether an exception leaves it, and the blocks within."""

BLOCKS = st.recursive(
    st.builds(list[Any]),
    lambda inner: st.lists(
        st.tuples(st.sampled_from(["set", "override", "hide", "refuse"]), st.booleans(), inner), max_size=3
    ),
    max_leaves=12,
)


def current() -> ForwardContext | None:
    return get_forward_context() if is_forward_context_available() else None


def enter(kind: str) -> Any:
    if kind == "set":
        return set_forward_context(None, ONE)
    if kind == "refuse":
        return set_forward_context({}, TWO)
    return override_forward_context(marked(0) if kind == "override" else None)


def run_blocks(blocks: list[Blocks]) -> None:
    for kind, fails, inner in blocks:
        before = current()
        leaves = (
            pytest.raises((ContextError, ZeroDivisionError)) if fails or kind == "refuse" else nullcontext()
        )
        with leaves, enter(kind):
            within = current()
            assert (within is None) == (kind == "hide")
            assert within is None or within is not before
            run_blocks(inner)
            assert current() is within
            if fails:
                raise ZeroDivisionError
        assert current() is before


@given(blocks=BLOCKS)
def test_whatever_the_nesting_what_was_there_is_back_afterwards(blocks: list[Blocks]) -> None:
    run_blocks(blocks)
    assert current() is None


def test_a_block_left_out_of_order_is_an_error() -> None:
    def suspended() -> Generator[None, None, None]:
        with set_forward_context(None, ONE):
            yield

    def leave_the_outer_block_first() -> None:
        generator = suspended()
        next(generator)
        with set_forward_context(None, ONE) as own:
            with pytest.raises(ContextError, match="reverse order"):
                generator.close()
            assert get_forward_context() is own

    with ThreadPoolExecutor(1) as pool:  # what it leaks goes with its thread
        pool.submit(leave_the_outer_block_first).result()


# Threads


def test_a_thread_inherits_no_context() -> None:
    with set_forward_context(None, ONE), ThreadPoolExecutor(1) as pool:
        assert not pool.submit(is_forward_context_available).result()


def test_threads_at_the_same_time_see_their_own_contexts_only() -> None:
    number, rounds = 4, 20
    barrier = threading.Barrier(number, timeout=30)

    def work(index: int) -> list[int]:
        seen = []
        for step in range(rounds):
            with set_forward_context(None, ONE, index * rounds + step) as own:
                barrier.wait()
                descriptor = get_forward_context().batch_descriptor
                assert get_forward_context() is own
                assert descriptor is not None
                seen.append(descriptor.num_tokens)
                barrier.wait()
        return seen

    with ThreadPoolExecutor(number) as pool:
        seen = list(pool.map(work, range(number)))
    assert seen == [list(range(index * rounds, (index + 1) * rounds)) for index in range(number)]
    assert not is_forward_context_available()


def test_a_thread_that_fails_leaves_the_others_alone() -> None:
    def fail() -> None:
        with set_forward_context(None, ONE):
            raise RuntimeError("worker")

    with set_forward_context(None, ONE) as own, ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="worker"):
            pool.submit(fail).result()
        assert not pool.submit(is_forward_context_available).result()
        assert get_forward_context() is own


def test_a_block_that_another_thread_leaves_is_an_error_there() -> None:
    block = set_forward_context(None, ONE)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(block.__enter__).result()
        with pytest.raises(ContextError, match="this thread"):
            block.__exit__(None, None, None)
    assert not is_forward_context_available()


# Compiled models


class Reader(torch.nn.Module):
    """Adds what the context holds, and computes ahead of reading it and behind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        return doubled + get_forward_context().additional_kwargs["value"]


class ExpertReader(torch.nn.Module):
    """Adds a weight for each of two expert layers, chosen by the names in the context."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = {"first": 1.0, "second": 10.0, "third": 100.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        context = get_forward_context()
        x = x + self.weights[context.next_moe_layer()]
        return x * 2 + self.weights[context.next_moe_layer()]


@pytest.fixture(params=["eager", "aot_eager"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    torch.compiler.reset()
    yield request.param
    torch.compiler.reset()


@pytest.mark.parametrize("as_tensor", [True, False], ids=["tensor", "number"])
def test_a_compiled_model_reads_the_context_of_every_call(backend: str, as_tensor: bool) -> None:
    model = torch.compile(Reader(), backend=backend)
    for value in (1.0, 2.0, 2.0, -3.0, 1.0):
        with override_forward_context(marked(torch.tensor(value) if as_tensor else value)), torch.no_grad():
            assert model(torch.ones(2)).tolist() == [2 + value] * 2


def test_a_compiled_model_computes_on_both_sides_of_the_context() -> None:
    torch.compiler.reset()
    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = torch.compile(Reader(), backend=counting)
    for value in (1.0, 2.0, 3.0):
        with override_forward_context(marked(torch.tensor(value))), torch.no_grad():
            assert model(torch.ones(2)).tolist() == [2 + value] * 2
    assert len(graphs) == 2
    torch.compiler.reset()


def test_a_compiled_model_reads_the_fields_of_a_step(backend: str) -> None:
    class Slots(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            context = get_forward_context()
            assert isinstance(context.slot_mapping, dict)
            x = x + context.slot_mapping["layer"]
            return -x if context.skip_compiled else x

    model = torch.compile(Slots(), backend=backend)
    for value in range(3):
        for skip in (False, True):
            with (
                set_forward_context(None, ONE, 2, slot_mapping=slots(value, value + 1), skip_compiled=skip),
                torch.no_grad(),
            ):
                sign = -1 if skip else 1
                assert model(torch.zeros(2)).tolist() == [sign * value, sign * (value + 1)]


def test_a_compiled_model_names_its_expert_layers_from_the_context(backend: str) -> None:
    model = torch.compile(ExpertReader(), backend=backend)
    for names, result in (
        (("first", "second"), 12.0),
        (("third", "first"), 201.0),
        (("first", "second"), 12.0),
    ):
        with set_forward_context(None, ParallelInfo(all_moe_layers=names)) as context, torch.no_grad():
            assert model(torch.zeros(1)).tolist() == [result]
            assert context.moe_layer_index == 2


def test_a_compiled_step_sets_its_own_context(backend: str) -> None:
    model = Reader()

    def step(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        with set_forward_context(None, ONE, 2) as context:
            context.additional_kwargs["value"] = value
            return model(x)

    compiled = torch.compile(step, backend=backend)
    for value in (1.0, 2.0):
        with torch.no_grad():
            assert compiled(torch.ones(2), torch.tensor(value)).tolist() == [2 + value] * 2
        assert not is_forward_context_available()


def test_a_compiled_model_without_context_is_told_so(backend: str) -> None:
    model = torch.compile(Reader(), backend=backend)
    with override_forward_context(marked(torch.tensor(1.0))), torch.no_grad():
        assert model(torch.ones(2)).tolist() == [3, 3]
    with pytest.raises(ContextError, match="set_forward_context"), torch.no_grad():
        model(torch.ones(2))


def test_a_model_that_must_compile_whole_is_refused_rather_than_frozen(backend: str) -> None:
    model = torch.compile(Reader(), backend=backend, fullgraph=True)
    with (
        override_forward_context(marked(torch.tensor(1.0))),
        torch.no_grad(),
        pytest.raises(Exception, match=r"torch\.compiler\.disable"),
    ):
        model(torch.ones(2))
