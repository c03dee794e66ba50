"""Drafting steps: the same proposals and the same cache with the prologue in a graph and without."""

from __future__ import annotations

import random

import pytest
import torch

from executor.draft_runner import DraftRunner, graph_context_tokens
from executor.errors import InputError
from executor.inputs.batch import ScheduledBatch
from executor.inputs.kv_cache import PAD_SLOT_ID
from executor.models.pairs import SpeculativePair, build_pair
from executor.steps import DraftBatch
from planner import load_plan
from planner.modes import CUDAGraphMode
from tests.executor.serving import dflash_plan, draft_runner, is_poisoned, poison, target_runner

NUM_TOKENS = 3


@pytest.fixture(scope="module")
def pair() -> SpeculativePair:
    return build_pair(NUM_TOKENS)


def runner_of(pair: SpeculativePair, *, graphs: bool) -> DraftRunner:
    plan = dflash_plan(NUM_TOKENS)
    target = target_runner(plan, pair.target, graphs=graphs, draft=pair.draft)
    return draft_runner(plan, pair.draft, target, NUM_TOKENS)


def step_of(seed: int, lengths: list[int], rejected: list[int]) -> tuple[DraftBatch, list[torch.Tensor]]:
    draw = random.Random(seed)
    blocks = list(range(1, 96))
    draw.shuffle(blocks)
    computed = [draw.randint(0, 12) for _ in lengths]
    spans = [-(-(a + b + 4) // 8) for a, b in zip(computed, lengths, strict=True)]
    step = ScheduledBatch(
        tuple((1,) * length for length in lengths),
        tuple(computed),
        tuple(tuple(blocks.pop() for _ in range(count)) for count in spans),
    )
    anchors = tuple(draw.randrange(47) for _ in lengths)
    generator = torch.Generator().manual_seed(seed)
    aux = [torch.randn(step.num_tokens, 128, generator=generator) for _ in range(2)]
    return DraftBatch(step=step, num_rejected=tuple(rejected), anchors=anchors), aux


SHAPES = {
    "one full verification": ([4], [2]),
    "fewer requests than the graph": ([4, 4, 4], [0, 3, 1]),
    "fewer rows than the graph": ([1, 2], [0, 1]),
    "more rows than the graph": ([30, 4], [0, 1]),
    "a boundary within a request": ([3, 9, 1, 2], [0, 2, 0, 1]),
    "no rows beyond": ([4, 4, 4, 4], [0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_graph_gives_the_proposals_and_the_cache_of_an_eager_step(pair: SpeculativePair, name: str) -> None:
    graphs, eager = (runner_of(pair, graphs=graphs) for graphs in (True, False))
    for runner in (graphs, eager):
        runner.kv_cache.randomize()
    for seed, (lengths, rejected) in enumerate((SHAPES[name], SHAPES["one full verification"], SHAPES[name])):
        batch, aux = step_of(seed, lengths, rejected)
        assert torch.equal(graphs.step(batch, aux), eager.step(batch, aux))
        for layer in pair.draft.layer_names:
            found, expected = (runner.kv_cache.layers[layer] for runner in (graphs, eager))
            torch.testing.assert_close(found.key, expected.key, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(found.value, expected.value, rtol=1e-4, atol=1e-4)


def test_capture_writes_nothing_and_samples_nothing(pair: SpeculativePair) -> None:
    runner = runner_of(pair, graphs=True)
    assert is_poisoned(runner.kv_cache)
    assert runner.buffers.draft_tokens.eq(-1).all()


@pytest.mark.parametrize("graphs", [True, False])
def test_only_rows_of_the_batch_are_stored(pair: SpeculativePair, graphs: bool) -> None:
    runner = runner_of(pair, graphs=graphs)
    larger, smaller = step_of(0, [4, 4, 4], [0, 0, 0]), step_of(1, [4, 1], [2, 0])
    runner.step(*larger)
    poison(runner.kv_cache)
    runner.step(*smaller)
    layer = runner.kv_cache.layers[pair.draft.layer_names[0]]
    written = layer.value.isfinite().all(dim=(2, 3)).sum()
    assert written == (4 - 2) + 1 + 2 * 4


@pytest.mark.parametrize("graphs", [True, False])
def test_the_inputs_are_those_of_the_rules(pair: SpeculativePair, graphs: bool) -> None:
    runner = runner_of(pair, graphs=graphs)
    step = ScheduledBatch(((1, 1, 1, 1), (1, 1)), (6, 3), ((5, 6), (7, 0)))
    aux = [torch.randn(6, 128) for _ in range(2)]
    runner.step(DraftBatch(step=step, num_rejected=(1, 0), anchors=(11, 12)), aux)
    inputs, buffers = runner.input_buffers, runner.buffers
    mask = pair.draft.draft_config.mask_token_id
    assert inputs.input_ids[:8].tolist() == [11, mask, mask, mask, 12, mask, mask, mask]
    assert inputs.positions[:8].tolist() == [9, 10, 11, 12, 5, 6, 7, 8]
    assert inputs.query_start_loc.tolist()[:4] == [0, 4, 8, 8]
    assert inputs.seq_lens.tolist()[:3] == [13, 9, 0]
    assert inputs.is_padding[:9].tolist() == [False] * 8 + [True]
    slots = runner.block_tables.slot_mappings[1].tolist()
    assert slots[:8] == [6 * 8 + 1, 6 * 8 + 2, 6 * 8 + 3, 6 * 8 + 4, 61, 62, 63, PAD_SLOT_ID]
    assert set(slots[8:]) == {PAD_SLOT_ID}
    assert buffers.context_positions[:6].tolist() == [6, 7, 8, 0, 3, 4]
    assert buffers.context_slots[:7].tolist() == [46, 47, 48, PAD_SLOT_ID, 59, 60, PAD_SLOT_ID]
    assert buffers.sample_indices[:7].tolist() == [1, 2, 3, 5, 6, 7, 0]
    assert buffers.sample_pos[:7].tolist() == [10, 11, 12, 6, 7, 8, 0]
    assert buffers.sample_idx_mapping[:7].tolist() == [0, 0, 0, 1, 1, 1, -1]


def test_queries_beyond_the_models_length_keep_to_it(pair: SpeculativePair) -> None:
    runner = runner_of(pair, graphs=False)
    step = ScheduledBatch(((1,),), (93,), (tuple(range(1, 13)),))
    runner.step(DraftBatch(step=step, num_rejected=(0,), anchors=(1,)), [torch.randn(1, 128)] * 2)
    assert runner.input_buffers.positions[:4].tolist() == [94, 95, 95, 95]
    assert runner.input_buffers.seq_lens[0] == 96
    assert runner.block_tables.slot_mappings[1][:4].tolist() == [
        12 * 8 + 6,
        12 * 8 + 7,
        PAD_SLOT_ID,
        PAD_SLOT_ID,
    ]


def test_a_rank_with_fewer_requests_runs_what_the_others_run(pair: SpeculativePair) -> None:
    runner, alone = (runner_of(pair, graphs=True) for _ in range(2))
    batch, aux = step_of(0, [4], [1])
    joined = DraftBatch(
        step=batch.step, num_rejected=batch.num_rejected, anchors=batch.anchors, num_reqs_across_dp=3
    )
    assert runner._dispatch(joined).num_reqs == 4
    assert torch.equal(runner.step(joined, aux), alone.step(batch, aux))
    nothing = DraftBatch(step=ScheduledBatch((), (), ()), num_rejected=(), anchors=(), num_reqs_across_dp=3)
    assert runner.step(nothing, [torch.zeros(0, 128)] * 2).shape == (0, NUM_TOKENS)


def test_batches_beyond_the_graphs_run_eagerly(pair: SpeculativePair) -> None:
    runner = runner_of(pair, graphs=True)
    batch, aux = step_of(0, [1] * 6, [0] * 6)
    assert runner._dispatch(batch).cg_mode is CUDAGraphMode.NONE
    assert torch.equal(runner.step(batch, aux), runner_of(pair, graphs=False).step(batch, aux))


def test_the_boundary_is_that_of_the_entry() -> None:
    plan = load_plan("plans/compiled/qwen3-8b-dflash.yaml")
    rows = graph_context_tokens(plan.entries("draft"))
    assert rows[32] == 512
    assert rows[1] == 16


def test_entries_that_disagree_about_the_boundary_are_refused() -> None:
    entry = "mode: FULL, num_reqs: 1, uniform_token_count: {0}, num_tokens: {0}"
    rows = "prologue: {{kind: dflash_context_kv, num_context_tokens: {0}}}"
    entries = ", ".join(f"{{{entry.format(size)}, {rows.format(size)}}}" for size in (8, 4))
    plan = load_plan(f"apiVersion: graphplan/v1\nkind: Plan\ngraphs: {{target: [], draft: [{entries}]}}\n")
    with pytest.raises(InputError, match="8 and 4 context rows"):
        graph_context_tokens(plan.entries("draft"))


@pytest.mark.parametrize(
    ("lengths", "rejected", "rows", "message"),
    [
        ([4, 4], [0], 8, "give one of each request"),
        ([4], [0], 5, "give one of each request"),
        ([4], [4], 4, "all its tokens rejected"),
        ([70], [0], 70, "raise max_context_tokens"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    pair: SpeculativePair, lengths: list[int], rejected: list[int], rows: int, message: str
) -> None:
    runner = runner_of(pair, graphs=False)
    batch, _ = step_of(0, lengths, rejected)
    with pytest.raises(InputError, match=message):
        runner.step(batch, [torch.zeros(rows, 128)] * 2)


def test_capturing_without_a_manager_is_refused(pair: SpeculativePair) -> None:
    with pytest.raises(InputError, match="no manager"):
        runner_of(pair, graphs=False).capture()
