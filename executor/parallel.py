"""What one rank knows of the ranks around it while it runs a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from executor.errors import ContextError
from planner.documents.deployment import Deployment
from planner.errors import argument_error
from planner.rules.settings import Settings, is_moe_model, settle

# fmt: off
SEQUENCE_PARALLEL_BACKENDS = frozenset(
    {
        "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_v2",
        "flashinfer_nvlink_one_sided", "mori_high_throughput", "mori_low_latency", "nixl_ep", "passthrough",
    }
)
# fmt: on
"""All-to-all backends over which the tensor-parallel ranks share out the tokens of experts."""

DEFAULT_ALL2ALL_BACKEND = "allgather_reducescatter"


def require_positive(name: str, value: object) -> None:
    """Refuses a size that is no integer of 1 or more.

    Raises:
        ContextError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ContextError(f"{name} is {value!r}; give an integer of 1 or more")


@frozen(kw_only=True)
class ParallelInfo:
    """The parallel sizes that a forward context depends on, as one data-parallel rank has them.

    ``data_parallel_size`` counts the ranks that agree on every step and ``data_parallel_rank`` is the
    place of this one among them. ``is_moe_model`` is ``None`` where it is not known.
    ``no_compile_layers`` maps names of layers to their modules, ``all_moe_layers`` names the expert
    layers in the order in which a forward runs them, or is ``None`` where layers know their own names.

    Raises:
        ContextError: a size below 1, or a rank that is none of the ranks.
    """

    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    tensor_parallel_size: int = 1
    is_moe_model: bool | None = None
    use_sequence_parallel_moe: bool = False
    no_compile_layers: Mapping[str, Any] = field(factory=dict)
    all_moe_layers: tuple[str, ...] | None = None

    def __attrs_post_init__(self) -> None:
        require_positive("data_parallel_size", self.data_parallel_size)
        require_positive("tensor_parallel_size", self.tensor_parallel_size)
        _require_rank(self.data_parallel_rank, self.data_parallel_size)

    @classmethod
    def of(cls, deployment: Deployment, rank: int = 0) -> ParallelInfo:
        """What the data-parallel rank ``rank`` of ``deployment`` knows; its layers are not known yet.

        The ranks of a model without experts serve by themselves: each is rank 0 of 1.

        Raises:
            ArgumentError: ``deployment`` is no Deployment.
            ContextError: the deployment has no such rank.
            PlanError: the engine would refuse the deployment.
        """
        if not isinstance(deployment, Deployment):
            raise argument_error(
                "ParallelInfo.of", "Deployment", deployment, Plan="its Deployment is plan.deployment"
            )
        settings = settle(deployment)
        _require_rank(rank, deployment.parallel.data_parallel_size or 1)
        return cls(
            data_parallel_size=settings.data_parallel_size,
            data_parallel_rank=rank if settings.data_parallel_size > 1 else 0,
            tensor_parallel_size=deployment.parallel.tensor_parallel_size or 1,
            is_moe_model=is_moe_model(deployment, settings.target),
            use_sequence_parallel_moe=_shares_out_expert_tokens(deployment, settings),
        )


def _require_rank(rank: object, num_ranks: int) -> None:
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < num_ranks:
        raise ContextError(f"data-parallel rank {rank!r} is none of {num_ranks}; give 0 to {num_ranks - 1}")


def _shares_out_expert_tokens(deployment: Deployment, settings: Settings) -> bool:
    """Whether each tensor-parallel rank takes a part of the experts' tokens.

    Source: vLLM 0.33, ``use_sequence_parallel_moe`` of its parallel config (rules 6.4).
    """
    parallel = deployment.parallel
    backend = parallel.all2all_backend or DEFAULT_ALL2ALL_BACKEND
    return (
        bool(parallel.enable_expert_parallel)
        and (parallel.tensor_parallel_size or 1) > 1
        and settings.data_parallel_size > 1
        and backend in SEQUENCE_PARALLEL_BACKENDS
    )
