"""How SGLang spreads a step over ranks, and what that asks of the sizes of its graphs.

Source: SGLang 0.5.23, data-parallel attention, gathered buffers and batch alignment (rules 7, 8.2).
"""

from __future__ import annotations

from attrs import frozen

from planner.documents.deployment import Deployment
from planner.documents.engine_sections import SglangSection
from planner.engines.shared import DP_ATTENTION_FIELD
from planner.errors import PlanError

TP_FIELD = "parallel.tensor_parallel_size"
DP_FIELD = "parallel.data_parallel_size"

NO_A2A = "none"
DEEPEP = "deepep"
GATHERING_A2A = frozenset({NO_A2A, "flashinfer", "mori_epv2", "flashinfer_megamoe"})
"""All-to-all backends that leave the gathering of tokens for the experts to the engine."""

KNOWN_A2A = (
    *(NO_A2A, DEEPEP, "mooncake", "nixl", "mori", "ascend_fuseep", "flashinfer", "megamoe", "deepep_v2"),
    *("ascend_tp", "pplx", "flashinfer_megamoe"),
)


@frozen(kw_only=True)
class Layout:
    """The ranks of one replica. ``attn_*`` are the ranks that share the attention of one request."""

    tp: int
    pp: int
    dcp: int
    attn_dp: int
    attn_cp: int
    moe_dense_tp: int | None
    dp_lm_head: bool
    a2a: str
    two_batch_overlap: bool
    attn_tp_gather_disabled: bool

    @property
    def attn_tp(self) -> int:
        """Tensor-parallel ranks of one attention."""
        return self.tp // self.attn_dp // self.attn_cp

    @property
    def gathers_for_mlp(self) -> bool:
        """Whether the tokens of all data-parallel ranks are gathered ahead of the dense layers."""
        if self.attn_dp == 1:
            return False
        if self.moe_dense_tp is None or not self.dp_lm_head or self.a2a in GATHERING_A2A:
            return True
        return self.moe_dense_tp > self.tp // self.attn_dp

    @property
    def gathers_for_attention(self) -> bool:
        """Whether tokens are scattered over tensor-parallel ranks and gathered for the attention."""
        if self.attn_tp_gather_disabled or (self.a2a == NO_A2A and self.moe_dense_tp is None):
            return False
        return self.attn_dp < self.tp if self.attn_dp > 1 else True

    def alignment(self, *, gathers_for_mlp: bool) -> int:
        """What the tokens of a graph have to be a multiple of."""
        aligned = 2 if self.two_batch_overlap else 1
        if gathers_for_mlp or self.gathers_for_attention:
            aligned *= self.attn_tp
        return aligned if aligned % self.attn_cp == 0 else aligned * self.attn_cp


def layout_of(deployment: Deployment, section: SglangSection, *, dp_lm_head: bool) -> Layout:
    """The layout of ``deployment``.

    Raises:
        PlanError: the ranks cannot be spread so, or the all-to-all backend is not known.
    """
    parallel = deployment.parallel
    tp, attn_dp = parallel.tensor_parallel_size or 1, 1
    if parallel.enable_dp_attention:
        attn_dp = parallel.data_parallel_size or 1
    if tp % attn_dp:
        raise PlanError(
            f"{attn_dp} ranks of data-parallel attention cannot share {tp} tensor-parallel ranks evenly; "
            "make the one a divisor of the other",
            fields=(TP_FIELD, DP_FIELD, DP_ATTENTION_FIELD),
        )
    attn_cp = section.attn_cp_size or 1
    if tp // attn_dp % attn_cp:
        raise PlanError(
            f"{attn_cp} context-parallel ranks cannot share {tp // attn_dp} ranks of attention evenly",
            fields=("sglang.attn_cp_size", TP_FIELD),
        )
    a2a = section.moe_a2a_backend or NO_A2A
    if a2a not in KNOWN_A2A:
        known = ", ".join(KNOWN_A2A)
        raise PlanError(f"{a2a!r} is no backend; those are {known}", fields=("sglang.moe_a2a_backend",))
    return Layout(
        tp=tp,
        pp=parallel.pipeline_parallel_size or 1,
        dcp=parallel.decode_context_parallel_size or 1,
        attn_dp=attn_dp,
        attn_cp=attn_cp,
        moe_dense_tp=section.moe_dense_tp_size,
        dp_lm_head=dp_lm_head,
        a2a=a2a,
        two_batch_overlap=bool(section.enable_two_batch_overlap),
        attn_tp_gather_disabled=bool(section.disable_attn_tp_gather),
    )
