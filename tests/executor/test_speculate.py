"""Decoding with a drafter: the target's own tokens, found faster, and what a fault does to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.draft_runner import DraftRunner
from executor.errors import InputError
from executor.models.config import DecoderConfig, DFlashConfig
from executor.models.dflash_draft import DFlashDraft, build_draft
from executor.models.pairs import SpeculativePair, build_pair
from executor.models.qwen3 import Decoder, build_decoder
from executor.speculate import BlockPool, DecodeResult, SpeculativeDecoder, compare_tokens
from planner.modes import CUDAGraphMode
from tests.executor.serving import dflash_plan, draft_runner, target_runner, tokens_of


def decode(
    target: Decoder,
    draft: DFlashDraft | None,
    num_tokens: int,
    prompts: list[list[int]],
    *,
    graphs: bool = False,
    new: int = 24,
    fault: Any = None,
    **options: Any,
) -> DecodeResult:
    plan = dflash_plan(num_tokens)
    runner = target_runner(plan, target, graphs=graphs, draft=draft, max_num_tokens=128)
    drafting = None if draft is None else draft_runner(plan, draft, runner, num_tokens)
    if fault is not None:
        fault(drafting)
    return SpeculativeDecoder(runner, drafting, **options).generate(prompts, new)


def decode_pair(pair: SpeculativePair, count: int = 4, seed: int = 0, **options: Any) -> DecodeResult:
    prompts = pair.prompts(count, seed)
    return decode(pair.target, pair.draft, pair.num_speculative_tokens, prompts, **options)


def plain_pair(pair: SpeculativePair, count: int = 4, seed: int = 0, **options: Any) -> DecodeResult:
    return decode(pair.target, None, pair.num_speculative_tokens, pair.prompts(count, seed), **options)


def random_models(seed: int) -> tuple[Decoder, DFlashDraft]:
    target_config = DecoderConfig.from_file("plans/models/qwen3-8b/config.json").shrunk()
    config = DFlashConfig.from_file("plans/models/qwen3-8b-dflash-b16/config.json").shrunk(target_config)
    target = build_decoder(target_config, aux_layer_ids=config.target_layer_ids, seed=seed, std=0.2)
    return target, build_draft(config, target, seed=seed + 1, std=0.2)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "count", "seed"), [(2, 1, 0), (3, 4, 1), (7, 3, 2), (7, 6, 3), (15, 2, 4)]
)
def test_tokens_are_exactly_those_of_plain_decoding_and_acceptance_is_plausible(
    num_tokens: int, count: int, seed: int, graphs: bool
) -> None:
    pair = build_pair(num_tokens, seed=seed)
    plain = plain_pair(pair, count, seed, new=48)
    found = decode_pair(pair, count, seed, new=48, graphs=graphs)
    assert found.tokens == plain.tokens
    assert pair.accepts_plausibly(found.mean_acceptance)
    assert sum(found.modes.values()) < sum(plain.modes.values())


@pytest.mark.parametrize("seed", range(3))
def test_a_useless_drafter_changes_no_token(seed: int) -> None:
    target, draft = random_models(seed)
    prompts = [tokens_of(seed, length, 127) for length in (3, 11, 20, 1, 7)]
    plain = decode(target, None, 7, prompts, prefill_chunk=8)
    found = decode(target, draft, 7, prompts, prefill_chunk=5)
    assert found.tokens == plain.tokens
    assert found.mean_acceptance < 1


def test_plain_decoding_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="an extra of the tests")
    named: dict[str, Any] = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 64,
        "max_position_embeddings": 128,
    }
    torch.manual_seed(3)
    theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**named, initializer_range=0.3)).eval()
    ours = build_decoder(DecoderConfig(**named))
    ours.load_from_transformers(theirs)
    prompts = [tokens_of(seed, 5 + seed, 64) for seed in range(3)]
    found = decode(ours, None, 3, prompts, new=20)
    for prompt, tokens in zip(prompts, found.tokens, strict=True):
        sequence = list(prompt)
        for token in tokens:
            with torch.no_grad():
                assert token == theirs(torch.tensor([sequence])).logits[0, -1].argmax()
            sequence.append(token)


def test_graphs_change_neither_tokens_nor_acceptance() -> None:
    pair = build_pair(7, seed=5)
    eager = decode_pair(pair, 6, prefill_chunk=6)
    graphs = decode_pair(pair, 6, prefill_chunk=6, graphs=True)
    assert (graphs.tokens, graphs.accepted) == (eager.tokens, eager.accepted)
    assert graphs.modes[CUDAGraphMode.FULL]
    assert graphs.modes[CUDAGraphMode.PIECEWISE]
    assert set(eager.modes) == {CUDAGraphMode.NONE}


@pytest.mark.parametrize(
    "options", [{"prefill_chunk": 3}, {"max_num_batched_tokens": 11}, {"prefill_chunk": 1}]
)
def test_how_prompts_are_cut_changes_no_token(options: dict[str, int]) -> None:
    pair = build_pair(3, seed=1)
    whole = decode_pair(pair, 5)
    assert decode_pair(pair, 5, **options).tokens == whole.tokens


def never_store(runner: DraftRunner) -> None:
    runner._store = lambda *_: None  # type: ignore[method-assign]


def store_the_first_step_only(runner: DraftRunner) -> None:
    store, seen = runner._store, []

    def once(aux: torch.Tensor, rows: slice) -> None:
        if not seen:
            store(aux, rows)
        seen.append(rows)

    runner._store = once  # type: ignore[method-assign]


def skip_what_lies_beyond_the_graph(runner: DraftRunner) -> None:
    """The rows that belong ahead of the replay are left out, as by a boundary of another entry."""
    stage, store = runner._stage_context, runner._store

    def staged(*args: Any) -> None:
        runner._store = lambda *_: None  # type: ignore[method-assign]
        stage(*args)
        runner._store = store  # type: ignore[method-assign]

    runner._stage_context = staged  # type: ignore[method-assign]


def forget_to_stage(runner: DraftRunner) -> None:
    """Graphs compute the context from hidden states of an earlier step."""
    runner.buffers.aux = torch.zeros_like(runner.buffers.aux)


@pytest.mark.parametrize(
    ("fault", "graphs"),
    [
        (never_store, False),
        (store_the_first_step_only, False),
        (skip_what_lies_beyond_the_graph, True),
        (forget_to_stage, True),
    ],
)
def test_stale_context_shows_as_lost_acceptance_and_never_as_other_tokens(fault: Any, graphs: bool) -> None:
    pair = build_pair(7, seed=2)
    sound = decode_pair(pair, 3, graphs=graphs)
    faulty = decode_pair(pair, 3, graphs=graphs, fault=fault)
    assert pair.accepts_plausibly(sound.mean_acceptance)
    assert not pair.accepts_plausibly(faulty.mean_acceptance)
    assert faulty.tokens == sound.tokens


def test_in_bfloat16_differences_lie_at_near_ties_only() -> None:
    pair = build_pair(3, seed=1, dtype=torch.bfloat16)
    comparison = compare_tokens(plain_pair(pair), decode_pair(pair), tolerance=0.25)
    assert not comparison.faults
    assert comparison.num_equal + len(comparison.near_ties)


def result(tokens: tuple[int, ...], gaps: tuple[float, ...]) -> DecodeResult:
    return DecodeResult(tokens=(tokens,), accepted=((),), gaps=(gaps,), modes={})


def test_the_first_difference_of_a_prompt_is_a_near_tie_or_a_fault() -> None:
    plain = result((1, 2, 3), (5.0, 0.1, 5.0))
    assert compare_tokens(plain, result((1, 2, 3), ()), 0.2).num_equal == 3
    close = compare_tokens(plain, result((1, 9, 9), ()), 0.2)
    assert (close.num_equal, close.near_ties, close.faults) == (1, ((0, 1),), ())
    far = compare_tokens(plain, result((7, 2, 3), ()), 0.2)
    assert (far.num_equal, far.near_ties, far.faults) == (0, (), ((0, 0),))


def test_requests_wait_for_blocks_and_all_are_served() -> None:
    pair = build_pair(3, seed=1)
    plan = dflash_plan(3)
    prompts = pair.prompts(6)
    runner = target_runner(
        plan, pair.target, graphs=False, draft=pair.draft, num_blocks=14, max_num_tokens=64
    )
    drafting = draft_runner(plan, pair.draft, runner, 3)
    found = SpeculativeDecoder(runner, drafting).generate(prompts, 24)
    assert found.tokens == decode_pair(pair, 6).tokens


def test_a_request_may_fill_its_model_length_to_the_end() -> None:
    pair = build_pair(3, seed=1)
    plan = dflash_plan(3)
    (prompt,) = pair.prompts(1)
    tokens = []
    for draft in (None, pair.draft):
        runner = target_runner(
            plan, pair.target, graphs=False, draft=pair.draft, max_model_len=32, max_num_tokens=64
        )
        drafting = None if draft is None else draft_runner(plan, draft, runner, 3)
        tokens.append(SpeculativeDecoder(runner, drafting).generate([prompt], 32 - len(prompt)).tokens)
    assert tokens[0] == tokens[1]
    with pytest.raises(InputError, match="max_model_len is 32"):
        SpeculativeDecoder(runner).generate([prompt], 33 - len(prompt))


@pytest.mark.parametrize(("prompts", "new"), [([[]], 3), ([[1]], 0)])
def test_nothing_to_continue_or_nothing_asked_for_is_refused(prompts: list[list[int]], new: int) -> None:
    pair = build_pair(3)
    with pytest.raises(InputError, match="prompt 0"):
        decode(pair.target, None, 3, prompts, new=new)


def test_blocks_are_handed_out_once_and_never_the_null_block() -> None:
    pool = BlockPool(5)
    taken = pool.take(3) + pool.take(1)
    assert sorted(taken) == [1, 2, 3, 4]
    with pytest.raises(InputError, match="0 are left"):
        pool.take(1)
    pool.give_back(taken[:2])
    assert pool.num_free == 2
