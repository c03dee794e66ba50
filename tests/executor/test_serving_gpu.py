"""Runners and decoding on a GPU: graphs give what eager steps give, drafts included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from executor.models.config import DecoderConfig
from executor.models.pairs import SpeculativePair, build_pair
from executor.models.qwen3 import build_decoder
from executor.speculate import DecodeResult, SpeculativeDecoder, compare_tokens
from executor.verify import verify_entries
from planner import load_plan
from planner.modes import CUDAGraphMode
from tests.executor.serving import dflash_plan, draft_runner, is_poisoned, target_runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU; tools/test_gpu runs it"),
]

PLANS = ["small-decode.yaml", "dflash-prologue.yaml", "two-microbatches.yaml"]
NEAR_TIE = 0.25
"""Difference of two bf16 logits of about 10, within which rounding may swap them."""


def decode(pair: SpeculativePair, *, drafts: bool, graphs: bool) -> DecodeResult:
    plan = dflash_plan(pair.num_speculative_tokens)
    target = target_runner(plan, pair.target, graphs=graphs, draft=pair.draft, max_num_tokens=128)
    drafting = draft_runner(plan, pair.draft, target, pair.num_speculative_tokens) if drafts else None
    return SpeculativeDecoder(target, drafting, prefill_chunk=16).generate(pair.prompts(4), 48)


@pytest.mark.parametrize("num_tokens", [3, 7])
def test_in_float32_tokens_and_acceptance_are_exactly_those_of_eager_steps(num_tokens: int) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    pair = build_pair(num_tokens, seed=1, device="cuda")
    plain = decode(pair, drafts=False, graphs=False)
    eager, graphs = (decode(pair, drafts=True, graphs=graphs) for graphs in (False, True))
    assert graphs.tokens == eager.tokens == plain.tokens
    assert graphs.accepted == eager.accepted
    assert pair.accepts_plausibly(graphs.mean_acceptance)
    assert {CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE} <= set(graphs.modes)


def test_in_bfloat16_tokens_differ_at_near_ties_only() -> None:
    pair = build_pair(7, seed=1, dtype=torch.bfloat16, device="cuda")
    plain, found = decode(pair, drafts=False, graphs=False), decode(pair, drafts=True, graphs=True)
    assert not compare_tokens(plain, found, NEAR_TIE).faults
    assert pair.accepts_plausibly(found.mean_acceptance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PLANS)
def test_every_entry_agrees_with_eager_and_with_its_second_replay(name: str, dtype: torch.dtype) -> None:
    config = DecoderConfig.from_file("plans/models/qwen3-0.6b/config.json").shrunk(layers=3)
    model = build_decoder(config, aux_layer_ids=(0,), dtype=dtype, device="cuda")
    runner = target_runner(load_plan(Path("plans") / name), model, num_blocks=600, max_model_len=64)
    assert is_poisoned(runner.kv_cache)
    runner.kv_cache.randomize()
    assert runner.manager is not None
    verdicts = verify_entries(
        runner.manager, runner.create_forward_fn, runner.trials.fill, runner.trials.replay_context
    )
    assert len(verdicts) == len(runner.manager.entries)
    assert all(verdict.ok for verdict in verdicts), verdicts
