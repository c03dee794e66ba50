"""Steps of a target: whatever dispatch chooses, the result is that of an eager step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.check import check_factory
from executor.context import get_forward_context
from executor.errors import InputError
from executor.inputs.attention import attention_groups
from executor.inputs.batch import ScheduledBatch
from executor.manager import CudaGraphManager
from executor.models.config import DecoderConfig
from executor.models.qwen3 import Decoder, build_decoder
from executor.parallel import ParallelInfo
from executor.runner import TargetRunner
from executor.steps import StepOutput
from executor.verify import verify_entries
from planner import Plan, agree, load_plan
from planner.batches import Agreement
from planner.descriptors import BatchExecutionDescriptor
from planner.modes import CUDAGraphMode
from tests.executor.serving import capture, is_poisoned, poison, target_runner

BY_HAND = ["small-decode.yaml", "dflash-prologue.yaml", "two-microbatches.yaml", "lora-cases.yaml"]
COMPILED = [
    "qwen3-8b-dflash.yaml",
    "llama-3.1-8b-24gb.yaml",
    "qwen3-0.6b-interactive.yaml",
    "qwen3-30b-a3b-dbo.yaml",
    "llama-3.1-70b-eagle3-v1.yaml",
]
SMALL = "plans/small-decode.yaml"


def model_of(aux: tuple[int, ...] = (0,)) -> Decoder:
    config = DecoderConfig.from_file("plans/models/qwen3-0.6b/config.json")
    return build_decoder(config.shrunk(hidden=32, intermediate=48, head_dim=8), aux_layer_ids=aux, std=0.2)


def pair_of(plan: Plan, **options: Any) -> tuple[TargetRunner, TargetRunner]:
    """Two runners of one model on caches of equal contents, with graphs and without."""
    model = model_of()
    runners = target_runner(plan, model, **options), target_runner(plan, model, graphs=False, **options)
    for runner in runners:
        runner.kv_cache.randomize()
    return runners


def assert_same(found: StepOutput, expected: StepOutput) -> None:
    torch.testing.assert_close(found.hidden_states, expected.hidden_states, rtol=1e-4, atol=1e-5)
    for one, two in zip(found.aux_hidden_states, expected.aux_hidden_states, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def check_every_entry(path: Path) -> None:
    plan = load_plan(path)
    graphs, eager = pair_of(plan, num_blocks=600, max_model_len=32)
    for entry in plan.entries("target"):
        desc = entry.execution_descriptor
        batch = graphs.trials.batch(desc, seed=entry.num_tokens)
        found = graphs.step(batch, Agreement(desc))
        assert found.mode is entry.mode
        assert_same(found, eager.step(batch))


@pytest.mark.parametrize("name", BY_HAND)
def test_every_entry_of_a_plan_written_by_hand_gives_the_eager_result(name: str) -> None:
    check_every_entry(Path("plans") / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_every_entry_of_a_shipped_plan_gives_the_eager_result(name: str) -> None:
    check_every_entry(Path("plans/compiled") / name)


@pytest.mark.parametrize("name", ["small-decode.yaml", "two-microbatches.yaml"])
def test_the_verifier_finds_every_entry_right(name: str) -> None:
    graphs, _ = pair_of(load_plan(Path("plans") / name))
    assert graphs.manager is not None
    verdicts = verify_entries(
        graphs.manager, graphs.create_forward_fn, graphs.trials.fill, graphs.trials.replay_context
    )
    assert len(verdicts) == len(graphs.manager.entries)
    assert all(verdict.ok for verdict in verdicts)


@pytest.mark.parametrize("name", BY_HAND)
def test_the_capture_check_finds_nothing_in_any_entry(name: str) -> None:
    plan = load_plan(Path("plans") / name)
    runner = target_runner(plan, model_of(), graphs=False)
    assert not check_factory(runner.create_forward_fn, plan.entries("target")).findings


def stream(seed: int, most_reqs: int, most_tokens: int, steps: int) -> list[ScheduledBatch]:
    """Random batches, some uniform and some not; all sizes up and down again come first."""
    draw = random.Random(seed)
    sizes = [*range(1, most_reqs + 1), *range(most_reqs, 0, -1)]
    shapes = [[1] * size for size in sizes]
    for _ in range(steps):
        reqs = draw.randint(1, most_reqs)
        longest = most_tokens // reqs
        shapes.append([draw.randint(1, longest) for _ in range(reqs)])
        shapes.append([draw.randint(1, min(longest, 8))] * reqs)
    return [_batch(draw, shape) for shape in shapes]


def _batch(draw: random.Random, lengths: list[int]) -> ScheduledBatch:
    blocks = list(range(1, 96))
    draw.shuffle(blocks)
    computed = [draw.randint(0, 12) for _ in lengths]
    spans = [-(-(a + b) // 8) for a, b in zip(computed, lengths, strict=True)]
    return ScheduledBatch(
        tuple(tuple(draw.randrange(128) for _ in range(length)) for length in lengths),
        tuple(computed),
        tuple(tuple(blocks.pop() for _ in range(count)) for count in spans),
    )


@pytest.mark.parametrize("name", ["small-decode.yaml", "dflash-prologue.yaml"])
def test_every_batch_of_a_random_stream_gives_the_eager_result(name: str) -> None:
    graphs, eager = pair_of(load_plan(Path("plans") / name), max_num_tokens=96)
    modes = set()
    for batch in stream(7, 5, 72, 20):
        found = graphs.step(batch)
        modes.add(found.mode)
        assert_same(found, eager.step(batch))
    assert modes == {CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE}


def test_caches_are_the_same_with_graphs_and_without() -> None:
    graphs, eager = pair_of(load_plan(SMALL))
    for batch in stream(3, 4, 64, 5):
        graphs.step(batch)
        eager.step(batch)
    for name, layer in graphs.kv_cache.layers.items():
        torch.testing.assert_close(layer.key, eager.kv_cache.layers[name].key, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.value, eager.kv_cache.layers[name].value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BY_HAND)
def test_capture_writes_to_no_cache(name: str) -> None:
    assert is_poisoned(target_runner(load_plan(Path("plans") / name), model_of()).kv_cache)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (5, 2), (40, 1)])
def test_padding_rows_write_nothing(lengths: tuple[int, ...]) -> None:
    runner = target_runner(load_plan(SMALL), model_of())
    batch = _batch(random.Random(1), list(lengths))
    fresh = ScheduledBatch(batch.token_ids, (0,) * len(lengths), batch.block_ids)
    for _ in range(2):
        poison(runner.kv_cache)
        runner.step(fresh)
        for layer in runner.kv_cache.layers.values():
            written = layer.key.isfinite().all(dim=(2, 3)).sum()
            assert written == fresh.num_tokens


def test_an_empty_batch_takes_part_and_changes_nothing() -> None:
    runner = target_runner(load_plan(SMALL), model_of())
    for entry in runner.plan.entries("target"):
        output = runner.step(ScheduledBatch((), (), ()), Agreement(entry.execution_descriptor))
        assert output.hidden_states.shape[0] == 0
    assert is_poisoned(runner.kv_cache)


def dp_runner(plan: Plan, model: Decoder, rank: int) -> TargetRunner:
    parallel = ParallelInfo(data_parallel_size=2, data_parallel_rank=rank, is_moe_model=True)
    plain = target_runner(plan, model, graphs=False)
    manager = CudaGraphManager(plan, device="cpu", parallel=parallel)
    runner = TargetRunner(
        plan, model, plain.kv_cache_config, "cpu", manager, parallel=parallel, max_model_len=96
    )
    capture(manager.capture, runner.create_forward_fn)
    return runner


@pytest.mark.parametrize("reqs", [(1, 3), (4, 0), (2, 2), (3, 40)])
def test_two_unequal_ranks_agree_and_each_gives_its_eager_result(reqs: tuple[int, int]) -> None:
    plan, model = load_plan(SMALL), model_of()
    ranks = [dp_runner(plan, model, rank) for rank in range(2)]
    draw = random.Random(5)
    batches = [_batch(draw, [1] * count) for count in reqs]
    # A rank without work joins with one token that nobody asked for.
    described = [
        {"num_reqs": count or 1, "num_tokens": count or 1, "uniform_token_count": 1} for count in reqs
    ]
    seen: list[Any] = []
    hook = model.register_forward_pre_hook(lambda *_: seen.append(get_forward_context().dp_metadata))
    try:
        agreed = agree(plan.dispatch_table("target"), described)
        outputs = [
            rank.step(*each) for rank, each in zip(ranks, zip(batches, agreed, strict=True), strict=True)
        ]
    finally:
        hook.remove()
    assert len({output.mode for output in outputs}) == 1
    for metadata in seen:
        assert metadata.num_tokens_across_dp_cpu.tolist() == list(agreed[0].num_tokens_across_dp or ())
    eager = target_runner(plan, model, graphs=False)
    for batch, output in zip(batches, outputs, strict=True):
        if batch.num_reqs:
            torch.testing.assert_close(output.hidden_states, _fresh(eager, batch), rtol=1e-4, atol=1e-5)


def _fresh(eager: TargetRunner, batch: ScheduledBatch) -> torch.Tensor:
    """The eager result on a cache of zeros, as the ranks' caches were."""
    for layer in eager.kv_cache.layers.values():
        layer.key.zero_()
        layer.value.zero_()
    return eager.step(batch).hidden_states


def test_the_context_of_pieces_describes_the_graph() -> None:
    runner = target_runner(load_plan("plans/lora-cases.yaml"), model_of(), graphs=False)
    for entry in runner.plan.entries("target"):
        with runner.trials.replay_context(entry.execution_descriptor) as context:
            if entry.mode is CUDAGraphMode.PIECEWISE:
                assert context.batch_descriptor == entry.batch_descriptor
            assert context.cudagraph_runtime_mode is entry.mode
            assert context.is_padding is not None
            assert len(context.is_padding) == entry.num_tokens


def test_a_request_beyond_the_models_length_is_refused() -> None:
    runner = target_runner(load_plan(SMALL), model_of(), graphs=False, max_model_len=16)
    with pytest.raises(InputError, match="17 tokens; the cache's max_model_len is 16"):
        runner.step(ScheduledBatch(((1,),), (16,), ((1, 2),)))


def test_a_batch_beyond_the_buffers_is_refused() -> None:
    runner = target_runner(load_plan(SMALL), model_of(), graphs=False)
    with pytest.raises(InputError, match="65 tokens"):
        runner.step(ScheduledBatch(((1,) * 65,), (0,), (tuple(range(1, 10)),)))


def test_a_graph_without_a_manager_is_refused() -> None:
    runner = target_runner(load_plan(SMALL), model_of(), graphs=False)
    desc = BatchExecutionDescriptor(CUDAGraphMode.FULL, 4, 4, 1)
    with pytest.raises(InputError, match="no manager"):
        runner.step(ScheduledBatch(((1,),), (0,), ((1,),)), Agreement(desc))


def test_a_model_without_a_cache_is_refused() -> None:
    runner = target_runner(load_plan(SMALL), model_of(), graphs=False)
    with pytest.raises(InputError, match="elsewhere has no KV cache"):
        attention_groups(runner.kv_cache_config, ["elsewhere"])
