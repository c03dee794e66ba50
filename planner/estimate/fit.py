"""What graphs share the device of a rank with: weights, a step's activations, the KV cache."""

from __future__ import annotations

from attrs import evolve, frozen

from planner.documents.deployment import Deployment
from planner.documents.estimates import DeviceFit
from planner.documents.plan import TARGET, Plan
from planner.errors import PlanError
from planner.estimate.shape import family_shape
from planner.estimate.weights import Footprint, footprint
from planner.rules.devices import device_of

GIB = 2**30

USABLE_SHARE = 0.92
"""How much of a device's memory the engine uses. Source: vLLM 0.33, default of gpu_memory_utilization."""


@frozen(kw_only=True)
class Room:
    """What graphs share a device with, in bytes of one rank.

    ``step`` is for the activations of the largest step, ``kv`` for the least cache that is needed:
    ``num_kv_tokens`` where the deployment says, else one request of the greatest length.
    """

    memory: float
    weights: float
    step: float
    kv: float
    footprint: Footprint
    num_kv_tokens: int | None

    @property
    def usable(self) -> float:
        """What the engine takes of the memory."""
        return USABLE_SHARE * self.memory

    @property
    def for_graphs(self) -> float:
        """What is left for graphs, negative where all else does not fit already."""
        return self.usable - self.weights - self.step - self.kv


def device_fit(plan: Plan, graphs_gib: float) -> DeviceFit | None:
    """The share of graphs in the device's memory, and what they leave; ``None`` where that is not known."""
    memory = _memory_gib(plan.deployment)
    if memory is None:
        return None
    fit = DeviceFit(
        memory_gib=memory,
        share=round(graphs_gib / memory, 4),
        usable_gib=round(USABLE_SHARE * memory, 2),
    )
    room = room_of(plan)
    if room is None:
        return fit
    cache = room.usable - room.weights - room.step - graphs_gib * GIB
    if room.num_kv_tokens is not None:
        cache = room.kv
    cache = max(cache, 0)
    tokens = room.footprint.num_tokens(cache) if room.num_kv_tokens is None else room.num_kv_tokens
    return evolve(
        fit,
        weights_gib=round(room.weights / GIB, 2),
        kv_cache_gib=round(cache / GIB, 2),
        kv_cache_tokens=tokens,
    )


def _memory_gib(deployment: Deployment) -> float | None:
    try:
        return device_of(deployment.device).memory_gib or None
    except PlanError:
        return None


def room_of(plan: Plan) -> Room | None:
    """What graphs share their device with; ``None`` where device or model do not tell it."""
    memory, found = _memory_gib(plan.deployment), footprint(plan.deployment)
    if memory is None or found is None or not found.token_bytes:
        return None
    model = plan.deployment.model
    tokens = None if model.num_kv_blocks is None else model.num_kv_blocks * (model.block_size or 16)
    return Room(
        memory=memory * GIB,
        weights=found.weight_bytes,
        step=_step_bytes(plan),
        kv=found.request_bytes if tokens is None else tokens * found.token_bytes,
        footprint=found,
        num_kv_tokens=tokens,
    )


def _step_bytes(plan: Plan) -> float:
    """Activations of the largest step, which the server tries out before it sizes its KV cache."""
    resolved, shape = plan.resolved.get(TARGET), family_shape(plan.deployment, TARGET)
    tokens = None if resolved is None else resolved.max_num_batched_tokens
    return (tokens or 0) * shape.activation_width * shape.element_bytes
