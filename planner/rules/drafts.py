"""Which draft families a server captures beside the target's, by speculative method and runner."""

from __future__ import annotations

from planner.documents.deployment import Deployment, SpeculativeSection
from planner.documents.plan import DRAFT, Finding, ResolvedFamily, Severity
from planner.documents.vllm_fields import vllm_fields
from planner.errors import PlanError
from planner.methods import (
    DFLASH,
    DRAFTLESS_METHODS,
    DSPARK,
    KNOWN_METHODS,
    V1_DRAFT_METHODS,
    method_kind,
    similar_method,
)
from planner.modes import CapturePolicy, Runner
from planner.rules.attention import Attention
from planner.rules.draft import block_draft_family
from planner.rules.draft_autoregressive import autoregressive_families, multi_module_family
from planner.rules.draft_v1 import v1_draft_family
from planner.rules.family import Family, OtherFamilies, unplanned
from planner.rules.settings import Settings

WITHOUT_GRAPHS = DRAFTLESS_METHODS | {"draft_model"}
"""Methods whose drafting the V2 runner records no graphs of (rules 7.7)."""

ANCHOR_ASSUMED = Finding(
    severity=Severity.INFO,
    code="assumed-draft-layout",
    message="the DSpark draft is taken to sample from its anchor, so that its pass has k tokens a request",
)


METHOD_FIELD = "speculative.method"


def refuse_unknown_method(deployment: Deployment) -> None:
    """Refuse a speculative method that the engine does not have.

    Raises:
        PlanError: it has none of that name.
    """
    method = deployment.speculative.method if deployment.speculative else None
    if method is None or method in KNOWN_METHODS:
        return
    if method not in vllm_fields(SpeculativeSection.vllm_config)["method"].choices:
        similar, known = similar_method(method), ", ".join(sorted(KNOWN_METHODS))
        advice = f"did you mean {similar}? Known are" if similar else "known are"
        raise PlanError(
            f"the engine has no method {method!r}; {advice} {known}, and a model's own that ends in _mtp",
            fields=(METHOD_FIELD,),
        )


def draft_families(
    deployment: Deployment, settings: Settings, target: ResolvedFamily, attention: Attention
) -> OtherFamilies:
    """The draft families of a deployment; one that cannot be planned is an error-level finding."""
    speculative = deployment.speculative
    if speculative is None:
        return OtherFamilies()
    if settings.runner is Runner.V1:
        return _v1_families(speculative, target)
    method = method_kind(speculative.method)
    if method == DFLASH:
        as_drafted = deployment.capture.policy not in (None, CapturePolicy.ENGINE)
        family = block_draft_family(settings, target, attention, from_anchor=False, as_drafted=as_drafted)
        return OtherFamilies(families=(family,))
    if method == DSPARK:
        family = block_draft_family(settings, target, attention, from_anchor=True)
        return OtherFamilies(families=(family,), findings=(ANCHOR_ASSUMED,))
    if method == "mtp" and settings.target is not None and settings.target.num_mtp_layers > 1:
        return OtherFamilies(families=(multi_module_family(settings, target),))
    if method in ("eagle", "eagle3", "mtp"):
        return OtherFamilies(families=autoregressive_families(settings, target))
    if method in WITHOUT_GRAPHS:
        return OtherFamilies()
    if method is None:
        return unplanned(
            "the draft's graphs", "speculative.method is not given", "speculative.method: eagle3"
        )
    return _unknown(method)


def _unknown(method: str) -> OtherFamilies:
    return unplanned(
        "the draft's graphs",
        f"the families of method {method} are not known; known are {', '.join(sorted(KNOWN_METHODS))}",
        f"another {METHOD_FIELD}, or plan them by hand",
    )


def _v1_families(speculative: SpeculativeSection, target: ResolvedFamily) -> OtherFamilies:
    method = method_kind(speculative.method)
    if method not in V1_DRAFT_METHODS:
        return OtherFamilies() if method is None or method in KNOWN_METHODS else _unknown(method)
    resolved, entries, decision = v1_draft_family(target, enforce_eager=bool(speculative.enforce_eager))
    family = Family(name=DRAFT, resolved=resolved, entries=entries, decisions=(decision,))
    return OtherFamilies(families=(family,))
