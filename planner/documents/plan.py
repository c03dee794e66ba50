"""Plan: what will be captured, why, and what a person should know about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

from planner.descriptors import MAX_GRAPH_TOKENS, MAX_LORAS, PlanEntry
from planner.documents.deployment import Deployment, Json, within
from planner.documents.estimates import Estimate
from planner.errors import FamilyError
from planner.modes import AttentionSupport, CUDAGraphMode, Runner

if TYPE_CHECKING:
    from planner.dispatch import DispatchTable
    from planner.dispatch_v1 import V1DispatchTable

TARGET = "target"
DRAFT = "draft"


@frozen(kw_only=True)
class AttentionGroup:
    """The layers of one KV group: their kind, their backend and what it can replay."""

    kind: str
    backend: str
    support: AttentionSupport


@frozen(kw_only=True)
class Microbatching:
    """vLLM's dual-batch overlap: how many microbatches, and from how many tokens on.

    The thresholds are inclusive and count the tokens of the smallest rank.
    """

    num_ubatches: int = field(metadata=within(1))
    decode_token_threshold: int = field(metadata=within(0))
    prefill_token_threshold: int = field(metadata=within(0))


@frozen(kw_only=True)
class Lookup:
    """How a batch finds its graph where decode is looked up by requests, and prefill by tokens.

    Without ``pads_decode``, decode replays graphs of exactly its requests only.
    ``max_prefill_factor`` bounds the tokens of a prefill graph to that many times those of the batch,
    ``max_prefill_seq_len`` the tokens of its longest sequence, context included. With
    ``shares_decode_size``, data-parallel ranks decode in the size of the rank with the most requests.
    """

    pads_decode: bool = True
    max_prefill_factor: int | None = field(default=None, metadata=within(1))
    max_prefill_seq_len: int | None = field(default=None, metadata=within(1))
    shares_decode_size: bool = False


@frozen(kw_only=True)
class ResolvedFamily:
    """What was derived for one family of graphs; sizes and lengths count tokens of one rank.

    ``cudagraph_capture_sizes`` ascend. ``decode_query_len`` is the family's own query length,
    ``uniform_query_lens`` those that its FULL decode entries are made for. ``lora_cases`` are the
    captured numbers of active adapters, 0 for none. ``lookup`` is there for engines other than vLLM.
    """

    runner: Runner
    cudagraph_mode: CUDAGraphMode
    cudagraph_capture_sizes: tuple[int, ...] = field(default=(), metadata=within(1, MAX_GRAPH_TOKENS))
    max_cudagraph_capture_size: int = field(default=0, metadata=within(0, MAX_GRAPH_TOKENS))
    max_num_seqs: int | None = field(default=None, metadata=within(1, MAX_GRAPH_TOKENS))
    max_num_batched_tokens: int | None = field(default=None, metadata=within(1))
    max_num_active_seqs: int | None = field(default=None, metadata=within(0))
    data_parallel_size: int | None = field(default=None, metadata=within(1))
    decode_query_len: int | None = field(default=None, metadata=within(1))
    uniform_query_lens: tuple[int, ...] = field(default=(), metadata=within(1))
    lora_cases: tuple[int, ...] = field(default=(0,), metadata=within(0, MAX_LORAS + 1))
    attention_support: AttentionSupport | None = None
    attention_groups: tuple[AttentionGroup, ...] = ()
    microbatching: Microbatching | None = None
    lookup: Lookup | None = None

    @property
    def limiting_groups(self) -> tuple[AttentionGroup, ...]:
        """The attention groups that set ``attention_support``."""
        return tuple(group for group in self.attention_groups if group.support is self.attention_support)


@frozen(kw_only=True)
class Decision:
    """One value that differs from what was asked, or that nobody asked for.

    ``asked`` is ``None`` where the user left the value open. ``rule`` names the rule and
    ``because`` the circumstance that triggered it.
    """

    path: str
    asked: Json = None
    became: Json = None
    rule: str
    because: str


class Severity:
    """How much a finding matters: errors fail a check, warnings do under ``--strict``."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@frozen(kw_only=True)
class Finding:
    """What a person should know about a plan, and the setting that would change it."""

    severity: str = field(metadata={"choices": (Severity.ERROR, Severity.WARNING, Severity.INFO)})
    code: str
    message: str
    fix: str | None = None


@frozen(kw_only=True)
class Plan:
    """The graphs of every family in capture order, and where they come from.

    A plan written by hand may have ``graphs`` alone. ``estimates`` say what the graphs will take.
    """

    name: str | None = None
    digest: str | None = None
    deployment: Deployment = field(factory=Deployment)
    resolved: Mapping[str, ResolvedFamily] = field(factory=dict)
    decisions: tuple[Decision, ...] = ()
    findings: tuple[Finding, ...] = ()
    estimates: Estimate | None = None
    graphs: Mapping[str, tuple[PlanEntry, ...]]

    def entries(self, family: str = TARGET) -> tuple[PlanEntry, ...]:
        """The entries of ``family`` in capture order.

        Raises:
            FamilyError: the plan has no such family.
        """
        if family not in self.graphs:
            known = ", ".join(self.graphs) or "none"
            raise FamilyError(f"graphs.{family}: the plan has no such family; it has: {known}")
        return self.graphs[family]

    def dispatch_table(self, family: str = TARGET) -> DispatchTable | V1DispatchTable:
        """The table that tells which entry of ``family`` serves a batch, by its runner's rules.

        Raises:
            FamilyError: the plan has no such family.
            PlanError: its entries would make a table of gigabytes, as no compiled plan does.
        """
        from planner.dispatch import dispatch_table

        return dispatch_table(self, family)
