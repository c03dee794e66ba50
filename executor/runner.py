"""TargetRunner: runs a decoder's steps by a plan, from graphs where dispatch finds one.

It owns the static inputs of its family, prepares what graphs are captured with, and at each step
stages the batch, dispatches, pads and replays. Source of the order: vLLM 0.33, V2 runner (rules 5.6, 5.7).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from attrs import evolve

from executor.capture_loop import Forward
from executor.context import ForwardContext, set_forward_context
from executor.dispatching import EagerReason, Key, graph_key, is_v1
from executor.dp_metadata import same_tokens_across_dp
from executor.errors import InputError
from executor.inputs.attention import AttentionState, attention_groups, build_attention_state
from executor.inputs.batch import ScheduledBatch
from executor.inputs.block_tables import BlockTables
from executor.inputs.buffers import InputBuffers
from executor.inputs.dummy import prepare_inputs_to_capture
from executor.inputs.kv_cache import KVCacheConfig, PagedKVCache
from executor.inputs.microbatches import Microbatches
from executor.manager import CudaGraphManager
from executor.materialize.regions import static_tensors
from executor.models.qwen3 import Decoder
from executor.parallel import ParallelInfo
from executor.steps import PaddedStep, StepOutput
from executor.trials import TargetTrials
from planner.batches import Agreement
from planner.descriptors import BatchDescriptor, BatchExecutionDescriptor
from planner.documents.plan import TARGET, Plan
from planner.modes import CUDAGraphMode

Outputs = tuple[torch.Tensor, tuple[torch.Tensor, ...]]

FULL = CUDAGraphMode.FULL.value
PIECEWISE = CUDAGraphMode.PIECEWISE.value
"""Places in a manager's counts of tokens; a mode's value is a call at each step."""


class TargetRunner:
    """Steps of one model. Without a manager, or where it has no graph, they run eagerly.

    ``kv_cache`` may hold other models' layers too; by default it is made from the config. Requests have
    up to ``max_model_len`` tokens. ``max_num_reqs`` and ``max_num_tokens`` admit eager batches beyond the
    plan's largest entry.

    Raises:
        FamilyError: the plan has no such family.
        InputError: a layer of the model has no cache.
    """

    def __init__(
        self,
        plan: Plan,
        model: Decoder,
        kv_cache_config: KVCacheConfig,
        device: torch.device | str,
        manager: CudaGraphManager | None = None,
        *,
        family: str = TARGET,
        parallel: ParallelInfo | None = None,
        kv_cache: PagedKVCache | None = None,
        max_model_len: int | None = None,
        max_num_reqs: int = 0,
        max_num_tokens: int = 0,
    ) -> None:
        self.plan, self.family, self.model, self.manager = plan, family, model, manager
        self.kv_cache_config = kv_cache_config
        self.kv_cache = PagedKVCache(kv_cache_config, device) if kv_cache is None else kv_cache
        most = min(model.config.max_position_embeddings, kv_cache_config.max_tokens)
        self.max_model_len = most if max_model_len is None else min(max_model_len, most)
        self.parallel = evolve(parallel or ParallelInfo(), no_compile_layers=self.kv_cache.layers)
        self.buffers = InputBuffers.for_plan(plan, family, device, max_num_reqs, max_num_tokens)
        self.block_tables = BlockTables(
            kv_cache_config,
            self.buffers.max_num_reqs,
            self.buffers.max_num_tokens,
            self.max_model_len,
            device,
        )
        self.attn_groups = attention_groups(kv_cache_config, model.layer_names)
        self._is_v1 = is_v1(plan, family)
        self._microbatches: dict[tuple[int, int, int], Microbatches] = {}
        self._keys: dict[BatchExecutionDescriptor, Key] = {
            entry.execution_descriptor: graph_key(plan, family, entry) for entry in plan.entries(family)
        }
        self._piecewise_descriptors = {
            entry.execution_descriptor: entry.batch_descriptor
            for entry in plan.entries(family)
            if entry.mode is CUDAGraphMode.PIECEWISE
        }
        self.trials = TargetTrials(
            self, max((desc.num_tokens for desc in self._piecewise_descriptors), default=1)
        )

    # Capture

    def create_forward_fn(self, desc: BatchExecutionDescriptor, warmup: bool) -> Forward:  # noqa: ARG002
        """What ``CudaGraphManager.capture`` asks for: a dummy batch of ``desc``, and its forward.

        Source: vLLM 0.33 (rules 5.7).

        Raises:
            InputError: the entry is larger than the buffers.
        """
        full = desc.cg_mode is CUDAGraphMode.FULL
        num_reqs = self.padded_reqs(desc.num_tokens, desc.num_reqs)
        longest = (desc.max_query_len or desc.uniform_token_count or desc.num_tokens) if full else None
        state = prepare_inputs_to_capture(
            num_reqs,
            desc.num_tokens,
            self.buffers,
            self.block_tables,
            self.attn_groups,
            self.kv_cache_config,
            self.max_model_len,
            max_query_len=longest,
            for_capture=full,
        )
        across = same_tokens_across_dp(self.parallel, desc.num_tokens)
        step = PaddedStep(
            key=desc,
            mode=desc.cg_mode,
            num_tokens=desc.num_tokens,
            num_reqs=num_reqs,
            num_ubatches=desc.num_ubatches,
            batch_descriptor=self._piecewise_descriptors.get(desc),
            num_tokens_across_dp=across,
        )
        if desc.num_ubatches > 1:
            return self._microbatched_forward(step)

        def forward(cg_mode: CUDAGraphMode) -> Outputs:
            with self.context_of(step, state, cg_mode):
                return self.forward(slice(0, step.num_tokens))

        return forward

    def _microbatched_forward(self, step: PaddedStep) -> Forward:
        parts = self._microbatches_of(step)
        parts.refresh(self.buffers)
        states = parts.build(self.block_tables, self.attn_groups, self._max_seq_len)
        tokens = [slice(part.token_start, part.token_stop) for part in parts.slices]

        def forward(cg_mode: CUDAGraphMode) -> Outputs:
            outputs = []
            with set_forward_context(
                [state.attn_metadata or {} for state in states],
                self.parallel,
                step.num_tokens,
                step.num_tokens_across_dp,
                cg_mode,
                ubatch_slices=parts.slices,
                slot_mapping=[state.slot_mappings for state in states],
                is_padding=self.buffers.is_padding[: step.num_tokens],
            ):
                for part, state in zip(tokens, states, strict=True):
                    with self.context_of(self._part_of(step, part), state, cg_mode, part.start):
                        outputs.append(self.forward(part))
            hidden = torch.cat([output[0] for output in outputs])
            return hidden, tuple(
                torch.cat(aux) for aux in zip(*(output[1] for output in outputs), strict=True)
            )

        return forward

    def static_tensors(self) -> Mapping[str, torch.Tensor]:
        """Every tensor that the graphs of this family name by its address."""
        return static_tensors(
            self.buffers.input_ids.device,
            model=self.model,
            inputs=self.buffers,
            tables=self.block_tables,
            cache=self.kv_cache.layers,
            microbatches=self._microbatches,
        )

    # Steps

    def choose(
        self, batch: ScheduledBatch, agreement: Agreement | None = None, dispatch: Any = None
    ) -> PaddedStep:
        """How ``batch`` runs: by what the ranks agreed on, else by ``dispatch``, which is the manager's."""
        if agreement is not None:
            across = agreement.num_tokens_across_dp
            vector = None if across is None else torch.tensor(across, dtype=torch.int32)
            return evolve(self.padded(batch, agreement.descriptor), num_tokens_across_dp=vector)
        if self.manager is None:
            return self.padded(
                batch, BatchExecutionDescriptor(CUDAGraphMode.NONE, batch.num_tokens, batch.num_reqs)
            )
        dispatch = dispatch or self.manager.dispatch
        if self._is_v1:
            uniform = batch.uniform_token_count
            decoding = uniform is not None and uniform == self.manager.table.decode_query_len
            return self.padded(batch, dispatch(batch.num_tokens, decoding, batch.num_active_loras))
        key = dispatch(
            batch.num_reqs,
            batch.num_tokens,
            batch.uniform_token_count,
            batch.num_active_loras,
            batch.max_query_len,
            batch.num_ubatches,
        )
        return self.padded(batch, key)

    def step(self, batch: ScheduledBatch, agreement: Agreement | None = None) -> StepOutput:
        """Runs one step; its K/V are in the cache afterwards.

        ``agreement`` is what data-parallel ranks agreed on. A rank without requests takes part with an
        empty batch, which is all padding.

        Raises:
            InputError: the batch is larger than the buffers, or a request than ``max_model_len``.
        """
        with torch.no_grad():
            step = self.choose(batch, agreement)
            state = self.stage(batch, step)
            hidden, aux = self._run(step, state, batch, agreement)
        real = slice(0, batch.num_tokens)
        return StepOutput(
            key=step.key,
            mode=step.mode,
            hidden_states=hidden[real],
            aux_hidden_states=tuple(rows[real] for rows in aux),
        )

    def stage(self, batch: ScheduledBatch, step: PaddedStep) -> AttentionState:
        """Puts ``batch`` into the static inputs, padded for ``step``; returns its own metadata.

        Raises:
            InputError: the batch is larger than the buffers, or a request than ``max_model_len``.
        """
        longest = max(batch.seq_lens, default=0)
        if longest > self.max_model_len:
            raise InputError(
                f"a request of {longest} tokens; the cache's max_model_len is {self.max_model_len}"
            )
        self.buffers.check(max(step.num_reqs, batch.num_reqs), step.num_tokens)
        self.buffers.write(batch)
        self.block_tables.write(batch.block_ids)
        slots = self.block_tables.compute_slot_mappings(
            batch.num_reqs,
            batch.num_tokens,
            step.num_tokens,
            self.buffers.query_start_loc,
            self.buffers.positions,
        )
        if step.num_ubatches > 1 and step.mode is CUDAGraphMode.FULL:
            self._microbatches_of(step).refresh(self.buffers)
        return build_attention_state(
            batch.num_reqs,
            batch.num_tokens,
            self.buffers,
            self.block_tables.block_tables,
            slots,
            self.attn_groups,
            max_query_len=max(batch.query_lens, default=0),
            max_seq_len=longest,
        )

    def _run(
        self,
        step: PaddedStep,
        state: AttentionState,
        batch: ScheduledBatch,
        agreement: Agreement | None,
    ) -> Outputs:
        outputs: Any
        if step.mode is CUDAGraphMode.FULL:
            manager = self._manager
            outputs = manager.run_fullgraph(step.key)
            manager.real_tokens[FULL] += batch.num_tokens
            return outputs[0], outputs[1]
        with self.context_of(step, state, step.mode):
            if step.mode is CUDAGraphMode.PIECEWISE:
                manager = self._manager
                outputs = manager.run_piecewise(step.key)
                manager.real_tokens[PIECEWISE] += batch.num_tokens
                return outputs[0], outputs[1]
            if self.manager is not None:
                self.manager.count_eager(
                    batch.num_tokens, step.num_tokens, self._why_eager(self.manager, batch, agreement)
                )
            return self.forward(slice(0, step.num_tokens))

    def _why_eager(
        self, manager: CudaGraphManager, batch: ScheduledBatch, agreement: Agreement | None
    ) -> EagerReason:
        if agreement is not None and (agreement.eager or not batch.num_reqs):
            return EagerReason.AGREED
        return manager.why_eager(
            batch.num_tokens, lambda dispatch: self.choose(batch, dispatch=dispatch).mode
        )

    def forward(self, tokens: slice) -> Outputs:
        """The model on these rows of the static inputs, in the forward context that is set."""
        hidden, aux = self.model(self.buffers.input_ids[tokens], self.buffers.positions[tokens])
        return hidden, aux

    def context_of(
        self, step: PaddedStep, state: AttentionState, mode: CUDAGraphMode, first: int = 0
    ) -> AbstractContextManager[ForwardContext]:
        """The forward context of a step whose tokens lie in the static inputs from ``first`` on."""
        return set_forward_context(
            state.attn_metadata,
            self.parallel,
            step.num_tokens,
            step.num_tokens_across_dp,
            mode,
            step.batch_descriptor,
            slot_mapping=state.slot_mappings,
            is_padding=self.buffers.is_padding[first : first + step.num_tokens],
        )

    def padded(self, batch: ScheduledBatch, found: Key) -> PaddedStep:
        """How ``batch`` runs by what dispatch found for it."""
        key = found if isinstance(found, tuple) else self._keys.get(found, found)
        if isinstance(key, tuple):
            mode, descriptor = key
            tokens, reqs, num_ubatches = descriptor.num_tokens, descriptor.num_reqs, 1
            pieces: BatchDescriptor | None = descriptor
        else:
            mode, pieces = key.cg_mode, self._piecewise_descriptors.get(key)
            tokens, reqs, num_ubatches = key.num_tokens, key.num_reqs, key.num_ubatches
        full = mode is CUDAGraphMode.FULL
        return PaddedStep(
            key=key,
            mode=mode,
            num_tokens=max(tokens, batch.num_tokens),
            num_reqs=self.padded_reqs(tokens, reqs) if full else batch.num_reqs,
            num_ubatches=num_ubatches,
            batch_descriptor=pieces if mode is CUDAGraphMode.PIECEWISE else None,
        )

    def padded_reqs(self, num_tokens: int, num_reqs: int | None) -> int:
        """The requests of an entry; where it does not say, as many as can be."""
        return num_reqs or min(num_tokens, self.buffers.max_num_reqs)

    def _microbatches_of(self, step: PaddedStep) -> Microbatches:
        key = (step.num_reqs, step.num_tokens, step.num_ubatches)
        if key not in self._microbatches:
            self._microbatches[key] = Microbatches.of(*key, self.buffers.device)
        return self._microbatches[key]

    def _part_of(self, step: PaddedStep, tokens: slice) -> PaddedStep:
        count = tokens.stop - tokens.start
        across = step.num_tokens_across_dp
        return evolve(
            step,
            num_tokens=count,
            num_tokens_across_dp=None if across is None else torch.full_like(across, count),
        )

    @property
    def _max_seq_len(self) -> int:
        return min(self.max_model_len, self.kv_cache_config.max_tokens)

    @property
    def _manager(self) -> CudaGraphManager:
        if self.manager is None:
            raise InputError(f"{self.family}: a graph is to be replayed, but the runner has no manager")
        return self.manager
