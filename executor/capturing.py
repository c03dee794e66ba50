"""Capturing a whole plan with the reference models: what ``planner capture`` does.

The graphs are those of the plan, the model is a stand-in: the shape of the given config with random
weights. That is enough to know what a capture takes on a machine, and that every entry can be had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from attrs import define, evolve, field, frozen

from cache.fingerprint import EnvironmentFingerprint, ModelFingerprint
from cache.keys import code_digest, stable_digest
from cache.safe import SafeCache
from executor.calls import NOTHING, Preloaded, noted, one_a_kernel
from executor.capture_loop import CreateForward
from executor.dflash import DFlashCudaGraphManager
from executor.draft_runner import DraftRunner
from executor.errors import ModelError
from executor.guide import CaptureOptions
from executor.inputs.attention import paged_attention
from executor.inputs.kv_cache import KVCacheConfig, PagedKVCache
from executor.manager import CudaGraphManager
from executor.materialize.warm import Materials, Rebuilding, Rebuilt, Verify, graph_device
from executor.models.config import DecoderConfig, DFlashConfig
from executor.models.dflash_draft import build_draft
from executor.models.qwen3 import build_decoder
from executor.models.stand_in import draft_length, drafter_of, has_prologue, shapes_digest
from executor.records import CaptureReport
from executor.restart import Circumstances, Restart, output_shapes
from executor.runner import TargetRunner
from executor.verify import Front, Verdict, verify_entries
from planner.descriptors import PlanEntry
from planner.documents.plan import DRAFT, TARGET, Plan
from planner.estimate.stand_in import gathered_tokens

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

BLOCK_SIZE = 16

ANY_MODEL: Mapping[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
}
"""What is shrunk where a plan knows no model: its graphs are the same for any."""


@frozen(kw_only=True)
class StandIn:
    """The models to capture with; ``draft`` is None where the plan has no DFlash family.

    ``max_model_len`` bounds the context that attention of a whole graph reads at each replay.
    """

    model: DecoderConfig
    draft: DFlashConfig | None = None
    dtype: torch.dtype = torch.bfloat16
    seed: int = 0
    max_model_len: int | None = None

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        *,
        model: Mapping[str, object] | None,
        draft: Mapping[str, object] | None,
        shrink: bool,
        **others: Any,
    ) -> StandIn:
        """Stand-ins by the given configs, else by those that the plan's deployment has.

        Raises:
            ModelError: there is no config, none that the reference models can be built from, or one of
                a drafter that the plan has no graphs of.
        """
        written = plan.deployment.model.config
        facts = model if model is not None else None if written is None else written.facts
        if facts is None and not shrink:
            raise ModelError(
                "the plan knows no model; give one with --model config.json, or try any with --shrink"
            )
        shape = DecoderConfig.of(ANY_MODEL if facts is None else facts)
        drafter = None
        if has_prologue(plan):
            drafter = drafter_of(plan, draft, shape)
        elif draft is not None:
            raise ModelError("the plan has no graphs of a DFlash drafter; leave --draft out")
        if shrink:
            shape = shape.shrunk()
            drafter = None if drafter is None else drafter.shrunk(shape)
        return cls(model=shape, draft=drafter, **others)


@frozen(kw_only=True)
class FamilyOutcome:
    """How one family went; ``verdicts`` is empty where nothing was verified.

    ``restart`` is what the cache knew, None without a cache; ``preloaded`` the calls that loaded kernels
    ahead. ``ready_seconds`` is the time until serving could begin, ``differing`` the entries whose
    graphs are not those of the record. ``rebuilding`` is None where graphs were not to be rebuilt.
    """

    report: CaptureReport
    verdicts: tuple[Verdict, ...] = ()
    restart: Restart | None = None
    preloaded: Preloaded = NOTHING
    ready_seconds: float = 0.0
    differing: tuple[PlanEntry, ...] = ()
    rebuilding: Rebuilt | None = None

    @property
    def wrong(self) -> tuple[Verdict, ...]:
        """Entries whose replay is not what eager computes, or not the same twice."""
        return tuple(verdict for verdict in self.verdicts if not verdict.ok)


@frozen(kw_only=True)
class Outcome:
    """How the capture of a plan went. ``left_out`` are families that no reference model serves."""

    families: tuple[FamilyOutcome, ...]
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every entry that was tried has a graph that agrees with eager."""
        return all(not family.report.failed and not family.wrong for family in self.families)


@frozen(kw_only=True)
class Warmth:
    """How to use a cache: serving begins once ``ready_after`` of the recorded traffic is covered.

    ``materialize`` keeps the graphs themselves, and rebuilds those that are there; ``verify`` says which
    of them are compared with eager first.
    """

    cache: SafeCache
    ready_after: float = 1.0
    materialize: bool = False
    verify: Verify = "all"


def capture_plan(
    plan: Plan,
    stand_in: StandIn,
    device: torch.device | str,
    *,
    memory_budget: int | None = None,
    options: CaptureOptions | None = None,
    verify: bool = True,
    warmth: Warmth | None = None,
) -> Outcome:
    """Captures the families of ``plan`` that the reference models have, into one pool, in their order.

    With ``warmth``, what a cache knows of the same capture is used, and what is new is kept in it.

    Raises:
        CaptureError: the device is none that graphs are recorded on.
        ModelError: the models do not fit each other.
    """
    rig = Rig.build(plan, stand_in, device, memory_budget=memory_budget)
    options = options or CaptureOptions()
    families = [
        _capture_part(part, options, verify=verify)
        if warmth is None
        else capture_warm(part, options, warmth, circumstances(plan, part, stand_in), verify=verify)
        for part in rig.parts()
    ]
    served = {family.report.family for family in families}
    left_out = tuple(name for name in plan.graphs if name not in served)
    return Outcome(families=tuple(families), left_out=left_out)


def _capture_part(part: Part, options: CaptureOptions, *, verify: bool) -> FamilyOutcome:
    report = part.capture(options=options)
    return FamilyOutcome(
        report=report, verdicts=part.verify() if verify else (), ready_seconds=report.seconds
    )


def capture_warm(
    part: Part, options: CaptureOptions, warmth: Warmth, about: Circumstances, *, verify: bool
) -> FamilyOutcome:
    """Captures a family by what the cache knows, rebuilds graphs that it has, and keeps what is new."""
    manager = part.manager
    began = time.perf_counter()
    restart = Restart.look_up(warmth.cache, about)
    rebuilding = Rebuilding.begin(part.materials(warmth), restart) if warmth.materialize else None
    restorer = None if rebuilding is None else rebuilding.restorer
    preloaded = restart.prepare(manager.device, kernels=restorer is None)
    guide = evolve(restart.guide(manager.entries, warmth.ready_after), restorer=restorer)
    how = evolve(options, guide=guide, inspect=True, materialize=warmth.materialize)
    report = part.capture(options=how)
    if rebuilding is not None:
        report = rebuilding.proved(report, partial(part.verify, front=part.front), warmth.verify)
    ready_seconds = time.perf_counter() - began
    if report.num_remaining:
        report = manager.capture_more(report.num_remaining)
    verdicts = part.verify() if verify else ()
    differing = restart.differing(report)
    learned = not restart.is_warm or differing or any(made.needed_warm_up for made in report.records)
    if learned or (rebuilding is not None and rebuilding.is_save_due):
        calls = noted(part.create_forward_fn, [made.entry for made in report.captured])
        graphs = None if rebuilding is None else rebuilding.save(about, calls)
        restart.remember(
            report,
            outputs=output_shapes(manager.output_buffers),
            calls=one_a_kernel(calls, manager.device),
            errors={verdict.entry: verdict.error for verdict in verdicts},
            measured={"pool_bytes": manager.pool.num_bytes},
            graphs=graphs,
        )
    outcome = FamilyOutcome(
        report=report,
        verdicts=verdicts,
        restart=restart,
        preloaded=preloaded,
        ready_seconds=ready_seconds,
        differing=differing,
    )
    return outcome if rebuilding is None else evolve(outcome, rebuilding=rebuilding.so_far)


def circumstances(plan: Plan, part: Part, stand_in: StandIn) -> Circumstances:
    """What a capture of ``part`` with stand-in models is looked up by."""
    return Circumstances(
        plan=stable_digest(plan),
        family=part.manager.family,
        environment=EnvironmentFingerprint.current(part.manager.device),
        model=ModelFingerprint.of(
            plan.deployment,
            code=code_digest(Path(__file__).parent),
            config=shapes_digest(stand_in.model, stand_in.draft, stand_in.max_model_len),
            dtype=str(stand_in.dtype).removeprefix("torch."),
        ),
        model_name=plan.name or "",
    )


@frozen(kw_only=True)
class Part:
    """One family of a rig: how it is captured and verified, and the tensors that its graphs name.

    ``front`` tells ``verify`` which entries one eager forward may stand for.
    """

    manager: CudaGraphManager
    create_forward_fn: CreateForward
    capture: Callable[..., CaptureReport]
    verify: Callable[..., tuple[Verdict, ...]]
    static: Callable[[], Mapping[str, torch.Tensor]]
    front: Front

    def materials(self, warmth: Warmth) -> Materials:
        """What saving and rebuilding this family's graphs needs.

        Raises:
            CaptureError: graphs are not saved on such a device.
        """
        directory = warmth.cache.directory
        return Materials(
            manager=self.manager,
            device=graph_device(self.manager.backend, None if directory is None else directory / "native"),
            static=self.static,
            operations=(paged_attention,),
        )


@define(kw_only=True)
class Rig:
    """Models, one paged cache and runners for a plan, ready to capture."""

    target: TargetRunner
    manager: CudaGraphManager
    draft: DraftRunner | None = field(default=None)

    @classmethod
    def build(
        cls,
        plan: Plan,
        stand_in: StandIn,
        device: torch.device | str,
        *,
        memory_budget: int | None = None,
    ) -> Rig:
        """The rig of ``plan``.

        Raises:
            CaptureError: the device is none that graphs are recorded on.
            ModelError: the models do not fit each other.
        """
        manager = CudaGraphManager(plan, TARGET, device=device, memory_budget=memory_budget)
        layers = () if stand_in.draft is None else stand_in.draft.target_layer_ids
        model = build_decoder(
            stand_in.model,
            aux_layer_ids=layers,
            seed=stand_in.seed,
            dtype=stand_in.dtype,
            device=manager.device,
        )
        drafter = None if stand_in.draft is None else build_draft(stand_in.draft, model, seed=stand_in.seed)
        length = _max_model_len(plan, stand_in)
        models = (model,) if drafter is None else (model, drafter)
        config = KVCacheConfig(
            _num_blocks(plan, length), BLOCK_SIZE, tuple(each.kv_cache_group for each in models)
        )
        cache = PagedKVCache(config, manager.device)
        cache.randomize(stand_in.seed)
        target = TargetRunner(
            plan, model, config, manager.device, manager, kv_cache=cache, max_model_len=length
        )
        rig = cls(target=target, manager=manager)
        if drafter is not None:
            rig.draft = DraftRunner(
                plan,
                drafter,
                cache,
                DFlashCudaGraphManager(
                    plan, DRAFT, device=manager.device, pool=manager.pool, memory_budget=memory_budget
                ),
                num_speculative_tokens=draft_length(plan) - 1,
                max_model_len=length,
                max_context_tokens=target.buffers.max_num_tokens,
            )
        return rig

    def parts(self) -> Iterator[Part]:
        """The families of the rig, target first."""
        yield Part(
            manager=self.manager,
            create_forward_fn=self.target.create_forward_fn,
            capture=partial(self.manager.capture, self.target.create_forward_fn, "Capturing target"),
            verify=partial(
                verify_entries,
                self.manager,
                self.target.create_forward_fn,
                self.target.trials.fill,
                self.target.trials.replay_context,
                self.target.trials.eager,
            ),
            static=self.target.static_tensors,
            front=self.target.trials.front_of,
        )
        draft = self.draft
        if draft is not None and draft.manager is not None:
            manager = draft.manager
            yield Part(
                manager=manager,
                create_forward_fn=draft.create_forward_fn,
                capture=partial(draft.capture, "Capturing draft"),
                verify=partial(verify_entries, manager, draft.create_forward_fn, draft.fill),
                static=draft.static_tensors,
                front=draft.front_of,
            )


def _max_model_len(plan: Plan, stand_in: StandIn) -> int:
    """Room for the longest query of a graph and some context, within what the model takes."""
    wanted = stand_in.max_model_len or gathered_tokens(plan)
    return min(wanted, stand_in.model.max_position_embeddings)


def _num_blocks(plan: Plan, max_model_len: int) -> int:
    """Blocks for the most requests of any graph at their longest, and the null block."""
    most = max(
        (entry.num_reqs or 1 for entries in plan.graphs.values() for entry in entries),
        default=1,
    )
    return most * -(-max_model_len // BLOCK_SIZE) + 1
