"""Small models on a paged cache, with and without graphs: what tests of steps and decoding share."""

from __future__ import annotations

import gc
import math
from typing import Any
from unittest import mock

import torch

from executor.dflash import DFlashCudaGraphManager
from executor.draft_runner import DraftRunner
from executor.inputs.kv_cache import KVCacheConfig, PagedKVCache
from executor.manager import CudaGraphManager
from executor.models.dflash_draft import DFlashDraft
from executor.models.qwen3 import Decoder
from executor.runner import TargetRunner
from planner import Plan, load_plan

MAX_MODEL_LEN = 96


def poison(cache: PagedKVCache) -> None:
    """Fills all that a request can own with NaN."""
    for layer in cache.layers.values():
        layer.key.fill_(math.nan)
        layer.value.fill_(math.nan)


def is_poisoned(cache: PagedKVCache) -> bool:
    return all(layer.key.isnan().all() and layer.value.isnan().all() for layer in cache.layers.values())


def capture(function: Any, *args: Any) -> None:
    """Captures all entries, without the collections of garbage that take longer than these graphs."""
    with mock.patch.object(gc, "collect"):
        assert not function(*args).failed


def target_runner(
    plan: Plan,
    model: Decoder,
    *,
    graphs: bool = True,
    num_blocks: int = 96,
    block_size: int = 8,
    draft: DFlashDraft | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    max_num_tokens: int = 0,
) -> TargetRunner:
    """A runner on a poisoned cache, its graphs captured, on the device of the model."""
    device = model.norm.weight.device
    models = (model,) if draft is None else (model, draft)
    config = KVCacheConfig(num_blocks, block_size, tuple(each.kv_cache_group for each in models))
    cache = PagedKVCache(config, device)
    poison(cache)
    manager = CudaGraphManager(plan, device=device) if graphs else None
    runner = TargetRunner(
        plan,
        model,
        config,
        device,
        manager,
        kv_cache=cache,
        max_model_len=max_model_len,
        max_num_tokens=max_num_tokens,
    )
    if manager is not None:
        capture(manager.capture, runner.create_forward_fn)
    return runner


def draft_runner(plan: Plan, draft: DFlashDraft, target: TargetRunner, num_tokens: int) -> DraftRunner:
    """The drafter beside ``target``, with graphs in the same pool where the target has graphs."""
    manager = None
    if target.manager is not None:
        device, pool = target.manager.device, target.manager.pool
        manager = DFlashCudaGraphManager(plan, "draft", device=device, pool=pool)
    runner = DraftRunner(
        plan,
        draft,
        target.kv_cache,
        manager,
        num_speculative_tokens=num_tokens,
        max_model_len=target.max_model_len,
        max_context_tokens=target.buffers.max_num_tokens,
        max_num_reqs=target.buffers.max_num_reqs,
    )
    if manager is not None:
        capture(runner.capture)
    return runner


def dflash_plan(num_tokens: int, most: int = 4) -> Plan:
    """A DFlash plan of one FULL graph for each number of requests, and pieces for all else."""
    length = num_tokens + 1
    target = [f"{{mode: PIECEWISE, num_tokens: {size}}}" for size in (64, 24, 8)]
    draft = []
    for reqs in (most, 2, 1):
        entry = f"mode: FULL, num_tokens: {reqs * length}, num_reqs: {reqs}, uniform_token_count: {length}"
        target.append(f"{{{entry}}}")
        rows = f"prologue: {{kind: dflash_context_kv, num_context_tokens: {reqs * length}}}"
        draft.append(f"{{{entry}, {rows}}}")
    lists = f"  target: [{', '.join(target)}]\n  draft: [{', '.join(draft)}]\n"
    return load_plan(f"apiVersion: graphplan/v1\nkind: Plan\ngraphs:\n{lists}")


def tokens_of(seed: int, count: int, vocab: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, vocab, (count,), generator=generator)]
