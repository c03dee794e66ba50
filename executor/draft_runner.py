"""DraftRunner: the drafting step of DFlash, from graphs that begin with the context's K/V.

A graph computes the K/V of as many context rows as one full verification of its requests has. What a
step has beyond that is computed eagerly ahead of the replay; the boundary is that of the entry that
dispatch chose. Source: vLLM 0.33, the DFlash speculator (rules 7.3 to 7.5).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import torch
from attrs import evolve

from executor.capture_loop import Forward
from executor.context import set_forward_context
from executor.dflash import DFlashCudaGraphManager
from executor.dispatching import EagerReason
from executor.dp_metadata import same_tokens_across_dp
from executor.errors import InputError
from executor.guide import CaptureOptions
from executor.inputs.attention import AttentionGroup, AttentionState, attention_groups, build_attention_state
from executor.inputs.batch import ScheduledBatch
from executor.inputs.block_tables import BlockTables
from executor.inputs.buffers import InputBuffers
from executor.inputs.dummy import random_batch, room_for_context
from executor.inputs.kv_cache import NULL_BLOCK, PAD_SLOT_ID, KVCacheConfig, PagedKVCache
from executor.materialize.regions import static_tensors
from executor.models.dflash_draft import DFlashDraft, DraftBuffers
from executor.parallel import ParallelInfo
from executor.records import CaptureReport
from executor.runner import FULL
from executor.steps import DraftBatch
from planner.descriptors import BatchExecutionDescriptor, PlanEntry
from planner.documents.plan import DRAFT, Plan
from planner.modes import CUDAGraphMode

CaptureInputs: TypeAlias = tuple[
    Callable[..., Any],
    InputBuffers,
    BlockTables,
    Sequence[Sequence[AttentionGroup]],
    KVCacheConfig,
    int,
    bool,
    Callable[[int], None],
]
"""What the draft's manager captures with, in the order of its arguments."""


class DraftRunner:
    """Drafting steps of one DFlash drafter on its target's paged cache.

    ``max_context_tokens`` bounds the tokens of a step of the target. Without a manager, or where it has
    no graph, steps run eagerly.

    Raises:
        FamilyError: the plan has no such family.
        InputError: a layer has no cache, or entries of the plan disagree about their prologues.
    """

    def __init__(
        self,
        plan: Plan,
        draft: DFlashDraft,
        kv_cache: PagedKVCache,
        manager: DFlashCudaGraphManager | None = None,
        *,
        num_speculative_tokens: int,
        max_model_len: int,
        max_context_tokens: int,
        max_num_reqs: int = 0,
        family: str = DRAFT,
        parallel: ParallelInfo | None = None,
    ) -> None:
        self.draft, self.manager, self.kv_cache = draft, manager, kv_cache
        self.max_model_len = max_model_len
        self.query_len = num_speculative_tokens + 1
        entries = plan.entries(family)
        self.graph_context_tokens = graph_context_tokens(entries)
        device = draft.fc.weight.device
        self.input_buffers = _query_buffers(plan, family, device, max_num_reqs, self.query_len)
        reqs, tokens = self.input_buffers.max_num_reqs, self.input_buffers.max_num_tokens
        staged = max(self.graph_context_tokens.values(), default=0)
        self.buffers = DraftBuffers(
            draft,
            num_speculative_tokens=num_speculative_tokens,
            max_num_reqs=reqs,
            max_staged_tokens=staged,
            max_context_tokens=max(max_context_tokens, staged),
        )
        config = kv_cache.config
        self.block_tables = BlockTables(config, reqs, tokens, max_model_len, device)
        self.attn_groups = attention_groups(config, draft.layer_names)
        self.parallel = evolve(parallel or ParallelInfo(), no_compile_layers=kv_cache.layers)
        self._caches = tuple(kv_cache.layers[name] for name in draft.layer_names)

    @property
    def kv_cache_config(self) -> KVCacheConfig:
        """The config of the cache."""
        return self.kv_cache.config

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Every tensor that the graphs of this family name by its address."""
        return static_tensors(
            self.input_buffers.input_ids.device,
            draft=self.draft,
            target=self.draft.target,
            inputs=self.input_buffers,
            tables=self.block_tables,
            buffers=self.buffers,
            cache=self.kv_cache.layers,
        )

    @property
    def causal(self) -> bool:
        """Whether the tokens of a block see only those ahead of them."""
        return self.draft.draft_config.causal

    # Capture

    def capture(
        self,
        progress_bar_desc: str = "Capturing draft CUDA graphs",
        *,
        options: CaptureOptions | None = None,
    ) -> CaptureReport:
        """Captures the family with nothing to sample and no place for context rows.

        Raises:
            InputError: there is no manager.
        """
        self.buffers.make_inert()
        return self._manager.capture(*self._capture_inputs, progress_bar_desc, options=options)

    def create_forward_fn(self, desc: BatchExecutionDescriptor, warmup: bool) -> Forward:
        """The forward that an entry is captured with, prologue included.

        Raises:
            InputError: there is no manager.
        """
        self.buffers.make_inert()
        return self._manager.forward_factory(*self._capture_inputs)(desc, warmup)

    def fill(self, desc: BatchExecutionDescriptor, seed: int = 0) -> None:
        """Puts a random drafting step of ``desc`` into the static inputs, as ``verify_entries`` asks.

        Entries of another query length, which a draft schedule brings along and no step is dispatched to,
        keep the inputs that they were captured with.
        """
        if desc.uniform_token_count != self.query_len:
            self.buffers.make_inert()
            return
        num_reqs = desc.num_reqs or 1
        longest = self.max_model_len - self.query_len
        most = self.input_buffers.max_num_reqs
        step = random_batch(
            (self.query_len,) * num_reqs,
            self.kv_cache_config,
            room_for_context(self.kv_cache_config, longest, most, self.query_len),
            longest,
            self.draft.config.vocab_size,
            seed,
        )
        batch = DraftBatch(step=step, num_rejected=(0,) * step.num_reqs, anchors=(1,) * step.num_reqs)
        self._stage_queries(batch, desc.num_tokens)
        generator = torch.Generator(self.buffers.aux.device).manual_seed(seed)
        self.buffers.aux.normal_(generator=generator)
        graph_rows = self.graph_context_tokens.get(num_reqs, 0)
        self._stage_context(batch, self.buffers.aux[: min(step.num_tokens, graph_rows)], graph_rows)

    def front_of(self, desc: BatchExecutionDescriptor) -> Hashable | None:
        """What batches that ``fill`` begins alike have in common, as ``verify_entries`` asks for."""
        return desc.uniform_token_count if desc.uniform_token_count == self.query_len else None

    @property
    def _capture_inputs(self) -> CaptureInputs:
        return (
            self.forward,
            self.input_buffers,
            self.block_tables,
            self.attn_groups,
            self.kv_cache_config,
            self.max_model_len,
            self.causal,
            self.precompute_context_kv,
        )

    @property
    def _manager(self) -> DFlashCudaGraphManager:
        if self.manager is None:
            raise InputError("the draft runner has no manager; give it one to capture with")
        return self.manager

    def precompute_context_kv(self, num_reqs: int) -> None:
        """Combines and stores the staged context rows of a graph for ``num_reqs`` requests."""
        rows = self.graph_context_tokens.get(num_reqs, 0)
        if rows:
            self._store(self.buffers.aux[:rows], slice(0, rows))

    def forward(
        self,
        num_reqs: int,
        num_tokens: int,
        attn_metadata: Mapping[str, object] | None,
        slot_mappings: Mapping[str, torch.Tensor],
        num_tokens_across_dp: torch.Tensor | None,
        cg_mode: CUDAGraphMode,
    ) -> torch.Tensor:
        """The query pass; samples into ``buffers.draft_tokens`` and returns hidden states by token."""
        inputs = self.input_buffers
        with set_forward_context(
            attn_metadata,
            self.parallel,
            num_tokens,
            num_tokens_across_dp,
            cg_mode,
            slot_mapping=slot_mappings,
            is_padding=inputs.is_padding[:num_tokens],
        ):
            hidden: torch.Tensor = self.draft(inputs.input_ids[:num_tokens], inputs.positions[:num_tokens])
        self.buffers.sample(self.draft, hidden, num_reqs)
        return hidden

    # Steps

    def step(self, batch: DraftBatch, aux_hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        """The proposals of every request, ``[requests, num_speculative_tokens]``, until the next step.

        ``aux_hidden_states`` are those that the target's step returned, one row a token.

        Raises:
            InputError: the batch is larger than the buffers, or its parts do not belong together.
        """
        with torch.no_grad():
            aux = torch.cat(tuple(aux_hidden_states), dim=-1)
            self._check(batch, aux)
            desc = self._dispatch(batch)
            if desc.cg_mode is CUDAGraphMode.FULL and self.manager is not None:
                self._stage_queries(batch)
                self._stage_context(batch, aux, self.graph_context_tokens.get(desc.num_reqs or 0, 0))
                self.manager.run_fullgraph(desc)
                self.manager.real_tokens[FULL] += batch.step.num_reqs * self.query_len
            else:
                if self.manager is not None:
                    tokens = batch.step.num_reqs * self.query_len
                    reason = self._why_eager(self.manager, batch, tokens)
                    self.manager.count_eager(tokens, desc.num_tokens, reason)
                state = self._stage_queries(batch, desc.num_tokens)
                self._stage_context(batch, aux, 0)
                self._run_eagerly(batch, state, desc)
        return self.buffers.draft_tokens[: batch.step.num_reqs]

    def _run_eagerly(self, batch: DraftBatch, state: AttentionState, desc: BatchExecutionDescriptor) -> None:
        across = same_tokens_across_dp(self.parallel, desc.num_tokens)
        self.forward(batch.step.num_reqs, desc.num_tokens, *state, across, CUDAGraphMode.NONE)

    def _why_eager(self, manager: DFlashCudaGraphManager, batch: DraftBatch, tokens: int) -> EagerReason:
        def mode_by(dispatch: Any) -> CUDAGraphMode:
            mode = self._dispatch(batch, dispatch).cg_mode
            return mode if mode is CUDAGraphMode.FULL else CUDAGraphMode.NONE

        return manager.why_eager(tokens, mode_by)

    def _dispatch(self, batch: DraftBatch, dispatch: Any = None) -> BatchExecutionDescriptor:
        num_reqs = batch.num_reqs_across_dp or batch.step.num_reqs
        num_tokens = num_reqs * self.query_len
        if self.manager is None:
            return BatchExecutionDescriptor(CUDAGraphMode.NONE, num_tokens, num_reqs)
        dispatch = dispatch or self.manager.dispatch
        desc: BatchExecutionDescriptor = dispatch(num_reqs, num_tokens, self.query_len)
        return desc

    def _check(self, batch: DraftBatch, aux: torch.Tensor) -> None:
        step = batch.step
        counts = {step.num_reqs, len(batch.num_rejected), len(batch.anchors)}
        if len(counts) > 1 or len(aux) != step.num_tokens:
            raise InputError(
                f"a drafting step of {step.num_reqs} requests and {step.num_tokens} tokens with "
                f"{len(batch.num_rejected)} counts of rejections, {len(batch.anchors)} anchors and "
                f"{len(aux)} context rows; give one of each request, and the target's rows"
            )
        if any(
            not 0 <= bad < length for bad, length in zip(batch.num_rejected, step.query_lens, strict=True)
        ):
            raise InputError("a request has all its tokens rejected; the last accepted one stays valid")
        if step.num_tokens > len(self.buffers.context_slots):
            most = len(self.buffers.context_slots)
            raise InputError(
                f"{step.num_tokens} context rows; the buffers hold {most}: raise max_context_tokens"
            )

    def _stage_queries(self, batch: DraftBatch, num_tokens_padded: int | None = None) -> AttentionState:
        """Anchor and masks of every request behind its last valid token, and the rows to sample."""
        step, length, inputs = batch.step, self.query_len, self.input_buffers
        mask = (self.draft.draft_config.mask_token_id,) * (length - 1)
        queries = ScheduledBatch(
            token_ids=tuple((anchor, *mask) for anchor in batch.anchors),
            num_computed=tuple(a - b for a, b in zip(step.seq_lens, batch.num_rejected, strict=True)),
            block_ids=step.block_ids,
        )
        inputs.write(queries)
        self.block_tables.write(queries.block_ids)
        tokens = queries.num_tokens
        slots = self.block_tables.compute_slot_mappings(
            queries.num_reqs,
            tokens,
            tokens if num_tokens_padded is None else num_tokens_padded,
            inputs.query_start_loc,
            inputs.positions,
        )
        inputs.positions.clamp_(max=self.max_model_len - 1)
        inputs.seq_lens.clamp_(max=self.max_model_len)
        self._stage_samples(queries.num_reqs)
        return build_attention_state(
            queries.num_reqs,
            tokens,
            inputs,
            self.block_tables.block_tables,
            slots,
            self.attn_groups,
            max_query_len=length,
            max_seq_len=min(max(queries.seq_lens, default=0), self.max_model_len),
            causal=self.causal,
        )

    def _stage_samples(self, num_reqs: int) -> None:
        buffers, length = self.buffers, self.query_len
        rows = [index * length + offset for index in range(num_reqs) for offset in range(1, length)]
        owners = [index for index in range(num_reqs) for _ in range(1, length)]
        InputBuffers.fill(buffers.sample_indices, rows, 0)
        InputBuffers.fill(buffers.sample_idx_mapping, owners, -1)
        buffers.sample_pos.zero_()
        buffers.sample_pos[: len(rows)].copy_(
            self.input_buffers.positions.index_select(0, buffers.sample_indices[: len(rows)])
        )

    def _stage_context(self, batch: DraftBatch, aux: torch.Tensor, graph_rows: int) -> None:
        """Context rows: the first ``graph_rows`` for the graph, what lies beyond is stored now.

        Rows that the graph computes beyond those of the batch have no place.
        """
        buffers = self.buffers
        rows = list(chain.from_iterable(self._context_rows(batch)))
        InputBuffers.fill(buffers.context_positions, [position for position, _ in rows], 0)
        InputBuffers.fill(buffers.context_slots, [slot for _, slot in rows], PAD_SLOT_ID)
        staged = min(len(aux), graph_rows)
        buffers.aux[:staged].copy_(aux[:staged])
        if len(aux) > graph_rows:
            self._store(aux[graph_rows:], slice(graph_rows, len(aux)))

    def _context_rows(self, batch: DraftBatch) -> Iterator[list[tuple[int, int]]]:
        """Position and slot of every context row, by request; rejected ones are at 0 and have no place."""
        size = self.kv_cache_config.block_size
        step = batch.step
        for index, rejected in enumerate(batch.num_rejected):
            blocks = step.block_ids[index]
            rows = []
            for position in range(step.num_computed[index], step.seq_lens[index] - rejected):
                block = blocks[position // size] if position // size < len(blocks) else NULL_BLOCK
                slot = PAD_SLOT_ID if block == NULL_BLOCK else block * size + position % size
                rows.append((position, slot))
            yield rows + [(0, PAD_SLOT_ID)] * rejected

    def _store(self, aux: torch.Tensor, rows: slice) -> None:
        buffers = self.buffers
        self.draft.store_context(
            self.draft.combine(aux),
            buffers.context_positions[rows],
            buffers.context_slots[rows],
            self._caches,
        )


def graph_context_tokens(entries: Sequence[PlanEntry]) -> Mapping[int, int]:
    """Context rows that a graph computes, by the requests of its entry.

    Raises:
        InputError: two entries of as many requests have prologues of different length.
    """
    rows: dict[int, int] = {}
    for entry in entries:
        reqs = entry.num_reqs or 0
        count = 0 if entry.prologue is None else entry.prologue.num_context_tokens
        if rows.setdefault(reqs, count) != count:
            raise InputError(
                f"entries of {reqs} requests compute {rows[reqs]} and {count} context rows; "
                "give all prologues of as many requests the same num_context_tokens"
            )
    return rows


def _query_buffers(
    plan: Plan, family: str, device: torch.device, max_num_reqs: int, query_len: int
) -> InputBuffers:
    """Buffers for the queries of the most requests, in graphs or eagerly."""
    buffers = InputBuffers.for_plan(plan, family, device, max_num_reqs)
    if buffers.max_num_reqs * query_len <= buffers.max_num_tokens:
        return buffers
    return InputBuffers(buffers.max_num_reqs, buffers.max_num_reqs * query_len, device)
