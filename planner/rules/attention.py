"""What attention can replay: the minimum over all KV groups, the draft's own, and its source."""

from __future__ import annotations

from attrs import frozen

from planner.documents.deployment import Deployment
from planner.documents.plan import AttentionGroup, Finding, Severity
from planner.modes import AttentionSupport


@frozen(kw_only=True)
class Attention:
    """Attention of one deployment.

    ``support`` is the minimum over all groups, drafts included; ``deciding`` names the group that
    sets it. ``draft_support`` is that of the draft's layers alone. ``varlen_max_query_len`` bounds
    the query length of FULL graphs over mixed lengths, ``None`` where there are none.
    """

    support: AttentionSupport
    deciding: str | None
    draft_support: AttentionSupport
    varlen_max_query_len: int | None
    groups: tuple[AttentionGroup, ...] = ()
    findings: tuple[Finding, ...] = ()


def attention_of(deployment: Deployment) -> Attention:
    """What the attention of ``deployment`` can replay."""
    model, speculative = deployment.model, deployment.speculative
    draft = speculative.attention_support if speculative else None
    findings = []
    if model.attention_support is None:
        findings.append(_assumed("model.attention_support"))
    support = model.attention_support or AttentionSupport.ALWAYS
    return Attention(
        support=support,
        deciding=None,
        draft_support=draft or AttentionSupport.ALWAYS,
        varlen_max_query_len=model.varlen_max_query_len,
        findings=tuple(findings),
    )


def _assumed(path: str) -> Finding:
    return Finding(
        severity=Severity.INFO,
        code="assumed-attention-support",
        message=f"{path} is not given and neither is a backend or a model: ALWAYS is assumed",
        fix=f"{path}: UNIFORM_BATCH",
    )
